"""The core from job to messages: the same tokens whatever the schedule, and one fault hurts one request.

The fake runner's logits depend on the KV it finds, so equal tokens mean right blocks.
"""

from __future__ import annotations

import logging
import random
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.errors import EngineBusy
from tests.local_engine.core_harness import Answer, Harness
from tests.local_engine.fake_model import END_ID, FakeRunner, expected_tokens

PROMPTS = [f"the quick brown fox number {index} jumps" * (1 + index % 3) for index in range(16)]


def text_of(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def expected_text(prompt: str, n_tokens: int, **options) -> str:
    return text_of(expected_tokens(list(prompt.encode()), n_tokens, **options))


def test_a_generation_equals_the_plain_definition() -> None:
    answer = Harness().ask(PROMPTS[0], output_tokens=30)
    assert answer.text == expected_text(PROMPTS[0], 30)
    assert answer.done.finish_reason == "length"
    assert answer.done.usage.output_tokens == 30


def test_the_end_token_ends_with_stop_is_counted_and_gives_no_text() -> None:
    harness = Harness(FakeRunner(end_bias=8.0))
    answer = harness.ask("abcdef", output_tokens=200)
    tokens = expected_tokens(list(b"abcdef"), 200, end_bias=8.0)
    assert tokens[-1] == END_ID
    assert answer.done.finish_reason == "stop"
    assert answer.done.usage.output_tokens == len(tokens)
    assert answer.text == text_of(tokens)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 8, 9, 30, 200])
def test_any_chunk_size_gives_the_same_text(chunk: int) -> None:
    # ENG-016: the prompt is resumed behind computed blocks at every place.
    harness = Harness(running_max=1, step_tokens_max=chunk)
    assert harness.ask(PROMPTS[2], output_tokens=12).text == expected_text(PROMPTS[2], 12)


@pytest.mark.parametrize("is_caching", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sixteen_at_once_give_the_text_of_one_at_a_time(is_caching, temperature) -> None:
    # ENG-049, ENG-050: neither mates nor their order change a seeded request.
    options = {"output_tokens": 15, "temperature": temperature, "top_p": 0.9}
    alone = [
        Harness(is_caching=is_caching).ask(prompt, seed=index, **options).text
        for index, prompt in enumerate(PROMPTS)
    ]
    harness = Harness(FakeRunner(n_blocks=400), running_max=16, is_caching=is_caching)
    order = list(range(16))
    random.Random(4).shuffle(order)
    keys = {index: harness.submit(PROMPTS[index], seed=index, **options) for index in order}
    harness.run()
    assert [harness.answers[keys[index]].text for index in range(16)] == alone
    assert max(harness.runner.batch_sizes) > 12


def test_a_warm_prefix_gives_the_same_text_and_computes_less() -> None:
    harness = Harness()
    cold = harness.ask(PROMPTS[2])
    computed_cold = harness.runner.computed_tokens
    warm = harness.ask(PROMPTS[2])
    assert warm.text == cold.text == expected_text(PROMPTS[2], 8)
    assert warm.done.usage.cached_tokens == (len(PROMPTS[2]) - 1) // 4 * 4
    assert warm.accepted.cached_tokens == warm.done.usage.cached_tokens
    assert harness.runner.computed_tokens - computed_cold < computed_cold


@pytest.mark.parametrize("prompt_tokens", range(1, 14))
def test_hits_of_every_length_give_the_same_text(prompt_tokens: int) -> None:
    # ENG-015: asked again and again, the answer stays.
    harness = Harness()
    prompt = PROMPTS[1][:prompt_tokens]
    texts = {harness.ask(prompt, output_tokens=6).text for _ in range(4)}
    assert texts == {expected_text(prompt, 6)}


def test_answers_stay_right_after_eviction_and_refill() -> None:
    harness = Harness(FakeRunner(n_blocks=32), running_max=2)
    for _ in range(3):
        for prompt in PROMPTS[:6]:
            assert harness.ask(prompt[:60], output_tokens=6).text == expected_text(prompt[:60], 6)
    assert harness.engine.stats().cached_tokens < 18 * 56


def test_tenants_share_no_prefix_and_get_the_same_answer() -> None:
    # ENG-019
    harness = Harness()
    first = harness.ask(PROMPTS[0], namespace=b"a")
    other = harness.ask(PROMPTS[0], namespace=b"b")
    again = harness.ask(PROMPTS[0], namespace=b"b")
    assert [each.done.usage.cached_tokens for each in (first, other)] == [0, 0]
    assert again.done.usage.cached_tokens > 0
    assert first.text == other.text == again.text


def preempted_run(prompt: str, index: int, **limits) -> tuple[Answer, list[int]]:
    harness = Harness(running_max=2, step_tokens_max=16, **limits)
    key = harness.submit(prompt, output_tokens=12, temperature=0.8, seed=3)
    mate = harness.submit(PROMPTS[4], output_tokens=12)

    def preempt(step: int) -> None:
        if step == index:
            for sequence in list(harness.engine.scheduler.running):
                harness.engine.scheduler.preempt(sequence)
            harness.engine.check_integrity()

    harness.run(before_step=preempt)
    assert harness.answers[mate].text == expected_text(PROMPTS[4], 12)
    return harness.answers[key], harness.runner.batch_sizes


@pytest.mark.parametrize("is_caching", [True, False])
def test_preemption_at_every_step_gives_the_same_text_and_usage(is_caching: bool) -> None:
    # ENG-013: what a resumed sequence needs follows from its counts, not from its output.
    plain, steps = preempted_run(PROMPTS[3], -1, is_caching=is_caching)
    for index in range(len(steps) + 1):
        answer, _ = preempted_run(PROMPTS[3], index, is_caching=is_caching)
        assert answer.text == plain.text
        assert answer.done.usage == plain.done.usage
    assert answer.done.preemptions <= 1


def test_preemption_for_want_of_blocks_gives_the_same_text() -> None:
    harness = Harness(FakeRunner(n_blocks=24), running_max=8)
    keys = [harness.submit(prompt[:40], output_tokens=40) for prompt in PROMPTS]
    harness.run()
    assert harness.engine.stats().preemptions > 0
    for key, prompt in zip(keys, PROMPTS, strict=True):
        assert harness.answers[key].text == expected_text(prompt[:40], 40)


def test_max_tokens_zero_computes_the_prompt_and_nothing_else() -> None:
    # ENG-067
    harness = Harness()
    answer = harness.ask(PROMPTS[0], output_tokens=0)
    assert answer.text == ""
    assert answer.done.finish_reason == "length"
    assert answer.done.usage.output_tokens == 0
    assert answer.done.usage.prompt_tokens == len(PROMPTS[0])
    assert harness.ask(PROMPTS[0]).done.usage.cached_tokens > 0


def test_a_stop_string_cuts_inside_what_was_sampled() -> None:
    # ENG-024
    full = expected_text(PROMPTS[0], 30)
    stop = full[10:13]
    answer = Harness().ask(PROMPTS[0], output_tokens=30, stops=[stop])
    assert answer.text == full[: full.index(stop)]
    assert answer.done.finish_reason == "stop"
    assert answer.done.usage.output_tokens == full.index(stop) + 3


def test_text_held_for_a_stop_that_never_came_is_sent_at_the_end() -> None:
    full = expected_text(PROMPTS[0], 10)
    answer = Harness().ask(PROMPTS[0], output_tokens=10, stops=[full[-3:] + "!!"])
    assert answer.text == full
    assert answer.done.finish_reason == "length"


def test_own_stops_do_not_replace_the_models_end_tokens() -> None:
    # ENG-031
    harness = Harness(FakeRunner(end_bias=8.0))
    plain = harness.ask("abcdef", output_tokens=200)
    stopped = harness.ask("abcdef", output_tokens=200, stops=["\nObservation"])
    assert stopped.done.finish_reason == "stop"
    assert stopped.text == plain.text


def test_a_stop_token_ends_without_its_text() -> None:
    full = expected_text(PROMPTS[0], 10)
    answer = Harness().ask(PROMPTS[0], output_tokens=10, stop_ids=frozenset({ord(full[4])}))
    assert answer.text == full[: full.index(full[4])]
    assert answer.done.finish_reason == "stop"


def test_nothing_ends_the_output_before_the_minimum_of_tokens() -> None:
    # ENG-032, ENG-034
    free = Harness(FakeRunner(end_bias=12.0)).ask("abcdef", output_tokens=60)
    assert free.done.usage.output_tokens < 20
    held = Harness(FakeRunner(end_bias=12.0)).ask(
        "abcdef", output_tokens=60, min_tokens=20, stops=list("abcdefghijklmnop")
    )
    assert held.done.usage.output_tokens >= 20


def test_ignored_end_tokens_add_no_text() -> None:
    answer = Harness(FakeRunner(end_bias=12.0)).ask("abc", output_tokens=40, ignore_eos=True)
    assert answer.done.finish_reason == "length"
    assert answer.done.usage.output_tokens == 40
    assert len(answer.text) < 40


def test_a_character_cut_off_by_the_limit_is_replaced_once_at_the_end() -> None:
    # ENG-029: the fake model samples lone bytes here.
    harness = Harness(FakeRunner(ascii_only=False))
    tokens = expected_tokens(list(b"abcdef"), 40, ascii_only=False)
    for n_tokens in range(1, 41):
        answer = harness.ask("abcdef", output_tokens=n_tokens)
        assert answer.text == text_of(tokens[:n_tokens])


def test_an_abort_frees_blocks_and_reports_exact_usage() -> None:
    # ENG-102, ENG-138
    harness = Harness()
    key = harness.submit(PROMPTS[0], output_tokens=50)
    waiting = [harness.submit(PROMPTS[1], output_tokens=50) for _ in range(8)]
    for _ in range(5):
        harness.step()
    for each in (key, waiting[-1], key):
        harness.engine.abort(each)
        harness.engine.check_integrity()
    harness.collect()
    done = harness.answers[key].done
    assert done.finish_reason == "abort"
    assert done.error is None
    assert done.usage.output_tokens == 5
    assert done.busy_s > 0
    unstarted = harness.answers[waiting[-1]].done
    assert unstarted.usage.output_tokens == 0
    assert unstarted.busy_s == 0
    assert unstarted.ttft_s is None
    harness.run()


def test_busy_seconds_of_all_requests_add_up_to_the_engines() -> None:
    harness = Harness(FakeRunner(n_blocks=24), running_max=8)
    keys = [harness.submit(prompt[:40], output_tokens=20) for prompt in PROMPTS]
    harness.run(
        before_step=lambda index: harness.engine.abort(keys[index % 16]) if index % 7 == 0 else None
    )
    stats = harness.engine.stats()
    assert sum(each.done.busy_s for each in harness.answers.values()) == pytest.approx(stats.busy_s)
    assert stats.busy_s + stats.idle_s == pytest.approx(stats.wall_s)
    assert stats.aborted > 0


def test_times_are_in_order() -> None:
    done = Harness().ask(PROMPTS[0]).done
    assert 0 < done.queue_s < done.ttft_s < done.e2e_s
    assert done.queue_s + done.prefill_s == pytest.approx(done.ttft_s)


def poisoned_runner(token_id: int) -> FakeRunner:
    def fail(plan) -> None:
        for chunk in plan.chunks:
            if token_id in chunk.token_ids:
                raise RuntimeError(f"cannot compute {list(chunk.token_ids)}")

    return FakeRunner(n_blocks=200, on_execute=fail)


def test_a_step_that_fails_ends_the_culprit_only(caplog) -> None:
    # ENG-065
    harness = Harness(poisoned_runner(0), running_max=8)
    keys = [harness.submit(prompt) for prompt in PROMPTS[:5]]
    culprit = harness.submit([5, 0, 5])
    harness.run()
    done = harness.answers[culprit].done
    assert done.finish_reason == "abort"
    assert done.error == "the engine failed to compute this request"
    for key, prompt in zip(keys, PROMPTS[:5], strict=True):
        assert harness.answers[key].text == expected_text(prompt, 8)
    assert "RuntimeError" in caplog.text
    assert "[5, 0, 5]" not in caplog.text


def test_a_runner_that_fails_whatever_it_gets_stops_the_engine() -> None:
    def fail(plan) -> None:
        raise RuntimeError("device lost")

    harness = Harness(FakeRunner(on_execute=fail), running_max=1, queued_requests_max=99)
    keys = [harness.submit(PROMPTS[0]) for _ in range(30)]
    with pytest.raises(RuntimeError, match="16 steps in a row"):
        harness.run()
    harness.collect()
    assert sum(harness.answers[key].done is not None for key in keys) == 16


class BrokenRows(FakeRunner):
    """Gives NaN for contexts that begin with a chosen token."""

    def execute(self, plan):
        logits = super().execute(plan)
        wanted = [chunk for chunk in plan.chunks if chunk.needs_logits]
        for row, chunk in zip(logits, wanted, strict=True):
            if chunk.start == 0 and chunk.token_ids[0] == 9:
                row.fill_(float("nan"))
        return logits


def test_a_row_of_nan_ends_its_sequence_only(caplog) -> None:
    # ENG-054
    harness = Harness(BrokenRows())
    good, bad = harness.submit(PROMPTS[0]), harness.submit([9, 9])
    with caplog.at_level(logging.ERROR):
        harness.run()
    assert harness.answers[bad].done.error == "the engine failed to sample a token"
    assert harness.answers[good].text == expected_text(PROMPTS[0], 8)
    assert harness.engine.stats().failed == 1


class ShortRows(FakeRunner):
    """Forgets a row."""

    def execute(self, plan):
        return super().execute(plan)[1:]


def test_a_runner_that_forgets_a_row_never_gives_one_request_anothers_token() -> None:
    harness = Harness(ShortRows())
    keys = [harness.submit(prompt) for prompt in PROMPTS[:3]]
    harness.run()
    assert all(harness.answers[key].done.error for key in keys)


def test_a_long_prompt_is_cut_so_that_streams_keep_their_pace() -> None:
    # Each token costs a millisecond here; the target for a step with streams is 200.
    lengths: list[tuple[int, int]] = []

    def spend(plan) -> None:
        tokens = sum(len(chunk.token_ids) for chunk in plan.chunks)
        harness.clock.now_ns += tokens * 1_000_000
        lengths.append((len(plan.chunks), tokens))

    harness = Harness(
        FakeRunner(n_blocks=2000, on_execute=spend), running_max=4, step_tokens_max=512
    )
    harness.ask("x" * 600, output_tokens=2)
    stream = harness.submit("y", output_tokens=30)
    harness.step()
    harness.submit("z" * 1500, output_tokens=1)
    lengths.clear()
    harness.run()
    assert harness.answers[stream].done.usage.output_tokens == 30
    beside_stream = [tokens for chunks, tokens in lengths if chunks > 1]
    assert 100 < max(beside_stream) < 260
    assert len(beside_stream) < 15


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    harness = Harness(queued_requests_max=2, tenant_share_max=1.0)
    keys = [harness.submit(PROMPTS[0]) for _ in range(2)]
    with pytest.raises(EngineBusy) as caught:
        harness.submit(PROMPTS[0])
    assert caught.value.retry_after_s >= 1
    del harness.answers[max(harness.answers)]
    harness.run()
    assert all(harness.answers[key].done.finish_reason == "length" for key in keys)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.integers(1, 50),
        st.integers(0, 12),
        st.sampled_from([b"a", b"b"]),
        st.integers(-1, 1),
    ),
    min_size=1,
    max_size=12,
)
LARGEST_JOB_BLOCKS = -(-(50 + 12) // 4)
"""What 50 tokens of prompt and 12 of output take in blocks of four, the fake model's."""


@settings(max_examples=25, deadline=None)
@given(
    JOBS,
    st.integers(LARGEST_JOB_BLOCKS + 1, 40),  # one block is never given to anybody
    st.integers(1, 6),
    st.integers(0, 30),
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["abort", "preempt"]), st.integers(0, 11))
    ),
)
def test_any_schedule_gives_every_request_its_own_text(
    jobs, n_blocks, running_max, extra, moves
) -> None:
    # ENG-105: counts are derived from tokens, so that no order of moves makes them drift.
    harness = Harness(
        FakeRunner(n_blocks=n_blocks),
        running_max=running_max,
        step_tokens_max=running_max + extra,
        quantum_tokens=16,
        tenant_share_max=1.0,
    )
    wanted = {}
    for prompt, prompt_tokens, output_tokens, namespace, priority in jobs:
        text = PROMPTS[prompt][:prompt_tokens]
        key = harness.submit(
            text, output_tokens=output_tokens, namespace=namespace, priority=priority
        )
        wanted[key] = expected_text(text, output_tokens)

    def interfere(index: int) -> None:
        for when, kind, which in moves:
            running = harness.engine.scheduler.running
            if when == index and kind == "abort":
                harness.engine.abort(which)
            elif when == index and running:
                harness.engine.scheduler.preempt(running[which % len(running)])

    harness.run(before_step=interfere)
    for key, text in wanted.items():
        answer = harness.answers[key]
        if answer.done.finish_reason == "abort":
            assert text.startswith(answer.text)
        else:
            assert answer.text == text


def soak(n_requests: int) -> None:
    rng = random.Random(11)
    harness = Harness(
        FakeRunner(n_blocks=60), running_max=8, queued_requests_max=64, tenant_share_max=1.0
    )
    memory_kib = []
    submitted = aborted = 0
    while submitted < n_requests or harness.engine.has_work:
        while submitted < n_requests and harness.engine.scheduler.n_waiting < 16:
            harness.submit(
                PROMPTS[rng.randrange(16)][: rng.randint(1, 60)],
                output_tokens=rng.randint(0, 12),
                namespace=rng.choice([b"a", b"b", b"c"]),
                priority=rng.choice([0, 0, 1]),
            )
            submitted += 1
            if rng.random() < 0.3:
                aborted += 1
                harness.engine.abort(rng.choice(sorted(harness.answers)[-20:]))
        harness.step()
        for key in [key for key, answer in harness.answers.items() if answer.done]:
            del harness.answers[key]
        if submitted % (n_requests // 10) == 0:
            memory_kib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    harness.engine.check_integrity()
    stats = harness.engine.stats()
    assert stats.finished + stats.aborted == n_requests
    assert stats.failed == 0
    assert stats.free_blocks == stats.usable_blocks
    assert stats.aborted > n_requests // 10
    # The peak after the first tenth is the peak: nothing grows with the number of requests.
    assert memory_kib[-1] - memory_kib[0] < 4096


def test_a_thousand_requests_with_aborts_leak_no_block() -> None:
    # ENG-101
    soak(1000)


@pytest.mark.soak
def test_ten_thousand_requests_with_aborts_leak_nothing() -> None:
    soak(10_000)
