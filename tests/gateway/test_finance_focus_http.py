"""`GET /admin/v1/spend/export`: the same rows as the command's, at the client's pace."""

from __future__ import annotations

import csv
import io
from contextlib import aclosing
from decimal import Decimal

import anyio
import pytest
from pyarrow import parquet

from gateway import errors
from gateway.channel import RemoteError
from gateway.finance.focus import streams
from gateway.finance.focus.order import DAY_US, ExportOrder, ExportRequest, Profile
from gateway.finance.focus.sessions import OPEN_MAX, ExportSessions
from gateway.http.supervisor_calls import SupervisorCalls
from gateway.ledger.errors import BadQuery, DatabaseUnavailable
from pricing.money import parse_usd
from tests.gateway.focus_samples import FROM_US, PARTIES, TO_US
from tests.gateway.ledger_samples import PRICE_PICO, FakeClock, make_database
from tests.gateway.pages_harness import PAYMENTS_KEY, running_pages

pytestmark = pytest.mark.anyio
PATH = "/admin/v1/spend/export"
NOVEMBER = {"month": "2026-11"}


def request(**changes) -> ExportRequest:
    values = {"from_us": FROM_US, "to_us": TO_US}
    return ExportRequest(
        order=ExportOrder(**(values | changes)), parties=PARTIES, pseudonym_key=b"k" * 32
    )


async def test_the_rows_sum_to_what_was_booked(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        for _ in range(3):
            await pages.book(cost_tags=(("user", "jane.doe"),))
        answer = await client.get(PATH, params=NOVEMBER)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.headers["x-fareway-complete"] == "true"
        rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
        assert sum(parse_usd(row["BilledCost"]) for row in rows) == 300 * PRICE_PICO
        assert "jane.doe" not in answer.text
        bounds = {"from": "2026-11-01", "to": "2026-12-01", "grain": "day", "names": "plain"}
        plain = await client.get(PATH, params={**bounds, "by_key": "true", "spreadsheet": "true"})
        assert "jane.doe" in plain.text
        pages.ledger_is_behind = True
        answer = await client.get(PATH, params=NOVEMBER)
        assert answer.headers["x-fareway-complete"] == "false"


async def test_parquet_has_the_same_rows(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        for _ in range(3):
            await pages.book()
        answer = await client.get(PATH, params={**NOVEMBER, "format": "parquet"})
        assert answer.headers["content-type"] == "application/vnd.apache.parquet"
        assert "cost_and_usage.parquet" in answer.headers["content-disposition"]
        table = parquet.read_table(io.BytesIO(answer.content))
        billed = sum(table.column("BilledCost").to_pylist())
        assert billed == Decimal(300 * PRICE_PICO).scaleb(-12)
        rows = list(csv.DictReader(io.StringIO((await client.get(PATH, params=NOVEMBER)).text)))
        assert (table.num_rows, table.column_names) == (len(rows), list(rows[0]))


REFUSED = {
    "a spreadsheet of Parquet": {"month": "2026-11", "format": "parquet", "spreadsheet": "true"},
    "no range": {},
    "two ranges": {"month": "2026-11", "from": "2026-11-01", "to": "2026-11-02"},
    "half a range": {"from": "2026-11-01"},
    "no month": {"month": "yesterday"},
    "no hour": {"from": "2026-11-01T00:01", "to": "2026-11-02"},
    "half a month of invoices": {
        "profile": "reconciled",
        "from": "2026-11-01",
        "to": "2026-11-02",
    },
    "no profile": {"month": "2026-11", "profile": "showback"},
    "no parameter": {"month": "2026-11", "form": "csv"},
}


async def test_what_has_no_meaning_is_refused_before_a_byte_goes_out(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        async with pages.admin() as client:
            for name, params in REFUSED.items():
                answer = await client.get(PATH, params=params)
                assert answer.status_code == 422, name
        async with pages.browser(headers={"x-api-key": PAYMENTS_KEY}) as client:
            assert (await client.get(PATH, params=NOVEMBER)).status_code == 403
        pages.ledger_is_away = True
        async with pages.admin() as client:
            assert (await client.get(PATH, params=NOVEMBER)).status_code == 503


async def test_a_client_that_leaves_ends_the_export(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(streams, "ROWS_PER_PIECE", 1)
    async with running_pages(tmp_path) as pages:
        for n in range(5):
            await pages.book(cost_tags=(("n", str(n)),))
        calls = SupervisorCalls(pages.service.supervisor)
        assert await calls.catch_up()
        pieces = calls.export_pieces(request())
        async with aclosing(pieces):
            head = await anext(pieces)
            assert head.startswith(b"AllocatedMethodDetails,")
            assert (await anext(pieces)).count(b"\r\n") == 1
        with pytest.raises(errors.InvalidField, match="export 1 is over"):
            await calls._call("export_next", 1, bytes)
        all_pieces = [piece async for piece in calls.export_pieces(request())]
        assert len(all_pieces) == 6


async def test_a_process_that_was_asked_for_no_export_knows_none(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        with pytest.raises(RemoteError, match="there is no export 7"):
            await pages.ledger.call("export_next", 7, result_type=bytes, timeout_s=10)
        await pages.ledger.call("export_close", 7, result_type=type(None), timeout_s=10)


async def test_only_so_many_exports_run_and_idle_ones_end(tmp_path) -> None:
    url = make_database(tmp_path)
    async with anyio.create_task_group() as tasks:
        desk = ExportSessions(database_url=url, tasks=tasks, clock=FakeClock().clock, idle_s=0.2)
        numbers = [await desk.open(request()) for _ in range(OPEN_MAX)]
        with pytest.raises(DatabaseUnavailable, match="under way already"):
            await desk.open(request())
        assert (await desk.next(numbers[0])).startswith(b"AllocatedMethodDetails,")
        assert await desk.next(numbers[0]) == b""
        with pytest.raises(BadQuery, match="is over"):
            await desk.next(numbers[0])
        with anyio.fail_after(20):
            while desk._open:
                await anyio.sleep(0.05)
        desk.close(numbers[1])
        assert await desk.open(request()) == OPEN_MAX + 1
        desk.close(OPEN_MAX + 1)


async def test_a_fault_ends_the_export_and_nothing_else(tmp_path, caplog) -> None:
    async with anyio.create_task_group() as tasks:
        missing = ExportSessions(
            database_url=f"sqlite:///{tmp_path}/none.db", tasks=tasks, clock=FakeClock().clock
        )
        with pytest.raises(DatabaseUnavailable, match="no ledger"):
            await missing.next(await missing.open(request()))
        desk = ExportSessions(
            database_url=make_database(tmp_path), tasks=tasks, clock=FakeClock().clock
        )
        partial = request(profile=Profile.RECONCILED, to_us=TO_US - DAY_US)
        with pytest.raises(BadQuery, match="begin and end with a month"):
            await desk.next(await desk.open(partial))
        number = await desk.open(request(version="9.9"))
        with pytest.raises(DatabaseUnavailable, match="the log says why"):
            await desk.next(number)
    assert "export 2 failed" in caplog.text


async def test_the_pseudonym_key_is_not_told() -> None:
    assert "kkk" not in repr(request())
