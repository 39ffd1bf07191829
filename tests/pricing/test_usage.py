"""Usage counts are disjoint, never negative, and list every meter once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.usage import METERS, Meter, Usage

counts = st.integers(min_value=0, max_value=2**60)
usages = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, st.just(0) | counts))


def test_every_meter_is_listed_once_in_order() -> None:
    assert [meter for meter, _ in Usage().all_meters()] == list(Meter)


def test_only_used_meters_are_iterated() -> None:
    assert dict(Usage(input_tokens=3, gpu_us=9).meters()) == {Meter.INPUT: 3, Meter.GPU_US: 9}


@given(usages)
def test_used_meters_have_the_names_of_their_kinds(usage: Usage) -> None:
    assert list(usage.named().items()) == [(str(meter), units) for meter, units in usage.meters()]
    assert {type(name) for name in usage.named()} <= {str}


def test_prompt_tokens_add_up_cached_and_fresh_ones() -> None:
    usage = Usage(input_tokens=1, cache_read_tokens=20, cache_write_tokens=300, output_tokens=4000)
    assert usage.prompt_tokens == 321


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="output must be >= 0, got -1"):
        Usage(output_tokens=-1)


@given(usage=usages, place=st.integers(0, len(METERS) - 1), units=st.integers(-(2**60), -1))
def test_a_negative_count_is_noticed_among_any_others(usage: Usage, place: int, units: int) -> None:
    fields = msgspec.structs.asdict(usage)
    with pytest.raises(ValueError, match=f"^{METERS[place]} must be >= 0, got {units}$"):
        Usage(**fields | {Usage.__struct_fields__[place]: units})
