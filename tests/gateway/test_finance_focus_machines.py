"""Machines in an export: shares of what they cost in the place of what was booked for them."""

from __future__ import annotations

import pytest
from focus_data_toolkit import validate_dataset_bundle
from focus_data_toolkit.model.validator import lint_focus_1_4_structure

from gateway.finance.adjustments import decide
from gateway.finance.focus import row_map
from gateway.finance.focus.books import open_export
from gateway.finance.focus.charges import IDLE, NO_OWNER, SCALE
from gateway.finance.focus.errors import BadOrder, Inconsistent
from gateway.finance.focus.files import write_folder
from gateway.finance.focus.inputs import MachineShare
from gateway.finance.focus.machine_time import machine_time
from gateway.finance.focus.order import (
    ExportOrder,
    FileFormat,
    Grain,
    NameForm,
    Profile,
    SelfHost,
    month_of,
)
from gateway.finance.machines.messages import DatedTerms, IdlePolicy, ProposeMachines
from gateway.finance.machines.report import propose_machines
from gateway.finance.messages import Decide
from tests.gateway.finance_books import DAY_US, OCTOBER_US, attempt, write, writing
from tests.gateway.focus_ledgers import column_sum, told
from tests.gateway.focus_samples import FRAUD, PARTIES, pool, read_rows
from tests.gateway.machine_books import (
    LOCAL,
    MINUTE_US,
    NOVEMBER,
    SERVER_TERMS,
    changed,
    machine,
    note,
    note_october,
    sample,
)
from tests.gateway.test_finance_focus_rows import CONDITIONS, DATASETS
from tests.gateway.test_finance_machine_books import computed, report, served

pytestmark = pytest.mark.anyio
BOOKED = 90 * 10**6 * 28
VENDOR = 2_500_000 * 10**6
NOON_US = OCTOBER_US - OCTOBER_US % (60 * MINUTE_US)
DEARER = DatedTerms(
    from_us=NOON_US + 15 * MINUTE_US, terms=changed(SERVER_TERMS, gpu_usd_per_hour="4")
)


@pytest.fixture
async def books(tmp_path):
    """A server whose price changes within an hour, an engine, a vendor; adjustments are posted."""
    attempts = [
        served(1),
        served(2, team="search"),
        served(3, project="other"),
        computed(4, 60),
        computed(5, 30, team="search"),
        attempt(6),
    ]
    engine = writing(await write(tmp_path, attempts))
    servers = (machine("vllm", "server", SERVER_TERMS, DEARER), LOCAL)
    note_october(engine, *servers)
    readings = [sample(120 * MINUTE_US, 12 * MINUTE_US, started_us=NOON_US - 30 * MINUTE_US)]
    note(engine, NOVEMBER, *servers, samples=readings)
    with engine.begin() as connection:
        wanted = ProposeMachines(actor="ann", month="2026-10")
        made = propose_machines(connection, wanted, now_us=NOVEMBER)
        decision = Decide(actor="bob", proposal_id=made.proposal_id, is_approved=True)
        decide(connection, decision, now_us=NOVEMBER)
    yield engine
    engine.dispose()


def opened(connection, self_host: SelfHost, profile=Profile.CHARGEBACK, bounds=None):
    from_us, to_us = bounds or month_of("2026-10")
    wanted = ExportOrder(
        from_us=from_us, to_us=to_us, profile=profile, names=NameForm.PLAIN, self_host=self_host
    )
    wanted.check()
    return open_export(
        connection, wanted, parties=PARTIES, pseudonym_key=b"k" * 32, now_us=NOVEMBER
    )


@pytest.mark.slow
async def test_shares_hold_what_machines_cost_and_nothing_is_told_twice(books):
    found = report(books)
    with books.begin() as connection:
        booked = told(connection, opened(connection, SelfHost.BOOKED))
        actual = told(connection, opened(connection, SelfHost.ACTUAL))
    machines = found.cost_pico_usd
    assert machines == sum(one.cost_pico_usd for one in found.machines)
    assert column_sum(booked, "EffectiveCost") == VENDOR + machines  # with the adjustments
    for name in ("EffectiveCost", "BilledCost", "ListCost", "ContractedCost"):
        assert column_sum(actual, name) == VENDOR + machines
    assert column_sum(actual, "x_RequestCount") == 6 * SCALE
    of_team: dict[tuple[str, str], int] = {}
    for share in found.shares:
        of_team[share.pool, share.team] = (
            of_team.get((share.pool, share.team), 0) + share.actual_pico_usd
        )
    rows = [row for row in actual if str(row["x_ChargeKind"]).startswith("self_host")]
    for (name, team), cost in of_team.items():
        of_it = [
            row for row in rows if (row["ResourceId"], row["SubAccountId"]) == (name, team or None)
        ]
        assert column_sum(of_it, "EffectiveCost") == cost, (name, team)
    assert {row["SubAccountId"] for row in rows} >= {"payments", "search", IDLE}
    assert len(rows) == 744 + 1 + 2 * 3 + 2 + 2 + 1


@pytest.mark.slow
async def test_the_linter_finds_nothing_in_shares_of_a_day(books, tmp_path):
    bounds = (NOON_US - NOON_US % DAY_US, NOON_US - NOON_US % DAY_US + DAY_US)
    for profile in (Profile.CHARGEBACK, Profile.OVERLAY):
        folder = tmp_path / profile.value
        with books.begin() as connection:
            export = opened(connection, SelfHost.ACTUAL, profile, bounds)
            write_folder(connection, export, FileFormat.CSV, folder)
        rows = {
            name: read_rows(folder / f"{stem}.csv")
            for stem, name in DATASETS.items()
            if (folder / f"{stem}.csv").exists()
        }
        assert len(rows["Cost and Usage"]) > 24
        for dataset, found in rows.items():
            done = lint_focus_1_4_structure(dataset, found, supported_conditions=CONDITIONS)
            assert done.messages() == []
        bundle = validate_dataset_bundle(rows)
        assert [str(one) for one in bundle.diagnostics if one.is_failure] == []


def test_days_have_no_shares_of_machines():
    from_us, to_us = month_of("2026-10")
    order = ExportOrder(from_us=from_us, to_us=to_us, grain=Grain.DAY, self_host=SelfHost.ACTUAL)
    with pytest.raises(BadOrder, match="by the hour, not by the day"):
        order.check()


ODD = {
    "a share without its amount": (1, None),
    "amounts that are not the pool's cost": (1, 1),
}


@pytest.mark.parametrize(("first", "second"), ODD.values(), ids=ODD.keys())
def test_amounts_that_are_not_the_cost_are_refused(first, second):
    shares = (
        MachineShare(owner=FRAUD, work=1, tokens=1, cost_pico_usd=first),
        MachineShare(owner=NO_OWNER, work=1, tokens=0, is_idle=True, cost_pico_usd=second),
    )
    with pytest.raises(Inconsistent, match="do not sum to"):
        list(row_map.self_host(pool(shares=shares)))


async def test_an_hour_that_its_users_bear_whole_has_no_row_of_idle_time(tmp_path):
    engine = writing(await write(tmp_path, [served(1)]))
    by_use = changed(SERVER_TERMS, idle=IdlePolicy.BY_USE)
    note(engine, NOON_US, machine(terms=by_use))
    note(engine, NOON_US + DAY_US, machine(terms=by_use))
    with engine.begin() as connection:
        found = machine_time(connection, NOON_US, NOON_US + 60 * MINUTE_US)
    [one] = found.pools
    [share] = one.shares
    assert (share.owner.team, share.cost_pico_usd) == ("payments", one.cost_pico_usd)
    assert found.replaced == {("vllm/llama", NOON_US)}
