"""What the dashboard asks of finance: acts done once, files looked at first, rows of both sides."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from gateway.finance import once
from gateway.finance.adjustments import proposals, propose
from gateway.finance.bill_messages import ImportFile, ListImports, Reconcile, SourceKind
from gateway.finance.close_messages import CloseMonth, CloseStep
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import NotFound, Refused, UnreadableSource
from gateway.finance.form_messages import (
    FILE_BYTES_MAX,
    ImportHeld,
    Once,
    PreviewFile,
    ShowCell,
    ShowProposal,
)
from gateway.finance.held_files import HELD_BYTES_MAX, HELD_US, HeldFiles
from gateway.finance.messages import (
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Propose,
)
from gateway.ledger.database import blocking_writer
from gateway.ledger.service import LedgerService
from tests.gateway.finance_books import attempt, unknown
from tests.gateway.ledger_samples import FakeClock, make_database, open_spool
from tests.gateway.test_finance_close import MONTH, NOVEMBER_6, USD, whole_month

pytestmark = pytest.mark.anyio
FORM = "0" * 31
CSV = b"Tag;Modell;Menge;Betrag\n2026-10-17;gpt-4o;1000000;2,50\n2026-10-18;gpt-4o;x;1\n"
MAPPING = "columns: {day: Tag, model: Modell, units: Menge, amount: Betrag}\ndecimal: comma\n"


@asynccontextmanager
async def office(folder, attempts=()):
    """A desk with the books of October on SQLite."""
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(make_database(folder), folder / "spool", clock=clock.clock)
    await service.start()
    writer = open_spool(folder / "spool" / "w1", clock=clock.clock)
    for one in attempts:
        for record in one:
            writer.append(record)
    await writer.close()
    await service.flush()
    desk = FinanceDesk(service, clock=clock.clock)
    desk.time = clock
    try:
        yield desk
    finally:
        await service.stop(drain=False)


def bill(content: bytes = whole_month("6"), **changes) -> ImportFile:
    values = {
        "actor": "ann",
        "source": SourceKind.OPENAI_COSTS,
        "account": "openai",
        "file_name": "costs.json",
        "content": content,
    }
    return ImportFile(**(values | changes))


def move(amount: int = USD, **changes) -> Propose:
    lines = (
        AdjustmentLine(amount_pico_usd=-amount, team="unattributed"),
        AdjustmentLine(amount_pico_usd=amount, team="search"),
    )
    values = {"actor": "ann", "period": MONTH, "kind": AdjustmentKind.REATTRIBUTION}
    return Propose(**(values | {"reason": "search used it", "lines": lines} | changes))


async def test_a_form_that_is_sent_twice_acts_once(tmp_path):
    async with office(tmp_path) as desk:
        first = await desk.answer(Once(form=f"{FORM}1", act=move()))
        again = await desk.answer(Once(form=f"{FORM}1", act=move()))
        assert (first.subject, first.is_repeated) == ("1", False)
        assert (again.subject, again.sentence, again.is_repeated) == ("1", first.sentence, True)
        assert len(await desk.answer(ListProposals())) == 1
        other = await desk.answer(Once(form=f"{FORM}2", act=move()))
        assert other.subject == "2"


async def test_a_form_with_other_values_under_the_same_number_is_refused(tmp_path):
    async with office(tmp_path) as desk:
        await desk.answer(Once(form=f"{FORM}1", act=move()))
        with pytest.raises(Refused, match="sent before with other values"):
            await desk.answer(Once(form=f"{FORM}1", act=move(2 * USD)))


async def test_a_form_that_was_refused_may_be_sent_again(tmp_path):
    async with office(tmp_path) as desk:
        act = Decide(actor="ben", proposal_id=1, is_approved=True)
        with pytest.raises(NotFound):
            await desk.answer(Once(form=f"{FORM}1", act=act))
        await desk.answer(move())
        done = await desk.answer(Once(form=f"{FORM}1", act=act))
        assert done.sentence == "proposal 1 is posted"


async def test_forms_that_come_at_the_same_time_act_once(tmp_path):
    async with office(tmp_path) as desk:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(desk.answer, Once(form=f"{FORM}1", act=move()))
        assert len(await desk.answer(ListProposals())) == 1


async def test_every_act_says_what_it_did(tmp_path):
    async with office(tmp_path, [attempt(1)]) as desk:
        preview = await desk.answer(PreviewFile(order=bill()))
        held = ImportHeld(held=preview.held, order=bill(b""))
        said = [await desk.answer(Once(form=f"{FORM}1", act=held))]
        assert (await desk.answer(Once(form=f"{FORM}1", act=held))).is_repeated
        said.append(
            await desk.answer(Once(form=f"{FORM}2", act=Reconcile(actor="ann", month=MONTH)))
        )
        decision = Decide(actor="ben", proposal_id=1, is_approved=False, reason="not worth it")
        said.append(await desk.answer(Once(form=f"{FORM}3", act=decision)))
        reasons = {"reconciliation": "fine"}
        for number, step in ((4, CloseStep.SOFT), (5, CloseStep.HARD)):
            act = CloseMonth(actor="ann", month=MONTH, step=step,
                             accepted=reasons if step is CloseStep.HARD else {})  # fmt: skip
            said.append(await desk.answer(Once(form=f"{FORM}{number}", act=act)))
        assert [(one.subject, one.sentence) for one in said] == [
            ("1", "import 1: 1 rows of openai, 2026-10-01 to 2026-10-31, 6 USD"),
            ("1", "run 1 compared 2026-10 and found 1 difference"),
            ("1", "proposal 1 is rejected"),
            (MONTH, "2026-10 is closed softly"),
            (MONTH, "2026-10 is closed for good"),
        ]
        assert (await desk.answer(ShowProposal(proposal_id=1))).state == "rejected"


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_two_machines_that_get_the_same_form_act_once(request, tmp_path, database):
    url = (
        make_database(tmp_path)
        if database == "sqlite"
        else request.getfixturevalue("postgres_ledger_url")
    )
    writers = [blocking_writer(url), blocking_writer(url)]
    form, is_claimed = Once(form=f"{FORM}1", act=move()), threading.Event()

    def act(connection):
        is_claimed.set()
        time.sleep(0.1)  # the other one comes meanwhile
        return propose(connection, move(), now_us=NOVEMBER_6)

    def send(writer):
        with writer.engine.begin() as connection:
            return once.once(connection, form, act, now_us=NOVEMBER_6)

    def count(writer):
        with writer.engine.begin() as connection:
            return len(proposals(connection, ListProposals()))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(writers[0].run, send, writers[0])
        assert is_claimed.wait(10)
        second = pool.submit(writers[1].run, send, writers[1])
        assert (first.result().is_repeated, second.result().is_repeated) == (False, True)
    assert writers[0].run(count, writers[0]) == 1
    for writer in writers:
        writer.dispose()


def test_an_answer_that_no_act_gives_is_a_fault_of_ours():
    with pytest.raises(TypeError, match="no act answers with str"):
        once._described("done")


async def test_a_file_is_looked_at_before_anything_is_taken(tmp_path):
    async with office(tmp_path) as desk:
        found = await desk.answer(PreviewFile(order=bill()))
        assert (found.row_count, found.total_pico_usd) == (1, 6 * USD)
        assert (found.first_day, found.last_day) == ("2026-10-01", "2026-10-31")
        [row] = found.rows
        assert (row.kind, row.units, row.amount) == ("usage", 1_000_000, "6 USD")
        assert (found.same_as, found.covered, found.columns) == (None, (), ())
        assert await desk.answer(ListImports()) == ()
        await desk.answer(bill())
        again = await desk.answer(PreviewFile(order=bill()))
        assert (again.same_as, again.covered) == (1, ())
        other = await desk.answer(PreviewFile(order=bill(whole_month("7"))))
        assert (other.same_as, [one.batch_id for one in other.covered]) == (None, [1])


async def test_a_table_is_shown_before_its_columns_are_named(tmp_path):
    async with office(tmp_path) as desk:
        order = bill(CSV, source=SourceKind.CSV, file_name="r.csv")
        found = await desk.answer(PreviewFile(order=order))
        assert found.columns == ("Tag", "Modell", "Menge", "Betrag")
        assert found.cells[0] == ("2026-10-17", "gpt-4o", "1000000", "2,50")
        assert (found.problems, found.rows, found.row_count) == ((), (), 0)
        named = msgspec.structs.replace(order, content=b"", mapping=MAPPING)
        found = await desk.answer(PreviewFile(order=named, held=found.held))
        assert found.problems == ("r.csv:3: Menge 'x' is no number",)
        assert found.columns
        with pytest.raises(UnreadableSource):
            act = ImportHeld(held=found.held, order=named)
            await desk.answer(Once(form=f"{FORM}1", act=act))


PROBLEMS = {
    "no table": (b"a,a\n1,2\n", None, "stands twice"),
    "an empty table": (b"a,b\n", MAPPING, "no column"),
    "no mapping": (CSV, "columns: [", "mapping: while parsing"),
    "a usage file": (b"d,u\n2026-10-17,5\n", "columns: {day: d, units: u}", ""),
    "very many problems": (
        b"d,u\n" + b"2026-10-17,x\n" * 130,
        "columns: {day: d, units: u}",
        "and 30 more problems",
    ),
}


@pytest.mark.parametrize(("content", "mapping", "said"), PROBLEMS.values(), ids=PROBLEMS.keys())
async def test_what_is_wrong_with_a_file_is_told(tmp_path, content, mapping, said):
    async with office(tmp_path) as desk:
        order = bill(content, source=SourceKind.CSV, mapping=mapping, file_name="r.csv")
        found = await desk.answer(PreviewFile(order=order))
        assert said in " ".join(found.problems) or not found.row_count
        if not said:
            assert (found.rows[0].kind, found.rows[0].units) == ("count", 5)


async def test_a_file_is_its_senders_and_held_for_a_while(tmp_path):
    async with office(tmp_path) as desk:
        found = await desk.answer(PreviewFile(order=bill()))
        with pytest.raises(NotFound, match="choose it once more"):
            await desk.answer(PreviewFile(order=bill(b"", actor="eve"), held=found.held))
        desk.time.wall += HELD_US + 1
        with pytest.raises(NotFound):
            await desk.answer(PreviewFile(order=bill(b""), held=found.held))
        with pytest.raises(Refused, match="over 48 MiB"):
            await desk.answer(PreviewFile(order=bill(bytes(FILE_BYTES_MAX + 1))))


def test_held_files_are_bounded_together():
    files = HeldFiles()
    half = bytes(HELD_BYTES_MAX // 2)
    for token in ("a", "b", "a", "c"):
        files.hold(token, half, actor="ann", now_us=0)
    with pytest.raises(NotFound):
        files.content("b", actor="ann", now_us=0)
    assert files.content("c", actor="ann", now_us=0) == half
    files.drop("c")
    files.drop("c")
    with pytest.raises(NotFound):
        files.content("c", actor="ann", now_us=0)


async def test_the_rows_behind_a_difference_are_those_of_both_sides(tmp_path):
    attempts = [
        attempt(1, team="search"),
        attempt(2, team=""),
        unknown(3, exposure=USD),
        unknown(4, exposure=USD, model="o3"),
    ]
    counts = b"d,m,k,u\n2026-10-17,gpt-4o,input,7\n"
    mapping = "columns: {day: d, model: m, meter: k, units: u}"
    async with office(tmp_path, attempts) as desk:
        await desk.answer(bill())
        await desk.answer(bill(counts, source=SourceKind.CSV, mapping=mapping))
        lines = tuple(
            AdjustmentLine(amount_pico_usd=USD, team="search", account="openai", day="2026-10-17",
                           **fields)
            for fields in ({"model": "gpt-4o", "meter": "input"}, {})
        )  # fmt: skip
        for number, (kind, line) in enumerate(zip(("true_up", "tax"), lines, strict=True), 1):
            await desk.answer(move(kind=AdjustmentKind(kind), lines=(line,)))
            await desk.answer(Decide(actor="ben", proposal_id=number, is_approved=True))
        run = await desk.answer(Reconcile(actor="ann", month=MONTH))
        found = {}
        for one in run.differences:
            query = ShowCell(month=MONTH, account=one.account, day=one.day, model=one.model,
                             meter=one.meter, kind=one.kind,
                             is_usage=one.metered_units is not None)  # fmt: skip
            rows = await desk.answer(query)
            found[one.kind] = [(row.side, row.what, row.amount_pico_usd) for row in rows]
            booked = sum(
                row.amount_pico_usd for row in rows if row.side in ("ledger", "adjustment")
            )
            billed = sum(row.amount_pico_usd for row in rows if row.side == "bill")
            assert (booked, billed) == (one.ledger_pico_usd, one.billed_pico_usd)
        assert found["tax"] == [("adjustment", "posted, tax", USD)]
        usage = next(rows for kind, rows in found.items() if kind != "tax")
        assert [row[0] for row in usage] == [
            "ledger", "ledger", "adjustment", "bill", "count", "unknown bill"
        ]  # fmt: skip
        assert usage[1][1].startswith("search")
        assert len(await desk.answer(ListAdjustments())) == 2


async def test_lines_of_a_bill_that_are_no_usage_are_shown_by_themselves(tmp_path):
    rows = b"d,k,a\n2026-10-17,MwSt,1.90\n2026-10-17,input,2.50\n"
    mapping = "columns: {day: d, meter: k, amount: a}\nkinds: {MwSt: tax}"
    async with office(tmp_path, [attempt(1)]) as desk:
        await desk.answer(bill(rows, source=SourceKind.CSV, mapping=mapping))
        query = ShowCell(month=MONTH, account="openai", day="2026-10-17", model="", meter="",
                         kind="tax", is_usage=False)  # fmt: skip
        [row] = await desk.answer(query)
        assert (row.side, row.what, row.amount_pico_usd) == ("bill", "MwSt", 19 * USD // 10)
