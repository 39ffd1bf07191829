"""Attention over the paged KV pool: the interface and the reference back end.

The pool keeps, per layer, keys and values head-major over all token slots; a token's slot is block
id x block size + offset. A back end writes the keys and values of a step and lets queries attend to
everything that their sequences have in the pool, themselves included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_engine.step import SequenceChunk, StepPlan

# Shapes of the reference back end's products are fixed by these two numbers; see `Decoder`.
QUERY_TILE_ROWS: Final = 16
CONTEXT_TILE_TOKENS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What attention must know about a model: numbers of layers and heads, and the heads' size."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTile:
    """Up to QUERY_TILE_ROWS consecutive queries of a chunk.

    Attributes:
        offset: First query, counted from the chunk's first row.
        rows: Number of queries.
        context_tiles: Context tiles that the queries may see into; later ones are skipped.
        hidden: [context_tiles, 1, QUERY_TILE_ROWS, CONTEXT_TILE_TOKENS] true where a query may
            not look, because the place is after its own position.
    """

    offset: int
    rows: int
    context_tiles: int
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """Where one sequence's chunk lies in the step's rows and in the pool.

    Attributes:
        first_row: Row of the chunk's first token; its rows are consecutive.
        rows: Number of tokens.
        start: Position of the first token in its sequence.
        slots: [start + rows] pool slots of positions 0 up to the chunk's last.
        tiles: The chunk's queries, tile by tile.
    """

    first_row: int
    rows: int
    start: int
    slots: torch.Tensor
    tiles: Sequence[QueryTile]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """A step as the back ends need it, built once and used by every layer.

    Attributes:
        chunks: In row order; together they cover rows 0 to `rows`.
        rows: Number of real rows; further rows of a batch are padding.
        new_slots: [rows] pool slot of each row's own key and value.
    """

    chunks: Sequence[ChunkRows]
    rows: int
    new_slots: torch.Tensor


class AttentionBackend(Protocol):
    """Reads and writes the KV pool for one model."""

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan
    ) -> None:
        """Store the keys and values of the plan's rows.

        Args:
            layer: Number of the layer.
            keys: [R, kv_heads, D], rotated; rows past `plan.rows` are ignored.
            values: Same shape.
            plan: The step.
        """
        ...

    def attend(self, layer: int, queries: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Attend causally, after `write` of the same layer.

        Args:
            layer: Number of the layer.
            queries: [R, heads, D] float32, rotated.
            plan: The step.

        Returns:
            [R, heads, D] float32; padding rows are zero.
        """
        ...


def plan_attention(plan: StepPlan, *, block_size: int, device: torch.device) -> AttentionPlan:
    """Translate block tables into pool slots."""
    chunks: list[ChunkRows] = []
    first_row = 0
    for chunk in plan.chunks:
        rows = len(chunk.token_ids)
        slots = _slots_of(chunk, block_size=block_size)
        chunks.append(
            ChunkRows(
                first_row=first_row,
                rows=rows,
                start=chunk.start,
                slots=slots.to(device),
                tiles=[
                    _query_tile(chunk.start, offset, rows, device=device)
                    for offset in range(0, rows, QUERY_TILE_ROWS)
                ],
            )
        )
        first_row += rows
    new_slots = torch.cat([chunk.slots[chunk.start :] for chunk in chunks])
    return AttentionPlan(chunks=chunks, rows=first_row, new_slots=new_slots)


def _slots_of(chunk: SequenceChunk, *, block_size: int) -> torch.Tensor:
    end = chunk.start + len(chunk.token_ids)
    assert end <= len(chunk.block_table) * block_size, "the block table is too short"
    blocks = torch.tensor(chunk.block_table, dtype=torch.int64)
    slots = blocks[:, None] * block_size + torch.arange(block_size)
    return slots.flatten()[:end]


def _query_tile(start: int, offset: int, chunk_rows: int, *, device: torch.device) -> QueryTile:
    rows = min(QUERY_TILE_ROWS, chunk_rows - offset)
    first = start + offset
    context_tiles = -(-(first + rows) // CONTEXT_TILE_TOKENS)
    own = torch.arange(first, first + QUERY_TILE_ROWS, device=device).view(1, 1, -1, 1)
    places = torch.arange(context_tiles * CONTEXT_TILE_TOKENS, device=device)
    hidden = places.view(context_tiles, 1, 1, -1) > own
    return QueryTile(offset=offset, rows=rows, context_tiles=context_tiles, hidden=hidden)


class ReferenceAttention:
    """Gathers each sequence's context and attends in float32, one sequence at a time.

    Products have fixed shapes (`QUERY_TILE_ROWS` queries by `CONTEXT_TILE_TOKENS` of context) and
    partial results are added in order of position, so that a query's result depends neither on its
    batch nor on how its prompt was cut into chunks. It is the oracle for faster back ends.
    """

    def __init__(
        self, shape: HeadShape, *, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._kv_heads = shape.kv_heads
        self._group = shape.heads // shape.kv_heads
        self._head_dim = shape.head_dim
        self._scale = shape.head_dim**-0.5
        # Left unset, so that memory is not resident until written; only written slots are read.
        self._pool = torch.empty(
            (shape.layers, 2, shape.kv_heads, slots, shape.head_dim), dtype=dtype, device=device
        )

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan
    ) -> None:
        """Store keys and values; see `AttentionBackend.write`."""
        rows = torch.stack((keys[: plan.rows], values[: plan.rows])).transpose(1, 2)
        self._pool[layer].index_copy_(2, plan.new_slots, rows.to(self._pool.dtype))

    def attend(self, layer: int, queries: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Attend causally; see `AttentionBackend.attend`."""
        mixed = torch.zeros_like(queries)
        for chunk in plan.chunks:
            keys, values = self._gather(layer, chunk.slots)
            for tile in chunk.tiles:
                first = chunk.first_row + tile.offset
                own = slice(first, first + tile.rows)
                mixed[own] = self._attend_tile(queries[own], keys, values, tile)
        return mixed

    def _gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a sequence's context as [kv_heads, tiles, CONTEXT_TILE_TOKENS, D] float32, twice.

        Places past the context are zero, whatever other sequences left in the pool: a stray NaN
        there would survive a masked product.
        """
        context = slots.shape[0]
        tiles = -(-context // CONTEXT_TILE_TOKENS)
        shape = (2, self._kv_heads, tiles * CONTEXT_TILE_TOKENS, self._head_dim)
        gathered = self._pool.new_zeros(shape, dtype=torch.float32)
        gathered[:, :, :context] = self._pool[layer].index_select(2, slots)
        keys, values = gathered.unflatten(2, (tiles, CONTEXT_TILE_TOKENS))
        return keys, values

    def _attend_tile(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: QueryTile
    ) -> torch.Tensor:
        """Attend for one tile: [rows, heads, D] over the context's tiles, to the same shape."""
        tiles = tile.context_tiles
        folded = self._fold(queries)
        scores = self._multiply(folded, keys[:, :tiles], transposes_right=True)
        scores = scores.unflatten(2, (self._group, QUERY_TILE_ROWS))
        scores.mul_(self._scale).masked_fill_(tile.hidden, float("-inf"))
        peak = scores.amax(dim=(1, 4), keepdim=True)
        weights = scores.sub_(peak).exp_().flatten(2, 3)
        totals = weights.sum(dim=-1, keepdim=True)
        mixed = self._multiply(weights, values[:, :tiles])
        total, mix = totals[:, 0], mixed[:, 0]
        for number in range(1, tiles):
            total, mix = total + totals[:, number], mix + mixed[:, number]
        return self._unfold(mix / total)[: tile.rows]

    def _fold(self, queries: torch.Tensor) -> torch.Tensor:
        """[rows, heads, D] to [kv_heads, 1, group * QUERY_TILE_ROWS, D], padded with zeros."""
        padded = queries.new_zeros((QUERY_TILE_ROWS, *queries.shape[1:]))
        padded[: queries.shape[0]] = queries
        by_group = padded.view(QUERY_TILE_ROWS, self._kv_heads, self._group, self._head_dim)
        return by_group.permute(1, 2, 0, 3).reshape(self._kv_heads, 1, -1, self._head_dim)

    def _unfold(self, mixed: torch.Tensor) -> torch.Tensor:
        """Undo `_fold`: [kv_heads, group * QUERY_TILE_ROWS, D] to [QUERY_TILE_ROWS, heads, D]."""
        by_group = mixed.view(self._kv_heads, self._group, QUERY_TILE_ROWS, self._head_dim)
        return by_group.permute(2, 0, 1, 3).reshape(QUERY_TILE_ROWS, -1, self._head_dim)

    def _multiply(
        self, left: torch.Tensor, right: torch.Tensor, *, transposes_right: bool = False
    ) -> torch.Tensor:
        """Matrix products per head and context tile, each of the one fixed shape.

        [kv_heads, 1 or tiles, ...] times [kv_heads, tiles, ...] to [kv_heads, tiles, ...].
        """
        tiles = right.shape[1]
        left = left.expand(-1, tiles, -1, -1).flatten(0, 1)
        # Flattening may copy; transposing after it keeps one memory layout, hence one kernel.
        right = right.flatten(0, 1)
        product = torch.bmm(left, right.transpose(1, 2) if transposes_right else right)
        return product.unflatten(0, (self._kv_heads, tiles))
