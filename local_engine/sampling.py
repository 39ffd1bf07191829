"""From a row of logits to a token.

Order: bias and bans, penalties, temperature, top-k, top-p, min-p, then inverse CDF with one uniform
number that depends on the seed and the position alone. Each row is handled by itself, in float32,
so that a request's tokens do not depend on who shares its batch. The most likely token always stays
eligible.

A row is one vector of tens of thousands of numbers: too few to be worth the barrier between threads
that torch puts into such operations, so numpy does the arithmetic (top-p of 49,152 logits on two
busy cores: 1.3 ms against 14 to 100 ms).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_Floats = NDArray[np.float32]
_Ids = NDArray[np.int64]

GREEDY_BELOW_TEMPERATURE = 1e-3
"""Below this a temperature means greedy: dividing by less gives nothing but overflow."""

_LEADING_TOKENS = 256
"""Sorted at first for top-p; a whole vocabulary costs more to sort than all else in sampling."""


class SamplingError(ArithmeticError):
    """A row of logits has no usable value; it concerns one sequence alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How tokens of one sequence are chosen; ranges were checked when the request came in.

    Attributes:
        temperature: Divides the logits; below `GREEDY_BELOW_TEMPERATURE` the arg-max is taken.
        top_k: Keep this many tokens, 0 keeps all.
        top_p: Keep the smallest set of tokens that reaches this probability.
        min_p: Drop tokens less likely than this part of the most likely one.
        presence_penalty: Subtracted once from every token that was generated before.
        frequency_penalty: Subtracted per earlier occurrence among the generated tokens.
        repetition_penalty: Divides positive and multiplies negative logits of every token in
            prompt or output.
        logit_bias: Added to the logits of single tokens.
        seed: Any 64-bit number.
        min_tokens: `end_ids` cannot be chosen before so many tokens were generated.
        end_ids: Tokens that would end the sequence.
        banned_ids: Tokens that are never chosen.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is used."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE


class TokenHistory:
    """Tokens that penalties look at, counted as they come.

    Args:
        prompt: Token ids of the prompt.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self._seen = dict.fromkeys(prompt)
        self._generated: dict[int, int] = {}
        self.n_generated = 0

    def add(self, token_id: int) -> None:
        """Count a generated token."""
        self._seen[token_id] = None
        self._generated[token_id] = self._generated.get(token_id, 0) + 1
        self.n_generated += 1

    def seen(self) -> _Ids:
        """[S] distinct ids of prompt and output."""
        return np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))

    def generated(self) -> tuple[_Ids, _Floats]:
        """[G] distinct generated ids, [G] how often each."""
        size = len(self._generated)
        ids = np.fromiter(self._generated, dtype=np.int64, count=size)
        return ids, np.fromiter(self._generated.values(), dtype=np.float32, count=size)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments.

    Args:
        seed: Any integer; its lowest 64 bits count.
        position: Index of the generated token.
    """
    counter = struct.pack("<QQ", seed & 0xFFFF_FFFF_FFFF_FFFF, position)
    word = hashlib.blake2b(counter, digest_size=8, person=b"fw-sample").digest()
    return (int.from_bytes(word, "little") >> 11) / 2**53


def sample(row: torch.Tensor, parameters: SamplingParameters, history: TokenHistory) -> int:
    """Choose the next token.

    Args:
        row: [V] float32 logits on the CPU; not modified.
        parameters: The sequence's choices.
        history: What the sequence holds so far.

    Raises:
        SamplingError: the row holds NaN or positive infinity, or nothing is left to choose from.
    """
    logits = _adjusted(row.numpy(), parameters, history)
    # NaN counts as the largest here, so this finds it without another pass.
    best = int(np.argmax(logits))
    highest = logits[best]
    if not np.isfinite(highest):
        raise SamplingError("the logits hold no finite maximum")
    if parameters.is_greedy:
        return best
    # The maximum goes off before the division: a small temperature cannot overflow.
    scaled = (logits - highest) / np.float32(parameters.temperature)
    ids, weights = _kept(scaled, parameters)
    cumulative = np.cumsum(weights, dtype=np.float64)
    drawn = uniform(parameters.seed, history.n_generated) * cumulative[-1]
    index = int(np.searchsorted(cumulative, drawn, side="right"))
    # Rounding may put the draw on the total itself; the last token with any weight is meant then.
    if index >= len(cumulative):
        index = int(np.flatnonzero(weights)[-1])
    return index if ids is None else int(ids[index])


def _adjusted(row: _Floats, parameters: SamplingParameters, history: TokenHistory) -> _Floats:
    """Logits after bias, bans and penalties; [V], a copy if anything was changed."""
    banned = parameters.banned_ids
    if history.n_generated < parameters.min_tokens:
        banned = banned | parameters.end_ids
    has_penalty = parameters.presence_penalty or parameters.frequency_penalty
    if not (banned or parameters.logit_bias or has_penalty or parameters.repetition_penalty != 1.0):
        return row
    logits = row.copy()
    for token_id, bias in parameters.logit_bias.items():
        logits[token_id] += bias
    if banned:
        logits[list(banned)] = -np.inf
    if has_penalty:
        ids, counts = history.generated()
        logits[ids] -= parameters.presence_penalty + parameters.frequency_penalty * counts
    if parameters.repetition_penalty != 1.0:
        ids = history.seen()
        values = logits[ids]
        penalty = np.float32(parameters.repetition_penalty)
        logits[ids] = np.where(values > 0, values / penalty, values * penalty)
    return logits


def _kept(scaled: _Floats, parameters: SamplingParameters) -> tuple[_Ids | None, _Floats]:
    """Eligible tokens and their weights.

    Args:
        scaled: [V] logits with maximum 0, divided by the temperature.
        parameters: The sequence's choices.

    Returns:
        Token ids [K], most likely first, or None when weights are in order of id; weights [K], not
        normalised.
    """
    ids: _Ids | None = None
    if 0 < parameters.top_k < len(scaled):
        ids = _leading(scaled, parameters.top_k)[: parameters.top_k]
        weights = np.exp(scaled[ids])
        if parameters.top_p < 1.0:
            weights = _nucleus(weights, parameters.top_p * weights.sum(dtype=np.float64))
    elif parameters.top_p < 1.0:
        ids, weights = _top_p_of_all(scaled, parameters.top_p)
    else:
        weights = np.exp(scaled)
    if parameters.min_p:
        weights = np.where(weights >= np.float32(parameters.min_p), weights, np.float32(0))
    return ids, weights


def _top_p_of_all(scaled: _Floats, top_p: float) -> tuple[_Ids, _Floats]:
    """Top-p over the whole vocabulary, sorting no more of it than is kept by far."""
    mass = top_p * np.exp(scaled).sum(dtype=np.float64)
    count = min(_LEADING_TOKENS, len(scaled))
    while True:
        ids = _leading(scaled, count)
        weights = np.exp(scaled[ids])
        if count == len(scaled) or weights.sum(dtype=np.float64) >= mass:
            return ids, _nucleus(weights, mass)
        count = min(8 * count, len(scaled))


def _nucleus(weights: _Floats, mass: np.float64) -> _Floats:
    """The smallest leading set of weights that reaches `mass`, the others 0; at least the first."""
    before = np.cumsum(weights, dtype=np.float64) - weights
    kept = np.where(before < mass, weights, np.float32(0))
    kept[0] = weights[0]
    return kept


def _leading(scaled: _Floats, count: int) -> _Ids:
    """Ids of at least the `count` most likely tokens, most likely first, equals in order of id."""
    threshold = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
    ids = np.flatnonzero(scaled >= threshold)
    return ids[np.argsort(-scaled[ids], kind="stable")]
