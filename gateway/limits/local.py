"""Limits decided on one machine: a request takes all that apply, or nothing of any."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.limits.gcra import Bucket
from gateway.limits.memory import REQUESTS, TOKENS, LimitMemory
from gateway.limits.rules import LimitKind, LimitRule
from gateway.limits.standing import CONCURRENCY_WAIT_US, Meter, Shortage, Standing

CORRECTIONS_MAX: Final = 4096
"""That wait for the lock. Beyond them the oldest is given up: its limit is mended by time."""


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What a request takes of one limit.

    Attributes:
        rule: The limit.
        place: Its record.
        requests_after: Arrival time of its requests behind this one, 0 where they are not limited.
        tokens: Tokens that are taken, 0 where they are not limited.
        tokens_after: Arrival time of its tokens behind these, 0 where they are not limited.
    """

    rule: LimitRule
    place: int
    requests_after: int
    tokens: int
    tokens_after: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What a request took, and where its limits stand now.

    Attributes:
        charges: One per limit; fewer where more limits are in use than the memory has room for.
        standing: For headers.
    """

    charges: Sequence[Charge]
    standing: Standing


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A request took nothing.

    Attributes:
        shortage: The limit that it has to wait for longest.
        standing: For headers.
    """

    shortage: Shortage
    standing: Standing


class Use(msgspec.Struct, frozen=True, gc=False):
    """What a request used in the end.

    Attributes:
        tokens: How many, as far as is known.
        is_final: Whether they can be no more than that.
        was_served: Whether anything was attempted; a request that was refused behind its limits
            gives everything back.
    """

    tokens: int
    is_final: bool
    was_served: bool


UNDONE: Final = Use(0, True, False)
"""Of a request that came to nothing."""


class _Correction(msgspec.Struct, frozen=True, gc=False):
    """A change of one limit that waits for the lock."""

    charge: Charge
    requests: int
    tokens: int


class LocalLimits:
    """Decides with the memory that the machine's workers share.

    Args:
        memory: The memory.
        seat: This worker's own counts in it.
    """

    def __init__(self, memory: LimitMemory, seat: int) -> None:
        self._memory = memory
        self._seat = seat
        self._waiting: deque[_Correction] = deque(maxlen=CORRECTIONS_MAX)

    @property
    def has_waiting(self) -> bool:
        """Whether corrections wait for the lock; see `flush`."""
        return bool(self._waiting)

    def take(self, rules: Sequence[LimitRule], tokens: int, now_us: int) -> Taken | Refused | None:
        """Take a request and its tokens of every limit, or nothing of any.

        Args:
            rules: The limits.
            tokens: What the request may use; of a limit with a smaller burst, that burst.
            now_us: The present, on a clock that all processes of the machine share.

        Returns:
            None while another process has the lock.
        """
        memory = self._memory
        if not memory.try_lock():
            return None
        try:
            self._correct(now_us)
            charges = self._charges(rules, tokens, now_us)
            shortage = self._shortage(charges, now_us)
            if shortage is not None:
                return Refused(shortage, self._standing(charges, now_us))
            for charge in charges:
                self._write(charge)
            return Taken(charges, self._standing(charges, now_us))
        finally:
            memory.unlock()

    def hold(self, rules: Sequence[LimitRule], now_us: int) -> Sequence[Charge] | None:
        """Count a request in that was admitted elsewhere; None while others have the lock."""
        memory = self._memory
        if not memory.try_lock():
            return None
        try:
            held = [rule for rule in rules if rule.concurrency is not None]
            charges = self._charges(held, 0, now_us)
            for charge in charges:
                memory.count(charge.place, self._seat, 1)
            return charges
        finally:
            memory.unlock()

    def leave(self, charges: Sequence[Charge]) -> None:
        """Count a request out; needs no lock."""
        for charge in charges:
            if charge.rule.concurrency is not None:
                self._memory.count(charge.place, self._seat, -1)

    def settle(self, charges: Sequence[Charge], use: Use, now_us: int) -> None:
        """Count a request out, and correct what it took by what it used."""
        self.leave(charges)
        for charge in charges:
            tokens = requests = 0
            if charge.rule.tokens is not None:
                tokens = use.tokens - charge.tokens
                tokens = tokens if use.is_final else max(tokens, 0)
            if charge.rule.requests is not None and not use.was_served:
                requests = 1
            if tokens or requests:
                self._waiting.append(_Correction(charge, requests, tokens))
        self.flush(now_us)

    def flush(self, now_us: int) -> None:
        """Make the corrections that wait, if the lock can be had."""
        if self._waiting and self._memory.try_lock():
            try:
                self._correct(now_us)
            finally:
                self._memory.unlock()

    def _charges(self, rules: Sequence[LimitRule], tokens: int, now_us: int) -> Sequence[Charge]:
        """What each limit would be charged; nothing is written."""
        memory = self._memory
        charges: list[Charge] = []
        for rule in rules:
            place = memory.place(rule.digest, now_us)
            if place is None:
                continue
            requests_after = tokens_after = charged = 0
            bucket = rule.requests
            if bucket is not None:
                before = memory.arrival(place, REQUESTS, bucket.rate)
                requests_after = bucket.after(before, now_us, 1)
            bucket = rule.tokens
            if bucket is not None:
                charged = min(tokens, bucket.burst)
                before = memory.arrival(place, TOKENS, bucket.rate)
                tokens_after = bucket.after(before, now_us, charged)
            charges.append(Charge(rule, place, requests_after, charged, tokens_after))
        return charges

    def _shortage(self, charges: Sequence[Charge], now_us: int) -> Shortage | None:
        """The limit that takes longest to have room, None where all have it now."""
        found: list[Shortage] = []
        for charge in charges:
            rule = charge.rule
            for bucket, after, kind in (
                (rule.requests, charge.requests_after, LimitKind.RPM),
                (rule.tokens, charge.tokens_after, LimitKind.TPM),
            ):
                wait_us = 0 if bucket is None else bucket.wait_us(after, now_us)
                if wait_us:
                    found.append(Shortage(rule, kind, wait_us))
            if (
                rule.concurrency is not None
                and self._memory.in_flight(charge.place) >= rule.concurrency
            ):
                found.append(Shortage(rule, LimitKind.CONCURRENCY, CONCURRENCY_WAIT_US))
        return max(found, key=lambda one: one.wait_us) if found else None

    def _write(self, charge: Charge) -> None:
        memory, rule = self._memory, charge.rule
        if rule.requests is not None:
            memory.set_arrival(charge.place, REQUESTS, rule.requests.rate, charge.requests_after)
        if rule.tokens is not None:
            memory.set_arrival(charge.place, TOKENS, rule.tokens.rate, charge.tokens_after)
        if rule.concurrency is not None:
            memory.count(charge.place, self._seat, 1)

    def _standing(self, charges: Sequence[Charge], now_us: int) -> Standing:
        """Where the limits stand now, by what is written."""
        standing = Standing()
        for charge in charges:
            rule = charge.rule
            standing = standing.and_also(
                self._meter(rule.requests, charge.place, REQUESTS, now_us),
                self._meter(rule.tokens, charge.place, TOKENS, now_us),
            )
        return standing

    def _meter(self, bucket: Bucket | None, place: int, word: int, now_us: int) -> Meter | None:
        if bucket is None:
            return None
        arrival = self._memory.arrival(place, word, bucket.rate)
        left, reset_us = bucket.left(arrival, now_us), bucket.reset_us(arrival, now_us)
        return Meter(bucket.rate, left, reset_us)

    def _correct(self, now_us: int) -> None:
        """Make all corrections that wait; the lock is held."""
        memory = self._memory
        while self._waiting:
            one = self._waiting.popleft()
            rule = one.charge.rule
            # Since it was charged its record may have come to rest and be another limit's.
            place = memory.place(rule.digest, now_us)
            if place is None:
                continue
            if rule.requests is not None and one.requests:
                bucket = rule.requests
                arrival = memory.arrival(place, REQUESTS, bucket.rate)
                after = one.charge.requests_after
                arrival = bucket.undone(arrival, now_us, one.requests, after)
                memory.set_arrival(place, REQUESTS, bucket.rate, arrival)
            if rule.tokens is not None and one.tokens:
                bucket = rule.tokens
                arrival = memory.arrival(place, TOKENS, bucket.rate)
                arrival = bucket.corrected(arrival, now_us, one.tokens)
                memory.set_arrival(place, TOKENS, bucket.rate, arrival)
