"""How often and how soon: tenacity's stop and wait strategies, asked by a loop of our own.

The loop is ours because a request goes from deployment to deployment, each attempt is journaled,
and nothing may be tried again once content went out. tenacity draws its jitter from the global
generator, so the jittered wait is a strategy of our own that takes one as a parameter.
"""

from __future__ import annotations

import random

from tenacity import Future, RetryCallState, Retrying
from tenacity.stop import stop_after_attempt, stop_before_delay
from tenacity.wait import wait_base, wait_exception, wait_exponential

from providers.errors import ProviderError

FIRST_PAUSE_S = 0.25
PAUSE_S_MAX = 8.0
JITTER_RATIO_MIN = 0.5
"""A pause is between this share of the growing one and all of it."""


class JitteredWait(wait_base):
    """Part of another strategy's wait, drawn anew each time."""

    def __init__(self, whole: wait_base, rng: random.Random) -> None:
        """Wrap a strategy.

        Args:
            whole: The longest wait.
            rng: Draws the share.
        """
        self._whole = whole
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait."""
        return self._whole(retry_state) * self._rng.uniform(JITTER_RATIO_MIN, 1.0)


class LongestWait(wait_base):
    """The longest of several strategies' waits; tenacity itself can only add them."""

    def __init__(self, *strategies: wait_base) -> None:
        """Take the strategies, at least one."""
        self._strategies = strategies

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait."""
        return max(strategy(retry_state) for strategy in self._strategies)


class RetryPolicy:
    """When a request has been tried enough, and how long a deployment is left alone.

    Attributes:
        attempts_max: Attempts of one request, the first included.
        within_s: No attempt starts later than this after the first.
    """

    def __init__(self, *, attempts_max: int, within_s: float, rng: random.Random) -> None:
        """Put the strategies together.

        Args:
            attempts_max: Attempts of one request, at least 1.
            within_s: Seconds after the first attempt's start.
            rng: For jitter.
        """
        self.attempts_max = attempts_max
        self.within_s = within_s
        growing = wait_exponential(multiplier=FIRST_PAUSE_S, max=PAUSE_S_MAX)
        self._strategies = Retrying(
            stop=stop_after_attempt(attempts_max) | stop_before_delay(within_s),
            wait=LongestWait(wait_exception(_asked_s), JitteredWait(growing, rng)),
        )

    def may_start(self, *, attempts: int, elapsed_s: float, pause_s: float) -> bool:
        """Whether another attempt may begin.

        Args:
            attempts: Made so far.
            elapsed_s: Since the first one began.
            pause_s: Before the next one.
        """
        state = self._state(attempts, elapsed_s=elapsed_s)
        state.upcoming_sleep = pause_s
        return not self._strategies.stop(state)

    def pause_s(self, error: ProviderError, *, failures: int, asked_s: float | None) -> float:
        """Seconds to leave a deployment alone that has failed in this request.

        Args:
            error: How it failed last.
            failures: How often it has failed in this request, at least 1.
            asked_s: What is left of the wait that it asked for, None when it asked for none.
        """
        state = self._state(failures, elapsed_s=0.0)
        state.outcome = Future.construct(failures, _Asked(asked_s, error), has_exception=True)
        return float(self._strategies.wait(state))

    def _state(self, number: int, *, elapsed_s: float) -> RetryCallState:
        """What the strategies look at; tenacity fills it itself only in loops of its own."""
        state = RetryCallState(self._strategies, None, (), {})
        state.attempt_number = number
        state.start_time, state.outcome_timestamp = 0.0, elapsed_s
        return state


class _Asked(Exception):
    """A failure with what is left of the wait that it asked for."""

    def __init__(self, asked_s: float | None, error: ProviderError) -> None:
        super().__init__(asked_s)
        self.asked_s = asked_s
        self.__cause__ = error


def _asked_s(failure: BaseException) -> float:
    assert isinstance(failure, _Asked)
    return failure.asked_s or 0.0
