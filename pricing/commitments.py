"""Which commitment pays for which usage: exact rules, the same for reports, pages and exports.

Day after day (UTC), the cost of each deployment, in the order of their names, is drawn from the
commitments that cover it: those that end first come first, of those the one that began first, then
the one that was recorded first. A cost that is more than what is left is drawn as far as it goes,
and the rest from the next commitment; what none covers is plain usage.

- A **credit** and a **spend** commitment give their whole amount, over their whole term.
- **Throughput** gives each day its even share of the amount; what a day does not use is gone.

What has been drawn stays drawn, and what was gone unused stays gone. A correction counts from a day
of its own on: from then on the amount is the corrected one, less what was drawn or gone before; for
throughput, this is what the days that are left share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum

from pricing.forecast import HISTORY_DAYS_MIN, HORIZON_DAYS_MAX, Forecast, forecast

PACE_DAYS = 28
"""Days that a pace is the mean of."""


class CommitmentKind(StrEnum):
    """How a commitment is paid, and how it is used."""

    CREDIT = "credit"
    """Paid ahead; usage draws it down, and what is left at its end lapses."""
    SPEND = "spend"
    """Promised, not paid ahead; usage counts towards it, and what is missing at its end is owed."""
    THROUGHPUT = "throughput"
    """Capacity paid ahead for a time; each day gives its share, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What holds of a commitment from a day on.

    Attributes:
        counts_from: First day that it says anything about.
        first_day: First day on which usage is drawn.
        last_day: Last one; not before the first.
        amount_pico_usd: The whole amount, at least 0.
        provider: Account at the vendor.
        deployments: Names, `provider/model-id`; empty for all of the provider.
        is_withdrawn: Whether it draws nothing any more.
    """

    counts_from: date
    first_day: date
    last_day: date
    amount_pico_usd: int
    provider: str
    deployments: frozenset[str] = frozenset()
    is_withdrawn: bool = False

    def covers(self, deployment: str) -> bool:
        """Whether the usage of a deployment may be drawn from it."""
        if self.deployments:
            return deployment in self.deployments
        return deployment.partition("/")[0] == self.provider

    def is_open(self, day: date) -> bool:
        """Whether it can be used on a day."""
        return not self.is_withdrawn and self.first_day <= day <= self.last_day

    def share_of(self, day: date, *, gone_pico_usd: int = 0) -> int:
        """The even share of one of its days that count; over all of them exactly what is shared.

        What does not divide is on the first days.

        Args:
            day: One of them.
            gone_pico_usd: What was drawn or gone before the first of them, and is not shared.
        """
        first = max(self.first_day, self.counts_from)
        days = (self.last_day - first).days + 1
        share, rest = divmod(max(self.amount_pico_usd - gone_pico_usd, 0), days)
        return share + ((day - first).days < rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """A commitment with everything that was ever said of it.

    Attributes:
        number: In the order of recording.
        kind: How it is used.
        terms: As they were recorded, at least one; the latest that counts holds.
    """

    number: int
    kind: CommitmentKind
    terms: tuple[Term, ...]

    def term(self, day: date) -> Term | None:
        """What holds on a day; None before anything counts."""
        holding: Term | None = None
        for one in self.terms:
            if one.counts_from <= day:
                holding = one
        return holding


Usage = Mapping[date, Mapping[str, int]]
"""Cost in picodollars by UTC day and deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What was drawn.

    Attributes:
        parts: By day and deployment: commitment and amount, in the order of drawing.
        drawn: By commitment and day.
        unused: By commitment and day, what is gone: a day's share of throughput that was not used,
            and what was left of the others on their last day.
        left: By commitment, what was left in the evening of the last day that was looked at.
    """

    parts: dict[tuple[date, str], list[tuple[int, int]]] = field(
        default_factory=dict[tuple[date, str], list[tuple[int, int]]]
    )
    drawn: dict[int, dict[date, int]] = field(default_factory=dict[int, dict[date, int]])
    unused: dict[int, dict[date, int]] = field(default_factory=dict[int, dict[date, int]])
    left: dict[int, int] = field(default_factory=dict[int, int])


def draw_down(pledges: Sequence[Pledge], usage: Usage, *, until: date) -> Draws:
    """Draw usage from commitments.

    Args:
        pledges: All of them; numbers are distinct.
        usage: Costs of at least 0, of every day that any of them covers.
        until: The last day that is looked at. What is unused is told of days up to it, so give a
            day that is over.
    """
    draws = Draws()
    total = dict.fromkeys((one.number for one in pledges), 0)
    draws.drawn.update({number: {} for number in total})
    draws.unused.update({number: {} for number in total})
    draws.left.update(total)
    before: dict[int, tuple[Term, int]] = {}
    starts = [term.first_day for one in pledges for term in one.terms]
    day = min(starts, default=until)
    while day <= until:
        room = _room(pledges, day, total, before)
        _draw_day(room, usage.get(day, {}), day, draws, total)
        for one in room:
            number = one.pledge.number
            draws.left[number] = one.left
            is_over = one.pledge.kind is CommitmentKind.THROUGHPUT or day == one.term.last_day
            if is_over and one.left:
                draws.unused[number][day] = one.left
                total[number] += one.left
            if is_over:
                draws.left[number] = 0
        day += timedelta(days=1)
    return draws


@dataclass(slots=True, kw_only=True)
class _Room:
    """What a commitment gives on a day."""

    pledge: Pledge
    term: Term
    left: int


def _room(
    pledges: Sequence[Pledge],
    day: date,
    total: Mapping[int, int],
    before: dict[int, tuple[Term, int]],
) -> list[_Room]:
    """Every commitment that is open on a day, in the order of drawing.

    Args:
        pledges: All of them.
        day: Which.
        total: What was drawn or gone of each.
        before: The term that throughput was last open under, and what was gone before it.
    """
    found: list[_Room] = []
    for pledge in pledges:
        term = pledge.term(day)
        if term is None or not term.is_open(day):
            continue
        if pledge.kind is CommitmentKind.THROUGHPUT:
            known = before.get(pledge.number)
            if known is None or known[0] != term:
                known = before[pledge.number] = (term, total[pledge.number])
            left = term.share_of(day, gone_pico_usd=known[1])
        else:
            left = max(term.amount_pico_usd - total[pledge.number], 0)
        found.append(_Room(pledge=pledge, term=term, left=left))
    return sorted(found, key=lambda one: (one.term.last_day, one.term.first_day, one.pledge.number))


def _draw_day(
    room: Sequence[_Room],
    usage: Mapping[str, int],
    day: date,
    draws: Draws,
    total: dict[int, int],
) -> None:
    for deployment in sorted(usage):
        cost = usage[deployment]
        for one in room:
            part = min(cost, one.left)
            if not part or not one.term.covers(deployment):
                continue
            cost -= part
            one.left -= part
            number = one.pledge.number
            total[number] += part
            by_day = draws.drawn[number]
            by_day[day] = by_day.get(day, 0) + part
            draws.parts.setdefault((day, deployment), []).append((number, part))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOut:
    """When nothing will be left, if it goes on as it did.

    Attributes:
        pace_pico_usd: Mean of the last days.
        on: The day on which nothing will be left; None where it lasts until its last day.
        early: The same at the upper edge of the band of `percent`; None likewise.
        late: The same at the lower edge.
        percent: How often the band held in the past; None where the history is too short for one.
    """

    pace_pico_usd: int
    on: date | None
    early: date | None
    late: date | None
    percent: int | None


def run_out(
    left_pico_usd: int, history_pico_usd: Sequence[int], *, last_seen: date, last_day: date
) -> RunOut:
    """Say when what is left will be used up.

    Args:
        left_pico_usd: In the evening of `last_seen`.
        history_pico_usd: What was drawn on each day until then, without gaps, the newest last.
        last_seen: The last day that is over.
        last_day: The last one that anything can be drawn on.
    """
    recent = history_pico_usd[-PACE_DAYS:]
    pace = sum(recent) // len(recent) if recent else 0
    days = min(max((last_day - last_seen).days, 0), HORIZON_DAYS_MAX)

    def first_day_at(total: Callable[[int], int]) -> date | None:
        """By bisection the first day until which at least what is left is drawn."""
        if total(days) < left_pico_usd or not days:
            return None
        low, high = 1, days
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if total(middle) >= left_pico_usd else (middle + 1, high)
        return last_seen + timedelta(days=low)

    if len(history_pico_usd) < HISTORY_DAYS_MIN:
        on = first_day_at(lambda count: pace * count)
        return RunOut(pace_pico_usd=pace, on=on, early=None, late=None, percent=None)
    made: dict[int, Forecast] = {}

    def until(count: int) -> Forecast:
        if count not in made:
            made[count] = forecast(history_pico_usd, days=count)
        return made[count]

    on = first_day_at(lambda count: until(count).total_pico_usd)
    if not until(days).bands:
        return RunOut(pace_pico_usd=pace, on=on, early=None, late=None, percent=None)
    return RunOut(
        pace_pico_usd=pace,
        on=on,
        early=first_day_at(lambda count: until(count).bands[0].high_pico_usd),
        late=first_day_at(lambda count: until(count).bands[0].low_pico_usd),
        percent=until(days).bands[0].percent,
    )
