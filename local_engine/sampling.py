"""From a row of logits to a token.

Order: bias and bans, penalties, temperature, top-k, top-p, min-p, then inverse CDF with one
    uniform number that
depends on the seed and the position alone. Each row is handled by itself, in float32, so that a
request's tokens do not depend on who shares its batch. The most likely token always stays
eligible.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

GREEDY_BELOW_TEMPERATURE = 1e-3
"""Below this a temperature means greedy: dividing by less gives nothing but overflow."""


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

    def seen(self) -> torch.Tensor:
        """[S] distinct ids of prompt and output."""
        return torch.tensor(list(self._seen), dtype=torch.long)

    def generated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[G] distinct generated ids, [G] float32 how often each."""
        ids = torch.tensor(list(self._generated), dtype=torch.long)
        return ids, torch.tensor(list(self._generated.values()), dtype=torch.float32)


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
        row: [V] float32 logits; not modified.
        parameters: The sequence's choices.
        history: What the sequence holds so far.

    Raises:
        SamplingError: the row holds NaN or positive infinity, or nothing is left to choose from.
    """
    logits = _adjusted(row, parameters, history)
    best = int(torch.argmax(logits))
    highest = float(logits[best])
    if not math.isfinite(highest):
        raise SamplingError("the logits hold no finite maximum")
    if parameters.is_greedy:
        return best
    # The maximum goes off before the division: a small temperature cannot overflow.
    scaled = (logits - highest) / parameters.temperature
    ids, probabilities = _kept(scaled, parameters)
    cumulative = torch.cumsum(probabilities, dim=0, dtype=torch.float64)
    drawn = uniform(parameters.seed, history.n_generated) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, drawn, right=True))
    # Rounding may put the draw on the total itself; the last token with any probability is meant
    # then.
    if index >= len(cumulative):
        index = int(torch.nonzero(probabilities)[-1])
    return index if ids is None else int(ids[index])


def _adjusted(
    row: torch.Tensor, parameters: SamplingParameters, history: TokenHistory
) -> torch.Tensor:
    """Logits after bias, bans and penalties, as a copy; [V]."""
    if bool(torch.isnan(row).any()):
        raise SamplingError("the logits hold NaN")
    logits = row.to(torch.float32, copy=True)
    for token_id, bias in parameters.logit_bias.items():
        logits[token_id] += bias
    banned = parameters.banned_ids
    if history.n_generated < parameters.min_tokens:
        banned = banned | parameters.end_ids
    if banned:
        logits[list(banned)] = -math.inf
    if parameters.presence_penalty or parameters.frequency_penalty:
        ids, counts = history.generated()
        logits[ids] -= parameters.presence_penalty + parameters.frequency_penalty * counts
    if parameters.repetition_penalty != 1.0:
        ids = history.seen()
        values = logits[ids]
        penalty = parameters.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    return logits


def _kept(
    scaled: torch.Tensor, parameters: SamplingParameters
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Eligible tokens and their weights.

    Args:
        scaled: [V] logits with maximum 0, divided by the temperature.
        parameters: The sequence's choices.

    Returns:
        Token ids [K], most likely first, or None when weights are in order of id; weights [K], not
        normalised.
    """
    ids: torch.Tensor | None = None
    if parameters.top_k or parameters.top_p < 1.0:
        # Stable, so that equal logits are kept in order of id whatever the sort does inside.
        scaled, ids = torch.sort(scaled, descending=True, stable=True)
    if parameters.top_k:
        scaled = scaled[: parameters.top_k]
    weights = torch.exp(scaled)
    if parameters.top_p < 1.0:
        cumulative = torch.cumsum(weights, dim=0, dtype=torch.float64)
        before = cumulative - weights
        weights = torch.where(before < parameters.top_p * cumulative[-1], weights, 0.0)
        weights[0] = 1.0
    if parameters.min_p:
        weights = torch.where(weights >= parameters.min_p, weights, 0.0)
    return ids, weights
