"""Reports with adjustments and late usage, and by cost centre: rows, totals, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.finance.close import close_month, close_status
from gateway.finance.close_messages import CloseStatus
from gateway.ledger.errors import BadQuery
from gateway.ledger.period_charges import load_charges, load_late
from gateway.ledger.periods import month_bounds_us
from gateway.ledger.report_corrections import MONTHS_MAX, answer_spend_query
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.views import CostCentre, GroupBy, SpendQuery
from tests.gateway.finance_books import OCTOBER_US, attempt, load, write, writing
from tests.gateway.ledger_samples import NOON_US, FakeClock
from tests.gateway.test_finance_close import ALL, MONTH, NOVEMBER_6, USD, order, sound
from tests.gateway.test_finance_journal import adjust

pytestmark = pytest.mark.anyio

CENTRES = (CostCentre("payments", "", "4711"), CostCentre("payments", "fraud", "4711-F"))
FROM_US, TO_US = month_bounds_us(MONTH)[0], month_bounds_us("2026-11")[1]
COST = 2_500_000 * 1_000_000


def query(**changes) -> SpendQuery:
    values = {
        "from_us": FROM_US,
        "to_us": TO_US,
        "cost_centres": CENTRES,
        "with_adjustments": True,
    }
    return SpendQuery(**(values | changes))


async def october_closed(folder):
    """A closed October, a late event of it, and adjustments of both months."""
    url = await write(folder, [attempt(1), attempt(2, project="web"), attempt(3, team="")])
    engine = writing(url)
    with engine.begin() as connection:
        adjust(connection, ("unattributed", -USD), ("search", USD))
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        adjust(connection, ("payments", -7), kind="true_up")
    more = [attempt(4), attempt(5, team="other"), attempt(6, at_us=NOON_US - 10**9)]
    await load(folder, url, more, clock=FakeClock(), session=2)
    return engine


async def test_each_row_says_what_was_booked_came_late_and_was_adjusted(tmp_path):
    engine = await october_closed(tmp_path)
    with engine.connect() as connection:
        found = answer_spend_query(connection, query(group_by=("month", "team")))
        parts = {
            row.group: (
                row.period.booked_pico_usd,
                row.period.late_pico_usd,
                row.period.adjusted_pico_usd,
            )
            for row in found.rows
        }
        assert parts == {
            ("2026-10", "payments"): (2 * COST, 0, 0),
            ("2026-10", ""): (COST, 0, -USD),
            ("2026-10", "search"): (0, 0, USD),
            ("2026-10", "other"): (0, 0, 0),
            ("2026-11", "payments"): (COST, COST, -7),
            ("2026-11", "other"): (0, COST, 0),
        }
        assert found.total_period.total_pico_usd == 6 * COST - 7
        # By day of charge the late event of a closed month stays in it.
        costs = {row.group: row.sums.cost_pico_usd for row in found.rows}
        assert costs["2026-10", "payments"] == 3 * COST
        for month in (MONTH, "2026-11"):
            told = close_status(connection, CloseStatus(month=month), sound(), now_us=1)
            sums = load_charges(connection, month).values()
            assert (
                sum(one.booked_pico_usd for one in sums),
                sum(one.late_pico_usd for one in sums),
                sum(one.adjusted_pico_usd for one in sums),
            ) == (told.cost_pico_usd, told.late_pico_usd, told.adjusted_pico_usd)
        late = load_late(connection, "2026-11")
        assert {(one.place.team, one.month): amount for one, amount in late.items()} == {
            ("payments", MONTH): COST,
            ("other", MONTH): COST,
        }
        only = load_charges(connection, "2026-11", ["other"])
        assert [one.team for one in only] == ["other"]


async def test_table_csv_and_json_hold_the_same_amounts(tmp_path):
    engine = await october_closed(tmp_path)
    with engine.connect() as connection:
        found = answer_spend_query(connection, query(group_by=("team",)))
    document = json.loads(render(found, ReportFormat.JSON))
    assert document["total"]["charged_pico_usd"] == 6 * COST - 7
    assert document["total"]["late_usd"] == "5"
    table = render(found, ReportFormat.TABLE)
    assert "charged USD" in table
    assert document["total"]["charged_usd"] in table
    header, *rows = render(found, ReportFormat.CSV).splitlines()
    assert header.endswith("charged_usd,charged_pico_usd")
    assert {row.count(",") for row in rows} == {header.count(",")}
    assert rows[-1].endswith(str(6 * COST - 7))


async def test_cost_centres_are_those_of_projects_then_of_teams(tmp_path):
    engine = await october_closed(tmp_path)
    with engine.connect() as connection:
        found = answer_spend_query(connection, query(group_by=("cost_centre",)))
        assert {row.group[0]: row.period.total_pico_usd for row in found.rows} == {
            "4711": COST - 7,
            "4711-F": 3 * COST,
            "": 2 * COST,
        }
        plain = query(group_by=("team", "cost_centre"), with_adjustments=False)
        report = answer_spend_query(connection, plain)
        assert report.total_period is None
        assert {row.group: row.sums.cost_pico_usd for row in report.rows} == {
            ("payments", "4711"): COST,
            ("payments", "4711-F"): 3 * COST,
            ("", ""): COST,
            ("other", ""): COST,
        }
        for wanted in ("4711-F", ("4711-F", "none")):
            only = query(group_by=("team",), filters={GroupBy.COST_CENTRE: wanted})
            one = answer_spend_query(connection, only)
            assert one.total.cost_pico_usd == 3 * COST
            assert one.total_period.total_pico_usd == 3 * COST


async def test_a_team_sees_its_own_adjustments_only(tmp_path):
    engine = await october_closed(tmp_path)
    with engine.connect() as connection:
        found = answer_spend_query(connection, query(group_by=("team",), teams=("search",)))
    assert [(row.group, row.period.adjusted_pico_usd) for row in found.rows] == [(("search",), USD)]
    assert found.total_period.total_pico_usd == USD


REFUSED = {
    "a report without bounds": (query(from_us=None), "whole months: give --month"),
    "bounds the wrong way round": (query(from_us=TO_US, to_us=FROM_US), "whole months"),
    "a beginning inside a month": (query(from_us=OCTOBER_US), "whole months in UTC; 2026-10-17"),
    "an end inside a month": (query(to_us=OCTOBER_US), "whole months in UTC; 2026-10-17"),
    "months of another zone": (query(zone="Europe/Berlin"), "add --zone UTC"),
    "something that adjustments do not say": (query(group_by=("model",)), "not told by model"),
    "a filter that they do not say": (query(filters={"key": "k"}), "not told by key"),
    "too many months": (
        query(from_us=month_bounds_us("2020-01")[0]),
        f"at most {MONTHS_MAX} months",
    ),
}


@pytest.mark.parametrize(("asked", "sentence"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_has_no_adjustments_is_refused(tmp_path, asked, sentence):
    engine = writing(await write(tmp_path, []))
    with engine.connect() as connection, pytest.raises(BadQuery, match=sentence):
        answer_spend_query(connection, asked)


async def test_what_months_are_charged_sums_to_their_closes(tmp_path):
    engine = await october_closed(tmp_path)
    teams = st.sampled_from(["payments", "search", "unattributed"])
    amounts = st.integers(-(10**15), 10**15).filter(bool)

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(teams, amounts), max_size=6))
    def check(lines) -> None:
        with engine.connect() as connection, connection.begin() as transaction:
            for line in lines:
                adjust(connection, line, kind="true_up", period="2026-11")
            found = answer_spend_query(connection, query(group_by=("team", "project", "provider")))
            told = [
                close_status(connection, CloseStatus(month=month), sound(), now_us=1)
                for month in (MONTH, "2026-11")
            ]
            transaction.rollback()
        parts = ("cost_pico_usd", "late_pico_usd", "adjusted_pico_usd")
        closed = sum(getattr(one, part) for one in told for part in parts)
        assert found.total_period.total_pico_usd == closed
        assert sum(row.period.total_pico_usd for row in found.rows) == closed

    check()
