"""What is said of machines: by the supervisor, by who asks, and in answer; no database behind it.

Times are microseconds, amounts picodollars; hours and months are those of UTC, so that no change of
a clock in some zone can make one longer. Prices and weights are decimal text: exact, and readable
in the database.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Day, Month

IDLE_TEAM = "unallocated-idle"
"""Stands in the place of a team for what no team used."""
GPU_METER = "gpu_us"
"""Meter of adjustments that bring what was booked for a machine to what it cost."""
ENGINE, SERVER = "engine", "server"

Count = Annotated[int, Meta(ge=0, le=2**62)]
Instant = Annotated[int, Meta(ge=0, le=2**62)]
RatePart = Annotated[int, Meta(ge=0, le=2**62)]
Exact = Annotated[
    str, Meta(pattern=r"^([0-9]{1,12}(\.[0-9]{1,18})?|[0-9]{1,60}/[1-9][0-9]{0,59})$")
]
"""A decimal, or a fraction such as `50/11`: exact, and readable in the database."""
Decimals = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(\.[0-9]{1,18})?$")]


class Hours(StrEnum):
    """Which hours of a machine are paid for."""

    ALWAYS_ON = "always_on"
    """All, from when it is configured until it is not."""
    SEEN = "seen"
    """Those in which it was up: an engine's process ran, a server answered."""


class NodePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what an hour of a machine costs, where that is worked out of facts.

    Attributes:
        what: `depreciation`, `power`, `colocation`, `support` or `spare`.
        usd_per_hour: Of all its GPUs together.
    """

    what: str
    usd_per_hour: Exact


class IdlePolicy(StrEnum):
    """Who bears the time in which a machine did nothing."""

    OVERHEAD = "overhead"
    """Nobody: it is a row of its own."""
    BY_USE = "by_use"
    """The teams that used the machine in the month, by how long they did."""
    RESERVED = "reserved"
    """Each team that owns a slice of the machine, for what is idle of its slice; what is nobody's
    slice is a row of its own."""


class RateKind(StrEnum):
    """Which of the three rates teams are shown; never mixed within a report."""

    MARGINAL = "marginal"
    """What one more busy second costs."""
    STANDARD = "standard"
    """A rate card: the whole cost at a utilisation named in advance."""
    ACTUAL = "actual"
    """What the machine cost, shared by use."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A team's own part of a machine.

    Attributes:
        team: Whose.
        fraction: Of the machine's paid time, above 0 and at most 1: `1/4`.
    """

    team: str
    fraction: Annotated[str, Meta(pattern=r"^[0-9]{1,19}(/[1-9][0-9]{0,18})?$")]


class MachineTerms(msgspec.Struct, frozen=True, kw_only=True):
    """At what price a machine runs, and how its cost is shared.

    Attributes:
        gpu_usd_per_hour: USD per hour of one GPU, or of a machine that is one.
        gpus: How many are paid for together.
        ops_usd_per_month: USD per month for running it; accrues with the time that is paid for.
        marginal_usd_per_hour: USD that one more busy hour of one GPU costs.
        hours: Which hours are paid for.
        is_nominal: Whether the rate is a stand-in.
        price_version: Identity of the price.
        idle: Who bears idle time.
        slices: Where it is `reserved`, whose the machine is; sorted, together at most one.
        target_utilisation_percent: Utilisation that the standard rate is made for.
        input_weight: Work of a fresh input token, where busy time per team is not known.
        cached_input_weight: Work of an input token read from a cache.
        output_weight: Work of an output token.
        deployments: What runs on it, sorted.
        parts: What the hourly rate is made of, where it is worked out of facts.
    """

    gpu_usd_per_hour: Exact
    gpus: Annotated[int, Meta(ge=1, le=4_096)] = 1
    ops_usd_per_month: Decimals = "0"
    marginal_usd_per_hour: Exact
    hours: Hours
    is_nominal: bool = False
    price_version: str
    idle: IdlePolicy = IdlePolicy.OVERHEAD
    slices: tuple[Slice, ...] = ()
    target_utilisation_percent: Annotated[int, Meta(ge=1, le=100)] = 100
    input_weight: Decimals = "1"
    cached_input_weight: Decimals = "0"
    output_weight: Decimals = "1"
    deployments: tuple[str, ...] = ()
    parts: tuple[NodePart, ...] = ()


class DatedTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms from an instant on; None for always."""

    from_us: Instant | None
    terms: MachineTerms | None
    """None where the price from then on is not one by the hour."""


class DeclaredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the configuration.

    Attributes:
        machine: Its name: that of the pool, for engines on several nodes with `@node`.
        pool: Provider of the configuration, or a deployment with an hourly price of its own.
        kind: `engine` or `server`.
        terms: By the instant from which they hold.
    """

    machine: str
    pool: str
    kind: str
    terms: tuple[DatedTerms, ...]


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's meter says, or looks at a server found.

    Attributes:
        session: 16 bytes; another one when the engine was started, or the clock was set.
        machine: Whose engine.
        deployment: What it runs; empty for a server that is looked at.
        started_us: When the session began, on the wall clock.
        up_us: How long it has lasted, on a clock that never goes back.
        busy_us: How long of that it computed.
        is_down: Whether it did not answer all along.
    """

    session: Annotated[bytes, Meta(min_length=16, max_length=16)]
    machine: str
    deployment: str
    started_us: Instant
    up_us: Count
    busy_us: Count
    is_down: bool = False


class NoteMachines(msgspec.Struct, frozen=True, kw_only=True, tag="note_machines"):
    """Write down which machines are configured now, and what engines' meters say.

    Attributes:
        node: Who says so, where several machines share a database; else empty.
        machines: All that are configured there.
        samples: In any order, also again.
    """

    node: str = ""
    machines: tuple[DeclaredMachine, ...] = ()
    samples: tuple[EngineSample, ...] = ()


class HostedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor takes, to compare a pool with.

    Attributes:
        pool: Which; empty for every one that has none of its own.
        deployment: `provider/model-id` that would serve the same.
        price_version: Identity of the price, empty without one.
        rates: Picodollars, and how many units they buy, by meter; empty without a price.
    """

    pool: str
    deployment: str
    price_version: str = ""
    rates: dict[str, tuple[RatePart, RatePart]] = {}


class ShowMachines(msgspec.Struct, frozen=True, kw_only=True, tag="show_machines"):
    """Ask what machines cost in a month and who bears it.

    Attributes:
        month: In UTC.
        rate: Which rate teams are shown.
        day: Tell the hours of this day only, None for none of them.
        teams: Only the shares of these, None for everything.
        hosted: What pools are compared with.
    """

    month: Month
    rate: RateKind = RateKind.ACTUAL
    day: Day | None = None
    teams: tuple[str, ...] | None = None
    hosted: Annotated[tuple[HostedPrice, ...], Meta(max_length=1_024)] = ()


class ProposeMachines(msgspec.Struct, frozen=True, kw_only=True, tag="propose_machines"):
    """Propose the adjustments that bring what was booked for machines to what they cost."""

    actor: str
    month: Month


class MachineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in a month.

    Attributes:
        machine: Its name.
        pool: What it belongs to.
        kind: `engine` or `server`.
        gpus: As configured last.
        gpu_usd_per_hour: As configured last; a fraction where it is worked out of facts.
        parts: What the machine's hourly rate is made of, where it is worked out of facts.
        is_nominal: Whether any of its time is at a nominal rate.
        up_us: Time that is paid for.
        busy_us: Time in which it computed; at most `up_us`.
        idle_us: The rest.
        down_us: Time in which it was looked at and did not answer, paid for or not; None where
            nobody looked.
        utilisation_percent: Busy of paid time, two decimals; None when there is none.
        cost_pico_usd: What it cost.
        busy_pico_usd: The part of busy time.
        idle_pico_usd: The part of idle time.
        until_us: Up to when it is written down.
        idle: Who bears idle time, as configured last.
        slices: Whose it is where that is `reserved`, as configured last.
    """

    machine: str
    pool: str
    kind: str
    gpus: int
    gpu_usd_per_hour: str
    parts: tuple[NodePart, ...]
    is_nominal: bool
    up_us: int
    busy_us: int
    idle_us: int
    down_us: int | None
    utilisation_percent: str | None
    cost_pico_usd: int
    busy_pico_usd: int
    idle_pico_usd: int
    until_us: int
    idle: IdlePolicy
    slices: tuple[Slice, ...]


class MachineHour(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in an hour, or on a day; amounts and times as in `MachineSummary`."""

    machine: str
    start_us: int
    up_us: int
    busy_us: int
    idle_us: int
    cost_pico_usd: int
    busy_pico_usd: int
    idle_pico_usd: int


class MachineShare(msgspec.Struct, frozen=True, kw_only=True):
    """Who bears how much of a pool's cost in the month; a pool's shares sum to its cost exactly.

    Attributes:
        pool: Whose cost.
        team: `unallocated-idle` in the row of the rest.
        project: Of the team, empty for none.
        deployment: What was used, empty in the row of the rest and in those of slices.
        is_rest: Whether this is the row of what no team bears.
        is_slice: Whether this is what was idle of the team's own slice, which it bears at the
            actual rate.
        is_nominal: Whether any of it is at a nominal rate.
        used_us: Busy time.
        borne_us: Machine time that is charged at the actual rate: used, and idle where it is
            spread.
        attempts: How many used it.
        input_tokens: Fresh ones.
        cached_input_tokens: Read from a cache.
        output_tokens: Generated.
        cost_pico_usd: At the rate that was asked for. In the row of the rest this is idle time at
            the actual rate, and what the rate did not recover (the variance) at the others.
        booked_pico_usd: What the ledger has booked for the attempts.
        marginal_pico_usd: At the marginal rate.
        standard_pico_usd: At the standard rate.
        actual_pico_usd: At the actual rate.
        ratio: `actual_pico_usd` of the pool's cost, up to 12 decimals; they sum to one.
    """

    pool: str
    team: str
    project: str
    deployment: str
    is_rest: bool
    is_slice: bool
    is_nominal: bool
    used_us: int
    borne_us: int
    attempts: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_pico_usd: int
    booked_pico_usd: int
    marginal_pico_usd: int
    standard_pico_usd: int
    actual_pico_usd: int
    ratio: str


class UnitCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a pool cost in the month.

    Attributes:
        pool: Which.
        tokens: All, in and out, cached ones included.
        is_nominal: Whether any of it is at a nominal rate.
        effective_pico_usd_per_mtok: At what the machines cost, idle time and running included; None
            without tokens.
        busy_pico_usd_per_mtok: At the rate of busy time alone, as if they were never idle.
    """

    pool: str
    tokens: int
    is_nominal: bool
    effective_pico_usd_per_mtok: int | None
    busy_pico_usd_per_mtok: int | None


class BreakEvenCard(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in the month beside a vendor's price for the same use; all of it per paid hour.

    Attributes:
        pool: Which.
        deployment: What it is compared with.
        price_version: Identity of its price.
        is_nominal: Whether any of the machine's time is at a nominal rate.
        fault: Why there is nothing to compare, as a phrase; empty when there is.
        machine_pico_usd_per_hour: What a machine cost per hour, running it included.
        tokens: All that were used, in the mix of the fields that follow.
        input_tokens: Fresh ones, neither read from nor written to a cache.
        cache_write_tokens: Written to one.
        cached_input_tokens: Read from one.
        output_tokens: Generated, without those of the next field.
        reasoning_tokens: Reasoning, where it is counted apart.
        requests: How many.
        hosted_pico_usd: What all of it would have cost there.
        saved_pico_usd: That less what the machines cost; negative where they were dearer.
        hosted_pico_usd_per_mtok: What a million tokens of this mix cost there.
        break_even_tokens_per_hour: The least whole tokens at which the machine is not dearer; None
            where there is none.
        tokens_per_hour: How many there were.
        break_even_percent: That of the break-even, two decimals.
        busy_tokens_per_hour: How many there were in a busy hour; None without busy time.
        break_even_use_percent: How busy the machine must be for the break-even at that speed, two
            decimals; above 100 it cannot be reached so.
    """

    pool: str
    deployment: str
    price_version: str
    is_nominal: bool
    fault: str = ""
    machine_pico_usd_per_hour: int
    tokens: int
    input_tokens: int
    cache_write_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    requests: int
    hosted_pico_usd: int | None = None
    saved_pico_usd: int | None = None
    hosted_pico_usd_per_mtok: int | None = None
    break_even_tokens_per_hour: int | None = None
    tokens_per_hour: int
    break_even_percent: str | None = None
    busy_tokens_per_hour: int | None = None
    break_even_use_percent: str | None = None


class MachinesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Machines in a month.

    Attributes:
        month: Which.
        rate: What `cost_pico_usd` of shares is at.
        as_of_us: No time after this is counted.
        is_closed: Whether the month is closed, so that nothing of it changes.
        is_restricted: Whether only some teams' shares are told, and nothing of the machines.
        cost_pico_usd: Of all machines.
        machines: By name.
        shares: By pool, the largest first, the rest last.
        units: By pool.
        break_even: By pool, of those that are compared with something.
        days: Each day of each machine.
        hours: Each hour of each machine on the day that was asked for.
        gaps: Why the month is not complete, as sentences; empty when it is.
    """

    month: str
    rate: RateKind
    as_of_us: int
    is_closed: bool
    is_restricted: bool
    cost_pico_usd: int
    machines: tuple[MachineSummary, ...]
    shares: tuple[MachineShare, ...]
    units: tuple[UnitCost, ...]
    break_even: tuple[BreakEvenCard, ...]
    days: tuple[MachineHour, ...]
    hours: tuple[MachineHour, ...]
    gaps: tuple[str, ...]
