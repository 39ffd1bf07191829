"""The core on the real runner: the same tokens whatever the schedule, on a tiny and on a real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_engine.loading import LoadedModel, load_model
from local_engine.protocol import EngineConfig
from tests.local_engine.core_harness import Answer, Harness
from tests.support.real_model import smollm2_path
from tests.support.tiny_models import write_tiny_llama

CHATS = [
    "What is a cat?",
    "List three colours of the rainbow, please.",
    "Why is the sky blue? " * 6,
    "Zähle von eins bis zehn – bitte 😀",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", quant="Q8_0", seed=3)
    return load(path)


def load(path: Path, **options) -> LoadedModel:
    return load_model(
        EngineConfig(
            model_id="model",
            path=str(path),
            namespace_key=b"k" * 32,
            **{"block_size": 8, "kv_memory_bytes": 8 * 2**20, "max_model_len": 512, **options},
        )
    )


def prompts(model: LoadedModel) -> list[list[int]]:
    assert model.render_chat is not None
    return [
        model.tokenizer.encode(model.render_chat([{"role": "user", "content": text}]))
        for text in CHATS
    ]


def generate(
    model: LoadedModel, wanted: list[list[int]], *, before_step=None, n_tokens: int = 12, **limits
) -> list[Answer]:
    """Answers to all prompts, submitted at once; half of them sampled."""
    harness = Harness(model.runner, tokenizer=model.tokenizer, **limits)
    keys = [
        harness.submit(
            prompt,
            output_tokens=n_tokens,
            temperature=0.7 * (index % 2),
            seed=index,
            ignore_eos=True,
        )
        for index, prompt in enumerate(wanted)
    ]
    harness.run(before_step=None if before_step is None else lambda i: before_step(harness, i))
    return [harness.answers[key] for key in keys]


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def check_schedules(model: LoadedModel, n_tokens: int, chunks: list[int]) -> None:
    """One at a time without cache is the reference for every other schedule."""
    wanted = prompts(model)
    options = {"n_tokens": n_tokens}
    alone = texts(generate(model, wanted, running_max=1, is_caching=False, **options))
    assert len(set(alone)) == len(alone)
    assert texts(generate(model, wanted, running_max=4, is_caching=False, **options)) == alone
    for chunk in chunks:
        got = generate(model, wanted, running_max=1, step_tokens_max=chunk, **options)
        assert texts(got) == alone, f"chunks of {chunk}"
    # ENG-050: sixteen at once, each prompt four times with the same seed.
    many = generate(model, wanted * 4, running_max=16, step_tokens_max=64, **options)
    assert texts(many)[: len(alone)] == alone
    greedy = [index for index in range(16) if index % 2 == 0]
    assert [many[index].text for index in greedy] == [alone[index % 4] for index in greedy]


@pytest.mark.slow
def test_a_tiny_model_gives_the_same_text_in_every_schedule(tiny: LoadedModel) -> None:
    check_schedules(tiny, 12, [1, 9, 64])


def test_a_tiny_model_gives_the_same_text_after_preemption_at_every_step(tiny: LoadedModel) -> None:
    wanted = prompts(tiny)[:2]
    plain = texts(generate(tiny, wanted, running_max=2, step_tokens_max=32))

    def preempt_at(when: int):
        def preempt(harness: Harness, index: int) -> None:
            if index == when:
                for sequence in list(harness.engine.scheduler.running):
                    harness.engine.scheduler.preempt(sequence)

        return preempt

    for when in range(16):
        got = generate(
            tiny,
            wanted,
            before_step=preempt_at(when),
            running_max=2,
            step_tokens_max=32,
            is_caching=when % 2 == 0,
        )
        assert texts(got) == plain, f"preempted at step {when}"


def test_a_tiny_model_gives_the_same_text_from_a_warm_cache(tiny: LoadedModel) -> None:
    wanted = prompts(tiny)
    harness = Harness(tiny.runner, tokenizer=tiny.tokenizer)
    cold = [harness.ask(prompt, ignore_eos=True) for prompt in wanted]
    warm = [harness.ask(prompt, ignore_eos=True) for prompt in wanted]
    assert texts(warm) == texts(cold)
    for answer, prompt in zip(warm, wanted, strict=True):
        assert answer.done.usage.cached_tokens == (len(prompt) - 1) // 8 * 8


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load(smollm2_path(), block_size=32, kv_memory_bytes=256 * 2**20)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_gives_the_same_text_in_every_schedule(smollm2: LoadedModel) -> None:
    check_schedules(smollm2, 6, [13])


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_gives_the_same_text_after_preemption_and_from_a_warm_cache(
    smollm2: LoadedModel,
) -> None:
    wanted = prompts(smollm2)[2:]
    plain = texts(generate(smollm2, wanted, n_tokens=6, is_caching=False))

    def preempt(harness: Harness, index: int) -> None:
        if index in (1, 4):
            for sequence in list(harness.engine.scheduler.running):
                harness.engine.scheduler.preempt(sequence)

    assert texts(generate(smollm2, wanted, n_tokens=6, before_step=preempt)) == plain
    harness = Harness(smollm2.runner, tokenizer=smollm2.tokenizer)
    options = {"output_tokens": 6, "ignore_eos": True}
    cold, warm = (harness.ask(wanted[0], **options) for _ in range(2))
    assert cold.text == warm.text == plain[0]
    assert warm.done.usage.cached_tokens == (len(wanted[0]) - 1) // 32 * 32 > 0
