"""Who used the machine: the time of each step shared over its sequences; busy + idle = wall.

Times are whole nanoseconds, so nothing is lost to rounding: the shares of a step add up to its
length, and all shares and all idle time add up to the time since the meter was started. Shares
follow a cost model of the step that is fitted while the engine runs; the fit decides proportions
only, the total is always what was measured.

Source: ridge regression with exponential forgetting (recursive least squares, Ljung 1999, chapter
11).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000
_SCALES = (1.0, 100.0, 100_000.0, 8.0)
"""Typical size of each feature; the fit works on features of size one."""
_PRIOR_S = (1e-3, 2e-3, 2e-4, 8e-3)
"""Cost of a typical feature before anything was measured: step, tokens, context read, sequences."""
_PRIOR_WEIGHT = 1.0
_FORGETTING = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one sequence computes in one step.

    Attributes:
        new_tokens: Tokens computed.
        context_tokens: Positions that these tokens attend to, summed over the tokens.
    """

    new_tokens: int
    context_tokens: int

    @classmethod
    def of_chunk(cls, *, start: int, count: int) -> Work:
        """Work of tokens from `start` on: each attends to itself and all before it."""
        return cls(new_tokens=count, context_tokens=count * start + count * (count + 1) // 2)


class StepCostModel:
    """Seconds of a step as `c0 + c1 * tokens + c2 * context + c3 * sequences`, fitted online."""

    def __init__(self) -> None:
        size = len(_PRIOR_S)
        self._coefficients_s = list(_PRIOR_S)
        self._moment = [[0.0] * size for _ in range(size)]
        self._target = [0.0] * size

    def observe(self, works: Sequence[Work], *, duration_s: float) -> None:
        """Learn from a measured step."""
        features = self._features(works)
        size = len(features)
        for row in range(size):
            for column in range(size):
                product = features[row] * features[column]
                self._moment[row][column] = _FORGETTING * self._moment[row][column] + product
            # The target is what the prior does not explain, which pulls unseen features to the
            # prior.
            rest = duration_s - sum(p * f for p, f in zip(_PRIOR_S, features, strict=True))
            self._target[row] = _FORGETTING * self._target[row] + features[row] * rest
        self._solve()

    def cost_s(self, work: Work) -> float:
        """Modelled seconds of one sequence's part in a step; above 0."""
        _, per_token, per_context, per_sequence = self._coefficients_s
        return (
            per_token * work.new_tokens / _SCALES[1]
            + per_context * work.context_tokens / _SCALES[2]
            + per_sequence / _SCALES[3]
        )

    def step_s(self, works: Sequence[Work]) -> float:
        """Modelled seconds of a whole step."""
        return self._coefficients_s[0] + sum(self.cost_s(work) for work in works)

    def tokens_within(self, duration_s: float) -> int:
        """Prompt tokens that are computed in so many seconds beside nothing else."""
        return max(0, int(duration_s / (self._coefficients_s[1] / _SCALES[1])))

    @staticmethod
    def _features(works: Sequence[Work]) -> list[float]:
        raw = (
            1.0,
            float(sum(work.new_tokens for work in works)),
            float(sum(work.context_tokens for work in works)),
            float(len(works)),
        )
        return [value / scale for value, scale in zip(raw, _SCALES, strict=True)]

    def _solve(self) -> None:
        """Ridge solution around the prior; no coefficient falls below a hundredth of its prior."""
        size = len(_PRIOR_S)
        system = [[*self._moment[row], self._target[row]] for row in range(size)]
        for row in range(size):
            system[row][row] += _PRIOR_WEIGHT
        # Positive definite by the ridge: elimination needs no pivoting.
        for pivot in range(size):
            for row in range(pivot + 1, size):
                factor = system[row][pivot] / system[pivot][pivot]
                for column in range(pivot, size + 1):
                    system[row][column] -= factor * system[pivot][column]
        change = [0.0] * size
        for row in reversed(range(size)):
            known = sum(system[row][column] * change[column] for column in range(row + 1, size))
            change[row] = (system[row][size] - known) / system[row][row]
        self._coefficients_s = [
            max(prior / 100, prior + delta) for prior, delta in zip(_PRIOR_S, change, strict=True)
        ]


def split_exactly(total: int, weights: Sequence[float]) -> list[int]:
    """Split a whole number in proportion to positive weights; the parts add up to it exactly.

    Raises:
        ValueError: no weights, or one that is not positive.
    """
    if not weights or min(weights) <= 0:
        raise ValueError("weights must be positive and at least one")
    whole = math.fsum(weights)
    parts: list[int] = []
    begun, cumulative = 0, 0.0
    # Rounding the running total, not the parts, keeps every rest within one unit.
    for weight in weights[:-1]:
        cumulative += weight
        edge = min(total, max(begun, round(total * min(1.0, cumulative / whole))))
        parts.append(edge - begun)
        begun = edge
    return [*parts, total - begun]


class Meter:
    """Divides wall time into busy time of requests and idle time.

    Args:
        clock_ns: Monotonic clock in nanoseconds.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.model = StepCostModel()
        self._clock_ns = clock_ns
        self._started_ns = self._last_ns = clock_ns()
        self._busy_ns = 0
        self._idle_ns = 0
        self._n_steps = 0
        self._step_started_ns: int | None = None

    @property
    def busy_s(self) -> float:
        """Seconds inside steps."""
        return self._busy_ns / _NS_PER_S

    @property
    def idle_s(self) -> float:
        """Seconds between steps, up to the last step's end or `settle`."""
        return self._idle_ns / _NS_PER_S

    @property
    def wall_s(self) -> float:
        """Seconds from the start to the last step's end or `settle`: busy and idle together."""
        return (self._last_ns - self._started_ns) / _NS_PER_S

    @property
    def n_steps(self) -> int:
        """Steps metered."""
        return self._n_steps

    def begin_step(self) -> None:
        """A step starts now; what passed since the last one was idle."""
        assert self._step_started_ns is None, "the last step has not ended"
        self.settle()
        self._step_started_ns = self._last_ns

    def end_step(self, works: Sequence[Work]) -> list[int]:
        """A step ends now.

        Args:
            works: What each sequence of the step computed; empty when none got that far.

        Returns:
            Nanoseconds of the step that each sequence is charged, in the order of `works`.
        """
        assert self._step_started_ns is not None, "no step has begun"
        now_ns = self._clock_ns()
        duration_ns = now_ns - self._step_started_ns
        self._last_ns = now_ns
        self._step_started_ns = None
        if not works:
            self._idle_ns += duration_ns
            return []
        self._busy_ns += duration_ns
        self._n_steps += 1
        self.model.observe(works, duration_s=duration_ns / _NS_PER_S)
        return split_exactly(duration_ns, [self.model.cost_s(work) for work in works])

    def settle(self) -> None:
        """Count the time since the last step as idle, between steps only."""
        if self._step_started_ns is None:
            now_ns = self._clock_ns()
            self._idle_ns += now_ns - self._last_ns
            self._last_ns = now_ns

    def check_integrity(self) -> None:
        """Assert that busy and idle time add up to wall time, to the nanosecond."""
        assert self._busy_ns + self._idle_ns == self._last_ns - self._started_ns, "time is lost"
