"""Single attempts behind a figure: the same ones that the sums are made of, page by page."""

from __future__ import annotations

import msgspec
import pytest

from gateway.ledger import attempts as module
from gateway.ledger.attempt_views import AttemptPlace, AttemptQuery, RequestQuery
from gateway.ledger.attempts import load_attempts, load_request
from gateway.ledger.errors import BadQuery
from gateway.ledger.loader import Loader
from gateway.ledger.reports import spend_report
from gateway.ledger.tag_sums import list_cost_tags
from gateway.ledger.views import SpendQuery
from tests.gateway.ledger_samples import (
    NOON_US,
    FakeClock,
    event_id,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)
from tests.gateway.test_ledger_roll_ups import listed_settlement

pytestmark = pytest.mark.anyio
QUARTER_US = 900_000_000
FROM_US = NOON_US - 4 * QUARTER_US
TO_US = NOON_US + 4 * QUARTER_US


def records():
    """Thirty attempts: teams, tags, two of one request, one lost, one that came back, one unpriced."""
    for n in range(1, 31):
        changes: dict = {
            "at_us": NOON_US + (n % 7) * 1_000,  # several at one instant
            "team": ("payments", "search", "")[n % 3],
            "model": ("small", "large")[n % 2],
            "deployment": ("groq/a", "groq/b")[n % 2],
            "tags": ("internal",) if n % 2 else (),
            "cost_tags": ((), (("env", "prod"),), (("env", "test"), ("x", "y")))[n % 3],
        }
        if n == 20:
            changes |= {"request_id": event_id(1_000_019), "attempt": 2, "team": "search"}
        if n == 21:
            changes |= {"lifetime_s": 0.0}
        yield intent(n, **changes)
        if n == 21:
            continue
        if n == 22:
            yield settlement(n, lines=(), cost_pico_usd=None)
        elif n == 23:
            yield listed_settlement(n, tokens=10)
        else:
            yield settlement(n, tokens=n, status="interrupted" if n == 24 else "ok")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a ledger."""
    return "asyncio"


async def fill(url: str, folder) -> None:
    clock = FakeClock()
    writer = open_spool(folder / "spool" / "w", clock=clock.clock)
    for record in records():
        writer.append(record)
    async with open_engine(url) as engine:
        loader = Loader(engine, folder / "spool", clock=clock.clock)
        await loader.flush()
        await writer.close()
        clock.pass_s(10_000)
        loader = Loader(engine, folder / "spool", clock=clock.clock)
        await loader.flush()
        late = open_spool(folder / "spool" / "w", clock=clock.clock)
        late.append(settlement(21, tokens=21))
        await loader.flush()
        await late.close()


@pytest.fixture(scope="module")
async def sqlite_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    url = make_database(folder)
    await fill(url, folder)
    return url


async def ask(url, run, query):
    async with open_engine(url) as engine, engine.connect() as connection:
        return await connection.run_sync(run, query)


def wanted(**changes) -> AttemptQuery:
    return AttemptQuery(**({"from_us": FROM_US, "to_us": TO_US, "count": 200} | changes))


async def every_page(url, query: AttemptQuery) -> list:
    found = []
    while True:
        page = await ask(url, load_attempts, query)
        found += page.attempts
        if page.next is None:
            return found
        query = msgspec.structs.replace(query, after=page.next)


FILTERS = {
    "everything": {},
    "a team": {"team": "payments"},
    "no team": {"team": ""},
    "several teams": {"team": ("payments", "search")},
    "a name that nothing has": {"team": "nobody"},
    "a project": {"project": "fraud"},
    "a key": {"key": "abcdefghjkmn"},
    "a model and a team": {"model": "small", "team": "search"},
    "a provider": {"provider": "groq"},
    "a deployment": {"deployment": "groq/b"},
    "a set of privacy tags": {"privacy_tags": ""},
    "a privacy tag": {"privacy_tag": "internal"},
    "how it ended": {"status": "interrupted"},
    "how sure it is": {"quality": "unknown"},
    "a cost tag": {"cost_tag:env": "prod"},
    "without a cost tag": {"cost_tag:env": ""},
}


async def check_sums(url) -> None:
    for filters in FILTERS.values():
        page = await ask(url, load_attempts, wanted(filters=filters))
        report = await ask(
            url,
            spend_report,
            SpendQuery(group_by=("team",), from_us=FROM_US, to_us=TO_US, filters=filters),
        )
        total = report.total
        assert len(page.attempts) == total.attempts, filters
        assert sum(one.cost_pico_usd or 0 for one in page.attempts) == total.cost_pico_usd
        assert sum(one.cost_pico_usd is None for one in page.attempts) == total.unpriced_attempts
        assert sum(one.units.get("input", 0) for one in page.attempts) == total.input_tokens
        for one in page.attempts:
            assert sum(line.cost_pico_usd for line in one.lines) == (one.cost_pico_usd or 0)


async def list_env(url) -> None:
    async with open_engine(url) as engine, engine.begin() as connection:
        await connection.run_sync(list_cost_tags, ("env",))


async def check_pages(url) -> None:
    whole = (await ask(url, load_attempts, wanted())).attempts
    assert len(whole) == 30
    assert [(one.at_us, one.event_id) for one in whole] == sorted(
        ((one.at_us, one.event_id) for one in whole), reverse=True
    )
    for count in (7, 29, 30):
        assert tuple(await every_page(url, wanted(count=count))) == whole
    (page,) = [await ask(url, load_attempts, wanted(count=0))]
    assert len(page.attempts) == 1, "at least one, so that paging gets on"


async def test_the_attempts_of_a_filter_are_those_that_the_report_adds_up(sqlite_url) -> None:
    await list_env(sqlite_url)
    await check_sums(sqlite_url)


async def test_pages_join_without_a_gap_or_a_repetition(sqlite_url) -> None:
    await check_pages(sqlite_url)


@pytest.mark.slow
async def test_the_same_on_postgresql(postgres_ledger_url, tmp_path) -> None:
    await fill(postgres_ledger_url, tmp_path)
    await list_env(postgres_ledger_url)
    await check_sums(postgres_ledger_url)
    await check_pages(postgres_ledger_url)
    found = await ask(
        postgres_ledger_url, load_request, RequestQuery(request_id=event_id(1_000_019))
    )
    assert [one.attempt for one in found] == [1, 2]


async def test_no_page_looks_through_more_than_its_bound(sqlite_url, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCANNED_MAX", 8)
    page = await ask(sqlite_url, load_attempts, wanted(filters={"status": "interrupted"}))
    seen = [page]
    while page.next is not None:
        query = wanted(filters={"status": "interrupted"}, after=page.next)
        page = await ask(sqlite_url, load_attempts, query)
        seen.append(page)
    assert [len(one.attempts) for one in seen].count(1) == 1
    assert len(seen) >= 4
    assert all(one.is_cut for one in seen[:-1])
    assert not seen[-1].is_cut
    tagged = await every_page(sqlite_url, wanted(filters={"cost_tag:env": "prod"}))
    assert len(tagged) == 10


async def test_a_team_sees_its_own_whatever_the_filters_say(sqlite_url) -> None:
    for filters in ({}, {"team": "search"}, {"team": "payments"}):
        page = await ask(sqlite_url, load_attempts, wanted(filters=filters, teams=("payments",)))
        assert {one.team for one in page.attempts} <= {"payments"}
    request = RequestQuery(request_id=event_id(1_000_019), teams=("payments",))
    assert await ask(sqlite_url, load_request, request) == ()
    request = RequestQuery(request_id=event_id(1_000_019), teams=("search",))
    assert {one.team for one in await ask(sqlite_url, load_request, request)} == {"search"}


async def test_a_request_has_all_its_attempts_in_their_order(sqlite_url) -> None:
    found = await ask(sqlite_url, load_request, RequestQuery(request_id=event_id(1_000_019)))
    assert [(one.attempt, one.event_id) for one in found] == [
        (1, event_id(19)),
        (2, event_id(20)),
    ]
    nothing = RequestQuery(request_id=bytes(16))
    assert await ask(sqlite_url, load_request, nothing) == ()


async def test_an_attempt_says_how_it_was_priced_and_how_it_came(sqlite_url) -> None:
    by_id = {one.event_id: one for one in (await ask(sqlite_url, load_attempts, wanted())).attempts}
    listed, unpriced, back = by_id[event_id(23)], by_id[event_id(22)], by_id[event_id(21)]
    assert listed.lines[0].list_cost_pico_usd is not None
    assert (unpriced.cost_pico_usd, unpriced.lines) == (None, ())
    assert (back.is_correction, back.is_lost) == (True, False)
    assert by_id[event_id(1)].privacy_tags == ("internal",)
    assert by_id[event_id(2)].privacy_tags == ()
    assert by_id[event_id(2)].cost_tags == (("env", "test"), ("x", "y"))
    assert by_id[event_id(3)].lines[0].rate_pico_usd == 50_000


@pytest.mark.parametrize(
    "filters", [{"day": "2026-11-28"}, {"colour": "red"}, {"status": "splendid"}]
)
async def test_a_filter_without_meaning_is_told(sqlite_url, filters) -> None:
    with pytest.raises(BadQuery):
        await ask(sqlite_url, load_attempts, wanted(filters=filters))


async def test_the_page_after_the_end_is_empty(sqlite_url) -> None:
    page = await ask(sqlite_url, load_attempts, wanted(after=AttemptPlace(FROM_US, bytes(16))))
    assert (page.attempts, page.next) == ((), None)
