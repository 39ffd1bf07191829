"""The types that the engine's core and its model side share.

The core decides which tokens of which sequences to compute; a `Runner` computes them. Neither
imports the other, so that the scheduler is tested without a model and the model without a
scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from local_engine.content_guard import StandIns


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChunk:
    """A run of consecutive tokens of one sequence to compute in this step.

    Attributes:
        token_ids: The tokens to compute, at least one.
        start: Position of the first of them, counted from 0; every earlier position is already in
            the pool.
        block_table: Block ids of the sequence in order; it covers at least `start + len(token_ids)`
            positions.
        needs_logits: True when the last token of the chunk is the last known token of the sequence.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    needs_logits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """All chunks of one step; no sequence appears twice."""

    chunks: Sequence[SequenceChunk]


class Runner(Protocol):
    """Computes step plans over a paged KV pool that it owns."""

    @property
    def block_size(self) -> int:
        """Token slots per KV block."""
        ...

    @property
    def n_blocks(self) -> int:
        """Blocks in the pool, block 0 (scratch, never allocated) included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the logits; ids past the tokenizer's vocabulary are minus infinity."""
        ...

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Write the chunks' keys and values into the pool and compute logits.

        Returns:
            [N, V] float32 on the CPU: one row per chunk with `needs_logits`, in the plan's order.
        """
        ...


class Tokenizer(Protocol):
    """Text to token ids and back, byte exact."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a generation (end of text, end of turn)."""
        ...

    @property
    def bos_text(self) -> str:
        """Text of the begin-of-sequence token, empty when the model has none."""
        ...

    @property
    def eos_text(self) -> str:
        """Text of the end-of-sequence token, empty when the model has none."""
        ...

    @property
    def control_texts(self) -> Sequence[str]:
        """Texts of the tokens that steer the model, as turns and ends do."""
        ...

    def encode(self, text: str, *, stand_ins: StandIns = ...) -> list[int]:
        """Encode text in which control tokens are recognised; no token is added.

        Args:
            text: What a template or a caller made.
            stand_ins: Characters to put back once control tokens have been recognised.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token adds to the output; empty for special (control) tokens."""
        ...
