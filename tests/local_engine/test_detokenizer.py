"""Text from bytes, whole characters only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.detokenizer import Detokenizer

FAMILY = "👨‍👩‍👧‍👦"


def decode(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer()
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()]


# ENG-029
TEXTS = {
    "ascii": "plain",
    "korean": "안녕하세요",
    "an emoji family": FAMILY,
    "combining marks": "e\u0301a\u0308",
    "all lengths of code points": "aé€😀",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_every_split_gives_the_same_text_without_a_replacement(text: str) -> None:
    raw = text.encode()
    for cut in range(len(raw) + 1):
        assert "".join(decode([raw[:cut], raw[cut:]])) == text
    assert "".join(decode([bytes([byte]) for byte in raw])) == text


def test_nothing_is_given_before_a_character_is_complete() -> None:
    assert decode([b"\xf0", b"\x9f", b"\x98", b"\x80"]) == ["", "", "", "😀", ""]


def test_a_truncated_tail_becomes_a_replacement_at_the_end_only() -> None:
    assert decode([b"ok\xe2", b"\x82"]) == ["ok", "", "\ufffd"]


def test_bytes_that_can_never_be_valid_are_replaced_at_once() -> None:
    assert decode([b"\xff", b"a"]) == ["\ufffd", "a", ""]


def test_an_output_that_continues_the_prompts_last_character_gives_only_new_text() -> None:
    # ENG-027
    assert decode([b"\x82", b" new"]) == ["\ufffd", " new", ""]


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_streamed_text_equals_decoding_all_bytes_at_once(pieces: list[bytes]) -> None:
    assert "".join(decode(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(max_size=30), st.data())
def test_valid_text_never_shows_a_replacement_that_it_does_not_hold(text: str, data) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    if b"\xed" in raw:
        text = raw.decode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    edges = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert "".join(decode(pieces)) == text
