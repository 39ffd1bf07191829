"""The same month on SQLite and on PostgreSQL: the same digest, the same differences, the same locks."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gateway.finance.bill_messages import ImportFile, Reconcile, SourceKind
from gateway.finance.close_messages import CloseMonth, CloseStatus, CloseStep, VerifyCloses
from gateway.finance.desk import FinanceDesk
from gateway.finance.messages import Decide, ListAdjustments
from gateway.ledger.database import writing_engine
from gateway.ledger.service import LedgerService
from tests.gateway.finance_books import attempt, unknown
from tests.gateway.ledger_samples import FakeClock, open_spool
from tests.gateway.test_finance_close import MONTH, NOVEMBER_6, USD, whole_month

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
    """Bill, run, approval, close, and a late event; gives what must not depend on the database."""
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
    await book(folder / "spool", clock, [attempt(4)], 2)
    await service.flush()
    proofs = await desk.answer(VerifyCloses())
    november = await desk.answer(CloseStatus(month="2026-11"))
    assert [proof.is_same for proof in proofs] == [True]
    assert november.late_pico_usd == 2_500_000 * 1_000_000
    verification = await service.verify()
    assert verification.faults == ()
    await service.stop(drain=False)
    return run.differences, posted, closed


@pytest.mark.slow
async def test_both_databases_close_a_month_with_the_same_digest(tmp_path, postgres_url):
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
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as connection:
                await connection.execute(sa.text(statement))
    await engine.dispose()
