"""From logits to tokens: order, edges, independence, distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_engine.sampling import (
    SamplingError,
    SamplingParameters,
    TokenHistory,
    sample,
    uniform,
)

GREEDY = {"temperature": 0.0}


def draw(logits, *, prompt=(0,), output=(), seed: int = 1, **options) -> int:
    history = TokenHistory(prompt)
    for token_id in output:
        history.add(token_id)
    row = torch.tensor(logits, dtype=torch.float32)
    return sample(row, SamplingParameters(seed=seed, **options), history)


def counts(logits, n_draws: int, **options) -> list[int]:
    """How often each token is drawn over many positions of one seed."""
    row = torch.tensor(logits, dtype=torch.float32)
    parameters = SamplingParameters(seed=5, **options)
    history = TokenHistory([])
    drawn = [0] * len(logits)
    for position in range(n_draws):
        history.n_generated = position
        drawn[sample(row, parameters, history)] += 1
    return drawn


CASES = {
    "greedy takes the largest": ([1.0, 3.0, 2.0], GREEDY, 1),
    "greedy takes the first of equals": ([1.0, 3.0, 3.0], GREEDY, 1),
    # ENG-053
    "a tiny temperature is greedy": ([1.0, 3.0, 2.99], {"temperature": 1e-4}, 1),
    "a small temperature does not overflow": ([1e30, 2e30, 0.0], {"temperature": 1e-3}, 1),
    # ENG-054
    "a tiny top_p keeps the largest": ([1.0, 3.0, 2.99], {"top_p": 1e-9}, 1),
    "a top_k of one keeps the largest": ([1.0, 3.0, 2.99], {"top_k": 1}, 1),
    "a min_p of one keeps the largest": ([1.0, 3.0, 2.99], {"min_p": 1.0}, 1),
    "a top_k beyond the vocabulary keeps all": ([-1e9, 3.0, -1e9], {"top_k": 99}, 1),
    "a bias lifts a token": ([1.0, 3.0, 2.0], {**GREEDY, "logit_bias": {2: 5.0}}, 2),
    "a bias of minus a hundred sinks one": (
        [1.0, 30.0, 2.0],
        {**GREEDY, "logit_bias": {1: -100.0}},
        2,
    ),
    "a banned token is never chosen": (
        [1.0, 3.0, 2.0],
        {**GREEDY, "banned_ids": frozenset({1})},
        2,
    ),
    "an end token waits for the minimum": (
        [1.0, 3.0, 2.0],
        {**GREEDY, "min_tokens": 1, "end_ids": frozenset({1})},
        2,
    ),
}


@pytest.mark.parametrize(("logits", "options", "token"), CASES.values(), ids=CASES.keys())
def test_sample(logits, options, token) -> None:
    assert draw(logits, **options) == token


def test_the_minimum_counts_generated_tokens_only() -> None:
    # ENG-034
    options = {**GREEDY, "min_tokens": 2, "end_ids": frozenset({1})}
    assert draw([1.0, 3.0, 2.0], prompt=[0] * 50, output=[0], **options) == 2
    assert draw([1.0, 3.0, 2.0], prompt=[0] * 50, output=[0, 0], **options) == 1


PENALTIES = {
    "presence counts a generated token once": ({"presence_penalty": 1.5}, [0, 0, 0], [2.5, 2.0]),
    "frequency counts each occurrence": ({"frequency_penalty": 0.5}, [0, 0, 0], [2.5, 2.0]),
    "both add up": ({"presence_penalty": 1.0, "frequency_penalty": 0.5}, [0], [2.5, 1.5]),
}


@pytest.mark.parametrize(("options", "output", "edge"), PENALTIES.values(), ids=PENALTIES.keys())
def test_penalty(options, output, edge) -> None:
    """`edge` is the value that token 0 needs, less a margin, to stay ahead of token 1."""
    loses = draw([edge[0], edge[0] - 1.0, -9.0], prompt=[], output=output, **GREEDY, **options)
    assert loses == 1
    wins = draw([edge[0], edge[0] - 1.6, -9.0], prompt=[], output=output, **GREEDY, **options)
    assert wins == 0


def test_presence_and_frequency_ignore_the_prompt() -> None:
    options = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
    assert draw([3.0, 2.9], prompt=[0, 0], **GREEDY, **options) == 0


def test_repetition_penalty_counts_the_prompt_as_the_reference_does() -> None:
    # ENG-056: compared with the processor that it is named after.
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        row = torch.randn(50, generator=generator)
        prompt = torch.randint(0, 50, (12,), generator=generator).tolist()
        output = torch.randint(0, 50, (4,), generator=generator).tolist()
        wanted = RepetitionPenaltyLogitsProcessor(1.7)(
            torch.tensor([prompt + output]), row[None].clone()
        )
        got = draw(row.tolist(), prompt=prompt, output=output, **GREEDY, repetition_penalty=1.7)
        assert got == int(wanted.argmax())


def test_the_logits_are_not_modified() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    history = TokenHistory([0, 1])
    history.add(2)
    parameters = SamplingParameters(
        seed=1, repetition_penalty=2.0, presence_penalty=1.0, logit_bias={0: 1.0}, top_p=0.5
    )
    sample(row, parameters, history)
    assert row.tolist() == [1.0, 2.0, 3.0]


BROKEN = {
    "not a number": [1.0, math.nan, 0.0],
    "infinity": [1.0, math.inf, 0.0],
    "nothing allowed": [-math.inf, -math.inf],
}


@pytest.mark.parametrize("logits", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("options", [GREEDY, {}, {"top_p": 0.5}])
def test_a_row_without_a_usable_value_is_an_error_of_its_own(logits, options) -> None:
    with pytest.raises(SamplingError):
        draw(logits, **options)


def test_a_tokens_uniform_depends_on_seed_and_position_alone() -> None:
    numbers = [uniform(seed, position) for seed in (0, 1, -1) for position in range(100)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert numbers == [uniform(seed, position) for seed in (0, 1, -1) for position in range(100)]


def test_uniforms_are_uniform() -> None:
    buckets = [0] * 16
    for position in range(16_000):
        buckets[int(uniform(42, position) * 16)] += 1
    assert chi_square(buckets, [1 / 16] * 16) < CHI_SQUARE_15


CHI_SQUARE_15 = 37.7  # p = 0.001 with 15 degrees of freedom; the seed is fixed, so nothing is flaky


def chi_square(drawn: list[int], probabilities: list[float]) -> float:
    n_draws = sum(drawn)
    return sum(
        (count - n_draws * p) ** 2 / (n_draws * p)
        for count, p in zip(drawn, probabilities, strict=True)
        if p
    )


LOGITS = [math.log(p) for p in (0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02)]
DISTRIBUTIONS = {
    "as they are": ({}, [0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02]),
    "top_k 3": ({"top_k": 3}, [0.3, 0.2, 0.15, 0, 0, 0, 0, 0, 0]),
    "top_p 0.6": ({"top_p": 0.6}, [0.3, 0.2, 0.15, 0, 0, 0, 0, 0, 0]),
    "top_p on what top_k left": ({"top_k": 4, "top_p": 0.5}, [0.3, 0.2, 0, 0, 0, 0, 0, 0, 0]),
    "min_p 0.4": ({"min_p": 0.4}, [0.3, 0.2, 0.15, 0, 0, 0, 0, 0, 0]),
    "temperature 0.5": (
        {"temperature": 0.5},
        [p * p for p in (0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02)],
    ),
}


@pytest.mark.parametrize(("options", "weights"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
def test_draws_follow_the_distribution(options, weights) -> None:
    probabilities = [weight / sum(weights) for weight in weights]
    drawn = counts(LOGITS, 4000, **options)
    assert all(count == 0 for count, p in zip(drawn, probabilities, strict=True) if p == 0)
    assert chi_square(drawn, probabilities) < CHI_SQUARE_15


def plain_draw(logits: torch.Tensor, parameters: SamplingParameters) -> int:
    """The definition: sort everything, keep what each rule keeps, draw in that order."""
    scaled = (logits.double() - logits.double().max()) / parameters.temperature
    values, ids = torch.sort(scaled, descending=True, stable=True)
    weights = torch.exp(values[: parameters.top_k or None])
    before = torch.cumsum(weights, dim=0) - weights
    kept = before < parameters.top_p * weights.sum()
    kept &= weights >= parameters.min_p
    weights = weights * kept
    cumulative = torch.cumsum(weights, dim=0)
    drawn = uniform(parameters.seed, 0) * cumulative[-1]
    return int(ids[int(torch.searchsorted(cumulative, drawn, right=True))])


WIDE = {
    "top_p of peaked logits": {"top_p": 0.9, "temperature": 0.3},
    "top_p of flat logits, beyond what is sorted at first": {"top_p": 0.97, "temperature": 50.0},
    "top_p next to one": {"top_p": 0.999_999},
    "top_k": {"top_k": 40},
    "top_k and top_p": {"top_k": 400, "top_p": 0.5},
    "top_k and min_p": {"top_k": 100, "min_p": 0.2},
    "top_p and min_p": {"top_p": 0.8, "min_p": 0.05},
}


@pytest.mark.parametrize("options", WIDE.values(), ids=WIDE.keys())
def test_a_wide_vocabulary_gives_what_sorting_all_of_it_gives(options) -> None:
    generator = torch.Generator().manual_seed(8)
    for seed in range(12):
        logits = torch.randn(2000, generator=generator) * 4
        # Ties, as quantised heads have.
        logits = (logits * 8).round() / 8
        parameters = SamplingParameters(seed=seed, **options)
        assert sample(logits, parameters, TokenHistory([])) == plain_draw(logits, parameters)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.0, 5.0),
        "top_k": st.integers(0, 30),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(0.0, 1.0),
        "repetition_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
    },
)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=20),
    OPTIONS,
    st.integers(-(2**63), 2**64 - 1),
    st.lists(st.integers(0, 1), max_size=5),
)
def test_any_finite_row_gives_a_token_of_the_vocabulary(logits, options, seed, output) -> None:
    padded = [*logits, -math.inf, -math.inf]
    token = draw(padded, seed=seed, output=output, **options)
    # ENG-076: padding is never chosen.
    assert 0 <= token < len(logits)
    assert token == draw(padded, seed=seed, output=output, **options)
