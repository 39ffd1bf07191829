"""A model computes the same whatever the form, the chunks, the batch and the blocks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.errors import EngineError, ModelFileError
from local_engine.model_runner import ModelRunner
from tests.local_engine.plain_decoder import PlainDecoder
from tests.local_engine.runner_driver import greedy, last_chunk, prefill, step, tables
from tests.support.tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 16
PROMPT = [random.Random(5).randrange(3, 500) for _ in range(300)]


def load(path: Path, **changes: Any) -> ModelRunner:
    options: dict[str, Any] = {
        "device": "cpu", "kv_memory_bytes": 8 << 20, "max_model_len": 512, "block_size": BLOCK,
    }  # fmt: skip
    return ModelRunner.load(path, **{**options, **changes})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("runner") / "tiny.gguf")


@pytest.fixture(scope="module")
def runner(path: Path) -> ModelRunner:
    return load(path)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama, float32": {},
    "llama, float16": {"quant": "F16"},
    "llama, bfloat16": {"quant": "BF16"},
    "llama, Q8_0": {"quant": "Q8_0"},
    "llama, Q4_0": {"quant": "Q4_0"},
    "llama, Q4_1": {"quant": "Q4_1"},
    "llama with a head of its own": {"tied": False},
    "llama with one key head for all": {"kv_heads": 1},
    "llama with a key head for each": {"kv_heads": 4},
    "llama with linear rope scaling": {
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    },
    "llama with a factor for each rope frequency": {"rope_factors": True},
    "llama with biases": {"biases": True},
    "qwen2": {"architecture": "qwen2", "pre": "qwen2"},
    "qwen2 with padded rows": {"architecture": "qwen2", "pre": "qwen2", "padded_rows": 32},
}


@pytest.mark.parametrize("options", FAMILIES.values(), ids=FAMILIES.keys())
def test_logits_equal_those_of_a_plain_decoder(options: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", **options)
    tokens = PROMPT[: 2 * BLOCK + 2]
    expected = PlainDecoder(path).logits(tokens)
    model = load(path)
    (table,) = tables(1, 4)
    for end in range(1, len(tokens) + 1):
        row = step(model, last_chunk(tokens[:end], start=end - 1, table=table))[0]
        known = model.tokenizer.vocab_size
        np.testing.assert_allclose(row[:known].numpy(), expected[end - 1, :known], atol=1e-4)
        assert torch.isneginf(row[known:]).all()


def test_greedy_tokens_equal_those_of_a_plain_decoder(path: Path, runner: ModelRunner) -> None:
    prompts = [PROMPT[start : start + 9] for start in (0, 20, 40)]
    plain = PlainDecoder(path)
    expected = [plain.greedy(prompt, 10) for prompt in prompts]
    assert greedy(runner, prompts, 10, tables=tables(3, 4)) == expected


CHUNKS = {
    "one by one": (1,),
    "sevens": (7,),
    "one less than a block": (BLOCK - 1,),
    "a block": (BLOCK,),
    "one more than a block": (BLOCK + 1,),
    "one less than a context tile": (255,),
    "a context tile": (256,),
    "one more than a context tile": (257,),
    "uneven": (100, 3, 1, 40),
}


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS.keys())
def test_the_cut_into_chunks_does_not_show(sizes: tuple[int, ...], runner: ModelRunner) -> None:
    (table,) = tables(1, 20)
    whole = prefill(runner, PROMPT, table=table)
    cut = prefill(runner, PROMPT, table=table[::-1], sizes=sizes)
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=0)
    assert cut.argmax() == whole.argmax()


@pytest.mark.parametrize("size", [7, 33, 257])
def test_the_cut_into_chunks_does_not_show_in_bfloat16(size: int, path: Path) -> None:
    model = load(path, dtype="bfloat16")
    (table,) = tables(1, 20)
    whole = prefill(model, PROMPT, table=table)
    cut = prefill(model, PROMPT, table=table[::-1], sizes=(size,))
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=0)
    assert cut.argmax() == whole.argmax()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_mates_do_not_show(dtype: str, path: Path) -> None:
    model = load(path, dtype=dtype)
    prompts = [PROMPT[start : start + 5 + 11 * (start % 7)] for start in range(16)]
    alone = [greedy(model, [prompt], 12, tables=tables(1, 6))[0] for prompt in prompts]
    assert greedy(model, prompts, 12, tables=tables(16, 6)) == alone
    order = list(range(16))
    random.Random(1).shuffle(order)
    shuffled = greedy(model, [prompts[i] for i in order], 12, tables=tables(16, 6))
    assert shuffled == [alone[i] for i in order]


@given(data=st.data())
@settings(max_examples=25)
def test_logits_do_not_depend_on_mates_chunks_or_blocks(
    data: st.DataObject, runner: ModelRunner
) -> None:
    length = data.draw(st.integers(1, 60), label="prompt length")
    start = data.draw(st.integers(0, length - 1), label="computed before")
    mates = data.draw(st.lists(st.integers(1, 40), max_size=5), label="mates' lengths")
    blocks = data.draw(st.permutations(range(1, 33)), label="blocks")
    tokens, table = PROMPT[:length], list(blocks[:4])
    alone = prefill(runner, tokens, table=tables(1, 4)[0])
    if start:
        prefill(runner, tokens[:start], table=table)
    chunks = [
        last_chunk(PROMPT[7 : 7 + size], start=0, table=blocks[4 + 3 * i : 7 + 3 * i])
        for i, size in enumerate(mates)
    ]
    place = data.draw(st.integers(0, len(chunks)), label="place in the step")
    chunks.insert(place, last_chunk(tokens, start=start, table=table))
    row = step(runner, *chunks)[place]
    torch.testing.assert_close(row, alone, atol=1e-5, rtol=0)
    assert row.argmax() == alone.argmax()


def test_a_prefix_computed_by_another_sequence_is_as_good_as_ones_own(runner: ModelRunner) -> None:
    first, second = tables(2, 8)
    cold = prefill(runner, PROMPT[:100], table=first)
    shared = [*first[:6], *second[6:]]
    warm = step(runner, last_chunk(PROMPT[:100], start=6 * BLOCK, table=shared))[0]
    torch.testing.assert_close(warm, cold, atol=1e-5, rtol=0)


def test_a_neighbours_broken_values_stay_with_the_neighbour(tmp_path: Path) -> None:
    """A NaN in the pool must not leak into a sequence that takes over the rest of its block."""
    model = load(write_tiny_llama(tmp_path / "tiny.gguf"))
    healthy = prefill(model, PROMPT[:20], table=[1, 2])
    model._attention._pool.fill_(float("nan"))
    again = prefill(model, PROMPT[:20], table=[3, 4], sizes=(6,))
    assert torch.equal(again, healthy)


def test_only_chunks_that_want_logits_get_a_row(runner: ModelRunner) -> None:
    first, second = tables(2, 2)
    chunks = [last_chunk(PROMPT[:9], start=0, table=table) for table in (first, second)]
    both = step(runner, *chunks)
    assert both.shape == (2, runner.vocab_size)
    assert both.dtype == torch.float32
    silent = type(chunks[0])(token_ids=PROMPT[:5], start=0, block_table=first, needs_logits=False)
    one = step(runner, silent, chunks[1])
    assert torch.equal(one, both[1:])
    assert step(runner, silent).shape == (0, runner.vocab_size)


def test_the_pool_takes_no_more_than_its_memory(path: Path) -> None:
    model = load(path, kv_memory_bytes=1_000_000)
    pool = model._attention._pool
    assert 1_000_000 - BLOCK * 512 < pool.numel() * pool.element_size() <= 1_000_000
    assert pool.shape[3] == model.n_blocks * model.block_size


def test_a_pool_that_cannot_hold_one_sequence_is_refused_with_numbers(path: Path) -> None:
    with pytest.raises(ModelFileError, match="512 tokens needs 270336 bytes.*raise kv_memory_gib"):
        load(path, kv_memory_bytes=200_000)


def test_the_context_window_is_the_smaller_of_file_and_setting(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", context=128)
    assert load(path, max_model_len=512).context_window == 128
    assert load(path, max_model_len=64).context_window == 64


def test_the_runner_tells_what_it_runs(path: Path, runner: ModelRunner) -> None:
    import hashlib

    assert runner.file_digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert runner.spec.architecture == "llama"
    assert runner.chat_template_source is not None
    assert "im_start" in runner.chat_template_source
    assert str(runner.device) == "cpu"


def test_a_tiny_model_computes_with_one_thread_unless_told_otherwise(path: Path) -> None:
    load(path, threads=2)
    assert torch.get_num_threads() == 2
    load(path)
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused_with_the_mend(path: Path) -> None:
    with pytest.raises(EngineError, match="torch sees none: set device to auto or cpu"):
        load(path, device="cuda")
    assert str(load(path, device="auto").device) == "cpu"


@pytest.mark.gpu
def test_a_gpu_computes_what_the_cpu_computes(path: Path, runner: ModelRunner) -> None:
    (table,) = tables(1, 20)
    there = prefill(load(path, device="cuda"), PROMPT, table=table, sizes=(33,))
    torch.testing.assert_close(there, prefill(runner, PROMPT, table=table), atol=1e-3, rtol=0)


def test_a_base_model_has_no_chat_template(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", chat_template=None)
    assert load(path).chat_template_source is None


def test_more_tokens_than_embedding_rows_are_refused(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", padded_rows=-8)
    with pytest.raises(ModelFileError, match="512 tokens but only 504"):
        load(path)
