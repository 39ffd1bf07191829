"""Rotary position embedding: tables of angles and their application.

Source: RoFormer (Su et al., 2021), in the half-split form (dimension i rotates with i + D/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from local_engine.models.arch import ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """Cosines and sines of every position, [context, head_dim / 2] float32."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def at(self, positions: torch.Tensor) -> RopeTable:
        """Select rows for a batch of tokens, as [tokens, 1, head_dim / 2]."""
        return RopeTable(
            cosines=self.cosines[positions].unsqueeze(1), sines=self.sines[positions].unsqueeze(1)
        )


def build_rope_table(
    spec: ArchSpec, *, context_tokens: int, factors: torch.Tensor | None, device: torch.device
) -> RopeTable:
    """Compute the table in float32, with the operations that the models were trained with.

    Args:
        spec: The model's shape.
        context_tokens: Positions to cover.
        factors: [head_dim / 2] divisors of the frequencies, None for 1.
        device: Where the table will live.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    if factors is not None:
        frequencies = frequencies / factors
    frequencies = frequencies / spec.rope_scale
    positions = torch.arange(context_tokens, dtype=torch.float32)
    angles = positions[:, None] * frequencies[None, :]
    return RopeTable(cosines=angles.cos().to(device), sines=angles.sin().to(device))


def rotate(heads: torch.Tensor, rows: RopeTable) -> torch.Tensor:
    """Rotate every head of every token by its position's angles.

    Args:
        heads: [tokens, heads, head_dim]; not modified.
        rows: The tokens' rows of the table, from `RopeTable.at`.

    Returns:
        Same shape and type as `heads`.
    """
    first, second = heads.chunk(2, dim=-1)
    rotated = torch.cat(
        (
            first * rows.cosines - second * rows.sines,
            second * rows.cosines + first * rows.sines,
        ),
        dim=-1,
    )
    return rotated.to(heads.dtype)
