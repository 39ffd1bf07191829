"""A worker's limits: one call before a request, one at its end.

Decided in memory that the machine's workers share, or in Redis where several machines do. Where
neither can be had in time, the limits are divided by those who cannot count together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.errors import PromptOverLimit, RateLimitExceeded
from gateway.limits.local import UNDONE, Charge, LocalLimits, Refused, Taken, Use
from gateway.limits.memory import LimitMemory
from gateway.limits.rules import LimitBook, LimitRule
from gateway.limits.shared import SharedCharge, SharedLimits, SharedTaken
from gateway.limits.standing import Shortage, Standing
from pricing.usage import Meter

logger = logging.getLogger(__name__)

OUTPUT_TOKENS_UNSAID: Final = 512
"""What an answer is taken to have at the most where its client sets no bound, until it is known."""

LOCK_WAIT_S: Final = 0.05
LOCK_LOOK_S: Final = 0.0005
"""How long, and how often, the lock is looked for. A holder needs microseconds; one that was
stopped in the middle must not stop everybody."""

FLUSH_S: Final = 0.005
SHARES_MAX: Final = 10_000

_TOKEN_METERS = frozenset(
    meter.value
    for meter in (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE, Meter.OUTPUT, Meter.REASONING)
)


class Permit(msgspec.Struct, kw_only=True, eq=False):
    """What a request took of its limits; closed exactly once, whatever ends it.

    Attributes:
        limiter: Whose.
        rules: The limits.
        standing: Where they stood then, for headers.
        local: The memory it is counted in.
        charges: What it took there.
        shared: What it took in Redis, None where it was not asked.
        tokens: Used so far by its attempts.
        is_final: Whether that is all that they can have used.
        was_served: Whether there was an attempt.
    """

    limiter: Limiter
    rules: Sequence[LimitRule]
    standing: Standing
    local: LocalLimits
    charges: Sequence[Charge]
    shared: Sequence[SharedCharge] | None = None
    tokens: int = 0
    is_final: bool = True
    was_served: bool = False

    def note(self, usage: Mapping[str, int], *, is_final: bool) -> None:
        """Add an attempt's tokens.

        Args:
            usage: Counts by the names of their meters.
            is_final: Whether it can have used no more than that.
        """
        self.was_served = True
        self.tokens += sum(usage[meter] for meter in usage if meter in _TOKEN_METERS)
        self.is_final = self.is_final and is_final

    def close(self) -> None:
        """Count the request out, and correct what it took by what it used."""
        use = UNDONE
        if self.was_served:
            use = Use(self.tokens, self.is_final, True)
        self.limiter.end(self, use)


class Limiter:
    """Decides for one worker.

    Args:
        book: The configuration's limits; those of keys come with the keys.
        memory: What the machine's workers share.
        seat: This worker's own in it.
        workers: How many share it.
        monotonic_s: A clock that all processes of the machine share.
        shared: Where several machines share limits, None where there is one machine.
    """

    def __init__(
        self,
        book: LimitBook,
        *,
        memory: LimitMemory,
        seat: int,
        workers: int,
        monotonic_s: Callable[[], float],
        shared: SharedLimits | None = None,
    ) -> None:
        memory.take_seat(seat)
        self.book = book
        self.shared = shared
        self.is_alone = False
        self._local = LocalLimits(memory, seat)
        self._workers = workers
        self._monotonic_s = monotonic_s
        self._apart: LocalLimits | None = None
        self._shares: dict[tuple[Sequence[LimitRule], int], Sequence[LimitRule]] = {}
        self._limited: dict[tuple[str, str], int] = {}
        self._is_flushing = False

    @property
    def limited(self) -> Mapping[tuple[str, str], int]:
        """Refusals so far, by the limit's label and the team."""
        return self._limited

    @property
    def fault(self) -> str:
        """Why limits are divided instead of counted together, empty while all is well."""
        if self.is_alone:
            return (
                "the memory of limits is held by a process that does not go on; each worker holds"
                f" limits alone, at 1 of {self._workers} equal shares"
            )
        return "" if self.shared is None else self.shared.fault

    async def admit(
        self,
        rules: Sequence[LimitRule],
        *,
        team: str,
        prompt_tokens: int,
        prompt_tokens_low: int,
        output_tokens: int | None,
        choices: int,
    ) -> tuple[Permit | None, Shortage | None, Standing]:
        """Take what a request needs of every limit, or nothing of any.

        Args:
            rules: The limits, at least one.
            team: Who asks, for the counter.
            prompt_tokens: Estimate.
            prompt_tokens_low: Estimate that errs on the low side.
            output_tokens: The client's bound per choice, None when it set none.
            choices: How many answers were asked for.

        Returns:
            A permit, or the limit that refuses; and where the limits stand.

        Raises:
            PromptOverLimit: The prompt is over what a limit ever allows at once.
        """
        _check_prompt(rules, prompt_tokens_low)
        bound = OUTPUT_TOKENS_UNSAID if output_tokens is None else output_tokens
        tokens = prompt_tokens + bound * choices
        outcome = await self._decide(rules, tokens)
        if isinstance(outcome, Permit):
            return outcome, None, outcome.standing
        shortage, standing = outcome
        key = (shortage.label, team)
        self._limited[key] = self._limited.get(key, 0) + 1
        return None, shortage, standing

    def end(self, permit: Permit, use: Use) -> None:
        """Count a request out; see `Permit.close`."""
        shared = self.shared
        if permit.shared is not None and shared is not None:
            permit.local.leave(permit.charges)
            shared.settle(permit.shared, use)
            return
        permit.local.settle(permit.charges, use, self._now_us())
        if shared is not None:
            shared.count(permit.rules, -1)
        self._flush_soon(permit.local)

    async def _decide(
        self, rules: Sequence[LimitRule], tokens: int
    ) -> Permit | tuple[Shortage, Standing]:
        shared, wanted = self.shared, rules
        if shared is not None:
            outcome = await shared.take(rules, tokens)
            if isinstance(outcome, SharedTaken):
                # Counted here too: for the share of this machine, should Redis fail meanwhile.
                charges = self._local.hold(rules, self._now_us()) or ()
                return Permit(
                    limiter=self, rules=rules, standing=outcome.standing, local=self._local,
                    charges=charges, shared=outcome.charges,
                )  # fmt: skip
            if outcome is not None:
                return outcome.shortage, outcome.standing
            wanted = self._share(rules, shared.machines)
        found, local = self._local.take(wanted, tokens, self._now_us()), self._local
        if found is None:
            found, local = await self._wait_for_lock(wanted, tokens)
        elif self.is_alone:
            self._note_together()
        if isinstance(found, Refused):
            return found.shortage, found.standing
        if shared is not None:
            shared.count(rules, 1)
        return Permit(
            limiter=self, rules=rules, standing=found.standing, local=local, charges=found.charges
        )

    async def _wait_for_lock(
        self, rules: Sequence[LimitRule], tokens: int
    ) -> tuple[Taken | Refused, LocalLimits]:
        """Try again for a while, then decide apart from the others."""
        if not self.is_alone:
            ends_s = self._monotonic_s() + LOCK_WAIT_S
            while self._monotonic_s() < ends_s:
                await asyncio.sleep(LOCK_LOOK_S)
                found = self._local.take(rules, tokens, self._now_us())
                if found is not None:
                    return found, self._local
            self.is_alone = True
            logger.warning("%s", self.fault)
        if self._apart is None:
            self._apart = LocalLimits(LimitMemory(), 0)
        found = self._apart.take(self._share(rules, self._workers), tokens, self._now_us())
        assert found is not None, "nobody else has this memory"
        return found, self._apart

    def _note_together(self) -> None:
        self.is_alone = False
        logger.info("the workers of this machine share their limits again")

    def _share(self, rules: Sequence[LimitRule], parts: int) -> Sequence[LimitRule]:
        if parts == 1:
            return rules
        known = self._shares.get((rules, parts))
        if known is None:
            if len(self._shares) >= SHARES_MAX:
                self._shares.clear()
            known = self._shares[rules, parts] = tuple(rule.shared(parts) for rule in rules)
        return known

    def _flush_soon(self, local: LocalLimits) -> None:
        """Have corrections made that another process's lock kept from being made now."""
        if local.has_waiting and not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush, local)

    def _flush(self, local: LocalLimits) -> None:
        self._is_flushing = False
        local.flush(self._now_us())
        self._flush_soon(local)

    def _now_us(self) -> int:
        return int(self._monotonic_s() * 1_000_000)


def refusal(shortage: Shortage) -> RateLimitExceeded:
    """The error that a shortage becomes."""
    return RateLimitExceeded(shortage.message, retry_after_s=shortage.wait_us / 1_000_000)


def _check_prompt(rules: Sequence[LimitRule], prompt_tokens_low: int) -> None:
    for rule in rules:
        if rule.tokens is not None and prompt_tokens_low > rule.tokens.burst:
            raise PromptOverLimit(
                f"the prompt has at least {prompt_tokens_low} tokens and {rule.name} may use"
                f" {rule.tokens.burst} at once: send a shorter prompt, or ask the operator for a"
                " higher limit of tokens per minute",
                param="messages",
            )
