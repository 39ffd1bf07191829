"""One decoder for every supported family: embeddings in, hidden states out.

Rows (tokens of any sequences) go through the linear parts in tiles of a fixed number of rows. A
matrix product of a fixed shape treats each row alike whatever stands in the others, so a token's
result depends neither on its batch mates nor on how its prompt was cut; products of varying shapes
lack this property, because the library changes its order of summation with the shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, rms_norm, silu

from local_engine.models.rope import rotate

if TYPE_CHECKING:
    from local_engine.attention import AttentionBackend, AttentionPlan
    from local_engine.models.arch import ArchSpec
    from local_engine.models.loader import LayerWeights, ModelWeights
    from local_engine.models.rope import RopeTable


class Decoder:
    """The forward pass; owns no state but the weights.

    The residual stream is float32 whatever the type of the weights, so that rounding does not pile
    up over layers.
    """

    def __init__(
        self, spec: ArchSpec, weights: ModelWeights, rope: RopeTable, *, tile_rows: int
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._rope = rope
        self._tile_rows = tile_rows

    @property
    def tile_rows(self) -> int:
        """Rows per tile; batches given to `forward` are padded to a multiple of it."""
        return self._tile_rows

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        *,
        attention: AttentionBackend,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """Run all layers, writing keys and values through `attention`.

        Args:
            token_ids: [R] int64, R a multiple of `tile_rows`; rows past the plan's are padding.
            positions: [R] int64, each row's position in its sequence; 0 for padding.
            attention: Holds the KV pool.
            plan: Which rows belong to which sequence.

        Returns:
            [R, H] float32 normalised hidden states; padding rows are meaningless.
        """
        rope_rows = self._rope.at(positions)
        tiles = list(self._weights.embedding[token_ids].float().split(self._tile_rows))
        for number, layer in enumerate(self._weights.layers):
            projected = torch.cat([self._project_qkv(tile, layer) for tile in tiles])
            mixed = self._attend(number, projected, rope_rows, attention, plan)
            mixed_tiles = mixed.split(self._tile_rows)
            tiles = [
                self._finish_layer(tile, mix, layer)
                for tile, mix in zip(tiles, mixed_tiles, strict=True)
            ]
        return torch.cat([self._normalise(tile, self._weights.output_norm) for tile in tiles])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for selected rows.

        Args:
            hidden: [N, H] rows of `forward`'s result, N at least 1.

        Returns:
            [N, V] float32.
        """
        tile_rows = self._tile_rows
        rows = hidden.shape[0]
        padding = hidden.new_zeros((-rows % tile_rows, hidden.shape[1]))
        head = self._weights.head
        tiles = torch.cat((hidden, padding)).to(head.dtype).split(tile_rows)
        return torch.cat([linear(tile, head) for tile in tiles])[:rows].float()

    def _normalise(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, (rows.shape[-1],), weight, self._spec.norm_eps)

    def _project_qkv(self, tile: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        """[T, H] to [T, q_width + 2 * kv_width] float32."""
        normalised = self._normalise(tile, layer.attention_norm).to(layer.qkv.dtype)
        projected = linear(normalised, layer.qkv).float()
        return projected if layer.qkv_bias is None else projected + layer.qkv_bias

    def _attend(
        self,
        number: int,
        projected: torch.Tensor,
        rope_rows: RopeTable,
        attention: AttentionBackend,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """[R, q_width + 2 * kv_width] to [R, q_width] float32."""
        spec = self._spec
        by_head = projected.view(projected.shape[0], -1, spec.head_dim)
        rotated = rotate(by_head[:, : spec.heads + spec.kv_heads], rope_rows)
        values = by_head[:, spec.heads + spec.kv_heads :]
        attention.write(number, rotated[:, spec.heads :], values, plan)
        return attention.attend(number, rotated[:, : spec.heads], plan).flatten(1)

    def _finish_layer(
        self, tile: torch.Tensor, mixed: torch.Tensor, layer: LayerWeights
    ) -> torch.Tensor:
        dtype = layer.down.dtype
        tile = tile + linear(mixed.to(dtype), layer.attention_output)
        normalised = self._normalise(tile, layer.mlp_norm).to(dtype)
        gate, up = linear(normalised, layer.gate_up).chunk(2, dim=-1)
        return tile + linear(silu(gate) * up, layer.down)
