"""SmolLM2-135M-Instruct from its Q4_1 file computes what transformers computes from the same file."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from local_engine.chat_template import ChatTemplate
from local_engine.model_runner import ModelRunner
from tests.local_engine.runner_driver import (
    greedy,
    greedy_with_logits,
    last_chunk,
    prefill,
    step,
    tables,
)
from tests.support.real_model import smollm2_path

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]

SUBJECTS = (
    "the moon", "a river", "bread", "the number seven", "Paris", "a good friend", "gravity",
    "the sea", "an old clock", "winter",
)  # fmt: skip
FORMS = (
    "Once upon a time, {}",
    "Q: What do you know about {}?\nA:",
    "def describe():\n    # {}\n    return",
    "{}, {}, {}:",
    "<|im_start|>user\nTell me about {}.<|im_end|>\n<|im_start|>assistant\n",
)
PROMPTS = [form.replace("{}", subject) for form in FORMS for subject in SUBJECTS]
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    # One thread, for both sides: threads that wait for each other at barriers are many times
    # slower than one as soon as something else runs on the machine.
    return ModelRunner.load(
        smollm2_path(), device="cpu", kv_memory_bytes=256 << 20, max_model_len=1024, threads=1
    )


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """The same file, read, expanded and un-permuted by transformers, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49_152,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    loaded = load_gguf_checkpoint(str(smollm2_path()), return_tensors=True, model_to_load=model)[
        "tensors"
    ]
    missing, unexpected = model.load_state_dict(
        {name: torch.as_tensor(values) for name, values in loaded.items()}, strict=False
    )
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def test_greedy_tokens_and_logits_equal_those_of_transformers(
    runner: ModelRunner, reference: LlamaForCausalLM
) -> None:
    """Given our tokens, transformers' best next token is ours at every position: so it is greedy."""
    assert len(set(PROMPTS)) == 50
    prompts = [runner.tokenizer.encode(prompt) for prompt in PROMPTS]
    ours = greedy_with_logits(runner, prompts, NEW_TOKENS, tables=tables(50, 3))
    by_length: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(number)
    for length, numbers in by_length.items():  # equal lengths need no padding in a batch
        batch = torch.tensor([prompts[number] + ours[number][0] for number in numbers])
        with torch.inference_mode():
            theirs = reference(batch).logits[:, length - 1 : -1]
        for number, rows in zip(numbers, theirs, strict=True):
            assert rows.argmax(-1).tolist() == ours[number][0], PROMPTS[number]
            torch.testing.assert_close(ours[number][1], rows, atol=1e-3, rtol=0)


def test_the_whole_vocabulary_agrees_at_every_position_of_a_long_prompt(
    runner: ModelRunner, reference: LlamaForCausalLM
) -> None:
    tokens = [random.Random(11).randrange(runner.tokenizer.vocab_size) for _ in range(400)]
    with torch.inference_mode():
        theirs = reference(torch.tensor([tokens])).logits[0]
    (table,) = tables(1, 13)
    for end in (1, 32, 33, 256, 257, 400):
        ours = prefill(runner, tokens[:end], table=table, sizes=(97,))
        torch.testing.assert_close(ours, theirs[end - 1], atol=1e-3, rtol=0)


def test_chunks_and_batches_do_not_show(runner: ModelRunner) -> None:
    prompts = [runner.tokenizer.encode(prompt) for prompt in PROMPTS[:16]]
    together = greedy(runner, prompts, 5, tables=tables(16, 3))
    for prompt, tokens in zip(prompts[:2], together[:2], strict=True):
        assert greedy(runner, [prompt], 5, tables=tables(1, 3)) == [tokens]
    tokens = [token for prompt in prompts for token in prompt][:150]
    (table,) = tables(1, 5)
    whole = prefill(runner, tokens, table=table)
    for sizes in ((33,), (149, 1)):
        cut = prefill(runner, tokens, table=table, sizes=sizes)
        torch.testing.assert_close(cut, whole, atol=1e-5, rtol=0)


def test_bfloat16_takes_the_same_tokens_wherever_the_choice_is_clear(
    runner: ModelRunner,
) -> None:
    coarse = ModelRunner.load(
        smollm2_path(),
        device="cpu",
        dtype="bfloat16",
        kv_memory_bytes=128 << 20,
        max_model_len=256,
        threads=1,
    )
    prompts = [runner.tokenizer.encode(prompt) for prompt in PROMPTS]
    chunks = [
        last_chunk(prompt, start=0, table=table)
        for prompt, table in zip(prompts, tables(50, 2), strict=True)
    ]
    exact, rounded = step(runner, *chunks), step(coarse, *chunks)
    best, second = exact.topk(2).values.unbind(-1)
    is_clear = best - second > 0.5
    assert is_clear.sum() >= 10
    assert torch.equal(rounded.argmax(-1)[is_clear], exact.argmax(-1)[is_clear])


def test_the_models_own_template_asks_and_the_model_answers(runner: ModelRunner) -> None:
    assert runner.chat_template_source is not None
    tokenizer = runner.tokenizer
    template = ChatTemplate(
        runner.chat_template_source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text
    )
    text = template.render([{"role": "user", "content": "What is the capital of France?"}])
    (tokens,) = greedy(runner, [tokenizer.encode(text)], 8, tables=tables(1, 4))
    assert tokens[-1] in tokenizer.end_ids
    answer = b"".join(map(tokenizer.token_bytes, tokens)).decode()
    assert answer == "The capital of France is Paris."
