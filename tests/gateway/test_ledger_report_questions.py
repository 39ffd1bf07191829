"""Zones, currencies, sums beyond 64 bits, and what a table says below itself."""

from __future__ import annotations

from datetime import UTC, date, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import msgspec
import pytest
import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.spend_question import Reporting, SpendWords, spend_query
from gateway.ledger import report_sources, report_time, schema
from gateway.ledger.errors import BadQuery
from gateway.ledger.loader import Loader
from gateway.ledger.report_document import sums_document
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.reports import spend_report
from gateway.ledger.roll_ups import DAY_US
from gateway.ledger.tag_sums import list_cost_tags
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport, SpendRow, SpendSums
from gateway.settings.finance import FinanceSettings
from tests.gateway.ledger_samples import (
    NOON_US,
    PRICE_PICO,
    FakeClock,
    make_database,
    open_engine,
    open_spool,
)
from tests.gateway.test_ledger_reports import ask, attempt, load, spent

pytestmark = pytest.mark.anyio

HOUR_US = 3_600_000_000
RATES = "day,base,quote,rate,source\n2026-11-28,EUR,USD,1.25,ECB\n2026-11-29,USD,EUR,0.9,ECB\n"


def question(tmp_path, rates: str = RATES, **words) -> SpendQuery:
    (tmp_path / "rates.csv").write_text(rates)
    reporting = Reporting(finance=FinanceSettings(rates_file="rates.csv"), base_dir=tmp_path)
    return spend_query(SpendWords(**({"by": ["team"]} | words)), reporting, now_us=NOON_US)


async def test_each_days_spend_is_converted_at_its_rate_and_rounded_once(tmp_path):
    url = await spent(tmp_path)
    query = question(tmp_path, currency="EUR", month="2026-11", zone="Europe/Berlin")
    found = await ask(url, spend_report, query)
    # Of 605 tokens 300 are of the 29th.
    assert found.total_converted[0] == 305 * PRICE_PICO * 4 // 5 + 300 * PRICE_PICO * 9 // 10
    assert found.total.cost_pico_usd == 605 * PRICE_PICO
    table = render(found, ReportFormat.TABLE)
    assert "cost EUR" in table
    assert "zone: Europe/Berlin" in table
    assert "cost_eur" in render(found, ReportFormat.CSV)
    assert "cost_eur" in render(found, ReportFormat.JSON)


def test_a_rate_of_many_decimals_goes_from_process_to_process(tmp_path):
    rate = "155.123456789012345678"
    query = question(tmp_path, RATES.replace("0.9", rate), currency="EUR", month="2026-11")
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(query), type=SpendQuery)
    assert Fraction(told.rates[-1].rate) == Fraction(rate)


async def test_a_day_without_a_rate_is_named(tmp_path):
    url = await spent(tmp_path)
    query = question(tmp_path, RATES.replace("2026-11-28,EUR,USD,1.25,ECB\n", ""), currency="EUR")
    with pytest.raises(BadQuery, match="from USD to EUR for 2026-11-28"):
        await ask(url, spend_report, query)


def test_the_last_month_is_that_of_the_zone(tmp_path):
    query = question(tmp_path, is_last_month=True, zone="Asia/Kathmandu")
    assert query.from_us == to_microseconds(datetime(2026, 9, 30, 18, 15, tzinfo=UTC))
    assert query.to_us == to_microseconds(datetime(2026, 10, 31, 18, 15, tzinfo=UTC))


def test_an_offset_that_is_no_quarter_hour_is_told():
    zone = report_time.zone_of("Africa/Monrovia")
    start_us = to_microseconds(datetime(1971, 1, 1, tzinfo=UTC))
    with pytest.raises(BadQuery, match="whole number of quarter-hours"):
        report_time.stretches(zone, start_us, start_us + 86_400_000_000)


def test_a_day_begins_after_the_skip_where_the_clock_skips_midnight():
    zone = report_time.zone_of("America/Santiago")
    start_us = report_time.midnight_us(date(2026, 9, 6), zone)
    assert start_us == to_microseconds(datetime(2026, 9, 6, 4, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "year", "changes"),
    [
        ("UTC", 2026, []),
        ("Asia/Kathmandu", 2026, []),
        ("America/New_York", 2026, ["2026-03-08T07:00", "2026-11-01T06:00"]),
        ("Australia/Lord_Howe", 2026, ["2026-04-04T15:00", "2026-10-03T15:30"]),
    ],
)
def test_a_year_is_cut_where_a_zones_clocks_change(name, year, changes) -> None:
    zone = report_time.zone_of(name)
    bounds = [to_microseconds(datetime(one, 1, 1, tzinfo=UTC)) for one in (year, year + 1)]
    found = report_time.stretches(zone, *bounds)
    wanted = [to_microseconds(datetime.fromisoformat(one).replace(tzinfo=UTC)) for one in changes]
    assert [one.start_us for one in found] == [bounds[0], *wanted]
    for one in found:
        local = datetime.fromtimestamp(one.start_us // 1_000_000, tz=zone)
        assert local.utcoffset().total_seconds() * 1_000_000 == one.offset_us


async def test_the_hour_that_comes_twice_is_two_rows(tmp_path):
    """New York, 1 November 2026: 01:30 before and after clocks go back, and a plain hour."""
    times = ("2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T12:00")
    records = [
        record
        for n, text in enumerate(times, start=1)
        for record in attempt(n, n, at_us=to_microseconds(datetime.fromisoformat(f"{text}Z")))
    ]
    url = await load(tmp_path, records)
    bounds = {
        name: to_microseconds(datetime.fromisoformat(f"2026-11-0{day}T00:00Z"))
        for name, day in (("from_us", 1), ("to_us", 2))
    }
    query = SpendQuery(group_by=("hour",), zone="America/New_York", **bounds)
    found = await ask(url, spend_report, query)
    assert [(row.group[0], row.sums.input_tokens) for row in found.rows] == [
        ("2026-11-01T01:00-04:00", 1),
        ("2026-11-01T01:00-05:00", 2),
        ("2026-11-01T07:00-05:00", 3),
    ]


def test_a_zone_that_does_not_exist_is_told():
    with pytest.raises(BadQuery, match="is no time zone"):
        report_time.zone_of("Mars/Olympus")


async def test_sums_beyond_64_bits_are_exact(tmp_path):
    url = await spent(tmp_path)
    large = 9 * 10**18 - 3
    async with open_engine(url) as engine, engine.begin() as connection:
        await connection.execute(sa.update(schema.rollup_day).values(cost_pico_usd=large))
        await connection.execute(
            sa.update(schema.rollup_day)
            .where(schema.rollup_day.c.status == 0, schema.rollup_day.c.team_id == 1)
            .values(exposure_pico_usd=-large)
        )
        cells = len((await connection.execute(sa.select(schema.rollup_day.c.team_id))).all())
    found = await ask(url, spend_report, SpendQuery(group_by=("status",)))
    assert cells > 2
    assert found.total.cost_pico_usd == cells * large
    assert found.total.exposure_pico_usd < -large


REFUSED = {
    "a filter by nothing": ({"filters": {"colour": "red"}}, "filtered by"),
    "a filter without a value": ({"filters": {"team": ()}}, "no value"),
    "a grouping by nothing": ({"group_by": ("colour",)}, "is none of"),
    "a cost tag without sums": ({"group_by": ("cost_tag:env",)}, "finance.cost_tags"),
    "a status that does not exist": ({"filters": {"status": "fine"}}, "is none of ok"),
}


@pytest.mark.parametrize(("query", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_questions_without_meaning_are_refused(tmp_path, query, message):
    with pytest.raises(BadQuery, match=message):
        await ask(make_database(tmp_path), spend_report, SpendQuery(**query))


async def test_a_day_that_cost_nothing_needs_no_rate(tmp_path):
    url = await load(tmp_path, [*attempt(1, 100), *attempt(2, 0, at_us=NOON_US + DAY_US)])
    query = question(tmp_path, RATES.replace("2026-11-29,USD,EUR,0.9,ECB\n", ""), currency="EUR")
    found = await ask(url, spend_report, query)
    assert found.total.attempts == 2
    assert found.total_converted[0] == 100 * PRICE_PICO * 4 // 5


@pytest.mark.parametrize(
    ("wanted", "attempts"), [("gdpr,private", 2), ("private", 4), ("", 8), ("gdpr", 0)]
)
async def test_a_set_of_privacy_tags_is_filtered_by_as_a_whole(tmp_path, wanted, attempts):
    sets = [("gdpr", "private")] * 2 + [("private",)] * 4 + [()] * 8
    records = [one for n, tags in enumerate(sets) for one in attempt(n, tags=tags)]
    url = await load(tmp_path, records)
    query = SpendQuery(group_by=("privacy_tags",), filters={"privacy_tags": wanted})
    found = await ask(url, spend_report, query)
    assert found.total.attempts == attempts
    assert [row.group for row in found.rows] == ([(wanted,)] if attempts else [])


@pytest.mark.parametrize(("wanted", "attempts"), [("gdpr", 2), ("private", 6), ("", 8), ("x", 0)])
async def test_a_privacy_tag_is_filtered_by_in_whatever_set_it_is(tmp_path, wanted, attempts):
    sets = [("gdpr", "private")] * 2 + [("private",)] * 4 + [()] * 8
    records = [one for n, tags in enumerate(sets) for one in attempt(n, tags=tags)]
    url = await load(tmp_path, records)
    query = SpendQuery(group_by=("privacy_tag",), filters={"privacy_tag": wanted})
    found = await ask(url, spend_report, query)
    assert found.total.attempts == attempts
    assert not found.is_partition
    assert [row.sums.attempts for row in found.rows if row.group == (wanted,)] == (
        [attempts] if attempts else []
    )


async def test_a_status_is_filtered_by_its_name(tmp_path):
    url = await load(tmp_path, [*attempt(1, 10), *attempt(2, 20, status="interrupted")])
    for status, tokens in (("ok", 10), ("interrupted", 20)):
        query = SpendQuery(group_by=("status",), filters={"status": status})
        (row,) = (await ask(url, spend_report, query)).rows
        assert (row.group, row.sums.input_tokens) == ((status,), tokens)


async def test_a_report_with_too_many_rows_is_refused(tmp_path, monkeypatch):
    url = await spent(tmp_path)
    monkeypatch.setattr(report_sources, "ROWS_MAX", 2)
    assert len((await ask(url, spend_report, SpendQuery(group_by=("team",)))).rows) == 2
    with pytest.raises(BadQuery, match="more than 2 rows"):
        await ask(url, spend_report, SpendQuery(group_by=("key",)))


async def test_hours_and_currencies_are_the_same_on_postgresql(tmp_path, postgres_ledger_url):
    records = [*attempt(1, 100), *attempt(2, 200, at_us=NOON_US + 11 * HOUR_US + 1)]
    query = question(tmp_path, currency="EUR", by=["hour", "team"], zone="Asia/Kathmandu")
    by_day = question(tmp_path, currency="EUR", by=["day"], zone="Asia/Kathmandu")
    url = await load(tmp_path, records)
    ours, our_days = [await ask(url, spend_report, one) for one in (query, by_day)]
    writer = open_spool(tmp_path / "other" / "w")
    for record in records:
        writer.append(record)
    async with open_engine(postgres_ledger_url) as engine:
        await Loader(engine, tmp_path / "other", clock=FakeClock().clock).flush()
    await writer.close()
    found = await ask(postgres_ledger_url, spend_report, query)
    assert found == ours
    assert [row.group[0] for row in found.rows] == [
        "2026-11-28T17:00+05:45",
        "2026-11-29T04:00+05:45",
    ]
    assert found.total_converted[0] == 300 * PRICE_PICO * 4 // 5
    days = await ask(postgres_ledger_url, spend_report, by_day)
    assert days == our_days
    assert [(row.group[0], row.converted[0]) for row in days.rows] == [
        ("2026-11-28", 100 * PRICE_PICO * 4 // 5),
        ("2026-11-29", 200 * PRICE_PICO * 4 // 5),
    ]


@pytest.mark.parametrize("is_on_postgresql", [False, True])
async def test_groups_that_are_in_several_pieces_of_days_are_none_too_many(
    tmp_path, monkeypatch, postgres_ledger_url, is_on_postgresql
):
    """Three keys in each of two pieces: six sums are read, of three rows."""
    records = [
        record
        for n in range(6)
        for record in attempt(n, n, key_id=f"k{n % 3}", at_us=NOON_US + n // 3 * DAY_US)
    ]
    url = await load(tmp_path, records)
    if is_on_postgresql:
        url = postgres_ledger_url
        async with open_engine(url) as engine:
            await Loader(engine, tmp_path / "spool", clock=FakeClock().clock).flush()
    query = SpendQuery(
        group_by=("key",), from_us=NOON_US - HOUR_US, to_us=NOON_US + DAY_US + HOUR_US
    )
    monkeypatch.setattr(report_sources, "ROWS_MAX", 3)
    found = await ask(url, spend_report, query)
    tokens = {row.group[0]: row.sums.input_tokens for row in found.rows}
    assert tokens == {"k0": 3, "k1": 5, "k2": 7}
    monkeypatch.setattr(report_sources, "ROWS_MAX", 2)
    with pytest.raises(BadQuery, match="more than 2 rows"):
        await ask(url, spend_report, query)


def test_what_else_a_database_says_to_a_sum_is_no_overflow() -> None:
    table = schema.rollup_day  # that an empty database does not have
    with (
        sa.create_engine("sqlite://").connect() as connection,
        pytest.raises(sa.exc.OperationalError, match="no such table"),
    ):
        report_sources.exact_sums(connection, (), (table.c.cost_pico_usd,), ())


NOTES = {
    "provider_cost_attempts": "providers told: 0.0000025 USD, for 3 of 7 attempts",
    "cache_saved_pico_usd": "cache savings: 0.000004 USD, no credit",
    "compared_attempts": "baseline: 0 USD saved of 0 USD, over 3 of 7 attempts",
    "uncompared_attempts": "baseline unknown: 3 attempts are in no saving",
    "failed_cost_pico_usd": "failed: 0.000004 USD of the cost",
    "estimated_cost_pico_usd": "estimated: 0.000004 USD of the cost",
    "nominal_cost_pico_usd": "nominal: 0.000004 USD at a nominal machine rate",
    "exposure_pico_usd": "unknown billing: up to 0.000004 USD more may be billed",
    "unpriced_attempts": "unpriced: 3 attempts are not in the cost",
    "exposure_unknown_attempts": "unknown billing without a bound: 3 attempts may cost more",
}
PLAIN = dict.fromkeys(SpendSums.__struct_fields__, 0) | {
    "attempts": 7,
    "cost_pico_usd": 9_000_000,
    "provider_cost_pico_usd": 2_500_000,
}


def table_of(is_partition: bool = True, **sums: int) -> str:
    both = SpendSums(**(PLAIN | sums))
    row = SpendRow(group=("payments",), sums=both)
    report = SpendReport(columns=("team",), rows=(row,), total=both, is_partition=is_partition)
    return render(report, ReportFormat.TABLE)


@pytest.mark.parametrize(("name", "note"), NOTES.items(), ids=NOTES.keys())
def test_a_table_notes_what_its_cost_does_not_tell_and_only_that(name, note):
    table = table_of(**{name: 3 if name.endswith("_attempts") else 4_000_000})
    assert note in table
    assert [other for other in NOTES.values() if other != note and other in table] == []


def test_a_table_without_anything_untold_has_no_notes():
    assert [note for note in NOTES.values() if note.partition(":")[0] in table_of()] == []


def test_rows_that_do_not_add_up_are_told():
    assert "add up to more than the total" in table_of(is_partition=False)
    assert "add up" not in table_of()


def test_list_prices_have_a_column_where_there_are_any():
    listed = table_of(list_price_attempts=1, list_cost_pico_usd=12_000_000)
    assert "list USD" in listed
    assert listed.count("0.000012") == 2, "in the row and in the total"
    assert "list USD" not in table_of(list_cost_pico_usd=12_000_000)


async def test_long_ranges_are_not_read_event_by_event(tmp_path):
    url = make_database(tmp_path)
    async with open_engine(url) as engine, engine.begin() as connection:
        await connection.run_sync(list_cost_tags, ("env",))
    with pytest.raises(BadQuery, match="at most 93 days"):
        await ask(url, spend_report, SpendQuery(group_by=("key", "cost_tag:env")))


async def test_an_empty_ledger_has_no_months(tmp_path):
    found = await ask(make_database(tmp_path), spend_report, SpendQuery(group_by=("month",)))
    assert found.rows == ()


def test_a_share_is_six_decimals_half_to_even() -> None:
    shares = [(0, 1), (1, 0), (1, 3), (1, 2_000_000), (3, 2_000_000), (5, 5)]
    none = dict.fromkeys(SpendSums.__struct_fields__, 0)
    told = [
        sums_document(SpendSums(**none | {"cost_pico_usd": whole, "estimated_cost_pico_usd": part}))
        for part, whole in shares
    ]
    assert [one["estimated_share"] for one in told] == [
        "0", "0", "0.333333", "0.000000", "0.000002", "1.000000",
    ]  # fmt: skip


async def test_many_pieces_of_days_are_asked_for_in_parts(tmp_path, monkeypatch):
    records = [one for n in range(4) for one in attempt(n, 10, at_us=NOON_US - n * 7 * HOUR_US)]
    url = await load(tmp_path, records)
    query = SpendQuery(group_by=("day",), zone="America/New_York")
    whole = await ask(url, spend_report, query)
    monkeypatch.setattr(report_sources, "_PIECES_MAX", 1)
    assert await ask(url, spend_report, query) == whole
    assert [(row.group[0], row.sums.attempts) for row in whole.rows] == [
        ("2026-11-27", 2),
        ("2026-11-28", 2),
    ]


def noon(day_us: int) -> int:
    return day_us + DAY_US // 2


def test_west_of_greenwich_a_days_first_hours_are_those_of_the_day_before() -> None:
    first_us, hours = to_microseconds(datetime(2026, 11, 2, 5, tzinfo=UTC)), 5
    calendar = report_time.Calendar(
        from_us=first_us, to_us=first_us + 3 * DAY_US, zone=ZoneInfo("America/New_York")
    )
    found = calendar.cuts([GroupBy.DAY])
    assert found is not None
    days = [first_us - hours * HOUR_US + day * DAY_US for day in range(4)]
    assert (found.first_us, found.last_us) == (days[1], days[3])
    assert found.pieces == [
        report_time.Piece(from_us=first_us, to_us=days[1], noon_us=None),
        report_time.Piece(from_us=days[3], to_us=days[3] + hours * HOUR_US, noon_us=None),
        *(
            report_time.Piece(from_us=day, to_us=day + hours * HOUR_US, noon_us=noon(day))
            for day in days[1:3]
        ),
    ]


def test_a_year_by_month_reads_quarter_hours_only_around_the_borders_of_months() -> None:
    calendar = report_time.Calendar(
        from_us=to_microseconds(datetime(2026, 1, 1, 5, tzinfo=UTC)),
        to_us=to_microseconds(datetime(2027, 1, 1, 5, tzinfo=UTC)),
        zone=ZoneInfo("America/New_York"),
    )
    found = calendar.cuts([GroupBy.MONTH])
    assert found is not None
    moved = [one for one in found.pieces if one.noon_us is not None]
    # The clock is an hour ahead from March to November.
    assert [(one.to_us - one.from_us) // HOUR_US for one in moved] == [5, 5, *[4] * 8, 5]
    assert len(found.pieces) == len(moved) + 2


def test_a_range_within_one_day_is_read_by_quarter_hours_from_boundary_to_boundary() -> None:
    day_us = to_microseconds(datetime(2026, 11, 2, tzinfo=UTC))
    found = report_time.cut_range(
        day_us + HOUR_US, day_us + 20 * HOUR_US, [day_us + 18 * HOUR_US, day_us]
    )
    assert not found.has_days()
    assert [(one.from_us, one.to_us, one.noon_us) for one in found.pieces] == [
        (day_us + HOUR_US, day_us + 18 * HOUR_US, None),
        (day_us + 18 * HOUR_US, day_us + 20 * HOUR_US, None),
    ]


def test_of_a_day_with_two_boundaries_only_what_has_its_noon_stays() -> None:
    day_us = to_microseconds(datetime(2026, 11, 2, tzinfo=UTC))
    cuts = [day_us + hours * HOUR_US for hours in (1, 12, 23)]
    found = report_time.cut_range(None, None, cuts)
    assert (found.first_us, found.last_us) == (None, None)
    assert [(one.from_us, one.to_us, one.noon_us) for one in found.pieces] == [
        (day_us, cuts[0], noon(day_us)),
        (cuts[0], cuts[1], noon(day_us)),
        (cuts[2], day_us + DAY_US, noon(day_us)),
    ]
