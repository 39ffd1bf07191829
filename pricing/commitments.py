"""Money paid in advance: what is left of it, when it runs out, and what a day of it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from pricing.shares import split


class CommitmentKind(StrEnum):
    """How a commitment turns into cost."""

    CREDIT = "credit"
    """Prepaid: usage draws it down, at what the usage costs."""
    CAPACITY = "capacity"
    """Provisioned or reserved: every day costs its share, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A purchase for a time.

    Attributes:
        name: What it is called.
        kind: How it turns into cost.
        paid_pico_usd: What was paid, above 0.
        first_day: First day that it can be used.
        last_day: Last one.
    """

    name: str
    kind: CommitmentKind
    paid_pico_usd: int
    first_day: date
    last_day: date

    def __post_init__(self) -> None:
        """Refuse a purchase that means nothing.

        Raises:
            ValueError: Nothing was paid, or it ends before it begins.
        """
        if self.paid_pico_usd < 1:
            raise ValueError(f"{self.name}: what was paid must be above 0")
        if self.last_day < self.first_day:
            raise ValueError(f"{self.name}: it ends on {self.last_day}, before it begins")

    @property
    def days(self) -> int:
        """Days that it lasts, both ends included."""
        return (self.last_day - self.first_day).days + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """How a prepaid credit went down.

    Attributes:
        drawn_pico_usd: Per day, what the credit paid for.
        left_pico_usd: Per day, what was left in the evening.
        beyond_pico_usd: Usage that came when nothing was left, or after the last day.
        lapsed_pico_usd: What was left after the last day; 0 before.
        runs_out_on: The day on which nothing will be left at the pace of `pace_pico_usd`, or was;
            None when it lasts until its last day.
        pace_pico_usd: Mean of the last days with usage counted.
    """

    drawn_pico_usd: tuple[int, ...]
    left_pico_usd: tuple[int, ...]
    beyond_pico_usd: int
    lapsed_pico_usd: int
    runs_out_on: date | None
    pace_pico_usd: int


PACE_DAYS = 28


def burn_down(commitment: Commitment, usage_pico_usd: Sequence[int]) -> BurnDown:
    """Draw usage from a prepaid credit, day after day.

    Args:
        commitment: The credit.
        usage_pico_usd: What the usage of each day costs, from the first day on, without gaps.
    """
    left = commitment.paid_pico_usd
    drawn: list[int] = []
    balance: list[int] = []
    beyond = 0
    emptied: int | None = None
    for place, cost in enumerate(usage_pico_usd):
        paid = min(cost, left) if place < commitment.days else 0
        left -= paid
        beyond += cost - paid
        drawn.append(paid)
        balance.append(left)
        if not left and emptied is None:
            emptied = place
    recent = usage_pico_usd[-PACE_DAYS:]
    pace = sum(recent) // len(recent) if recent else 0
    return BurnDown(
        drawn_pico_usd=tuple(drawn),
        left_pico_usd=tuple(balance),
        beyond_pico_usd=beyond,
        lapsed_pico_usd=left if len(usage_pico_usd) >= commitment.days else 0,
        runs_out_on=_run_out(commitment, len(usage_pico_usd), left, pace, emptied),
        pace_pico_usd=pace,
    )


def daily_costs(commitment: Commitment) -> tuple[int, ...]:
    """Straight-line amortisation: the cost of each day; together exactly what was paid."""
    return split(commitment.paid_pico_usd, [1] * commitment.days)


def _run_out(
    commitment: Commitment, days_seen: int, left: int, pace: int, emptied: int | None
) -> date | None:
    if emptied is not None:
        return commitment.first_day + timedelta(days=emptied)
    if not pace:
        return None
    last = days_seen - 1 + -(-left // pace)
    return commitment.first_day + timedelta(days=last) if last < commitment.days else None
