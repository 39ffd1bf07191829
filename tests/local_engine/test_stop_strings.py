"""Where the output is cut, and how little is held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.stop_strings import StopMatcher


def run(stops: list[str], pieces: list[str], *, gated: int = 0) -> tuple[list[str], bool]:
    """Pieces sent, and whether a stop ended them; the first `gated` pieces may not stop."""
    matcher = StopMatcher(stops)
    sent = []
    for index, piece in enumerate(pieces):
        result = matcher.push(piece, may_stop=index >= gated)
        sent.append(result.text)
        if result.is_stopped:
            return sent, True
    return [*sent, matcher.finish()], False


def reference(stops: list[str], text: str) -> tuple[str, bool]:
    """The definition: the first end of any stop, and the longest one that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


CASES = {
    # ENG-024
    "a stop inside a token cuts the token": (["Pari"], ["in ", "Paris"], ["in ", ""], True),
    "a stop over two tokens": (["\n\nUser"], ["Hi\n", "\nUs", "er: x"], ["Hi", "", ""], True),
    # ENG-026
    "text that cannot begin a stop is not held": (
        ["b,c"],
        ["</think>", "x"],
        ["</think>", "x", ""],
        False,
    ),
    "a live prefix is held until it dies": (["b,c"], ["ab", ",", "d"], ["a", "", "b,d", ""], False),
    "what is held comes out at the end": (["END"], ["the EN"], ["the ", "EN"], False),
    "overlap with itself": (["aab"], ["aa", "ab"], ["", "a"], True),
    "the longest stop that ends there is cut": (["b", "ab"], ["xab"], ["x"], True),
    "no stops hold nothing": ([], ["a", "b"], ["a", "b", ""], False),
    "a repeated stop is one": (["x", "x"], ["axb"], ["a"], True),
}


@pytest.mark.parametrize(("stops", "pieces", "sent", "stopped"), CASES.values(), ids=CASES.keys())
def test_stop(stops, pieces, sent, stopped) -> None:
    assert run(stops, pieces) == (sent, stopped)


def test_a_stop_completed_before_the_minimum_of_tokens_is_text() -> None:
    # ENG-032
    assert run(["\n"], ["a\n", "b", "c\nd"], gated=2) == (["a\n", "b", "c"], True)


def test_a_stop_begun_before_the_minimum_may_be_completed_after_it() -> None:
    assert run(["\n\n"], ["a\n", "\nb"], gated=1) == (["a", ""], True)


def test_an_ignored_stop_may_begin_the_next() -> None:
    assert run(["aba"], ["aba", "ba"], gated=1) == (["ab", ""], True)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])


TEXT = st.text(alphabet="ab\n", max_size=25)


@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4), TEXT, st.data())
def test_every_split_gives_what_the_definition_says(stops, text, data) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    sent, stopped = run(stops, pieces)
    assert ("".join(sent), stopped) == reference(stops, text)


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3), TEXT)
def test_only_a_live_prefix_is_held_back(stops, text) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for end, character in enumerate(text, start=1):
        result = matcher.push(character, may_stop=True)
        sent += result.text
        if result.is_stopped:
            return
        held = text[len(sent) : end]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
