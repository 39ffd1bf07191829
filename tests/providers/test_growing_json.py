"""Fragments of JSON are whole exactly when all of them together are, and cheap to ask about."""

from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from providers.codecs.growing_json import GrowingJson

_PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"', "\\", '\\"', ":", ",", " ", "\n", "1", "true", "a", '{"p":', '"}', "{}"]
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)  # fmt: skip


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(st.lists(_PIECES, max_size=12))
def test_after_each_fragment_it_is_whole_exactly_if_all_together_are(pieces: list[str]) -> None:
    growing = GrowingJson()
    for count, piece in enumerate(pieces, start=1):
        growing.add(piece)
        assert growing.is_whole() == is_json("".join(pieces[:count]))


@given(_VALUES, st.data())
def test_any_value_is_whole_at_its_end_wherever_it_is_cut(
    value: object, data: st.DataObject
) -> None:
    text = json.dumps(value)[:60]
    growing = GrowingJson()
    while text:
        size = data.draw(st.integers(1, len(text)))
        growing.add(text[:size])
        growing.is_whole()
        text = text[size:]
    assert growing.is_whole() == is_json(json.dumps(value)[:60])


def test_what_lies_beyond_the_limit_is_never_whole() -> None:
    growing = GrowingJson()
    growing.add('["' + "x" * 8 * 1024 * 1024)
    growing.add('"]')
    assert not growing.is_whole()
    assert growing.chars == 8 * 1024 * 1024 + 4


def test_to_ask_after_each_fragment_does_not_cost_more_the_longer_it_is() -> None:
    growing = GrowingJson()
    growing.add("[" + "1," * 500_000 + "1")
    start_s = time.thread_time()
    for _ in range(2_000):
        growing.add(",1")
        assert not growing.is_whole()
    # Decoded each time these would take 10 s.
    assert time.thread_time() - start_s < 1
    growing.add("]")
    assert growing.is_whole()
    growing.add("{}")
    assert not growing.is_whole()
