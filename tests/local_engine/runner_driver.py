"""Drives a `Runner` by hand: block tables, chunks and greedy continuation without a scheduler."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from local_engine.step import SequenceChunk, StepPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_engine.step import Runner


def step(runner: Runner, *chunks: SequenceChunk) -> torch.Tensor:
    return runner.execute(StepPlan(chunks=chunks))


def last_chunk(tokens: Sequence[int], *, start: int, table: Sequence[int]) -> SequenceChunk:
    """The tokens from `start` to the end, whose last one wants logits."""
    return SequenceChunk(
        token_ids=tokens[start:], start=start, block_table=table, needs_logits=True
    )


def prefill(
    runner: Runner, tokens: Sequence[int], *, table: Sequence[int], sizes: Sequence[int] = ()
) -> torch.Tensor:
    """Compute a prompt in chunks of the given sizes, again and again; [V] logits of its end."""
    start = 0
    for size in itertools.cycle(sizes or (len(tokens),)):
        stop = min(start + size, len(tokens))
        chunk = SequenceChunk(
            token_ids=tokens[start:stop],
            start=start,
            block_table=table,
            needs_logits=stop == len(tokens),
        )
        logits = step(runner, chunk)
        if stop == len(tokens):
            return logits[0]
        assert logits.shape == (0, runner.vocab_size)
        start = stop
    raise AssertionError("unreachable: the cycle does not end")


def greedy(
    runner: Runner, prompts: Sequence[Sequence[int]], count: int, *, tables: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Prefill all prompts in one step, then decode them together; the new tokens of each."""
    return [tokens for tokens, _ in greedy_with_logits(runner, prompts, count, tables=tables)]


def greedy_with_logits(
    runner: Runner, prompts: Sequence[Sequence[int]], count: int, *, tables: Sequence[Sequence[int]]
) -> list[tuple[list[int], torch.Tensor]]:
    """As `greedy`, with the [count, V] logits that each token was taken from."""
    texts = [list(prompt) for prompt in prompts]
    starts = [0] * len(texts)
    rows: list[torch.Tensor] = []
    for _ in range(count):
        chunks = [
            last_chunk(text, start=start, table=table)
            for text, start, table in zip(texts, starts, tables, strict=True)
        ]
        starts = [len(text) for text in texts]
        rows.append(step(runner, *chunks))
        for text, row in zip(texts, rows[-1], strict=True):
            text.append(int(row.argmax()))
    return [
        (text[len(prompt) :], torch.stack([step_rows[place] for step_rows in rows]))
        for place, (text, prompt) in enumerate(zip(texts, prompts, strict=True))
    ]


def tables(sequences: int, blocks_each: int) -> list[list[int]]:
    """Block tables that share nothing; block 0 stays free."""
    return [
        list(range(1 + number * blocks_each, 1 + (number + 1) * blocks_each))
        for number in range(sequences)
    ]
