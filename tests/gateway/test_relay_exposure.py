"""What an attempt is taken to cost at most: the client's bound, else what was learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.exposure import (
    ANSWERS_KEPT,
    ANSWERS_MIN,
    LEARNED_TOKENS_MIN,
    REFRESH_EVERY,
    UNKNOWN_OUTPUT_TOKENS,
    Asked,
    Exposures,
    OutputLengths,
)
from gateway.relay.plausible import implausible
from gateway.routing.ranking import Candidate
from pricing.money import PicoUsd, rate_per_hour_us, rate_per_mtok
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import EVENT_PICO_USD_MAX, MeasuredSpeed, Quote
from pricing.usage import Meter, Usage

PRICE = PriceVersion(
    rates={Meter.INPUT: rate_per_mtok("1"), Meter.OUTPUT: rate_per_mtok("2")},
    source="t",
    basis=Basis.TOKENS,
)
GPU = PriceVersion(rates={Meter.GPU_US: rate_per_hour_us("3.60")}, source="t", basis=Basis.GPU_TIME)
ASKED = Asked(prompt_tokens_low=10, prompt_tokens_max=100, max_output_tokens=None, choices=2)


def candidate(price=PRICE, bound: int | None = None) -> Candidate:
    made = Unpriced(reason="t") if isinstance(price, Unpriced) else Quote(PicoUsd(1), bound)
    return Candidate(
        deployment="a/m", price=price, quote=made, exposure_pico_usd=bound, reason="cheapest"
    )


def learned(*lengths: int) -> OutputLengths:
    made = OutputLengths()
    for length in lengths:
        made.note("chat", "a/m", length, 1)
    return made


def exposures(lengths: OutputLengths | None = None, speed: MeasuredSpeed | None = None):
    return Exposures(speed=lambda _name: speed, lengths=lengths or OutputLengths())


def test_the_clients_own_bound_counts_where_there_is_one():
    asked = Asked(prompt_tokens_low=10, prompt_tokens_max=100, max_output_tokens=7)
    assert exposures().of("chat", asked, candidate(bound=123)) == 123


def test_an_unknown_price_has_no_bound():
    assert exposures().of("chat", ASKED, candidate(Unpriced(reason="t"))) is None


def test_without_a_bound_a_stated_length_is_assumed_before_answers_were_seen():
    """Known fault: an unknown bill without max_tokens was shown with nothing at risk (GW-065)."""
    expected = 100 * 1_000_000 + 2 * UNKNOWN_OUTPUT_TOKENS * 2_000_000
    assert exposures().of("chat", ASKED, candidate()) == expected


def test_what_the_context_window_leaves_is_never_exceeded():
    assert exposures().of("chat", ASKED, candidate(bound=5)) == 5


def test_machine_time_is_bounded_where_its_speed_was_measured():
    speed = MeasuredSpeed(prefill_tps=100, decode_tps=10)
    # 100 tokens of prompt take 1 s, 2 x 4096 of output 819.2 s, at a tenth of a cent a second.
    assert exposures(speed=speed).of("chat", ASKED, candidate(GPU)) == 820_200_000_000
    assert exposures().of("chat", ASKED, candidate(GPU)) is None


def test_what_no_entry_can_hold_is_bounded_by_what_one_can():
    assert exposures().of("chat", ASKED, candidate(bound=10**19)) is not None
    asked = Asked(prompt_tokens_low=1, prompt_tokens_max=1, max_output_tokens=10**15)
    assert exposures().of("chat", asked, candidate(bound=10**19)) == EVENT_PICO_USD_MAX


def test_after_enough_answers_nearly_all_of_them_decide_with_a_margin():
    lengths = learned(*[400] * (ANSWERS_MIN - 1))
    assert lengths.bound_tokens("chat", "a/m") == UNKNOWN_OUTPUT_TOKENS
    lengths.note("chat", "a/m", 800, 2)  # 400 each
    bound = lengths.bound_tokens("chat", "a/m")
    assert 600 <= bound < 700
    assert lengths.bound_tokens("chat", "b/m") == UNKNOWN_OUTPUT_TOKENS
    assert lengths.bound_tokens("other", "a/m") == UNKNOWN_OUTPUT_TOKENS


def test_short_answers_keep_a_least_bound():
    assert learned(*[3] * 200).bound_tokens("chat", "a/m") == LEARNED_TOKENS_MIN


def test_the_last_thousands_decide():
    lengths = learned(*[10_000] * ANSWERS_KEPT)
    assert lengths.bound_tokens("chat", "a/m") >= 15_000
    for _ in range(12 * ANSWERS_KEPT):
        lengths.note("chat", "a/m", 400, 1)
    assert lengths.bound_tokens("chat", "a/m") < 1_000


@given(st.lists(st.integers(0, 100_000), min_size=ANSWERS_MIN, max_size=400))
def test_at_most_a_hundredth_of_what_was_seen_is_above_the_bound(lengths):
    made = OutputLengths()
    for length in lengths:
        made.note("chat", "a/m", length, 1)
    seen = lengths[: len(lengths) - len(lengths) % REFRESH_EVERY]
    if len(seen) < ANSWERS_MIN:  # worked out first when the hundredth came, then by the dozens
        seen = lengths[:ANSWERS_MIN]
    bound = made.bound_tokens("chat", "a/m")
    assert bound >= LEARNED_TOKENS_MIN
    above = sorted(seen)[-(len(seen) // 100 + 1) :]
    assert bound <= max(above[-1] * 2, LEARNED_TOKENS_MIN) + 2


CLAIMS = {
    "an ordinary answer": (Usage(input_tokens=500, output_tokens=500), 1000, 1, ""),
    "a window that was configured too small": (Usage(input_tokens=4000), 1000, 1, ""),
    "more prompt than any window": (
        Usage(input_tokens=2000, cache_read_tokens=2001), 1000, 1, "implausible_usage:prompt=4001",
    ),
    "a million million tokens of output": (
        Usage(output_tokens=10**12 - 1), None, 1, f"implausible_usage:output={10**12 - 1}",
    ),
    "reasoning counts with the output": (
        Usage(output_tokens=3000, reasoning_tokens=1001), 1000, 1, "implausible_usage:output=4001",
    ),
    "several answers have room of their own": (Usage(output_tokens=8000), 1000, 2, ""),
    "not as many as a client makes up": (
        Usage(output_tokens=10**9), 1000, 10**9, f"implausible_usage:output={10**9}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "window", "choices", "claim"), CLAIMS.values(), ids=CLAIMS.keys()
)
def test_counts_that_no_answer_can_have(usage, window, choices, claim):
    assert implausible(usage, window_tokens=window, choices=choices) == claim
