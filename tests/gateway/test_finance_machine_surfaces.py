"""Machines where people look: page, API, CSV and command tell the same figures, each to their own."""

from __future__ import annotations

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from urllib.parse import quote_plus

import httpx
import pytest

from gateway.cli.main import main
from gateway.finance.machines.messages import NoteMachines
from tests.gateway.finance_books import write, writing
from tests.gateway.machine_books import (
    ENGINE_TERMS,
    HOUR_US,
    LOCAL,
    MINUTE_US,
    NOVEMBER,
    VLLM,
    at,
    changed,
    machine,
    note,
    note_october,
    sample,
)
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages
from tests.gateway.people_harness import log_in, make
from tests.gateway.test_finance_machine_books import computed, served
from tests.gateway.test_pages_finance import charts, logged_in, titles

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
VENDOR = "up/m"
EVIL = '=HYPERLINK("http://x")'


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with a server since the day before, which three teams use."""
    async with running_pages(tmp_path_factory.mktemp("machines")) as pages:
        now_us = pages.time.wall

        async def tell(at_us: int, *machines, samples=()) -> None:
            pages.time.wall = at_us
            said = NoteMachines(machines=machines, samples=tuple(samples))
            await pages.ledger.call("finance", said, result_type=type(None), timeout_s=30)

        start_us = now_us - 24 * HOUR_US
        await tell(start_us, VLLM, LOCAL)
        reading = sample(4 * HOUR_US, HOUR_US, started_us=start_us)
        await tell(now_us, VLLM, LOCAL, samples=[reading])
        for team in ("payments", "search", EVIL):
            await pages.book(
                team=team,
                project="",
                provider="vllm",
                upstream_model="llama",
                deployment="vllm/llama",
                ago_us=2 * HOUR_US,
                changes={"duration_us": 20 * MINUTE_US, "lines": (), "cost_pico_usd": 0},
            )
        yield pages


async def get(pages, path: str, *, key: str = ADMIN_KEY) -> httpx.Response:
    async with pages.browser() as client:
        await logged_in(client, key)
        return await client.get(path)


async def test_the_page_has_the_figures_of_the_api_and_a_table_for_each_chart(shared) -> None:
    answer = await get(shared, "/ui/machines?day=2026-11-28")
    assert answer.status_code == 200
    api = (await get(shared, "/admin/v1/spend/machines?day=2026-11-28")).json()
    assert api["cost_usd"] == str(Decimal(24 * 6) + Decimal("24.8") + Decimal("0.4"))
    assert titles(answer.text, "shares") == [
        *(share["cost_usd"] for share in api["shares"]),
        api["cost_usd"],
    ]
    assert titles(answer.text, "machines") == [one["cost_usd"] for one in api["machines"]]
    assert titles(answer.text, "hours") == [one["cost_usd"] for one in api["hours"]]
    assert titles(answer.text, "days") == [one["cost_usd"] for one in api["days"]]
    hours, use, days = charts(answer.text)
    assert use["labels"] == days["labels"]
    assert (use["kind"], [series["name"] for series in use["series"]]) == (
        "areas",
        ["busy", "idle"],
    )
    assert [series["name"] for series in days["series"]] == ["busy", "idle"]
    assert len(days["labels"]) == 2
    assert len(hours["labels"]) == 12
    assert "nominal rate" in answer.text
    assert "HYPERLINK" in answer.text
    assert "no script" not in answer.text


async def test_each_rate_sums_to_the_cost_and_the_csv_is_the_same(shared) -> None:
    for rate in ("actual", "standard", "marginal"):
        api = (await get(shared, f"/admin/v1/spend/machines?rate={rate}")).json()
        file = await get(shared, f"/ui/machines.csv?month=2026-11&rate={rate}")
        assert f'filename="machines-2026-11-{rate}.csv"' in file.headers["content-disposition"]
        rows = list(csv.DictReader(io.StringIO(file.text)))
        assert [row["cost_usd"] for row in rows] == [share["cost_usd"] for share in api["shares"]]
        assert sum(Decimal(row["cost_usd"]) for row in rows) == Decimal(api["cost_usd"])
        assert f"'{EVIL}" in {row["team"] for row in rows}
        for pool in ("local", "vllm"):
            of_pool = [Decimal(row["ratio"]) for row in rows if row["pool"] == pool]
            assert sum(of_pool) == 1


async def test_the_owner_of_a_team_sees_its_share_and_nothing_of_the_machines(shared) -> None:
    everything = (await get(shared, "/admin/v1/spend/machines")).json()
    [share] = [one for one in everything["shares"] if one["team"] == "search"]
    await make(shared, "olga", "team_owner@search")
    async with shared.browser() as client:
        await log_in(client, "olga")
        own = (await client.get("/admin/v1/spend/machines")).json()
        page = (await client.get("/ui/machines")).text
    assert own["shares"] == [share]
    assert own["is_restricted"]
    assert (own["machines"], own["units"], own["days"]) == ([], [], [])
    assert own["cost_usd"] == share["cost_usd"]
    assert "payments" not in page
    assert titles(page, "shares") == [share["cost_usd"]] * 2
    refused = await get(shared, "/ui/machines", key=PAYMENTS_KEY)
    assert refused.status_code == 403


async def test_pools_are_shown_beside_a_vendor_that_is_named(shared) -> None:
    api = (await get(shared, f"/admin/v1/spend/machines?against={VENDOR}")).json()
    local, vllm = api["break_even"]
    assert (local["pool"], vllm["pool"], vllm["deployment"]) == ("local", "vllm", VENDOR)
    assert local["fault"] == "no tokens were used, so there is no mix to price"
    assert vllm["fault"] == ""
    page = (await get(shared, f"/ui/machines?against={VENDOR}&rate=standard")).text
    assert titles(page, "break-even-cards") == [vllm["saved_usd"]]
    assert f"{vllm['break_even_tokens_per_hour']:,}" in page
    assert "not compared: no tokens were used" in page
    assert 'class="mark"' in page
    # Every way on keeps what is compared with.
    assert page.count(f"against={quote_plus(VENDOR)}") >= 3 + 2 + 1
    plain = (await get(shared, "/ui/machines")).text
    assert f'<option value="{VENDOR}">' in plain
    assert "break-even-cards" not in plain


BAD = {
    "a month and a line's end": ("/ui/machines?month=2026-11%0A", "no month such as"),
    "the same as a file": ("/ui/machines.csv?month=2026-11%0A", "no month such as"),
    "no month": ("/ui/machines?month=2026-13", "no month such as"),
    "a month and the end of a line": ("/ui/machines?month=2026-11%0A", "no month such as"),
    "a day of another month": ("/ui/machines?month=2026-11&day=2026-10-01", "no day of 2026-11"),
    "a day that is none": ("/ui/machines?day=2026-11-xx", "no day of 2026-11"),
    "a day that no calendar has": ("/ui/machines?day=2026-11-31", "no day of 2026-11"),
    "a rate that is none": ("/ui/machines.csv?rate=cheap", "none of marginal"),
    "a deployment that is none": ("/ui/machines?against=x/y", "no deployment that a model lists"),
    "such a one in the API": ("/admin/v1/spend/machines?against=x/y", "that a model lists"),
    "the same in the API": ("/admin/v1/spend/machines?rate=cheap", "rate"),
    "a month before all months in the API": ("/admin/v1/spend/machines?month=0000-10", "month"),
    "the last of all months in the API": ("/admin/v1/spend/machines?month=9999-12", "month"),
    "a day of it in the API": ("/admin/v1/spend/machines?day=9999-12-31", "'9999-12' is no month"),
    "a day before all months in the API": ("/admin/v1/spend/machines?day=0001-01-01", "0001-01"),
    "such a day": ("/ui/machines?day=9999-12-31", "9999-12"),
    "such a month's bridge": ("/admin/v1/finance/months/9999-12/bridge", "month"),
    "such a month's journal": ("/admin/v1/finance/months/0000-12/journal", "month"),
    "a day of another month in the API": (
        "/admin/v1/spend/machines?month=2026-11&day=2026-10-01",
        "no day of 2026-11",
    ),
}


@pytest.mark.parametrize(("path", "says"), BAD.values(), ids=BAD.keys())
async def test_an_address_without_meaning_is_told_so(shared, path: str, says: str) -> None:
    answer = await get(shared, path)
    assert answer.status_code == 422
    assert says in answer.text.replace("&#39;", "'")


async def test_a_month_without_machines_and_a_ledger_that_is_away_are_said(shared) -> None:
    empty = await get(shared, "/ui/machines?month=2026-01")
    assert "No machine of our own is written down for January 2026" in empty.text
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        shared.ledger_is_away = True
        try:
            answer = await client.get("/ui/machines")
        finally:
            shared.ledger_is_away = False
        assert answer.status_code == 503


async def test_a_month_that_is_not_over_cannot_be_booked(shared) -> None:
    async with shared.admin() as client:
        answer = await client.post(
            "/admin/v1/finance/machines/proposals", json={"month": "2026-11"}
        )
    assert answer.status_code == 409
    assert "2026-11 is not over" in answer.json()["error"]["message"]


CONFIG = """
storage: {database: 'sqlite:///ledger.db', spool_dir: spool}
providers:
  vllm: {kind: openai_compatible, base_url: "http://127.0.0.1:9", price: {gpu_usd_per_hour: 3}}
"""


@pytest.fixture
async def command(tmp_path, capsys, monkeypatch):
    """Runs `fareway spend machines` with the machines of October; gives code, output, remarks."""
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    engine = writing(await write(tmp_path, [served(1), served(2, team="search"), computed(3, 60)]))
    plain = machine("local", "engine", changed(ENGINE_TERMS, is_nominal=False))
    note_october(engine, VLLM, plain)
    readings = [sample(2 * HOUR_US, HOUR_US, started_us=at("2026-10-17T11:00"))]
    note(engine, NOVEMBER, VLLM, plain, samples=readings)
    config = tmp_path / "fareway.yaml"
    config.write_text(CONFIG)

    def run(*arguments: str) -> tuple[int, str, str]:
        # In a thread of its own: the command runs a loop.
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit) as ended:
            words = ("spend", "machines", *arguments, "--config", str(config))
            pool.submit(main, words).result()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run


async def test_the_command_tells_machines_shares_and_unit_costs(command):
    code, out, _ = command("--month", "2026-10", "--day", "2026-10-17")
    assert code == 0
    assert "total 5208.2 USD" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["vllm", "payments/fraud"] in [line[:2] for line in lines]
    assert "USD per million tokens, idle time and running included" in out
    assert ["2026-10-17", "12:00", "vllm"] in [line[:3] for line in lines]
    document = json.loads(command("--day", "2026-10-17", "--json")[1])
    assert document["cost_usd"] == "5208.2"
    assert len(document["hours"]) == 24 + 2
    rows = list(csv.DictReader(io.StringIO(command("--month", "2026-10", "--format", "csv")[1])))
    assert sum(Decimal(row["cost_usd"]) for row in rows) == Decimal("5208.2")
    own = json.loads(command("--month", "2026-10", "--team", "search", "--json")[1])
    assert [share["team"] for share in own["shares"]] == ["search"]
    assert command("--month", "2026-10", "--team", "search")[1].startswith("pool")
    code, out, _ = command("--month", "2026-10", "--propose")
    assert code == 0
    assert out.startswith("proposal 1: 5208.")
    code, _, err = command("--month", "2026-10", "--propose", "--json")
    assert (code, "waits already" in err) == (1, True)
    assert command()[0] == 0  # the present month, without any machine


USAGE = {
    "a day that is none": ("--day", "2026-10"),
    "a day of another month": ("--month", "2026-11", "--day", "2026-10-17"),
    "a rate that is none": ("--rate", "cheap"),
    "a deployment that is none": ("--against", "x/y"),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
async def test_wrong_usage_is_told_apart_from_a_fault(command, arguments):
    assert command(*arguments)[0] == 2
