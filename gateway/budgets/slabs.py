"""What a worker may spend without asking anybody: its leases per bucket, and holds out of them.

Pure and in memory: a hold takes no input or output and a few microseconds, all of its buckets or
none. What it took is never given back here: the ledger frees the lease's part when it books the
attempt. The one exception is an attempt that was never written down (`Bucket.put_back`).

A hold is covered by one lease per bucket, because the intent names one amount for all its leases.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.budgets.messages import BudgetRule, BudgetState, Lease
from gateway.budgets.rules import window_of_rule
from gateway.budgets.windows import Window

LASTS_S = 4
"""For so many seconds of recent spending a slab is asked for."""
LOW_S = 1
"""With less than this many seconds' worth in hand, the next slab is asked for."""
HOLDS_ASKED = 4
"""Where spending is slow, a slab is asked for so many holds like the last one..."""
HOLDS_LOW = 2
"""...and the next one once fewer than these are in hand."""
_US_PER_S = 1_000_000


class Slab(msgspec.Struct, kw_only=True, eq=False):
    """What is left of one lease."""

    lease_id: bytes
    left_pico_usd: int


class Bucket:
    """One budget's window as this worker knows it.

    Attributes:
        rule: The budget.
        window: When it is.
        in_hand_pico_usd: Sum of what is left of its leases.
        used_us: Monotonic microseconds of the last hold or grant.
        is_asking: Whether a request for a slab is under way; there is one at a time.
        pause_until_us: Monotonic microseconds before which it is not asked for again for want of
            room or of an answer.
        ahead_from_us: The same for slabs that nobody waits for.
        shortage: Where it stood when the ledger last had no room, with what was granted since; None
            where that is not known.
        shortage_us: Monotonic microseconds at which it was told.
    """

    __slots__ = (
        "_held_pico_usd",
        "_last_pico_usd",
        "_low_pico_usd",
        "_rate_pico_usd",
        "_since_us",
        "_slabs",
        "ahead_from_us",
        "in_hand_pico_usd",
        "is_asking",
        "pause_until_us",
        "rule",
        "shortage",
        "shortage_us",
        "used_us",
        "window",
    )  # fmt: skip

    def __init__(self, rule: BudgetRule, window: Window, *, now_us: int) -> None:
        """Begin with nothing in hand.

        Args:
            rule: The budget.
            window: One of its windows.
            now_us: Monotonic microseconds.
        """
        self.rule = rule
        self.window = window
        self.in_hand_pico_usd = 0
        self.used_us = now_us
        self.is_asking = False
        self.pause_until_us = 0
        self.ahead_from_us = 0
        self.shortage: BudgetState | None = None
        self.shortage_us = 0
        self._slabs: list[Slab] = []
        self._since_us = now_us  # the spending below is counted from here
        self._held_pico_usd = 0
        self._rate_pico_usd = 0  # per second
        self._last_pico_usd = 0
        self._low_pico_usd = 0

    @property
    def key(self) -> tuple[int, int]:
        """Budget and first microsecond of the window."""
        return self.rule.budget_id, self.window.start_us

    @property
    def is_low(self) -> bool:
        """Whether the next slab should be asked for; not again before something was held."""
        return self._held_pico_usd > 0 and self.in_hand_pico_usd < self._low_pico_usd

    def fitting(self, amount_pico_usd: int) -> Slab | None:
        """A slab with room for an amount; the one that was granted first."""
        for slab in self._slabs:
            if slab.left_pico_usd >= amount_pico_usd:
                return slab
        return None

    def take(self, slab: Slab, amount_pico_usd: int, *, now_us: int) -> None:
        """Hold an amount; the slab has room for it."""
        slab.left_pico_usd -= amount_pico_usd
        assert slab.left_pico_usd >= 0, "a hold is never larger than what its lease has left"
        self.in_hand_pico_usd -= amount_pico_usd
        self._held_pico_usd += amount_pico_usd
        self._last_pico_usd = amount_pico_usd
        self.used_us = now_us
        if not slab.left_pico_usd:
            self._slabs.remove(slab)

    def put_back(self, slab: Slab, amount_pico_usd: int) -> None:
        """Undo a hold whose attempt was never written down."""
        if slab not in self._slabs:
            self._slabs.append(slab)
        slab.left_pico_usd += amount_pico_usd
        self.in_hand_pico_usd += amount_pico_usd

    def add(self, lease: Lease, *, now_us: int) -> None:
        """Take a granted lease in hand."""
        self._slabs.append(Slab(lease_id=lease.lease_id, left_pico_usd=lease.amount_pico_usd))
        self.in_hand_pico_usd += lease.amount_pico_usd
        self.used_us = now_us
        if self.shortage is not None:
            reserved_pico_usd = self.shortage.reserved_pico_usd + lease.amount_pico_usd
            self.shortage = msgspec.structs.replace(
                self.shortage, reserved_pico_usd=reserved_pico_usd
            )

    def give_back(self, *, below_pico_usd: int | None = None) -> dict[bytes, int]:
        """Let go of what is unused, by lease.

        Args:
            below_pico_usd: Only of slabs that have less left than this; None for all.
        """
        given = [
            slab
            for slab in self._slabs
            if below_pico_usd is None or slab.left_pico_usd < below_pico_usd
        ]
        for slab in given:
            self._slabs.remove(slab)
            self.in_hand_pico_usd -= slab.left_pico_usd
        return {slab.lease_id: slab.left_pico_usd for slab in given}

    def wanted(self, waiting_pico_usd: int, *, now_us: int) -> int:
        """How large a slab would be of use, by what was spent lately; at least what is waited for.

        Args:
            waiting_pico_usd: What is waited for.
            now_us: Monotonic microseconds.
        """
        passed_us = max(now_us - self._since_us, 1)
        recent_pico_usd = self._held_pico_usd * _US_PER_S // max(passed_us, _US_PER_S)
        self._rate_pico_usd = (self._rate_pico_usd + recent_pico_usd) // 2
        self._held_pico_usd, self._since_us = 0, now_us
        one_pico_usd = self._last_pico_usd or waiting_pico_usd
        self._low_pico_usd = max(self._rate_pico_usd * LOW_S, one_pico_usd * HOLDS_LOW)
        ahead_pico_usd = max(self._rate_pico_usd * LASTS_S, one_pico_usd * HOLDS_ASKED)
        return waiting_pico_usd + max(ahead_pico_usd - self.in_hand_pico_usd, 1)


class Budget:
    """A budget and its bucket of the moment.

    Attributes:
        rule: The budget.
        bucket: The newest bucket, None before the first.
    """

    __slots__ = ("bucket", "rule")

    def __init__(self, rule: BudgetRule) -> None:
        self.rule = rule
        self.bucket: Bucket | None = None

    def bucket_at(self, at_us: int) -> Bucket | None:
        """The bucket of an instant if it is the known one, None where it has to be made."""
        bucket = self.bucket
        if bucket is not None and bucket.window.start_us <= at_us < bucket.window.end_us:
            return bucket
        return None

    def turn(self, at_us: int, *, now_us: int) -> tuple[Bucket, Bucket | None]:
        """The bucket of an instant, made; and the one before it, whose leases are to be returned.

        Args:
            at_us: Microseconds since the epoch.
            now_us: Monotonic microseconds.
        """
        before = self.bucket
        self.bucket = Bucket(self.rule, window_of_rule(self.rule, at_us), now_us=now_us)
        return self.bucket, before

    def follow(self, rule: BudgetRule) -> Bucket | None:
        """Take a changed rule; the bucket that its windows leave without a use, None for none."""
        old, self.rule = self.rule, rule
        bucket = self.bucket
        if bucket is None:
            return None
        same = (old.window, old.time_zone, old.fiscal_month)
        if same == (rule.window, rule.time_zone, rule.fiscal_month):
            bucket.rule = rule
            # More may be left than was said, or there is another limit to ask about.
            bucket.shortage, bucket.pause_until_us, bucket.ahead_from_us = None, 0, 0
            return None
        self.bucket = None
        return bucket


def hold(
    buckets: Sequence[Bucket], amount_pico_usd: int, *, now_us: int
) -> tuple[Slab, ...] | None:
    """Hold an amount in every bucket or in none.

    Args:
        buckets: Each once.
        amount_pico_usd: Above 0.
        now_us: Monotonic microseconds.

    Returns:
        A slab per bucket, None where one of them has no room.
    """
    found: list[Slab] = []
    for bucket in buckets:
        slab = bucket.fitting(amount_pico_usd)
        if slab is None:
            return None
        found.append(slab)
    for bucket, slab in zip(buckets, found, strict=True):
        bucket.take(slab, amount_pico_usd, now_us=now_us)
    return tuple(found)
