"""The same month on SQLite and on PostgreSQL: the same digest, the same differences, the same locks."""

from __future__ import annotations

import anyio
import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gateway.finance.adjustments import adjustments, decide, propose
from gateway.finance.bill_messages import ImportFile, Reconcile, SourceKind
from gateway.finance.close_messages import CloseMonth, CloseStatus, CloseStep, VerifyCloses
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import Refused
from gateway.finance.journal_messages import IssueJournal, JournalDocument, ShowJournal
from gateway.finance.machines.messages import NoteMachines, ProposeMachines
from gateway.finance.machines.recording import note_machines
from gateway.finance.machines.report import propose_machines
from gateway.finance.messages import (
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    Propose,
)
from gateway.ledger.database import writing_engine
from gateway.ledger.service import LedgerService
from tests.gateway.finance_books import attempt, unknown
from tests.gateway.ledger_samples import FakeClock, open_spool
from tests.gateway.machine_books import NOVEMBER, OCTOBER, VLLM
from tests.gateway.test_finance_close import MONTH, NOVEMBER_6, USD, whole_month
from tests.gateway.test_finance_journal import POSTING

pytestmark = pytest.mark.anyio

ATTEMPTS = (
    attempt(1),
    attempt(2, team="search", usage={"input": 7, "output": 5}),
    unknown(3, exposure=USD),
)


async def book(spool_root, clock, attempts, session: int) -> None:
    writer = open_spool(spool_root / f"w{session}", session=session, clock=clock.clock)
    for one in attempts:
        for record in one:
            writer.append(record)
    await writer.close()


async def close_a_month(url: str, folder) -> tuple:
    """Bill, run, approval, close, journals, a late event; gives what any database has to agree on."""
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(url, folder / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    await book(folder / "spool", clock, ATTEMPTS, 1)
    await service.flush()
    bill = ImportFile(
        actor="ann",
        source=SourceKind.OPENAI_COSTS,
        account="openai",
        file_name="costs.json",
        content=whole_month("6"),
    )
    await desk.answer(bill)
    run = await desk.answer(Reconcile(actor="ann", month=MONTH))
    for number in run.proposal_ids:
        await desk.answer(Decide(actor="ben", proposal_id=number, is_approved=True))
    posted = await desk.answer(ListAdjustments())
    hard = CloseMonth(actor="ann", month=MONTH, step=CloseStep.HARD)
    closed = await desk.answer(hard)
    journals = await issue_at_once(desk)
    await book(folder / "spool", clock, [attempt(4)], 2)
    await service.flush()
    proofs = await desk.answer(VerifyCloses())
    november = await desk.answer(CloseStatus(month="2026-11"))
    assert [proof.is_same for proof in proofs] == [True]
    assert november.late_pico_usd == 2_500_000 * 1_000_000
    verification = await service.verify()
    assert verification.faults == ()
    draft = ShowJournal(month="2026-11", posting=POSTING, is_draft=True)
    late = await desk.answer(draft)
    assert late.late_pico_usd == late.total_pico_usd == november.late_pico_usd
    await service.stop(drain=False)
    return run.differences, posted, closed, journals, late


async def issue_at_once(desk: FinanceDesk) -> list[JournalDocument]:
    """Issue the journal of the month twice at the same time, then another one."""
    found: list[JournalDocument] = []

    async def issue(**changes) -> None:
        values = {"actor": "ann", "month": MONTH, "posting": POSTING}
        found.append(await desk.answer(IssueJournal(**(values | changes))))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(issue)
        tasks.start_soon(issue)
    assert found[0] == found[1] == await desk.answer(ShowJournal(month=MONTH, posting=POSTING))
    moved = msgspec.structs.replace(POSTING, entity="DE02")
    await issue(posting=moved, is_revision=True)
    assert [one.number for one in found] == ["FW-2026-10", "FW-2026-10", "FW-2026-10-2"]
    return found


@pytest.mark.slow
async def test_both_databases_close_a_month_with_the_same_digest_and_journal(
    tmp_path, postgres_url
):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    on_sqlite = await close_a_month(f"sqlite:///{tmp_path / 'a' / 'ledger.db'}", tmp_path / "a")
    on_postgresql = await close_a_month(postgres_url, tmp_path / "b")
    assert on_postgresql == on_sqlite
    engine = writing_engine(postgres_url)
    for statement in (
        "UPDATE period_close SET state = 'soft'",
        "DELETE FROM spend_adjustment",
        "UPDATE late_entry SET booked_period = '2026-10'",
        "UPDATE journal_document SET number = 'FW-1'",
        "DELETE FROM journal_document",
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as connection:
                await connection.execute(sa.text(statement))
    await engine.dispose()


async def at_once(url: str, act) -> list[object]:
    """An act of two machines that overlap: the second begins before the first is committed."""
    engine, other = writing_engine(url), writing_engine(url)
    second: list[object] = []

    async def follow() -> None:
        async with other.begin() as connection:
            try:
                second.append(await connection.run_sync(act))
            except Refused as refused:
                second.append(str(refused))

    async with anyio.create_task_group() as tasks, engine.begin() as connection:
        first = await connection.run_sync(act)
        tasks.start_soon(follow)
        await anyio.sleep(0.1)
    await engine.dispose()
    await other.dispose()
    return [first, *second]


async def test_an_adjustment_that_two_approve_at_once_is_posted_once(postgres_ledger_url):
    engine = writing_engine(postgres_ledger_url)
    line = AdjustmentLine(amount_pico_usd=5, team="payments")
    wanted = Propose(
        actor="ann", period=MONTH, kind=AdjustmentKind.TRUE_UP, reason="bill", lines=(line,)
    )
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: propose(sync, wanted, now_us=NOVEMBER_6))
    yes = Decide(actor="ben", proposal_id=1, is_approved=True)
    _, told = await at_once(postgres_ledger_url, lambda sync: decide(sync, yes, now_us=NOVEMBER_6))
    assert told == "proposal 1 was posted by ben already"
    async with engine.begin() as connection:
        posted = await connection.run_sync(lambda sync: adjustments(sync, ListAdjustments()))
    assert len(posted) == 1
    await engine.dispose()


async def test_machines_that_two_propose_at_once_are_proposed_once(postgres_ledger_url):
    engine = writing_engine(postgres_ledger_url)
    async with engine.begin() as connection:
        for at_us in (OCTOBER, NOVEMBER):
            said = NoteMachines(machines=(VLLM,))
            await connection.run_sync(note_machines, said, now_us=at_us)
    await engine.dispose()
    order = ProposeMachines(actor="ann", month=MONTH)
    _, told = await at_once(
        postgres_ledger_url, lambda sync: propose_machines(sync, order, now_us=NOVEMBER_6)
    )
    assert told == f"proposal 1 for the machines of {MONTH} waits already"
