"""Closing a month: every item of the checklist, both steps, and nothing that comes later."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.adjustments import propose
from gateway.finance.approvers import has_other_approver
from gateway.finance.bill_messages import (
    ImportFile,
    ListImports,
    ListRuns,
    Reconcile,
    ShowRun,
    SourceKind,
)
from gateway.finance.close import Books, close_month, close_status
from gateway.finance.close_messages import CloseMonth, CloseStatus, CloseStep, VerifyCloses
from gateway.finance.closed_months import verify_closes
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import Refused, UnreadableSource
from gateway.finance.messages import (
    Adjustment,
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Propose,
)
from gateway.ledger import schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.finance_tables import period_close
from gateway.ledger.service import LedgerService
from gateway.ledger.verify import Verification, verify
from tests.gateway.finance_books import attempt, load, unknown, write, writing
from tests.gateway.ledger_samples import FakeClock

MONTH, USD = "2026-10", 10**12
START = 1792195200


def at(day: str) -> int:
    return to_microseconds(datetime.fromisoformat(day).replace(tzinfo=UTC))


NOVEMBER_6 = at("2026-11-06")


def sound(**changes) -> Books:
    values = {
        "faults": (),
        "events": 0,
        "cost_pico_usd": 0,
        "open_intents": 0,
        "backlog_records": 0,
        "quarantined": 0,
    }
    is_loaded = changes.pop("is_loaded", True)
    return Books(verification=Verification(**(values | changes)), is_loaded=is_loaded)


def order(step=CloseStep.HARD, **changes) -> CloseMonth:
    return CloseMonth(**({"actor": "ann", "month": MONTH, "step": step} | changes))


ALL = {"reconciliation": "no bill comes", "exposures": "small", "unpriced": "known"}


def whole_month(value: str) -> bytes:
    """OpenAI's costs of every day of October, all on the 17th."""
    first = START - 16 * 86_400
    result = {
        "object": "organization.costs.result",
        "amount": {"value": value, "currency": "usd"},
        "line_item": "gpt-4o-2024-08-06, input",
        "quantity": 1_000_000,
    }
    days = [
        {"start_time": first + day * 86_400, "results": [result] if day == 16 else []}
        for day in range(31)
    ]
    return json.dumps({"data": days}).encode()


@pytest.mark.anyio
async def test_a_month_closes_for_good_with_digest_and_chain_head(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        done = close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        assert (done.state, done.closed_by, done.events) == ("closed", "ann", 1)
        assert done.cost_pico_usd == 2_500_000 * 1_000_000
        log = schema.audit_log
        head = connection.execute(sa.select(log.c.hash).order_by(log.c.seq.desc())).scalars()
        assert done.anchor == next(iter(head)).hex()
        [line] = connection.execute(sa.select(log.c.details)).scalars()
        assert line["digest"] == done.digest
        assert list(audit_faults(connection)) == []
        [proof] = verify_closes(connection, VerifyCloses())
        assert (proof.is_same, proof.digest) == (True, done.digest)
        assert close_status(
            connection, CloseStatus(month=MONTH), sound(), now_us=NOVEMBER_6
        ) == msgspec.structs.replace(done)


@pytest.mark.anyio
async def test_a_closed_month_is_closed_once_and_never_opened(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        for step in CloseStep:
            with pytest.raises(Refused, match="is closed already; a close is never undone"):
                close_month(connection, order(step, accepted=ALL), sound(), now_us=NOVEMBER_6)


@pytest.mark.anyio
async def test_late_events_still_land_in_a_softly_closed_month(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    engine = writing(url)
    with engine.begin() as connection:
        soft = close_month(connection, order(CloseStep.SOFT), sound(), now_us=at("2026-11-03"))
        assert (soft.state, soft.soft_by) == ("soft", "ann")
        with pytest.raises(Refused, match="is soft already"):
            close_month(connection, order(CloseStep.SOFT), sound(), now_us=NOVEMBER_6)
    clock = FakeClock()
    await load(tmp_path, url, [attempt(2)], clock=clock, session=2)
    with engine.begin() as connection:
        done = close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        assert (done.events, done.soft_at_us) == (2, at("2026-11-03"))
    await load(tmp_path, url, [attempt(3)], clock=clock, session=3)
    with engine.begin() as connection:
        proofs = verify_closes(connection, VerifyCloses())
        assert [proof.is_same for proof in proofs] == [True]
        status = close_status(
            connection, CloseStatus(month="2026-11"), sound(), now_us=at("2026-12-06")
        )
        assert (status.events, status.late_pico_usd) == (0, 2_500_000 * 1_000_000)


FAULTS = {
    "the month is not over": (
        {"now_us": at("2026-10-31")},
        {},
        "month_over: it ends on 2026-11-01",
    ),
    "it is early": ({"now_us": at("2026-11-03")}, {}, "may still change until 2026-11-06"),
    "spools wait": ({}, {"is_loaded": False, "backlog_records": 3}, "3 records in the spools"),
    "the ledger does not hold": ({}, {"faults": ("a cell is wrong",)}, "1 fault, .*a cell"),
    "something lies in quarantine": (
        {},
        {"faults": ("quarantined from x",), "quarantined": 1},
        r"quarantine: 1 record could not be booked \(may be accepted\)",
    ),
}


@pytest.mark.parametrize(("when", "what", "says"), FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.anyio
async def test_an_open_item_keeps_the_month_open(tmp_path, when, what, says):
    engine = writing(await write(tmp_path, [attempt(1)]))
    now_us = when.get("now_us", NOVEMBER_6)
    with engine.begin() as connection:
        with pytest.raises(Refused, match=f"2026-10 cannot be closed: .*{says}"):
            close_month(connection, order(accepted=ALL), sound(**what), now_us=now_us)
        assert connection.execute(sa.select(period_close)).all() == []


@pytest.mark.anyio
async def test_attempts_under_way_keep_the_month_open(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    under_way = {
        "event_id": bytes(16),
        "directory": "w1",
        "session": bytes(16),
        "at_us": at("2026-10-31"),
        "expires_at_us": NOVEMBER_6,
        "payload": b"",
    }
    with writing(url).begin() as connection:
        connection.execute(sa.insert(schema.attempt_intent).values(**under_way))
        with pytest.raises(Refused, match="1 attempt neither settled nor"):
            close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)


@pytest.mark.anyio
async def test_unknown_bills_and_missing_prices_are_named_and_may_be_accepted(tmp_path):
    unpriced = attempt(3, cost_pico_usd=None, lines=())
    url = await write(tmp_path, [unknown(2, exposure=USD), unpriced])
    with writing(url).begin() as connection:
        with pytest.raises(Refused) as caught:
            close_month(connection, order(), sound(), now_us=NOVEMBER_6)
        for words in (
            "1 attempt of unknown bill: up to 1 USD (may be accepted)",
            "1 attempt without price",
            "no reconciliation was run",
        ):
            assert words in str(caught.value)
        done = close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        accepted = {item.name: item for item in done.items if item.state == "accepted"}
        assert accepted.keys() == ALL.keys()
        assert accepted["exposures"].sentence.endswith("accepted: small")


WRONG = {
    "what is no item": ({"weather": "fine"}, "'weather' is none of the checklist: month_over"),
    "what has to be mended": ({"ledger_verified": "so what"}, "ledger_verified cannot be accepted"),
}


@pytest.mark.parametrize(("accepted", "says"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.anyio
async def test_not_everything_can_be_accepted(tmp_path, accepted, says):
    url = await write(tmp_path, [attempt(1)])
    with writing(url).begin() as connection, pytest.raises(Refused, match=says):
        close_month(connection, order(accepted=accepted), sound(), now_us=NOVEMBER_6)


@pytest.mark.anyio
async def test_months_close_in_their_order(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    november = order(month="2026-11", accepted=ALL)
    december = at("2026-12-07")
    with writing(url).begin() as connection:
        with pytest.raises(Refused, match="earlier_months: 2026-10 has to be closed first"):
            close_month(connection, november, sound(), now_us=december)
        close_month(connection, order(accepted=ALL), sound(), now_us=december)
        close_month(connection, november, sound(), now_us=december)
        with pytest.raises(Refused, match="is closed already"):
            close_month(connection, order(accepted=ALL), sound(), now_us=december)


@pytest.mark.anyio
async def test_a_proposal_that_waits_keeps_the_month_open(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    line = AdjustmentLine(amount_pico_usd=1, team="payments")
    wanted = Propose(
        actor="ann", period=MONTH, kind=AdjustmentKind.TAX, reason="VAT", lines=(line,)
    )
    with writing(url).begin() as connection:
        propose(connection, wanted, now_us=NOVEMBER_6)
        with pytest.raises(Refused, match="neither approved nor rejected: proposal 1"):
            close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)


async def reconciliation_item(desk) -> str:
    status = await desk.answer(CloseStatus(month=MONTH))
    [item] = [item for item in status.items if item.name == "reconciliation"]
    return f"{item.state}: {item.sentence}"


@pytest.mark.anyio
async def test_a_run_that_is_no_proof_keeps_the_month_open(tmp_path):
    url = await write(tmp_path, [attempt(1), attempt(2, account="groq", at_us=at("2026-10-31"))])
    clock = FakeClock(wall=at("2026-11-01"))
    service = LedgerService(url, tmp_path / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    bill = ImportFile(
        actor="ann",
        source=SourceKind.OPENAI_COSTS,
        account="openai",
        file_name="costs.json",
        content=whole_month("2.5"),
    )
    await desk.answer(bill)
    await desk.answer(Reconcile(actor="ann", month=MONTH))
    said = await reconciliation_item(desk)
    assert said == "open: run 1 could not compare everything: groq no source"
    clock.pass_s(1)
    mapping = "columns: {day: d, amount: a}"
    usual = b"d,a\n2026-10-01,0\n2026-10-31,2.5\n"
    other = msgspec.structs.replace(
        bill, source=SourceKind.CSV, account="groq", content=usual, mapping=mapping
    )
    await desk.answer(other)
    assert "files were imported after run 1" in await reconciliation_item(desk)
    dear = usual.replace(b"31,2.5", b"31,9")
    await desk.answer(msgspec.structs.replace(other, content=dear, overlap="replace"))
    await desk.answer(Reconcile(actor="ann", month=MONTH))
    assert "run 2 has 1 difference that was not final" in await reconciliation_item(desk)
    clock.wall = NOVEMBER_6
    await desk.answer(Reconcile(actor="ann", month=MONTH))
    assert await reconciliation_item(desk) == "ok: run 3 compared every account"
    await service.stop(drain=False)


def test_a_person_who_may_change_finance_is_another_approver(tmp_path):
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        assert not has_other_approver(connection, "admin-key")
        connection.exec_driver_sql("CREATE TABLE principal (id TEXT, disabled_at_us INTEGER)")
        connection.exec_driver_sql("CREATE TABLE membership (principal_id TEXT, role TEXT)")
        connection.exec_driver_sql("INSERT INTO principal VALUES ('p1', NULL), ('p2', 5)")
        connection.exec_driver_sql(
            "INSERT INTO membership VALUES ('p1', 'finance_admin'), ('p2', 'finance_admin')"
        )
        assert has_other_approver(connection, "admin-key")
        assert not has_other_approver(connection, "person:p1")
        assert has_other_approver(connection, "person:p2")
    engine.dispose()


@pytest.mark.anyio
async def test_a_month_from_its_bill_to_its_close_through_the_desk(tmp_path):
    """Everything that commands and pages ask, against the ledger's own service."""
    url = await write(tmp_path, [attempt(1), unknown(2, team="search", exposure=USD // 10)])
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(url, tmp_path / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    wanted = ImportFile(
        actor="ann",
        source=SourceKind.OPENAI_COSTS,
        account="openai",
        file_name="costs.json",
        content=whole_month("3"),
    )
    broken = msgspec.structs.replace(wanted, content=b"<html>", file_name="page.html")
    with pytest.raises(UnreadableSource, match="page.html: is no JSON"):
        await desk.answer(broken)
    reply = await desk.answer(wanted)
    assert reply.is_new
    assert [one.state for one in await desk.answer(ListImports())] == ["ok", "unreadable"]
    run = await desk.answer(Reconcile(actor="ann", month=MONTH))
    assert (run.state, run.billed_pico_usd) == ("read", 3 * USD)
    assert await desk.answer(ShowRun(run_id=run.run_id)) == run
    assert len(await desk.answer(ListRuns())) == 1
    [proposal] = await desk.answer(ListProposals(state="proposed"))
    decision = Decide(actor="ann", proposal_id=proposal.proposal_id, is_approved=True)
    assert (await desk.answer(decision)).state == "posted"
    posted = await desk.answer(ListAdjustments(from_period=MONTH))
    assert sum(one.amount_pico_usd for one in posted) == USD // 2
    assert isinstance(posted[0], Adjustment)
    move = (
        AdjustmentLine(amount_pico_usd=-5, team="unattributed"),
        AdjustmentLine(amount_pico_usd=5, team="search"),
    )
    made = await desk.answer(
        Propose(
            actor="ann",
            period=MONTH,
            kind=AdjustmentKind.REATTRIBUTION,
            reason="search used it",
            lines=move,
        )
    )
    await desk.answer(Decide(actor="ben", proposal_id=made.proposal_id, is_approved=True))
    status = await desk.answer(CloseStatus(month=MONTH))
    assert [item.name for item in status.items if item.state != "ok"] == []
    done = await desk.answer(order())
    assert (done.state, done.adjusted_pico_usd) == ("closed", USD // 2)
    assert [one.is_same for one in await desk.answer(VerifyCloses())] == [True]
    await service.stop(drain=False)
    with writing(url).begin() as connection:
        assert verify(connection, tmp_path / "spool").faults == ()
