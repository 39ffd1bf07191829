"""What booked entries do to budgets: pure sums by bucket and by lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.budgets.messages import BudgetRule
from gateway.budgets.rules import counts, window_of_rule
from gateway.budgets.windows import Window
from gateway.ledger.records import Intent

Bucket = tuple[int, int]
"""A budget's id and the first microsecond of one of its windows."""
OWNERS_CACHED_MAX = 50_000


class Owner(NamedTuple):
    """Who spends, as budgets tell them apart; names, not interned ids."""

    team: str
    project: str
    key_id: str
    cost_tags: tuple[tuple[str, str], ...]


def owner_of(intent: Intent) -> Owner:
    """Who an intent spends for."""
    return Owner(intent.team, intent.project, intent.key_id, intent.cost_tags)


class BudgetMatcher:
    """Finds the buckets of an entry; remembers which budgets count whom.

    Args:
        rules: Every budget in force.
        owners_max: How many owners are remembered; clients choose cost tags, so there is no end.
    """

    def __init__(
        self, rules: Sequence[BudgetRule] = (), *, owners_max: int = OWNERS_CACHED_MAX
    ) -> None:
        self._owners_max = owners_max
        self.rules = {rule.budget_id: rule for rule in rules}
        self._of_owner: dict[Owner, tuple[BudgetRule, ...]] = {}
        self._windows: dict[int, Window] = {}

    def buckets(self, owner: Owner, at_us: int) -> list[tuple[int, Window]]:
        """Ids of the budgets that count what somebody spends, each with the instant's window."""
        if not self.rules:
            return []
        rules = self._of_owner.get(owner)
        if rules is None:
            if len(self._of_owner) >= self._owners_max:
                self._of_owner.clear()
            rules = tuple(rule for rule in self.rules.values() if counts(rule, owner))
            self._of_owner[owner] = rules
        return [(rule.budget_id, self._window(rule, at_us)) for rule in rules]

    def _window(self, rule: BudgetRule, at_us: int) -> Window:
        window = self._windows.get(rule.budget_id)
        if window is None or not window.start_us <= at_us < window.end_us:
            window = self._windows[rule.budget_id] = window_of_rule(rule, at_us)
        return window


@dataclass(slots=True)
class BudgetDeltas:
    """What a batch does to budgets.

    Attributes:
        matcher: Of the budgets in force.
        amounts: By bucket what is added to spent and to exposed.
        windows: Of these buckets.
        holds: By lease what it gives up.
    """

    matcher: BudgetMatcher = field(default_factory=BudgetMatcher)
    amounts: dict[Bucket, tuple[int, int]] = field(default_factory=dict)
    windows: dict[Bucket, Window] = field(default_factory=dict)
    holds: dict[bytes, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.amounts or self.holds)

    def add(self, owner: Owner, at_us: int, *, spent_pico_usd: int, exposed_pico_usd: int) -> None:
        """Count an entry in every bucket that it belongs to; an amount below 0 takes back.

        Args:
            owner: Who spent it.
            at_us: The instant of its intent, which decides the window.
            spent_pico_usd: What is booked.
            exposed_pico_usd: What it may still cost.
        """
        for budget_id, window in self.matcher.buckets(owner, at_us):
            bucket = (budget_id, window.start_us)
            spent, exposed = self.amounts.get(bucket, (0, 0))
            self.amounts[bucket] = (spent + spent_pico_usd, exposed + exposed_pico_usd)
            self.windows[bucket] = window

    def release(self, intent: Intent) -> None:
        """Let the leases of an attempt that was booked give up what it held."""
        for lease_id in intent.lease_ids:
            self.holds[lease_id] = self.holds.get(lease_id, 0) + intent.hold_pico_usd
