"""Weeks are charged as months are: usage, what came late, what was posted; weeks sum to months."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta

import pytest
import sqlalchemy as sa

from gateway.finance.statement_books import load_statement, teams_of
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_messages import ShowStatement, week_of
from gateway.ledger.period_charges import Week, load_charges
from tests.gateway.finance_books import writing
from tests.gateway.ledger_samples import NOON_US
from tests.gateway.test_finance_close import USD, at
from tests.gateway.test_ledger_corrections import COST, october_closed

pytestmark = pytest.mark.anyio

USED, POSTED, CAME = "2026-W42", "2026-W45", "2026-W48"
"""The weeks of October 17, of November 6 and of the samples' today, November 28."""


def statement(connection, team: str, week: str):
    query = ShowStatement(team=team, period=week, organisation="Acme")
    return load_statement(connection, query, now_us=1)


def parts(found) -> tuple[int, int, int]:
    sums = found.sums
    return sums.booked_pico_usd, sums.late_pico_usd, sums.adjusted_pico_usd


async def test_a_week_has_what_was_posted_and_what_came_late_in_it(tmp_path):
    engine = await october_closed(tmp_path)
    assert week_of(date(2026, 11, 28)) == CAME
    with engine.connect() as connection:
        used = statement(connection, "payments", USED)
        assert (used.state, parts(used)) == ("week", (2 * COST, 0, 0))
        assert used.report.total.cost_pico_usd == 3 * COST
        assert used.counted_later_pico_usd == COST
        posted = statement(connection, "payments", POSTED)
        assert parts(posted) == (0, 0, -7)
        assert [one.kind.value for one in posted.adjustments] == ["late"]
        came = statement(connection, "payments", CAME)
        assert parts(came) == (COST, COST, 0)
        assert [(one.month, one.amount_pico_usd) for one in came.late] == [("2026-10", COST)]
        assert parts(statement(connection, "", POSTED)) == (0, 0, -USD)
        assert teams_of(connection, POSTED) == ("", "payments", "search")
        assert teams_of(connection, CAME) == ("other", "payments")
        rows = list(csv.DictReader(io.StringIO(statement_csv(came), newline="")))
        *lines, total = rows
        assert sum(int(row["amount_pico_usd"]) for row in lines) == int(total["amount_pico_usd"])
        assert {row["kind"] for row in lines} == {"usage", "late"}
        hidden = ShowStatement(team="payments", period=CAME, organisation="Acme", teams=("other",))
        assert parts(load_statement(connection, hidden, now_us=1)) == (0, 0, 0)


@pytest.mark.parametrize("is_older", [False, True], ids=["as noted", "noted by an older release"])
async def test_the_weeks_of_all_time_sum_to_its_months(tmp_path, is_older):
    engine = await october_closed(tmp_path)
    if is_older:  # append-only, so as an operator with the database's own rights would
        with writing(str(engine.url)).begin() as connection:
            triggers = sa.text(
                "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'late_entry'"
            )
            for name in connection.execute(triggers).scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
            connection.exec_driver_sql("UPDATE late_entry SET noted_at_us = NULL")
    with engine.connect() as connection:
        monday, weeks, late_weeks = date(2026, 9, 28), 0, []
        while monday < date(2026, 12, 7):
            start = at(monday.isoformat())
            monday += timedelta(days=7)
            charges = load_charges(connection, Week(start, at(monday.isoformat()))).values()
            weeks += sum(one.total_pico_usd for one in charges)
            if any(one.late_pico_usd for one in charges):
                late_weeks.append(start <= NOON_US < at(monday.isoformat()))
        months = sum(
            one.total_pico_usd
            for month in ("2026-10", "2026-11")
            for one in load_charges(connection, month).values()
        )
    assert weeks == months == 6 * COST - 7
    # Without its instant it came, as far as can be told, when November began.
    assert late_weeks == [not is_older]
