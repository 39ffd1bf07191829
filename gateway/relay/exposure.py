"""The most that an attempt is taken to cost: held in budgets, kept where its bill is unknown.

Where the client bounds the output, that bound counts. Where it does not, the model's context window
alone would hold dollars for an answer of cents, or there is no bound at all; so the output is taken
to be as long as nearly all answers of this model at this deployment were, with a margin, and never
longer than the window. An answer that is longer all the same is booked as it is: the budget then
shows what it cost, over its limit if need be.

Each worker learns for itself and begins anew with its process; nothing of an answer is kept but its
length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.routing.ranking import Candidate
from pricing.money import PicoUsd
from pricing.price_book import Unpriced
from pricing.quote import EVENT_PICO_USD_MAX, MeasuredSpeed, Workload, quote

UNKNOWN_OUTPUT_TOKENS = 4096
"""Output per choice that is assumed before enough answers were seen."""
ANSWERS_MIN = 100
"""Fewer answers say nothing about their longest hundredth."""
ANSWERS_KEPT = 4096
"""At so many, all counts are halved, so that the last thousands decide."""
REFRESH_EVERY = 32
"""Answers after which the bound is worked out anew."""
LEARNED_TOKENS_MIN = 256
"""A bound below this would save nothing and miss much."""

_EXACT_BELOW = 8
_STEPS = 4
"""Lengths are counted exactly below 8, and with four steps per doubling above."""
_TOKENS_MAX = 1 << 30


class _Lengths:
    """Lengths of answers, and the bound that they give."""

    __slots__ = ("_counts", "_seen", "_unread", "bound_tokens")

    def __init__(self) -> None:
        self.bound_tokens: int | None = None
        self._counts: dict[int, int] = {}
        self._seen = 0
        self._unread = 0

    def add(self, tokens: int) -> None:
        """Count an answer in."""
        place = _place(min(tokens, _TOKENS_MAX))
        self._counts[place] = self._counts.get(place, 0) + 1
        self._seen += 1
        self._unread += 1
        if self._seen >= ANSWERS_KEPT:
            self._counts = {at: count // 2 for at, count in self._counts.items() if count > 1}
            self._seen = sum(self._counts.values())
        if self._seen >= ANSWERS_MIN and self._unread >= REFRESH_EVERY:
            self._unread = 0
            self.bound_tokens = self._bound()

    def _bound(self) -> int:
        """The 99th percentile from above, and half as much again."""
        left = self._seen // 100
        longest = 0
        for place in sorted(self._counts, reverse=True):
            longest = _longest(place)
            left -= self._counts[place]
            if left < 0:
                break
        return max(longest + longest // 2, LEARNED_TOKENS_MIN)


def _place(tokens: int) -> int:
    if tokens < _EXACT_BELOW:
        return tokens
    shift = tokens.bit_length() - 3
    return shift * _STEPS + (tokens >> shift)


def _longest(place: int) -> int:
    """The longest length that is counted at a place."""
    if place < _EXACT_BELOW:
        return place
    shift = place // _STEPS - 1
    return ((place - shift * _STEPS + 1) << shift) - 1


@dataclass(slots=True, kw_only=True)
class OutputLengths:
    """How long answers are whose clients set no bound, by model and deployment."""

    _known: dict[tuple[str, str], _Lengths] = field(default_factory=dict[tuple[str, str], _Lengths])

    def note(self, model: str, deployment: str, output_tokens: int, choices: int) -> None:
        """Count an answer in that is complete.

        Args:
            model: What the client asked for, resolved.
            deployment: Who answered.
            output_tokens: Of all choices together.
            choices: How many they were.
        """
        key = (model, deployment)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Lengths()
        known.add(-(-output_tokens // choices))

    def bound_tokens(self, model: str, deployment: str) -> int:
        """So long is an answer taken to be at most, per choice."""
        known = self._known.get((model, deployment))
        if known is None or known.bound_tokens is None:
            return UNKNOWN_OUTPUT_TOKENS
        return known.bound_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of a request bounds its cost.

    Attributes:
        prompt_tokens_low: As the decision took it.
        prompt_tokens_max: No tokenizer makes more of the prompt.
        max_output_tokens: The client's bound per choice, None when it set none.
        choices: Answers asked for.
    """

    prompt_tokens_low: int
    prompt_tokens_max: int
    max_output_tokens: int | None
    choices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposures:
    """Works out what attempts may cost.

    Attributes:
        speed: Measured speed of a machine of ours.
        lengths: What was learned.
    """

    speed: Callable[[str], MeasuredSpeed | None]
    lengths: OutputLengths = field(default_factory=OutputLengths)

    def of(self, model: str, asked: Asked, candidate: Candidate) -> PicoUsd | None:
        """The most that an attempt is taken to cost; None where its price is not known.

        Args:
            model: What the client asked for, resolved.
            asked: The request.
            candidate: The deployment, with its price for this request.
        """
        bound = candidate.exposure_pico_usd
        if asked.max_output_tokens is None and not isinstance(candidate.price, Unpriced):
            bound = self._learned(model, asked, candidate)
        # What costs more than an entry can hold is booked without a price (`Journal.settle`).
        return None if bound is None else PicoUsd(min(bound, EVENT_PICO_USD_MAX))

    def _learned(self, model: str, asked: Asked, candidate: Candidate) -> PicoUsd | None:
        price, known = candidate.price, candidate.exposure_pico_usd
        assert not isinstance(price, Unpriced), "asked for only where there is a price"
        tokens = self.lengths.bound_tokens(model, candidate.deployment) * asked.choices
        made = quote(
            Workload(
                prompt_tokens=asked.prompt_tokens_low,
                max_prompt_tokens=max(asked.prompt_tokens_low, asked.prompt_tokens_max),
                expected_output_tokens=0,
                max_output_tokens=tokens,
            ),
            price,
            speed=self.speed(candidate.deployment),
        )
        learned = None if isinstance(made, Unpriced) else made.upper_bound_pico_usd
        if learned is None or known is None:
            return known if learned is None else learned
        return min(learned, known)  # never above what the window leaves
