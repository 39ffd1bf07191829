"""A hard close by two people: digest proposed, digest confirmed, void once the month changed."""

from __future__ import annotations

import anyio
import pytest
import sqlalchemy as sa

from gateway.finance.close import close_month, close_status, propose_close
from gateway.finance.close_messages import (
    CloseMonth,
    CloseStatus,
    CloseStep,
    ListCloses,
    ProposeClose,
    WithdrawClose,
)
from gateway.finance.close_proposals import note_void, withdraw
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import NotFound, ProposalVoid, Refused
from gateway.finance.form_messages import Done, Once
from gateway.ledger import schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.finance_tables import close_proposal
from gateway.ledger.service import LedgerService
from tests.gateway.finance_books import attempt, load, write, writing
from tests.gateway.ledger_samples import FakeClock, open_spool
from tests.gateway.pages_harness import running_pages
from tests.gateway.people_harness import SAME, logged_in, make
from tests.gateway.test_finance_close import ALL, MONTH, NOVEMBER_6, order, sound
from tests.gateway.test_finance_journal import adjust
from tests.gateway.test_pages_admin import code_of
from tests.gateway.test_pages_books import OCTOBER_17, fields, send

pytestmark = pytest.mark.anyio


def proposing(**changes) -> ProposeClose:
    return ProposeClose(**({"actor": "ann", "month": MONTH, "accepted": ALL} | changes))


def confirming(digest: str, **changes) -> CloseMonth:
    return order(**({"actor": "ben", "needs_two": True, "digest": digest} | changes))


def states(connection) -> list[tuple[str, str]]:
    table = close_proposal
    rows = connection.execute(sa.select(table.c.state, table.c.decided_by).order_by(table.c.id))
    return [tuple(row) for row in rows]


def acts(connection) -> list[tuple[str, str]]:
    log = schema.audit_log
    rows = connection.execute(sa.select(log.c.actor, log.c.action).order_by(log.c.seq))
    return [tuple(row) for row in rows]


async def test_one_proposes_and_another_confirms_the_digest(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        made = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
        assert (made.state, made.proposed_by, made.events, made.is_current) == (
            "open", "ann", 1, True,
        )  # fmt: skip
        status = CloseStatus(month=MONTH)
        assert close_status(connection, status, sound(), now_us=NOVEMBER_6).proposal == made
        done = close_month(connection, confirming(made.digest), sound(), now_us=NOVEMBER_6 + 1)
        assert (done.state, done.closed_by, done.digest) == ("closed", "ben", made.digest)
        assert done.proposal is not None
        assert (done.proposal.state, done.proposal.decided_by) == ("confirmed", "ben")
        assert {item.name for item in done.items if item.state == "accepted"} == {"reconciliation"}
        assert acts(connection) == [("ann", "period.propose_close"), ("ben", "period.close")]
        details = connection.execute(sa.select(schema.audit_log.c.details)).scalars().all()
        assert details[1]["proposed_by"] == "ann"
        assert list(audit_faults(connection)) == []
        with pytest.raises(Refused, match="closed already"):
            propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)


REFUSED = {
    "nobody proposed it": (None, {}, "takes two people .*nobody has proposed it"),
    "who proposed confirms": ({}, {"actor": "ann"}, "ann proposed .*cannot confirm it too"),
    "another digest": ({}, {"digest": "0" * 64}, "proposed with digest .*not 0{64}"),
    "no digest": ({}, {"digest": ""}, "confirm that one, not none"),
    "something else is accepted": ({}, {"accepted": ALL}, "accepts what was proposed"),
}


@pytest.mark.parametrize(("proposed", "changes", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_nobody_closes_alone(tmp_path, proposed, changes, says):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        digest = ""
        if proposed is not None:
            made = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
            digest = made.digest
        with pytest.raises(Refused, match=says):
            close_month(
                connection, confirming(**({"digest": digest} | changes)), sound(), now_us=NOVEMBER_6
            )
        assert [state for state, _ in states(connection)] == ["open"] * (proposed is not None)


async def test_a_proposal_needs_what_the_close_needs_and_the_close_looks_again(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        with pytest.raises(Refused, match="2026-10 cannot be closed: .*reconciliation"):
            propose_close(connection, proposing(accepted={}), sound(), now_us=NOVEMBER_6)
        with pytest.raises(Refused, match="month_over cannot be accepted"):
            wrong = proposing(accepted={"month_over": "x"})
            propose_close(connection, wrong, sound(), now_us=NOVEMBER_6)
        made = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
        broken = sound(faults=("a cell is wrong",))
        with pytest.raises(Refused, match="ledger_verified"):
            close_month(connection, confirming(made.digest), broken, now_us=NOVEMBER_6)
        soft = order(CloseStep.SOFT, actor="ann", needs_two=True)
        assert close_month(connection, soft, sound(), now_us=NOVEMBER_6).state == "soft"


async def test_a_proposal_is_replaced_withdrawn_or_overtaken(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        taken_back = WithdrawClose(actor="ben", month=MONTH, reason="a bill is missing")
        with pytest.raises(NotFound, match="no close of 2026-10 waits"):
            withdraw(connection, taken_back, now_us=NOVEMBER_6)
        propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
        propose_close(connection, proposing(actor="cyd"), sound(), now_us=NOVEMBER_6)
        assert states(connection) == [("replaced", "cyd"), ("open", "")]
        gone = withdraw(connection, taken_back, now_us=NOVEMBER_6)
        assert (gone.state, gone.decided_by, gone.reason) == (
            "withdrawn", "ben", "a bill is missing",
        )  # fmt: skip
        propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
        # The option was taken out of the configuration: one person closes, and nothing waits on.
        done = close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        assert (done.state, done.proposal) == ("closed", None)
        assert states(connection)[-1] == ("replaced", "ann")


async def test_a_month_that_changed_makes_the_proposal_void(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    engine = writing(url)
    with engine.begin() as connection:
        made = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
    with engine.begin() as connection:
        adjust(connection, ("payments", -7), kind="tax")
        shown = close_status(connection, CloseStatus(month=MONTH), sound(), now_us=NOVEMBER_6)
        assert (shown.proposal.is_current, shown.proposal.digest) == (False, made.digest)
        with pytest.raises(ProposalVoid, match="has changed since .*void, propose it again"):
            close_month(connection, confirming(made.digest), sound(), now_us=NOVEMBER_6)
    await load(tmp_path, url, [attempt(2)], clock=FakeClock(), session=2)
    service = LedgerService(url, tmp_path / "spool", clock=FakeClock(wall=NOVEMBER_6).clock)
    await service.start()
    try:
        desk = FinanceDesk(service, clock=FakeClock(wall=NOVEMBER_6).clock)
        form = Once(form="a" * 32, act=confirming(made.digest))
        with pytest.raises(ProposalVoid):
            await desk.answer(form)
        with pytest.raises(Refused, match="nobody has proposed it"):
            await desk.answer(confirming(made.digest))
        again = Once(form="b" * 32, act=proposing())
        done = await desk.answer(again)
        assert done == Done(
            subject=MONTH, sentence="the close of 2026-10 waits for somebody else to confirm it"
        )
        assert (await desk.answer(again)).is_repeated
        report = await desk.answer(CloseStatus(month=MONTH))
        act = WithdrawClose(actor="ann", month=MONTH, reason="x")
        gone = await desk.answer(Once(form="c" * 32, act=act))
        assert gone.sentence == "the close of 2026-10 is withdrawn"
        assert report.proposal.events == 2
    finally:
        await service.stop(drain=False)
    with engine.begin() as connection:
        assert states(connection) == [("void", "ben"), ("withdrawn", "ann")]
        assert acts(connection)[-3:] == [
            ("ben", "period.void_close"),
            ("ann", "period.propose_close"),
            ("ann", "period.withdraw_close"),
        ]


async def test_what_is_proposed_anew_is_not_void_with_what_was_refused(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        old = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
        adjust(connection, ("payments", -7), kind="tax")
    with engine.connect() as connection, pytest.raises(ProposalVoid) as refused:
        close_month(connection, confirming(old.digest), sound(), now_us=NOVEMBER_6)
    with engine.begin() as connection:
        new = propose_close(connection, proposing(), sound(), now_us=NOVEMBER_6)
    with engine.begin() as connection:
        note_void(connection, refused.value, actor="ben", now_us=NOVEMBER_6)
        assert states(connection) == [("replaced", "ann"), ("open", "")]
        close_month(connection, confirming(new.digest), sound(), now_us=NOVEMBER_6)
        note_void(connection, refused.value, actor="ben", now_us=NOVEMBER_6)
        assert states(connection)[-1] == ("confirmed", "ben")


async def at_once(desk: FinanceDesk, *acts) -> list[object]:
    """What comes of acts that are asked for at the same time: an answer or a refusal each."""
    outcomes: list[object] = []

    async def one(act) -> None:
        try:
            outcomes.append(await desk.answer(act))
        except Refused as error:
            outcomes.append(error)

    async with anyio.create_task_group() as tasks:
        for act in acts:
            tasks.start_soon(one, act)
    return outcomes


def closed_by(outcomes) -> list[str]:
    return [one.closed_by for one in outcomes if getattr(one, "state", "") == "closed"]


async def race(url: str, folder) -> None:
    """Two confirm at once: first while the month changes, then while it is proposed anew."""
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(url, folder / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    try:
        made = await desk.answer(proposing())
        late = open_spool(folder / "spool" / "w1", session=1, clock=clock.clock)
        for record in attempt(1):
            late.append(record)
        await late.close()
        both = (confirming(made.digest), confirming(made.digest, actor="cyd"))
        outcomes = await at_once(desk, *both)
        assert closed_by(outcomes) == []
        assert any(isinstance(one, ProposalVoid) for one in outcomes)
        made = await desk.answer(proposing())
        both = (confirming(made.digest), confirming(made.digest, actor="cyd"))
        outcomes = await at_once(desk, *both, proposing(actor="dan"))
        [closer] = closed_by(outcomes)
        assert closer in ("ben", "cyd")
        report = await desk.answer(CloseStatus(month=MONTH))
        assert (report.digest, report.proposal.state) == (made.digest, "confirmed")
        assert report.proposal.proposed_by in ("ann", "dan")
        verification = await service.verify()
        assert verification.faults == ()
        months = await desk.answer(ListCloses())
        assert [(one.month, one.state) for one in months] == [(MONTH, "closed")]
    finally:
        await service.stop(drain=False)


async def test_of_two_who_confirm_at_once_one_closes_on_sqlite(tmp_path):
    await race(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)


@pytest.mark.slow
async def test_of_two_who_confirm_at_once_one_closes_on_postgresql(tmp_path, postgres_url):
    await race(postgres_url, tmp_path)


TWO = """
finance: {close: {two_person: true, soft_after_days: 0, hard_after_days: 0}}
"""


@pytest.mark.slow
async def test_two_people_close_a_month_over_http_and_on_the_page(tmp_path):
    async with running_pages(tmp_path, more=TWO) as pages:
        await pages.book(ago_us=OCTOBER_17)
        for login, role in (("carla", "finance_admin"), ("amir", "finance_admin")):
            await make(pages, login, role)
        path = f"/admin/v1/finance/months/{MONTH}"
        accepted = {"accepted": {"reconciliation": "no bill comes"}}
        async with pages.admin() as admin:
            alone = await admin.post(f"{path}/close", json={"step": "hard", **accepted})
            assert (alone.status_code, code_of(alone)) == (409, "finance_conflict")
            assert "takes two people" in alone.text
            made = await admin.post(f"{path}/close-proposal", json=accepted)
            assert made.status_code == 201
            digest = made.json()["digest"]
            own = await admin.post(f"{path}/close", json={"step": "hard", "digest": digest})
            assert (own.status_code, "cannot confirm it too" in own.text) == (409, True)
            soft = await admin.post(f"{path}/close", json={"step": "soft", "digest": digest})
            assert soft.status_code == 422
            gone = await admin.post(f"{path}/close-proposal/withdraw", json={"reason": "no"})
            assert gone.json()["state"] == "withdrawn"
            none = await admin.post(f"{path}/close-proposal/withdraw", json={"reason": "no"})
            assert (none.status_code, code_of(none)) == (404, "finance_not_found")
        place = f"/ui/close/{MONTH}"
        page = f"/ui/close?month={MONTH}"
        async with logged_in(pages, "carla") as carla, logged_in(pages, "amir") as amir:
            form = await fields(carla, page) | {"accept-reconciliation": "no bill comes"}
            review = await send(carla, place, form | {"do": "review"})
            assert "Propose to close October 2026 for good" in review.text
            refused = await send(carla, place, form | {"do": "hard", "confirm": MONTH})
            assert "takes two people" in refused.text
            done = await send(carla, place, form | {"do": "propose"})
            assert done.status_code == 303, done.text
            own_page = (await carla.get(page)).text
            assert "You proposed it" in own_page
            assert 'value="confirm"' not in own_page
            other = (await amir.get(page)).text
            assert f'name="digest" value="{digest}"' in other
            form = await fields(amir, page) | {"digest": digest, "do": "confirm"}
            missing = await send(amir, place, form)
            assert (missing.status_code, f"type {MONTH} to confirm" in missing.text) == (422, True)
            empty = await send(amir, place, form | {"do": "withdraw"})
            assert (empty.status_code, "1 to 500 characters" in empty.text) == (422, True)
            taken = await send(amir, place, form | {"do": "withdraw", "reason": "look at search"})
            assert taken.headers["location"].endswith("done=withdrawn")
            form = await fields(amir, page) | {"accept-reconciliation": "no bill comes"}
            await send(amir, place, form | {"do": "propose"})
            form = await fields(carla, page) | {"digest": digest, "do": "confirm"}
            answers = [await send(carla, place, form | {"confirm": MONTH}) for _ in range(2)]
            assert {one.headers.get("location") for one in answers} == {f"{page}&done=hard"}
            closed = (await amir.get(page)).text
            assert "Closed for good" in closed
            assert "Amir" in closed
            assert (await amir.get(f"/ui/acts?month={MONTH}", headers=SAME)).status_code == 200
