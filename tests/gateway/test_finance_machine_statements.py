"""Statements of teams: what their use of machines really cost, beside what they are charged."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal

import pytest

from gateway.cli.spend_statement import _print
from gateway.dashboard.finance.statement_document import statement_html
from gateway.dashboard.templating import make_templates
from gateway.finance.adjustments import decide
from gateway.finance.machines.messages import IdlePolicy, ProposeMachines, Slice
from gateway.finance.machines.report import propose_machines
from gateway.finance.messages import Decide
from gateway.finance.statement_books import load_statement
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_json import statement_json
from gateway.finance.statement_messages import ShowStatement, TeamStatement
from tests.gateway.finance_books import attempt, write, writing
from tests.gateway.machine_books import (
    NOVEMBER,
    OCTOBER,
    SERVER_TERMS,
    USD,
    changed,
    machine,
    note,
    note_october,
)
from tests.gateway.test_finance_machine_books import report, served

pytestmark = pytest.mark.anyio
SLICED = changed(
    SERVER_TERMS, idle=IdlePolicy.RESERVED, slices=(Slice(team="search", fraction="1/4"),)
)


def statement(engine, team="search", period="2026-10", *, now_us=NOVEMBER, teams=None):
    query = ShowStatement(team=team, period=period, organisation="Acme", teams=teams)
    with engine.begin() as connection:
        return load_statement(connection, query, now_us=now_us)


def propose(engine) -> int:
    with engine.begin() as connection:
        order = ProposeMachines(actor="ann", month="2026-10")
        return propose_machines(connection, order, now_us=NOVEMBER).proposal_id


@pytest.fixture
async def books(tmp_path):
    attempts = [served(1), served(2, team="search"), attempt(3, team="search")]
    engine = writing(await write(tmp_path, attempts))
    note_october(engine, machine(terms=SLICED))
    yield engine
    engine.dispose()


def csv_rows(found: TeamStatement) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(statement_csv(found))))


async def test_a_statement_says_what_the_use_of_machines_cost_and_that_it_is_not_charged(books):
    found = statement(books)
    shares = [one for one in report(books).shares if one.team == "search"]
    assert found.machines is not None
    assert {one.is_slice for one in found.machines.uses} == {True, False}
    assert found.machines.actual_pico_usd == sum(one.actual_pico_usd for one in shares)
    assert found.machines.open_pico_usd == found.machines.actual_pico_usd
    assert found.machines.standing == "not charged: no adjustment was approved or waits"
    # What is charged is what it was.
    assert found.sums.total_pico_usd == found.report.total.cost_pico_usd


async def test_a_proposal_that_waits_and_one_that_is_approved_are_said(books):
    number = propose(books)
    waiting = statement(books)
    assert waiting.machines is not None
    assert waiting.machines.standing == f"not charged yet: proposal {number} waits for approval"
    assert waiting.machines.open_pico_usd == waiting.machines.actual_pico_usd
    with books.begin() as connection:
        decision = Decide(actor="bob", proposal_id=number, is_approved=True)
        decide(connection, decision, now_us=NOVEMBER)
    charged = statement(books)
    assert charged.machines is not None
    assert charged.machines.standing == "all of it is charged"
    assert charged.machines.approved_pico_usd == charged.machines.actual_pico_usd
    usage = charged.report.total.cost_pico_usd
    assert charged.sums.total_pico_usd == usage + charged.machines.actual_pico_usd


async def test_a_month_that_is_not_over_says_so(books):
    found = statement(books, now_us=NOVEMBER - 1)
    assert found.machines is not None
    assert found.machines.standing.startswith("the month is not over")


async def test_every_form_tells_the_same_and_the_sums_stay_what_is_charged(books, capsys):
    found = statement(books)
    assert found.machines is not None
    rows = csv_rows(found)
    of_machines = [row for row in rows if row["kind"] == "machines"]
    assert [Decimal(row["machine_actual_usd"]) for row in of_machines] == [
        Decimal(one.actual_pico_usd) / USD for one in found.machines.uses
    ]
    assert {row["amount_pico_usd"] for row in of_machines} == {"0"}
    [total] = [row for row in rows if row["kind"] == "total"]
    others = [row for row in rows if row["kind"] != "total"]
    assert sum(int(row["amount_pico_usd"]) for row in others) == int(total["amount_pico_usd"])
    told = statement_json(found)["machines"]
    assert told["standing"] == found.machines.standing
    assert Decimal(told["actual_usd"]) == Decimal(found.machines.actual_pico_usd) / USD
    assert [one["actual_usd"] for one in told["uses"]] == [
        row["machine_actual_usd"] for row in of_machines
    ]
    page = statement_html(found, make_templates())
    [table] = re.findall(r'<table id="machines">.*?</table>', page, re.DOTALL)
    for use in told["uses"]:
        assert f'title="{use["actual_usd"]}"' in table
    assert "idle of its slice" in table
    assert "Not charged: no adjustment was approved or waits." in page
    _print(found)
    printed = capsys.readouterr().out
    for use in told["uses"]:
        assert f"actual {use['actual_usd']} USD" in printed


async def test_who_used_no_machine_has_no_such_part(books):
    assert statement(books, team="nobody").machines is None
    assert statement(books, teams=("payments",)).machines is None
    assert statement(books, period="2026-W42").machines is None
    assert statement(books, period="2026-09", now_us=NOVEMBER).machines is None
    found = statement(books, team="nobody")
    assert statement_json(found)["machines"] is None
    assert 'id="machines"' not in statement_html(found, make_templates())


async def test_a_nominal_rate_is_marked(tmp_path):
    engine = writing(await write(tmp_path, [served(1)]))
    nominal = machine(terms=changed(SERVER_TERMS, is_nominal=True))
    note(engine, OCTOBER, nominal)
    note(engine, NOVEMBER, nominal)
    found = statement(engine, team="payments")
    assert found.machines is not None
    assert found.machines.uses[0].is_nominal
    assert "nominal rate" in statement_html(found, make_templates())
