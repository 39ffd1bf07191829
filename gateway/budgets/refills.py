"""What a worker asks the ledger for, gives back to it, and when.

A slab is asked for ahead of need, at a low water mark that follows recent spending, or because
requests wait; one question per bucket is under way at a time. What nobody used for long, what is
too small for those who wait, and what a window left behind is given back. While nothing is spent
nothing is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gateway.budgets.messages import BudgetState, LeaseReply, LeaseWant
from gateway.budgets.slabs import Bucket
from gateway.channel import ChannelError, RemoteError
from gateway.clock import Clock

IDLE_S = 30.0
"""What nobody used for so long is given back, so that others can spend it."""
AHEAD_PAUSE_S = 1.0
"""After a slab ahead of need was not granted, the next one is asked for no sooner."""
SMALL_PAUSE_S = 0.05
"""The same after one that was granted, and smaller than what is of use."""
REFUSED_PAUSE_S = 0.05
"""After a refusal the ledger is asked about the same bucket no sooner; others wait so long."""
FAILED_PAUSE_S = 0.5
"""The same after no answer."""
SHORTAGE_S = 1.0
"""So long what the ledger said of a bucket without room is gone by."""
RENEW_S = 60.0
"""How often leases are renewed while something counts on them."""
COUNTED_ON_S = 1200.0
"""How long after the last hold a lease may still cover an attempt that runs, or is not booked."""
REPEAT_S = 600.0
"""So long a question that has had no answer is asked again; then what it was granted, if anything,
stays reserved until this worker's session is over."""
REPEAT_PAUSE_MAX_S = 8.0
"""Pauses between such tries grow up to this while nobody waits."""
NOT_CARRIED_OUT = "not_carried_out"
"""Code of a refusal after which nothing of the call was done."""

_US = 1_000_000

Waiting = Mapping[Bucket, Sequence[int]]
"""What is waited for, by bucket that has no room for it, in the order of coming."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the ledger.

    Attributes:
        number: Of the session's questions.
        wants: By bucket; none only renews and gives back.
        returns: Unused parts, by lease.
        first_us: Monotonic microseconds at which it was asked first.
        asked_us: And last, while it has no answer.
        tries: How often it has had no answer, so that what became of it is not known.
    """

    number: int
    wants: dict[Bucket, LeaseWant] = {}
    returns: dict[bytes, int] = {}
    first_us: int
    asked_us: int = 0
    tries: int = 0


class Refills:
    """Keeps what is to be asked and given back.

    Args:
        clock: Time.
        idle_s: After so long without use a bucket is given back.
    """

    def __init__(self, clock: Clock, *, idle_s: float = IDLE_S) -> None:
        self.wake = asyncio.Event()
        """Set when something may be due."""
        self._clock = clock
        self._idle_us = int(idle_s * _US)
        self._returns: dict[bytes, int] = {}
        self._number = 0
        self._unanswered: list[Errand] = []
        self._held_us: int | None = None  # the last hold
        self._renewed_us = 0

    def now_us(self) -> int:
        """Monotonic microseconds."""
        return int(self._clock.monotonic_s() * _US)

    def note_hold(self, buckets: Sequence[Bucket], now_us: int) -> None:
        """Something was held; see whether a slab is due."""
        self._held_us = now_us
        for bucket in buckets:
            if bucket.is_low and not bucket.is_asking and bucket.ahead_from_us <= now_us:
                self.wake.set()

    def let_go(self, bucket: Bucket | None) -> None:
        """Give back what is left in a bucket that is not used any more."""
        if bucket is not None:
            self.give_back(bucket.give_back())

    def give_back(self, given: Mapping[bytes, int]) -> None:
        """Give unused parts back with the next question."""
        for lease_id, amount_pico_usd in given.items():
            self._returns[lease_id] = self._returns.get(lease_id, 0) + amount_pico_usd
        if given:
            self.wake.set()

    def take_returns(self) -> dict[bytes, int]:
        """What is to be given back now."""
        taken, self._returns = self._returns, {}
        return taken

    def due(
        self, buckets: Iterable[Bucket], waiting: Waiting, *, looks_ahead: bool
    ) -> Errand | None:
        """What to ask now, None for nothing.

        Args:
            buckets: Those of the moment.
            waiting: Who waits for them.
            looks_ahead: Whether slabs are asked for that nobody waits for.
        """
        now_us, at_us = self.now_us(), self._clock.wall_us()
        for errand in self._unanswered:
            if _repeat_us(errand, waiting) <= now_us:
                self._unanswered.remove(errand)
                return errand
        wants: dict[Bucket, LeaseWant] = {}
        for bucket in buckets:
            amounts = waiting.get(bucket, ())
            if not amounts:
                bucket.shortage = None
            is_over = bucket.used_us + self._idle_us <= now_us or bucket.window.end_us <= at_us
            if is_over and not amounts:
                self.let_go(bucket)
            elif not bucket.is_asking and _is_due(bucket, amounts, now_us, looks_ahead=looks_ahead):
                wants[bucket] = self._want(bucket, amounts, now_us)
        if not wants and not self._returns and self._renew_in_us(now_us) != 0:
            return None
        self._renewed_us = now_us
        return self.errand(wants)

    def errand(self, wants: dict[Bucket, LeaseWant]) -> Errand:
        """A new question, which takes along what is to be given back."""
        self._number += 1
        return Errand(
            number=self._number,
            wants=wants,
            returns=self.take_returns(),
            first_us=self.now_us(),
        )

    def rest_s(self, buckets: Iterable[Bucket], waiting: Waiting) -> float | None:
        """Seconds until something is due by itself, None while nothing will be."""
        now_us = self.now_us()
        dues = [self._renew_in_us(now_us)]
        dues += [_repeat_us(errand, waiting) - now_us for errand in self._unanswered]
        for bucket in buckets:
            if bucket.in_hand_pico_usd:
                dues.append(bucket.used_us + self._idle_us - now_us)
            if bucket.is_asking:
                continue
            if bucket in waiting:
                dues.append(bucket.pause_until_us - now_us)
            elif bucket.is_low:
                dues.append(bucket.ahead_from_us - now_us)
        known = [due for due in dues if due is not None]
        return max(min(known), 0) / _US if known else None

    def note_reply(self, errand: Errand, reply: LeaseReply) -> dict[Bucket, BudgetState]:
        """Take in what was granted; the buckets that had no room.

        What was granted for a window that is over goes back at the next `due`.
        """
        now_us = self.now_us()
        short: dict[Bucket, BudgetState] = {}
        asked = {bucket.key: bucket for bucket in errand.wants}
        for bucket in errand.wants:
            bucket.is_asking = False
            bucket.ahead_from_us = now_us + int(AHEAD_PAUSE_S * _US)
            # Neither granted nor short: the ledger has other rules, which are on their way here.
            bucket.pause_until_us = now_us + int(REFUSED_PAUSE_S * _US)
        for lease in reply.leases:
            bucket = asked[lease.budget_id, lease.window_start_us]
            bucket.add(lease, now_us=now_us)
            bucket.pause_until_us = 0
            is_small = lease.amount_pico_usd < errand.wants[bucket].wanted_pico_usd
            bucket.ahead_from_us = now_us + (int(SMALL_PAUSE_S * _US) if is_small else 0)
            if bucket.shortage is not None and _is_fresh(bucket, now_us):
                # As many as may fit were asked for: who did not is refused without another round.
                short[bucket] = bucket.shortage
        for state in reply.shortages:
            bucket = asked[state.budget_id, state.window_start_us]
            short[bucket] = state
            bucket.shortage, bucket.shortage_us = state, now_us
        return short

    def note_failure(self, errand: Errand, error: ChannelError) -> None:
        """Nothing was granted as far as is known.

        Where something may have been done, the same is asked again under the same number, and
        nothing else about these buckets: what was given back is not given back twice, and what was
        granted is found.
        """
        now_us = self.now_us()
        was_not_done = isinstance(error, RemoteError) and error.code == NOT_CARRIED_OUT
        is_unknown = errand.tries > 0 or not was_not_done
        if is_unknown and now_us - errand.first_us < int(REPEAT_S * _US):
            asked = msgspec.structs.replace(errand, asked_us=now_us, tries=errand.tries + 1)
            self._unanswered.append(asked)
            return
        for bucket in errand.wants:
            bucket.is_asking = False
            bucket.pause_until_us = now_us + int(FAILED_PAUSE_S * _US)
            bucket.ahead_from_us = now_us + int(AHEAD_PAUSE_S * _US)
        if not is_unknown:
            for lease_id, amount_pico_usd in errand.returns.items():
                # Without a wake-up: the next question takes it along.
                self._returns[lease_id] = self._returns.get(lease_id, 0) + amount_pico_usd

    def _want(self, bucket: Bucket, amounts: Sequence[int], now_us: int) -> LeaseWant:
        known = bucket.shortage if _is_fresh(bucket, now_us) else None
        at_least = _that_may_fit(amounts, None if known is None else known.room_pico_usd)
        if amounts:
            # What is too small for them is of more use at the ledger than here.
            self.give_back(bucket.give_back(below_pico_usd=min(amounts)))
        bucket.is_asking = True
        return LeaseWant(
            budget_id=bucket.rule.budget_id,
            window_start_us=bucket.window.start_us,
            at_least_pico_usd=at_least,
            wanted_pico_usd=bucket.wanted(at_least, now_us=now_us),
        )

    def _renew_in_us(self, now_us: int) -> int | None:
        """Microseconds until leases are renewed, None where nothing counts on them any more."""
        if self._held_us is None or self._held_us + int(COUNTED_ON_S * _US) <= now_us:
            return None
        return max(self._renewed_us + int(RENEW_S * _US) - now_us, 0)


def _repeat_us(errand: Errand, waiting: Waiting) -> int:
    """Monotonic microseconds at which a question is asked again; soon when somebody waits."""
    pause_s = min(FAILED_PAUSE_S * float(1 << (errand.tries - 1)), REPEAT_PAUSE_MAX_S)
    if any(bucket in waiting for bucket in errand.wants):
        pause_s = FAILED_PAUSE_S
    return errand.asked_us + int(pause_s * _US)


def _is_fresh(bucket: Bucket, now_us: int) -> bool:
    return now_us - bucket.shortage_us < int(SHORTAGE_S * _US)


def _is_due(bucket: Bucket, amounts: Sequence[int], now_us: int, *, looks_ahead: bool) -> bool:
    if amounts:
        return bucket.pause_until_us <= now_us
    return looks_ahead and bucket.is_low and bucket.ahead_from_us <= now_us


def _that_may_fit(amounts: Sequence[int], room_pico_usd: int | None) -> int:
    """What is asked for those who wait: all of them, or as many as the ledger last had room for.

    At least the smallest is, since what was known may have changed.
    """
    if room_pico_usd is None:
        return sum(amounts)
    total = 0
    for amount in amounts:
        if total + amount <= room_pico_usd:
            total += amount
    return total or min(amounts, default=0)
