"""The attempts behind a figure: they add up to it, teams see their own, nothing else is told."""

from __future__ import annotations

import html
import re
from decimal import Decimal
from fractions import Fraction

import pytest

from gateway.clock import from_microseconds
from gateway.dashboard.finance.attempts import Wanted, place_text, rate_text, read_wanted
from gateway.dashboard.finance.explorer import BadAddress
from gateway.ledger.attempt_views import AttemptPlace
from gateway.ledger.report_time import hour_label
from tests.gateway.ledger_samples import NOON_US, PRICE_PICO
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages
from tests.gateway.test_pages_finance import HOSTILE, logged_in

pytestmark = pytest.mark.anyio
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with attempts of two teams over some days, among them failed and estimated ones."""
    async with running_pages(tmp_path_factory.mktemp("requests")) as pages:
        for n in range(60):
            await pages.book(team="payments", project="fraud", tokens=100 + n, ago_us=n * HOUR_US)
        for n in range(4):
            await pages.book(team="search", project="", model="m2", tokens=10, ago_us=n * DAY_US)
        await pages.book(team="search", project="", changes={"status": "interrupted"})
        await pages.book(team="search", project="", changes={"quality": "estimated"})
        await pages.book(
            team="search", project="", changes={"lines": (), "cost_pico_usd": None}, tokens=5
        )
        await pages.book(team=HOSTILE, project=HOSTILE, model=HOSTILE, reason=HOSTILE, tokens=7)
        yield pages


def links(text: str, pattern: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(rf'href="({pattern}[^"]*)"', text)]


async def costs(client, address: str) -> tuple[list[Decimal], str]:
    """The costs of every page from an address on, and the figure that the first one tells."""
    told, found = "", []
    while address:
        text = (await client.get(address)).text
        if not told:
            total = re.search(r'class="lead"><strong><span class="number" title="([^"]*)"', text)
            told = "" if total is None else total[1]
        rows = PageReader(text).tables.get("attempts", [[]])[1:]
        found += [Decimal(row[1]) for row in rows if row[1] != "unpriced"]
        following = re.search(r'id="next-page" href="([^"]*)"', text)
        address = html.unescape(following[1]) if following else ""
    return found, told


@pytest.mark.slow
async def test_every_figure_of_the_explorer_leads_to_attempts_that_add_up_to_it(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        for view in ("by=project&per=week", "by=model&per=hour"):
            text = (await client.get(f"/ui/spend?{view}&period=last-7-days")).text
            steps, _, rows = text.partition('<table id="rows"')
            way = r'class="way number" href="([^"]*)" title="([^"]*)"'
            # List prices and savings lead to the same attempts, which add up to the cost.
            ways = re.findall(way, steps) + re.findall(f'class="number cost"><a {way}', rows)
            ways += [one for one in re.findall(way, rows) if "status=failed" in one[0]]
            assert len(ways) > 8
            for href, exact in ways[:4] + ways[-8:]:
                found, told = await costs(client, html.unescape(href))
                if "status=failed" not in href:
                    assert Decimal(told) == Decimal(exact), href
                assert sum(found) == Decimal(exact), href


async def test_pages_follow_each_other_to_the_end(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        found, told = await costs(client, "/ui/requests?period=last-7-days&team=payments")
        assert len(found) == 60
        assert sum(found) == Decimal(told)
        text = (await client.get("/ui/requests?period=last-7-days")).text
        (older,) = set(links(text, "/ui/requests\\?period=last-7-days&amp;after="))
        second = (await client.get(older)).text
        assert 'id="first-page"' in second


async def test_a_request_has_a_page_with_its_price_and_why_it_went_there(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/requests?team=payments")).text
        page = await client.get(links(text, "/ui/requests/")[0])
        assert page.status_code == 200
        reader = PageReader(page.text)
        (lines,) = (rows for name, rows in reader.tables.items() if name.startswith("lines-"))
        assert lines[1][0] == "Input tokens"
        assert lines[1][2] == "0.05 USD per million tokens"
        assert lines[-1][-1] == lines[1][-1]
        for text in ("cheapest", "v1", "exact", "env=prod", "internal", "chat.completions"):
            assert text in reader.text


async def test_what_is_unpriced_is_never_free(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/requests?team=search")).text
        rows = PageReader(text).tables["attempts"]
        assert "unpriced" in [row[1] for row in rows]
        assert "0" not in [row[1] for row in rows]


async def test_a_team_finds_its_own_requests_only_also_by_guessing(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        theirs = (await client.get("/ui/requests?team=search")).text
        (foreign, *_) = links(theirs, "/ui/requests/")
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        own = PageReader((await client.get("/ui/requests?period=last-7-days")).text)
        assert {row[2] for row in own.tables["attempts"][1:]} == {"payments"}
        for guess in ("?team=search", "?team=", "?model=m2", "?team=search&status=failed"):
            answer = await client.get(f"/ui/requests{guess}&period=last-90-days")
            assert "attempts" not in PageReader(answer.text).tables, guess
            assert "<strong>" not in answer.text.split('class="lead"')[1].split("0.00")[0][10:]
        answer = await client.get(foreign)
        unknown = await client.get(f"/ui/requests/{'0' * 32}")
        assert (answer.status_code, unknown.status_code) == (404, 404)
        gone = foreign.rpartition("/")[2]
        assert answer.text.replace(gone, "") == unknown.text.replace("0" * 32, "")


@pytest.mark.parametrize(
    "address",
    [
        "colour=red",
        "from=2026-13-01&to=2026-12-01",
        "hour=noon",
        "hour=2026-11-28T12:00",
        "hour=2026-11-28T12:00%2B05:45",
        "hour=2026-11-28T12:07%2B00:00",
        "after=1",
        "after=x.00000000000000000000000000000000",
        "after=1.zz000000000000000000000000000000",
        "status=splendid",
        f"team={'x' * 201}",
        "cost_tag:env=prod",
    ],
)
async def test_an_address_without_meaning_is_told(shared, address) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await client.get(f"/ui/requests?{address}")
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    ("request_id", "status"),
    [("0", 404), ("g" * 32, 404), ("A" * 32, 404), ("%00" * 4, 400), ("<b>", 404)],
)
async def test_what_is_no_request_is_not_found(shared, request_id, status) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await client.get(f"/ui/requests/{request_id}")
        assert answer.status_code == status
        assert "<b>" not in answer.text


async def test_names_of_others_are_text(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/requests")).text
        assert "window.pwn" in text
        assert "<script>window" not in text
        page = (await client.get(links(text, "/ui/requests/")[0])).text
        assert "<script>window" not in page


async def test_while_the_ledger_is_away_the_pages_say_so(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/requests")).text
        one = links(text, "/ui/requests/")[0]
        shared.ledger_is_away = True
        try:
            for path in ("/ui/requests", one, "/ui/spend"):
                assert (await client.get(path)).status_code == 503
        finally:
            shared.ledger_is_away = False


def wanted(**given: str) -> Wanted:
    return read_wanted(given, now_us=NOON_US, zone="Australia/Lord_Howe")


def test_an_hour_in_which_clocks_change_is_the_part_with_its_offset() -> None:
    # On 4 April 2026, 15:00 UTC, clocks there go back by half an hour, from +11:00 to +10:30.
    slot = 24 * 20_548 + 1  # the local hour 01:00 of 5 April
    first = wanted(hour=hour_label(slot, 11 * HOUR_US)).window
    second = wanted(hour=hour_label(slot, 10 * HOUR_US + HOUR_US // 2)).window
    assert first.end_us == second.start_us
    assert first.end_us - first.start_us == HOUR_US
    assert second.end_us - second.start_us == HOUR_US // 2
    assert from_microseconds(second.start_us).isoformat() == "2026-04-04T15:00:00+00:00"


def test_a_place_comes_back_from_its_text() -> None:
    place = AttemptPlace(NOON_US, bytes(range(16)))
    assert wanted(after=place_text(place)).after == place


RATES = {
    "tokens by the million": (50_000, 1, "input", "0.05 USD per million tokens"),
    "a rate that does not divide": (1, 3, "output", "about 0.000000333333 USD per million tokens"),
    "machine hours": (3 * 10**12, 3_600_000_000, "gpu_us", "3 USD per busy hour"),
    "requests": (2 * 10**9, 1, "requests", "0.002 USD per request"),
}


@pytest.mark.parametrize(("rate", "per", "meter", "text"), RATES.values(), ids=RATES.keys())
def test_a_rate_says_what_it_is_for(rate, per, meter, text) -> None:
    assert rate_text(rate, per, meter) == text


def test_the_sample_price_is_what_the_page_tells() -> None:
    assert Fraction(PRICE_PICO * 10**6, 10**12) == Fraction(5, 100)


def test_bad_hours_are_no_fault_of_ours() -> None:
    for text in ("9999-01-01T00:00+00:00", "0001-01-01T00:00+00:00"):
        with pytest.raises(BadAddress):
            wanted(hour=text)
