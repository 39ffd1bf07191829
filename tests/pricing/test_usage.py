"""Usage counts are disjoint, never negative, and list every meter once."""

from __future__ import annotations

import pytest

from pricing.usage import Meter, Usage


def test_every_meter_is_listed_once_in_order() -> None:
    assert [meter for meter, _ in Usage().all_meters()] == list(Meter)


def test_only_used_meters_are_iterated() -> None:
    assert dict(Usage(input_tokens=3, gpu_us=9).meters()) == {Meter.INPUT: 3, Meter.GPU_US: 9}


def test_prompt_tokens_add_up_cached_and_fresh_ones() -> None:
    usage = Usage(input_tokens=1, cache_read_tokens=20, cache_write_tokens=300, output_tokens=4000)
    assert usage.prompt_tokens == 321


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="output must be >= 0, got -1"):
        Usage(output_tokens=-1)
