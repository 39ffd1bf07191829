"""A deterministic runner without a model: its logits depend on the KV content it finds in its pool.

Each slot holds a value made from the token, its position and the value of the slot before it, read back
through the block table, as attention would. A wrong block table, a missing or foreign block, a block
published too early or a chunk computed at the wrong position therefore changes the tokens. `expected_tokens`
computes the same without pool, blocks or scheduler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from local_engine.step import StepPlan

VOCAB_SIZE = 258
LOGITS_WIDTH = 264  # padded, as real models are
END_ID = 256
BOS_ID = 257
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def mix(value: int, token_id: int, position: int) -> int:
    """A 64-bit value that depends on all its arguments."""
    value = (value ^ (token_id * 0x9E3779B97F4A7C15) ^ (position * 0xC2B2AE3D27D4EB4F)) & _MASK
    value = (value ^ (value >> 31)) * 0xBF58476D1CE4E5B9 & _MASK
    return value ^ (value >> 29)


@functools.cache
def _table(width: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((64, width)).astype(np.float32) * 3


def logits_of(values: np.ndarray, *, end_bias: float = 0.0, ascii_only: bool = True) -> np.ndarray:
    """Logits for a context whose slots hold these values."""
    with np.errstate(over="ignore"):
        weights = np.arange(1, len(values) + 1, dtype=np.uint64) | np.uint64(1)
        total = int(np.sum(values * weights, dtype=np.uint64))
    total = mix(total, len(values), 0)
    table = _table(LOGITS_WIDTH)
    row = np.roll(table[total % 64], (total >> 8) % 251) + table[(total >> 20) % 64] * 0.5
    row[VOCAB_SIZE:] = -np.inf
    row[BOS_ID] = -30
    row[END_ID] += end_bias
    if ascii_only:
        row[:32] -= 30
        row[127:256] -= 30
    return row


class FakeRunner:
    """A `Runner` over a pool of integers."""

    def __init__(
        self,
        *,
        n_blocks: int = 64,
        block_size: int = 4,
        end_bias: float = 0.0,
        ascii_only: bool = True,
        on_execute: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self.block_size = block_size
        self.n_blocks = n_blocks
        self.vocab_size = LOGITS_WIDTH
        self.computed_tokens = 0
        self.batch_sizes: list[int] = []
        self._slots = np.zeros(n_blocks * block_size, dtype=np.uint64)
        self._options = {"end_bias": end_bias, "ascii_only": ascii_only}
        self._on_execute = on_execute

    def execute(self, plan: StepPlan) -> torch.Tensor:
        if self._on_execute is not None:
            self._on_execute(plan)
        self.batch_sizes.append(len(plan.chunks))
        rows: list[np.ndarray] = []
        for chunk in plan.chunks:
            assert 0 not in chunk.block_table, "the scratch block is in a table"
            end = chunk.start + len(chunk.token_ids)
            assert len(chunk.token_ids) >= 1
            assert len(chunk.block_table) * self.block_size >= end, "the table is too short"
            table = np.asarray(chunk.block_table)
            slots = (table[:, None] * self.block_size + np.arange(self.block_size)).ravel()[:end]
            value = int(self._slots[slots[chunk.start - 1]]) if chunk.start else 0
            for offset, token_id in enumerate(chunk.token_ids):
                position = chunk.start + offset
                value = mix(value, token_id, position)
                self._slots[slots[position]] = value
            self.computed_tokens += len(chunk.token_ids)
            if chunk.needs_logits:
                rows.append(logits_of(self._slots[slots], **self._options))
        if not rows:
            return torch.zeros((0, self.vocab_size))
        return torch.from_numpy(np.stack(rows))


def context_values(token_ids: Sequence[int]) -> np.ndarray:
    """What the slots of a context hold when everything is right."""
    values, value = [], 0
    for position, token_id in enumerate(token_ids):
        value = mix(value, token_id, position)
        values.append(value)
    return np.asarray(values, dtype=np.uint64)


def expected_tokens(
    prompt: Sequence[int], n_tokens: int, *, end_bias: float = 0.0, ascii_only: bool = True
) -> list[int]:
    """Greedy tokens up to and with the end token, by the plain definition."""
    tokens = list(prompt)
    for _ in range(n_tokens):
        row = logits_of(context_values(tokens), end_bias=end_bias, ascii_only=ascii_only)
        tokens.append(int(np.argmax(row)))
        if tokens[-1] == END_ID:
            break
    return tokens[len(prompt) :]


class ByteTokenizer:
    """One token per byte; the end token adds none."""

    vocab_size = VOCAB_SIZE
    end_ids = frozenset({END_ID})
    bos_text = "<s>"
    eos_text = "</s>"
    control_texts = ("[assistant]", "[user]")

    def encode(
        self, text: str, *, stand_ins: Mapping[str, str] = MappingProxyType({})
    ) -> list[int]:
        return list(text.translate(str.maketrans(dict(stand_ins))).encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


def render_chat(messages: Sequence[Mapping[str, object]]) -> str:
    """A chat template."""
    return "".join(f"[{each['role']}]{each['content']}\n" for each in messages) + "[assistant]"
