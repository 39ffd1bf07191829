"""Teams that own slices of a machine: settings, report, true-ups and export say the same."""

from __future__ import annotations

import csv
import io
from fractions import Fraction

import pytest
from focus_data_toolkit.model.validator import lint_focus_1_4_structure

from gateway.finance.focus.charges import SLICE_IDLE
from gateway.finance.focus.files import write_folder
from gateway.finance.focus.machine_time import METHOD_OF_SLICES
from gateway.finance.focus.order import FileFormat, SelfHost
from gateway.finance.machines.declared import declared_machines
from gateway.finance.machines.messages import (
    IDLE_TEAM,
    IdlePolicy,
    MachinesReport,
    MachineSummary,
    ProposeMachines,
    RateKind,
    Slice,
)
from gateway.finance.machines.report import propose_machines
from gateway.finance.machines.shown import as_csv, as_table, idle_text
from gateway.settings.document import Settings
from tests.gateway.finance_books import OCTOBER_US, write, writing
from tests.gateway.focus_samples import read_rows
from tests.gateway.machine_books import (
    HOUR_US,
    MINUTE_US,
    NOVEMBER,
    SERVER_TERMS,
    USD,
    changed,
    machine,
    note_october,
)
from tests.gateway.settings_text import load_settings, problems_of
from tests.gateway.test_finance_focus_machines import opened
from tests.gateway.test_finance_focus_rows import CONDITIONS
from tests.gateway.test_finance_machine_books import check_sums, report, served

pytestmark = pytest.mark.anyio
SLICES = (Slice(team="research", fraction="1/8"), Slice(team="search", fraction="1/3"))
SLICED = changed(SERVER_TERMS, idle=IdlePolicy.RESERVED, slices=SLICES)
HOURS = 31 * 24
COST = HOURS * 7 * USD


@pytest.fixture
async def books(tmp_path):
    """A server of which two teams own parts, used by one of them and by a third.

    Each for half an hour: more than the slice of the one, less than what is nobody's.
    """
    attempts = [served(1), served(2, team="search", offset_us=HOUR_US)]
    engine = writing(await write(tmp_path, attempts))
    note_october(engine, machine(terms=SLICED))
    yield engine
    engine.dispose()


def of(found: MachinesReport, team: str) -> list[tuple[bool, int]]:
    return [(one.is_slice, one.borne_us) for one in found.shares if one.team == team]


async def test_an_owner_bears_what_is_idle_of_its_slice_in_a_row_of_its_own(books):
    found = report(books)
    check_sums(found)
    assert found.cost_pico_usd == COST
    assert of(found, "research") == [(True, HOURS * 15 * MINUTE_US // 2)]
    busy, idle = sorted(of(found, "search"))
    assert busy == (False, 30 * MINUTE_US)
    assert idle == (True, HOURS * 20 * MINUTE_US - 20 * MINUTE_US)
    assert of(found, "payments") == [(False, 30 * MINUTE_US)]
    [rest] = [one for one in found.shares if one.is_rest]
    assert (rest.team, rest.is_slice) == (IDLE_TEAM, False)
    assert rest.borne_us == HOURS * 65 * MINUTE_US // 2 - 40 * MINUTE_US
    [one] = found.machines
    assert (one.idle, one.slices) == (IdlePolicy.RESERVED, SLICES)
    for rate in (RateKind.STANDARD, RateKind.MARGINAL):
        other = report(books, rate=rate)
        check_sums(other)
        assert {row.cost_pico_usd for row in other.shares if row.is_slice} == {0}


async def test_tables_and_files_name_the_idle_part_of_a_slice(books):
    found = report(books)
    assert "research, idle of its slice" in as_table(found)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    told = [(row["team"], row["is_slice"]) for row in rows]
    assert sorted(told) == [
        ("payments", "false"),
        ("research", "true"),
        ("search", "false"),
        ("search", "true"),
        (IDLE_TEAM, "false"),
    ]


async def test_true_ups_charge_owners_for_their_slices(books):
    with books.begin() as connection:
        order = ProposeMachines(actor="ann", month="2026-10")
        made = propose_machines(connection, order, now_us=NOVEMBER)
    assert made.total_pico_usd == COST
    amounts = {line.team: 0 for line in made.lines}
    for line in made.lines:
        amounts[line.team] += line.amount_pico_usd
    assert amounts["research"] == COST // 8
    beyond = round(Fraction(10 * 7 * USD, 60))
    assert abs(amounts["search"] - COST // 3 - beyond) <= HOURS
    assert sum(amounts.values()) == COST


async def test_an_export_tells_slices_as_shares_of_their_owners(books, tmp_path):
    day_us = OCTOBER_US - OCTOBER_US % (24 * HOUR_US)
    with books.begin() as connection:
        export = opened(connection, SelfHost.ACTUAL, bounds=(day_us, day_us + 24 * HOUR_US))
        write_folder(connection, export, FileFormat.CSV, tmp_path / "focus")
    rows = read_rows(tmp_path / "focus" / "cost_and_usage.csv")
    found = lint_focus_1_4_structure("Cost and Usage", rows, supported_conditions=CONDITIONS)
    assert found.messages() == []
    assert {row["AllocatedMethodId"] for row in rows} == {METHOD_OF_SLICES}
    of_slices = [row for row in rows if SLICE_IDLE in (row["AllocatedMethodDetails"] or "")]
    assert {row["SubAccountId"] for row in of_slices} == {"research", "search"}
    assert {row["AllocatedResourceId"] for row in of_slices} == {
        f"research/{SLICE_IDLE}",
        f"search/{SLICE_IDLE}",
    }
    # 24 hours of nobody and of two owners, one of which was never idle in one of them; and two in
    # which somebody computed.
    assert len(rows) == 24 * 3 - 1 + 2


SERVER = (
    "providers: {vllm: {kind: openai_compatible, base_url: 'http://10.0.0.5/v1', "
    "price: {gpu_usd_per_hour: 3}}}\n"
    "models: {m: {deployments: [vllm/llama]}}\nteams: {search: {}, research: {}}\n"
)


def settings(pools: str) -> Settings:
    return load_settings(f"{SERVER}finance: {{machines: {{pools: {pools}}}}}").settings


def test_slices_are_fractions_in_lowest_terms():
    read = settings("{vllm: {idle: reserved, slices: {search: 2/6, research: 0.125}}}")
    [found] = declared_machines(read)
    terms = found.terms[0].terms
    assert terms is not None
    assert (terms.idle, terms.slices) == (IdlePolicy.RESERVED, SLICES)


def test_a_pool_may_share_idle_time_otherwise_than_the_others():
    [found] = declared_machines(settings("{vllm: {idle: by_use}}"))
    terms = found.terms[0].terms
    assert terms is not None
    assert terms.idle is IdlePolicy.BY_USE


PROBLEMS = {
    "slices of more than the machine": (
        "{vllm: {idle: reserved, slices: {search: 0.5, research: 2/3}}}",
        "slices are 7/6 of the machine together; they may be 1 at most",
    ),
    "slices that nobody asked for": (
        "{vllm: {slices: {search: 0.5}}}",
        "slices belong to `idle: reserved`",
    ),
    "no slices": (
        "{vllm: {idle: reserved}}",
        "`idle: reserved` needs slices, such as {research: 0.25}",
    ),
    "no fraction": (
        "{vllm: {idle: reserved, slices: {search: half}}}",
        "must be a part of the machine such as 0.25 (at most 18 decimals) or 1/3",
    ),
    "a truth value": (
        "{vllm: {idle: reserved, slices: {search: true}}}",
        "must be a part of the machine such as 0.25 (at most 18 decimals) or 1/3",
    ),
    "nothing of a machine": (
        "{vllm: {idle: reserved, slices: {search: 0}}}",
        "must be above 0 and at most 1",
    ),
    "more than all of it": (
        "{vllm: {idle: reserved, slices: {search: 3/2}}}",
        "must be above 0 and at most 1",
    ),
    "a team that is none": (
        "{vllm: {idle: reserved, slices: {serch: 1/2}}}",
        "unknown team `serch`; did you mean `search`?",
    ),
    "a machine that is none": (
        "{vlm: {idle: by_use}}",
        (
            "`vlm` is no machine (a provider, or a deployment with a price of its own, that costs "
            "by the hour and is listed by a model); did you mean `vllm`?"
        ),
    ),
}


@pytest.mark.parametrize(("pools", "says"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_slices_that_cannot_be_are_told(pools: str, says: str):
    [found] = problems_of(f"{SERVER}finance: {{machines: {{pools: {pools}}}}}")
    assert found.endswith(says)


@pytest.mark.parametrize(
    ("idle", "says"),
    [
        (IdlePolicy.OVERHEAD, ""),
        (IdlePolicy.BY_USE, "idle time by use"),
        (IdlePolicy.RESERVED, "slices: 1/4 of research, 1/3 of search"),
    ],
)
def test_who_bears_idle_time_is_said(idle, says) -> None:
    owned = (Slice(team="research", fraction="1/4"), Slice(team="search", fraction="1/3"))
    one = MachineSummary(
        machine="vllm",
        pool="vllm",
        kind="server",
        gpus=1,
        gpu_usd_per_hour="4",
        parts=(),
        is_nominal=False,
        up_us=HOUR_US,
        busy_us=0,
        idle_us=HOUR_US,
        down_us=None,
        utilisation_percent="0.00",
        cost_pico_usd=4 * USD,
        busy_pico_usd=0,
        idle_pico_usd=4 * USD,
        until_us=HOUR_US,
        idle=idle,
        slices=owned if idle is IdlePolicy.RESERVED else (),
    )
    assert idle_text(one) == says
