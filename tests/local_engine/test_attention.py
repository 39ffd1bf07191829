"""The reference back end attends as plain softmax attention does, wherever the blocks lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_engine.attention import (
    CONTEXT_TILE_TOKENS,
    QUERY_TILE_ROWS,
    HeadShape,
    ReferenceAttention,
    plan_attention,
)
from local_engine.step import SequenceChunk, StepPlan

BLOCK, SLOTS = 4, 4 * 300
CPU = torch.device("cpu")


SHAPE = HeadShape(layers=2, heads=4, kv_heads=2, head_dim=16)


def chunk(count: int, *, start: int, table: list[int]) -> SequenceChunk:
    return SequenceChunk(token_ids=[0] * count, start=start, block_table=table, needs_logits=True)


def plain_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, start: int
) -> torch.Tensor:
    """Dense float64 attention of one sequence: [q, heads, D] over [context, kv_heads, D]."""
    group = queries.shape[1] // keys.shape[1]
    q, k, v = (t.double().transpose(0, 1) for t in (queries, keys, values))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) / q.shape[-1] ** 0.5
    visible = torch.arange(k.shape[1])[None, :] <= start + torch.arange(q.shape[1])[:, None]
    scores.masked_fill_(~visible, float("-inf"))
    return (scores.softmax(-1) @ v.repeat_interleave(group, 0)).transpose(0, 1)


def random_rows(seed: int, rows: int, heads: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, heads, SHAPE.head_dim), generator=generator)


CONTEXTS = {
    "a single token": (1, 0),
    "a decode step": (1, 37),
    "a query tile": (QUERY_TILE_ROWS, 0),
    "one more than a query tile": (QUERY_TILE_ROWS + 1, 3),
    "up to a context tile": (9, CONTEXT_TILE_TOKENS - 9),
    "across a context tile": (9, CONTEXT_TILE_TOKENS - 4),
    "beyond two context tiles": (40, 2 * CONTEXT_TILE_TOKENS + 5),
}


@pytest.mark.parametrize(("rows", "start"), CONTEXTS.values(), ids=CONTEXTS.keys())
def test_attention_equals_dense_attention(rows: int, start: int) -> None:
    backend = ReferenceAttention(SHAPE, slots=SLOTS, dtype=torch.float32, device=CPU)
    context = start + rows
    table = torch.randperm(299, generator=torch.Generator().manual_seed(3)).add(1).tolist()
    keys = random_rows(1, context, SHAPE.kv_heads)
    values = random_rows(2, context, SHAPE.kv_heads)
    queries = random_rows(3, rows, SHAPE.heads)
    if start:
        before = StepPlan(chunks=[chunk(start, start=0, table=table)])
        backend.write(
            1, keys[:start], values[:start], plan_attention(before, block_size=BLOCK, device=CPU)
        )
    plan = plan_attention(
        StepPlan(chunks=[chunk(rows, start=start, table=table)]), block_size=BLOCK, device=CPU
    )
    backend.write(1, keys[start:], values[start:], plan)
    mixed = backend.attend(1, queries, plan)
    expected = plain_attention(queries, keys, values, start=start)
    torch.testing.assert_close(mixed.double(), expected, atol=2e-6, rtol=1e-5)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), padding=st.integers(0, 5))
def test_sequences_of_a_step_do_not_see_each_other(lengths: list[int], padding: int) -> None:
    backend = ReferenceAttention(SHAPE, slots=SLOTS, dtype=torch.float32, device=CPU)
    tables = [list(range(1 + 8 * i, 9 + 8 * i)) for i in range(len(lengths))]
    chunks = [chunk(n, start=0, table=t) for n, t in zip(lengths, tables, strict=True)]
    plan = plan_attention(StepPlan(chunks=chunks), block_size=BLOCK, device=CPU)
    rows = sum(lengths) + padding
    keys, values = (random_rows(seed, rows, SHAPE.kv_heads) for seed in (1, 2))
    queries = random_rows(3, rows, SHAPE.heads)
    backend.write(0, keys, values, plan)
    mixed = backend.attend(0, queries, plan)
    assert not mixed[sum(lengths) :].any()
    first = 0
    for length in lengths:
        own = slice(first, first + length)
        expected = plain_attention(queries[own], keys[own], values[own], start=0)
        torch.testing.assert_close(mixed[own].double(), expected, atol=2e-6, rtol=1e-5)
        first += length


def test_layers_keep_apart() -> None:
    backend = ReferenceAttention(SHAPE, slots=SLOTS, dtype=torch.float32, device=CPU)
    plan = plan_attention(
        StepPlan(chunks=[chunk(3, start=0, table=[1])]), block_size=BLOCK, device=CPU
    )
    rows = [random_rows(seed, 3, SHAPE.kv_heads) for seed in range(4)]
    backend.write(0, rows[0], rows[1], plan)
    backend.write(1, rows[2], rows[3], plan)
    queries = random_rows(9, 3, SHAPE.heads)
    expected = plain_attention(queries, rows[0], rows[1], start=0)
    torch.testing.assert_close(
        backend.attend(0, queries, plan).double(), expected, atol=2e-6, rtol=1e-5
    )


def test_slots_follow_the_block_table() -> None:
    plan = plan_attention(
        StepPlan(chunks=[chunk(3, start=3, table=[7, 2]), chunk(1, start=0, table=[5])]),
        block_size=BLOCK, device=CPU,
    )  # fmt: skip
    assert plan.rows == 4
    assert plan.chunks[0].slots.tolist() == [28, 29, 30, 31, 8, 9]
    assert plan.new_slots.tolist() == [31, 8, 9, 20]
