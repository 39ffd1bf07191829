"""A machine's cost, shared by work: whole picodollars and microseconds that add up exactly; pure.

In each stretch of time the machine's busy time is split among those who used it in that hour, in
proportion to their work, to whole microseconds; the rest of the paid time is idle. Cost follows
time. Work is busy time where the engine tells whose it was; else tokens by their weights; and
attempts where there are no tokens either. Splits are by the largest remainder (`pricing.shares`).

A team that owns a slice of a machine bears what is idle of it. Who used more than a slice took the
rest out of what is nobody's first, then out of what others left idle of theirs.

The cost of a stretch is what the machine has cost in the month after it less what it had before,
each rounded once: a month costs its exact amount, rounded once, however it is cut up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gateway.finance.machines.hours import HOUR_US
from gateway.finance.machines.messages import ENGINE, IdlePolicy, MachineTerms
from pricing.money import PICO_PER_USD
from pricing.shares import split

_WEIGHT_PARTS = 10**18
"""Weights have at most 18 decimals."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class User:
    """Who used a machine, for what; without a deployment, the owner of a slice that was idle."""

    team: str
    project: str
    deployment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What somebody used in an hour, as booked.

    Attributes:
        gpu_us: Busy time that an engine metered.
        input_tokens: Fresh ones and those written to a cache.
        cached_input_tokens: Read from a cache.
        output_tokens: Generated, reasoning included.
        attempts: How many.
        requests: How many of them were the first of a request.
        booked_pico_usd: What they were charged.
        cache_write_tokens: Those of the input that were written to a cache.
        reasoning_tokens: Those of the output that are reasoning counted apart.
    """

    gpu_us: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 0
    requests: int = 0
    booked_pico_usd: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Used) -> Used:
        """Both together."""
        return Used(
            gpu_us=self.gpu_us + other.gpu_us,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            attempts=self.attempts + other.attempts,
            requests=self.requests + other.requests,
            booked_pico_usd=self.booked_pico_usd + other.booked_pico_usd,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input_tokens + self.cached_input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A machine within an hour, under the same terms throughout.

    Attributes:
        machine: Which.
        pool: What it belongs to.
        kind: `engine` or `server`.
        start_us: First instant.
        end_us: First instant after it; in the same hour.
        up_us: Time that is paid for, at most the stretch.
        busy_us: Time in which it computed, at most `up_us`.
        terms: Price and way of sharing.
        own_us: The part of `busy_us` in which it computed for requests of ours, None for all of
            it; only this is shared among who sent them.
        down_us: Time in which it was looked at and did not answer, None where nobody looked.
    """

    machine: str
    pool: str
    kind: str
    start_us: int
    end_us: int
    up_us: int
    busy_us: int
    terms: MachineTerms
    own_us: int | None = None
    down_us: int | None = None

    @property
    def hour_us(self) -> int:
        """First instant of its hour."""
        return self.start_us - self.start_us % HOUR_US

    @property
    def idle_us(self) -> int:
        """Paid time in which it did nothing."""
        return self.up_us - self.busy_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What somebody bears of a stretch.

    Attributes:
        used_us: Busy time.
        borne_us: Used time, and idle time where it is spread.
        marginal_pico_usd: Used time at the marginal rate.
        standard_pico_usd: Used time at the standard rate.
        actual_pico_usd: Borne time's share in what the stretch cost.
    """

    used_us: int = 0
    borne_us: int = 0
    marginal_pico_usd: int = 0
    standard_pico_usd: int = 0
    actual_pico_usd: int = 0

    def __add__(self, other: Part) -> Part:
        """Both together."""
        return Part(
            used_us=self.used_us + other.used_us,
            borne_us=self.borne_us + other.borne_us,
            marginal_pico_usd=self.marginal_pico_usd + other.marginal_pico_usd,
            standard_pico_usd=self.standard_pico_usd + other.standard_pico_usd,
            actual_pico_usd=self.actual_pico_usd + other.actual_pico_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A stretch's cost and who bears it.

    Attributes:
        stretch: Which.
        cost_pico_usd: What it cost.
        busy_pico_usd: The part of busy time.
        parts: By who used it; their actual amounts and `rest` sum to the cost.
        rest: Paid time that nobody bears; only `borne_us` and the actual amount.
    """

    stretch: Stretch
    cost_pico_usd: int
    busy_pico_usd: int
    parts: Mapping[User, Part]
    rest: Part


Uses = Mapping[tuple[str, int], Mapping[User, Used]]
"""By pool and first instant of the hour."""


def allocate(stretches: Iterable[Stretch], uses: Uses, *, month_us: int) -> list[Shared]:
    """Share a month's cost of machines.

    Args:
        stretches: Of one month, in any order; those of a machine do not overlap.
        uses: Of the same month.
        month_us: How long the month is, for what is paid by the month.

    Returns:
        One per stretch with time that is paid for, by machine and start.
    """
    paid = [one for one in stretches if one.up_us]
    ordered = sorted(paid, key=lambda one: (one.machine, one.start_us))
    used = [_used_us(one, uses.get((one.pool, one.hour_us), {})) for one in ordered]
    in_month: dict[str, dict[User, int]] = {}
    for one, times in zip(ordered, used, strict=True):
        totals = in_month.setdefault(one.pool, {})
        for user, time_us in times.items():
            totals[user] = totals.get(user, 0) + time_us
    costs = _costs(ordered, month_us)
    return [
        _share(one, times, in_month[one.pool], cost, month_us)
        for one, times, cost in zip(ordered, used, costs, strict=True)
    ]


def rate_of(terms: MachineTerms, month_us: int) -> Fraction:
    """Picodollars per microsecond of a machine, running it included."""
    return busy_rate_of(terms) + Fraction(terms.ops_usd_per_month) * PICO_PER_USD / month_us


def busy_rate_of(terms: MachineTerms) -> Fraction:
    """The same without what running it costs."""
    return _per_us(terms.gpu_usd_per_hour, terms.gpus)


def _per_us(usd_per_hour: str, gpus: int) -> Fraction:
    return Fraction(usd_per_hour) * PICO_PER_USD * gpus / HOUR_US


def _costs(ordered: Sequence[Stretch], month_us: int) -> list[int]:
    """What each stretch cost: the machine's cost so far, rounded, less that before it."""
    so_far: dict[str, Fraction] = {}
    costs: list[int] = []
    for one in ordered:
        before = so_far.get(one.machine, Fraction(0))
        after = before + rate_of(one.terms, month_us) * one.up_us
        so_far[one.machine] = after
        costs.append(round(after) - round(before))
    return costs


def _used_us(stretch: Stretch, uses: Mapping[User, Used]) -> dict[User, int]:
    """Busy time by who used it; it sums to the stretch's own where anybody did."""
    users = sorted(uses)
    weights = _work(stretch, [uses[user] for user in users])
    if not any(weights):
        return {}
    own_us = stretch.busy_us if stretch.own_us is None else stretch.own_us
    times = split(own_us, weights)
    return {user: time_us for user, time_us in zip(users, times, strict=True) if time_us}


def _work(stretch: Stretch, uses: Sequence[Used]) -> list[int]:
    if stretch.kind == ENGINE and any(one.gpu_us for one in uses):
        return [one.gpu_us for one in uses]
    terms = stretch.terms
    fresh, cached, output = (
        int(Fraction(weight) * _WEIGHT_PARTS)
        for weight in (terms.input_weight, terms.cached_input_weight, terms.output_weight)
    )
    weighted = [
        fresh * one.input_tokens + cached * one.cached_input_tokens + output * one.output_tokens
        for one in uses
    ]
    return weighted if any(weighted) else [one.attempts for one in uses]


def _share(
    stretch: Stretch,
    used: Mapping[User, int],
    in_month: Mapping[User, int],
    cost_pico_usd: int,
    month_us: int,
) -> Shared:
    borne = dict(used)
    spread = _idle_of_users(stretch, used, in_month)
    for user, time_us in spread.items():
        borne[user] = borne.get(user, 0) + time_us
    idle_us = stretch.up_us - sum(borne.values())
    users = sorted(borne)
    amounts = split(cost_pico_usd, [*(borne[user] for user in users), idle_us])
    whole = rate_of(stretch.terms, month_us)
    standard = whole * 100 / stretch.terms.target_utilisation_percent
    marginal = _per_us(stretch.terms.marginal_usd_per_hour, stretch.terms.gpus)
    parts = {
        user: Part(
            used_us=used.get(user, 0),
            borne_us=borne[user],
            marginal_pico_usd=round(marginal * used.get(user, 0)),
            standard_pico_usd=round(standard * used.get(user, 0)),
            actual_pico_usd=amount,
        )
        for user, amount in zip(users, amounts[:-1], strict=True)
    }
    busy_pico_usd, _ = split(cost_pico_usd, [stretch.busy_us, stretch.idle_us])
    return Shared(
        stretch=stretch,
        cost_pico_usd=cost_pico_usd,
        busy_pico_usd=busy_pico_usd,
        parts=parts,
        rest=Part(borne_us=idle_us, actual_pico_usd=amounts[-1]),
    )


def _idle_of_users(
    stretch: Stretch, used: Mapping[User, int], in_month: Mapping[User, int]
) -> Mapping[User, int]:
    """Idle time by who bears it; what is left is nobody's."""
    idle_us = stretch.up_us - sum(used.values())
    if stretch.terms.idle is IdlePolicy.RESERVED:
        return _idle_of_slices(stretch, used, idle_us)
    if stretch.terms.idle is IdlePolicy.OVERHEAD or not in_month:
        return {}
    users = sorted(in_month)
    spread = split(idle_us, [in_month[user] for user in users])
    return dict(zip(users, spread, strict=True))


def _idle_of_slices(stretch: Stretch, used: Mapping[User, int], idle_us: int) -> Mapping[User, int]:
    slices = stretch.terms.slices
    fractions = [Fraction(one.fraction) for one in slices]
    # All of it, with nobody's part last: cut like this, no microsecond belongs to two.
    owned = split(stretch.up_us, [*fractions, 1 - sum(fractions)])
    of_team: dict[str, int] = {}
    for user, time_us in used.items():
        of_team[user.team] = of_team.get(user.team, 0) + time_us
    unused = [
        max(0, slice_us - of_team.get(one.team, 0))
        for one, slice_us in zip(slices, owned, strict=False)
    ]
    # Idle time is what is nobody's and what owners left, less what others took of it.
    taken_us = max(0, sum(unused) - idle_us)
    left = split(sum(unused) - taken_us, unused) if any(unused) else unused
    owners = (User(team=one.team, project="", deployment="") for one in slices)
    return {owner: time_us for owner, time_us in zip(owners, left, strict=True) if time_us}
