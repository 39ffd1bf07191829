"""Machines in the database: written down durably, and told with the shares of a month."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from gateway.finance.adjustments import decide, propose
from gateway.finance.close import close_month
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import Refused
from gateway.finance.machines.messages import (
    IDLE_TEAM,
    DatedTerms,
    Hours,
    MachinesReport,
    NoteMachines,
    ProposeMachines,
    RateKind,
    ShowMachines,
)
from gateway.finance.machines.recording import GAP_MAX_US, newest_terms, terms_within
from gateway.finance.machines.report import close_fault, machines_report, propose_machines
from gateway.finance.messages import (
    UNATTRIBUTED,
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    Proposal,
    Propose,
)
from gateway.ledger.machine_tables import machine_sample, machine_term
from gateway.ledger.service import LedgerService
from tests.gateway.finance_books import OCTOBER_US, attempt, load, write, writing
from tests.gateway.ledger_samples import FakeClock, make_database, open_spool
from tests.gateway.machine_books import (
    ENGINE_TERMS,
    HOUR_US,
    LOCAL,
    MINUTE_US,
    NOVEMBER,
    OCTOBER,
    SERVER_TERMS,
    USD,
    VLLM,
    at,
    changed,
    machine,
    note,
    note_october,
    sample,
)
from tests.gateway.test_finance_close import ALL, order, sound

pytestmark = pytest.mark.anyio
HOURS = 744


def served(n: int, *, minutes: int = 30, offset_us: int = 0, **changes):
    """An answer of the server, which tells no busy time: nothing is booked for it."""
    values = {"account": "vllm", "model": "llama", "usage": {"input": 1_000, "output": 100}}
    values |= {"lines": (), "cost_pico_usd": 0, "duration_us": minutes * MINUTE_US}
    return attempt(n, at_us=OCTOBER_US + offset_us, **(values | changes))


def computed(n: int, seconds: int, **changes):
    """An answer of the engine, charged by its busy time."""
    values = {"account": "local", "model": "smol", "usage": {"gpu_us": seconds * 10**6}}
    return attempt(n, rate=28, **(values | changes))


def report(engine: sa.Engine, *, now_us: int = NOVEMBER, **changes) -> MachinesReport:
    with engine.begin() as connection:
        query = ShowMachines(month="2026-10", **changes)
        return machines_report(connection, query, now_us=now_us)


def check_sums(found: MachinesReport) -> None:
    """Every column of a pool's shares sums to its cost; nothing is negative that cannot be."""
    costs = {}
    for one in found.machines:
        costs[one.pool] = costs.get(one.pool, 0) + one.cost_pico_usd
        assert one.busy_us + one.idle_us == one.up_us
        assert min(one.busy_us, one.idle_us) >= 0
        assert one.busy_pico_usd + one.idle_pico_usd == one.cost_pico_usd
    for pool, cost in costs.items():
        rows = [share for share in found.shares if share.pool == pool]
        for name in ("cost", "actual", "standard", "marginal"):
            assert sum(getattr(row, f"{name}_pico_usd") for row in rows) == cost
    assert sum(costs.values()) == found.cost_pico_usd
    assert sum(day.cost_pico_usd for day in found.days) == found.cost_pico_usd


async def test_a_server_that_is_always_on_costs_its_hours_and_the_busy_ones_are_shared(tmp_path):
    attempts = [
        served(1),
        served(2, team="search", offset_us=10 * MINUTE_US),
        served(3, offset_us=26 * HOUR_US),
        served(4, status="not_sent", offset_us=40 * HOUR_US, usage={}),
    ]
    engine = writing(await write(tmp_path, attempts))
    note_october(engine, VLLM)
    found = report(engine, day="2026-10-17")
    check_sums(found)
    [one] = found.machines
    assert (one.up_us, one.cost_pico_usd) == (HOURS * HOUR_US, HOURS * 7 * USD)
    # Two requests overlap: 40 minutes in the hour after noon, 30 on the next day.
    assert one.busy_us == 70 * MINUTE_US + 1  # each attempt starts n microseconds later
    assert one.utilisation_percent == "0.16"
    payments, search, rest = found.shares
    assert (payments.team, search.team, rest.team) == ("payments", "search", IDLE_TEAM)
    assert payments.used_us == (20 + 30) * MINUTE_US + 1
    assert search.used_us == 20 * MINUTE_US
    assert rest.is_rest
    assert rest.borne_us == one.idle_us
    assert payments.booked_pico_usd == 0
    noon = next(hour for hour in found.hours if hour.busy_us)
    assert noon.start_us == OCTOBER_US
    assert len(found.hours) == 24
    assert len(found.days) == 31
    [unit] = found.units
    assert unit.tokens == 3 * 1_100
    assert unit.effective_pico_usd_per_mtok == round(Fraction(HOURS * 7 * USD * 10**6, 3_300))
    standard = report(engine, rate=RateKind.STANDARD)
    check_sums(standard)
    assert [row.cost_pico_usd for row in standard.shares[:2]] == [
        row.standard_pico_usd for row in standard.shares[:2]
    ]
    assert standard.shares[1].standard_pico_usd == round(Fraction(14 * USD, 3))


@pytest.mark.slow
async def test_an_engines_meter_decides_and_order_or_repetition_change_nothing(tmp_path):
    url = await write(tmp_path, [computed(1, 60), computed(2, 120, team="search")])
    engine = writing(url)
    note_october(engine, LOCAL)
    started_us = OCTOBER_US - 30 * MINUTE_US
    samples = [
        sample(minute * MINUTE_US, minute * MINUTE_US // 10, started_us=started_us)
        for minute in (1, 20, 29, 31, 60, 89, 95, 100)
    ]
    note(engine, NOVEMBER, LOCAL, samples=samples)
    expected = report(engine)
    check_sums(expected)
    [one] = expected.machines
    assert (one.up_us, one.busy_us) == (100 * MINUTE_US, 10 * MINUTE_US)
    assert one.is_nominal
    assert all(share.is_nominal for share in expected.shares)
    payments, search, rest = sorted(expected.shares, key=lambda row: row.team)
    assert (payments.used_us, search.used_us) == (2 * MINUTE_US, 4 * MINUTE_US)
    # The other hours computed for no team: warm-up.
    assert rest.borne_us == 94 * MINUTE_US
    for taken in itertools.islice(itertools.permutations(samples), 0, 40_320, 8_000):
        with engine.begin() as connection:
            connection.execute(sa.delete(machine_sample))
        for part in (taken[:3], taken[2:6], taken[5:], taken[:1]):
            note(engine, NOVEMBER, LOCAL, samples=part)
        assert report(engine) == expected


async def test_two_engines_on_one_machine_are_paid_for_once(tmp_path):
    engine = writing(make_database(tmp_path))
    note_october(engine, LOCAL)
    both = [
        sample(60 * MINUTE_US, 40 * MINUTE_US, session=session, started_us=OCTOBER_US)
        for session in (1, 2)
    ]
    note(engine, NOVEMBER, LOCAL, samples=both)
    [one] = report(engine).machines
    assert (one.up_us, one.busy_us, one.idle_us) == (60 * MINUTE_US, 60 * MINUTE_US, 0)


async def test_a_server_that_is_paid_while_it_is_up_is_off_after_an_hour_of_silence(tmp_path):
    attempts = [
        served(1, minutes=10),
        served(2, minutes=10, offset_us=60 * MINUTE_US),
        served(3, minutes=10, offset_us=180 * MINUTE_US),
    ]
    engine = writing(await write(tmp_path, attempts))
    note_october(engine, machine(terms=changed(SERVER_TERMS, hours=Hours.SEEN)))
    [one] = report(engine).machines
    assert (one.up_us, one.busy_us) == (80 * MINUTE_US + 1, 30 * MINUTE_US)


async def test_terms_go_on_over_a_stop_and_a_change_begins_where_the_last_ones_end(tmp_path):
    engine = writing(make_database(tmp_path))
    note(engine, OCTOBER, VLLM)
    note(engine, OCTOBER, VLLM)
    note(engine, OCTOBER + HOUR_US, VLLM)
    dearer = changed(SERVER_TERMS, gpu_usd_per_hour="4", price_version="server-2")
    later = DatedTerms(from_us=OCTOBER + 3 * HOUR_US, terms=dearer)
    note(engine, OCTOBER + 5 * HOUR_US, machine("vllm", "server", SERVER_TERMS, later))
    # A clock that goes back changes nothing.
    note(engine, OCTOBER, machine("vllm", "server", SERVER_TERMS, later))
    with engine.begin() as connection:
        found = list(terms_within(connection, OCTOBER, NOVEMBER))
    assert [(one.from_us, one.until_us) for one in found] == [
        (OCTOBER, OCTOBER + 3 * HOUR_US),
        (OCTOBER + 3 * HOUR_US, OCTOBER + 5 * HOUR_US),
    ]
    [one] = report(engine, now_us=OCTOBER + 5 * HOUR_US).machines
    assert one.cost_pico_usd == (3 * 7 + 2 * 9) * USD


async def test_a_machine_that_is_configured_no_more_ends_and_may_come_again(tmp_path):
    engine = writing(make_database(tmp_path))
    note(engine, OCTOBER, VLLM, LOCAL)
    note(engine, OCTOBER + HOUR_US, VLLM)
    note(engine, OCTOBER + 3 * HOUR_US, VLLM, LOCAL)
    with engine.begin() as connection:
        rows = connection.execute(sa.select(machine_term.c.machine, machine_term.c.is_ended)).all()
        assert [tuple(row) for row in rows] == [("vllm", False), ("local", True), ("local", False)]
        assert [one.from_us for one in newest_terms(connection)] == [
            OCTOBER + 3 * HOUR_US,
            OCTOBER,
        ]


async def test_another_node_ends_no_machine_of_this_one(tmp_path):
    engine = writing(make_database(tmp_path))
    note(engine, OCTOBER, machine("local@a", "engine", ENGINE_TERMS, pool="local"), node="a")
    note(engine, OCTOBER, machine("local@b", "engine", ENGINE_TERMS, pool="local"), node="b")
    with engine.begin() as connection:
        assert not any(one.is_ended for one in newest_terms(connection))


async def test_a_price_that_is_not_by_the_hour_yet_costs_no_hours(tmp_path):
    engine = writing(make_database(tmp_path))
    by_hour = DatedTerms(from_us=OCTOBER + HOUR_US, terms=SERVER_TERMS)
    declared = msgspec.structs.replace(VLLM, terms=(DatedTerms(from_us=None, terms=None), by_hour))
    note(engine, OCTOBER, declared)
    with engine.begin() as connection:
        assert list(newest_terms(connection)) == []
    note(engine, OCTOBER + 2 * HOUR_US, declared)
    note(engine, OCTOBER + 3 * HOUR_US, declared)
    [one] = report(engine, now_us=OCTOBER + 3 * HOUR_US).machines
    assert one.up_us == HOUR_US


async def test_years_that_a_wrong_clock_claims_are_not_paid_for(tmp_path):
    engine = writing(make_database(tmp_path))
    note(engine, OCTOBER, VLLM)
    note(engine, OCTOBER + GAP_MAX_US + 1, VLLM)
    with engine.begin() as connection:
        assert (
            sum(
                one.until_us - one.from_us
                for one in terms_within(connection, OCTOBER, OCTOBER + 2 * GAP_MAX_US)
            )
            == 0
        )


async def test_teams_see_their_own_shares_and_nothing_of_the_machines(tmp_path):
    engine = writing(await write(tmp_path, [served(1), served(2, team="search")]))
    note_october(engine, VLLM)
    found = report(engine, teams=("search",))
    assert [share.team for share in found.shares] == ["search"]
    assert found.is_restricted
    assert (found.machines, found.units, found.days, found.hours) == ((), (), (), ())
    assert found.cost_pico_usd == found.shares[0].cost_pico_usd
    assert report(engine, teams=(IDLE_TEAM,)).shares == ()


@pytest.mark.slow
async def test_what_was_booked_is_brought_to_what_machines_cost_by_an_approved_adjustment(tmp_path):
    url = await write(tmp_path, [computed(1, 60), computed(2, 120, team="search")])
    engine = writing(url)
    note(engine, OCTOBER, LOCAL)
    with engine.begin() as connection, pytest.raises(Refused, match="not complete: local is"):
        propose_machines(connection, ProposeMachines(actor="ann", month="2026-10"), now_us=NOVEMBER)
    # An engine that runs for two hours around noon.
    started_us = OCTOBER_US - HOUR_US
    readings = [sample(2 * HOUR_US, HOUR_US, started_us=started_us)]
    note(engine, NOVEMBER, LOCAL, samples=readings)
    wanted = ProposeMachines(actor="ann", month="2026-10")
    with engine.begin() as connection:
        with pytest.raises(Refused, match="2026-10 is not over"):
            propose_machines(connection, wanted, now_us=NOVEMBER - 1)
        made = propose_machines(connection, wanted, now_us=NOVEMBER)
        with pytest.raises(Refused, match="proposal 1 for the machines of 2026-10 waits"):
            propose_machines(connection, wanted, now_us=NOVEMBER)
        decide(
            connection,
            Decide(actor="bob", proposal_id=made.proposal_id, is_approved=True),
            now_us=NOVEMBER,
        )
        with pytest.raises(Refused, match="just what its machines cost"):
            propose_machines(connection, wanted, now_us=NOVEMBER)
    booked = 180 * 10**6 * 28
    found = report(engine)
    assert found.cost_pico_usd == USD // 5
    assert made.total_pico_usd == USD // 5 - booked
    assert {line.team for line in made.lines} == {"payments", "search", IDLE_TEAM}


@pytest.mark.slow
async def test_late_use_of_a_closed_month_changes_no_share_of_it(tmp_path):
    url = await write(tmp_path, [served(1)])
    engine = writing(url)
    note_october(engine, VLLM)
    before = report(engine)
    with engine.begin() as connection:
        with pytest.raises(Refused, match="machines: vllm: 5208 USD of machine cost are not"):
            close_month(connection, order(accepted=ALL), sound(), now_us=at("2026-11-06"))
        accepted = ALL | {"machines": "shown only"}
        close_month(connection, order(accepted=accepted), sound(), now_us=at("2026-11-06"))
    await load(
        tmp_path,
        url,
        [served(2, team="search", minutes=50), attempt(9)],
        clock=FakeClock(),
        session=2,
    )
    after = report(engine)
    assert after == msgspec.structs.replace(before, is_closed=True)


async def tell(url: str, folder: Path) -> tuple[MachinesReport, MachinesReport]:
    """Machines of October by way of the ledger's desk; as finance and as a team see them."""
    clock = FakeClock(wall=OCTOBER)
    service = LedgerService(url, folder / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    await desk.answer(NoteMachines(machines=(VLLM, LOCAL)))
    writer = open_spool(folder / "spool" / "w1", session=1, clock=clock.clock)
    for one in (served(1), served(2, team="search"), computed(3, 60)):
        for record in one:
            writer.append(record)
    await writer.close()
    clock.wall = NOVEMBER
    readings = tuple(
        sample(minutes * MINUTE_US, minutes * MINUTE_US // 3, started_us=OCTOBER_US - HOUR_US)
        for minutes in (200, 10, 61, 59)
    )
    for _ in range(2):
        await desk.answer(NoteMachines(machines=(VLLM, LOCAL), samples=readings))
    found = await desk.answer(ShowMachines(month="2026-10", day="2026-10-17"))
    own = await desk.answer(ShowMachines(month="2026-10", teams=("search",)))
    made = await desk.answer(ProposeMachines(actor="ann", month="2026-10"))
    assert isinstance(found, MachinesReport)
    assert isinstance(own, MachinesReport)
    assert isinstance(made, Proposal)
    assert made.total_pico_usd == found.cost_pico_usd - 60 * 10**6 * 28
    await service.stop(drain=False)
    return found, own


@pytest.mark.slow
async def test_both_databases_tell_the_same_of_machines(tmp_path, postgres_url):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    on_sqlite = await tell(f"sqlite:///{tmp_path / 'a' / 'ledger.db'}", tmp_path / "a")
    assert await tell(postgres_url, tmp_path / "b") == on_sqlite
    check_sums(on_sqlite[0])


async def test_a_close_wants_whole_hours_and_books_no_nominal_cost(tmp_path):
    engine = writing(await write(tmp_path, [computed(1, 60)]))
    note(engine, OCTOBER, LOCAL)
    with engine.begin() as connection:
        said = close_fault(connection, "2026-10", now_us=NOVEMBER)
        assert said == "local is written down until 2026-10-01 00:00 UTC only"
    note(engine, NOVEMBER, LOCAL)
    with engine.begin() as connection:
        assert close_fault(connection, "2026-10", now_us=NOVEMBER) == ""
    # What was booked in an hour in which the engine was not seen stays as it is booked.
    assert report(engine).shares == ()


JOB = ProposeMachines(actor="ann", month="2026-10")


def approve(connection: sa.Connection, made: Proposal) -> None:
    approval = Decide(actor="bob", proposal_id=made.proposal_id, is_approved=True)
    decide(connection, approval, now_us=NOVEMBER)


def move_llama(engine: sa.Engine) -> None:
    """Two deployments on one server; at the afternoon of the 17th one gets a server of its own."""
    both = machine(terms=changed(SERVER_TERMS, deployments=("vllm/llama", "vllm/qwen")))
    left = machine(terms=changed(SERVER_TERMS, deployments=("vllm/qwen",)))
    moved = machine("vllm/llama")
    note(engine, OCTOBER, both)
    note(engine, OCTOBER_US + 2 * HOUR_US, both)
    note(engine, OCTOBER_US + 2 * HOUR_US, left, moved)
    note(engine, NOVEMBER, left, moved)


async def test_what_was_used_before_a_deployment_moved_is_shared_where_it_was(tmp_path):
    attempts = [
        served(1),
        served(2, model="qwen", team="search"),
        served(3, offset_us=4 * HOUR_US),
        served(4, model="qwen", team="search", offset_us=4 * HOUR_US),
    ]
    engine = writing(await write(tmp_path, attempts))
    move_llama(engine)
    found = report(engine)
    check_sums(found)
    used = {(one.pool, one.team): one.used_us for one in found.shares if not one.is_rest}
    assert used == {
        ("vllm", "payments"): 15 * MINUTE_US + 1,
        ("vllm", "search"): 45 * MINUTE_US,
        ("vllm/llama", "payments"): 30 * MINUTE_US,
    }
    busy = {one.machine: one.busy_us for one in found.machines}
    assert busy == {"vllm": 60 * MINUTE_US + 1, "vllm/llama": 30 * MINUTE_US}
    with engine.begin() as connection:
        made = propose_machines(connection, JOB, now_us=NOVEMBER)
        # Who is paid is the provider, whatever part of it the pool is.
        assert {(one.account, one.model) for one in made.lines} == {("vllm", ""), ("vllm", "llama")}
        approve(connection, made)
        assert close_fault(connection, "2026-10", now_us=NOVEMBER) == ""


async def test_use_of_machines_by_nobody_is_booked_for_nobody_once(tmp_path):
    engine = writing(await write(tmp_path, [served(1, team="")]))
    note_october(engine, VLLM)
    with engine.begin() as connection:
        made = propose_machines(connection, JOB, now_us=NOVEMBER)
        assert {line.team for line in made.lines} == {UNATTRIBUTED, IDLE_TEAM}
        approve(connection, made)
        assert close_fault(connection, "2026-10", now_us=NOVEMBER) == ""
        with pytest.raises(Refused, match="just what its machines cost"):
            propose_machines(connection, JOB, now_us=NOVEMBER)


async def test_what_is_given_to_a_team_later_stays_with_it(tmp_path):
    engine = writing(await write(tmp_path, [served(1, team="")]))
    note_october(engine, VLLM)
    moved = tuple(
        AdjustmentLine(amount_pico_usd=amount, team=team, account="vllm", meter="gpu_us")
        for team, amount in ((UNATTRIBUTED, -USD), ("payments", USD))
    )
    kind = AdjustmentKind.REATTRIBUTION
    wanted = Propose(actor="ann", period="2026-10", kind=kind, reason="theirs", lines=moved)
    with engine.begin() as connection:
        approve(connection, propose_machines(connection, JOB, now_us=NOVEMBER))
        approve(connection, propose(connection, wanted, now_us=NOVEMBER))
        assert close_fault(connection, "2026-10", now_us=NOVEMBER) == ""


async def test_a_machine_that_is_gone_for_good_keeps_no_later_month_open(tmp_path):
    engine = writing(make_database(tmp_path))
    note(engine, OCTOBER, LOCAL)
    with engine.begin() as connection:
        over_us = OCTOBER + GAP_MAX_US
        assert close_fault(connection, "2026-10", now_us=over_us) != ""
        assert close_fault(connection, "2026-10", now_us=over_us + 1) == ""
