"""RE2's door: patterns that it does not take, and a pass that did not run."""

from __future__ import annotations

import re

import pytest

from gateway.detect.errors import BadPattern, ScanFailed
from gateway.detect.linear import (
    CHUNK_BYTES,
    Pattern,
    PatternSet,
    TextPattern,
    TextPatternSet,
)


class Silent:
    """RE2 out of memory: it reports no match and nothing else."""

    def Match(self, _text: object) -> list[int]:
        return []


def test_a_pass_that_did_not_run_is_not_a_pass_without_matches():
    for made in (PatternSet(["a"]), TextPatternSet(["a"])):
        empty: bytes | str = b"" if isinstance(made, PatternSet) else ""
        assert made.matches(empty) == []  # type: ignore[arg-type]
        made._compiled = Silent()  # type: ignore[assignment]
        with pytest.raises(ScanFailed):
            made.matches(empty)  # type: ignore[arg-type]


def test_the_sentinel_in_a_clients_text_changes_nothing():
    made = PatternSet(["abc"])
    assert made.matches(b"\x7f#\x7f#\x7f") == []
    assert made.matches(b"\x7f#\x7f#\x7fabc") == [0]


BAD = {
    "a look behind": ("(?<=a)b", "invalid perl operator"),
    "a reference back": (r"(a)\1", "invalid escape"),
    "an open bracket": ("[a", "missing ]"),
    "nothing": ("a*", "empty text"),
    "too many repetitions": ("(?:a{1000}){1000}", "repetition"),
}


@pytest.mark.parametrize(("pattern", "said"), BAD.values(), ids=BAD.keys())
def test_what_takes_more_than_linear_time_or_means_nothing_is_refused(pattern, said):
    with pytest.raises(BadPattern, match=re.escape(said)):
        TextPattern(pattern)


def test_patterns_that_are_too_large_together_are_refused():
    large = [f"x{number}[a-z]{{1000}}[0-9]{{1000}}" for number in range(300)]
    with pytest.raises(BadPattern, match="together"):
        TextPatternSet(large)


def test_spans_are_those_of_the_first_group():
    assert list(Pattern("a(b+)").spans(b"abb ab")) == [(1, 3), (5, 6)]
    assert list(Pattern("ab+").spans(b"abb ab")) == [(0, 3), (4, 6)]
    assert list(TextPattern("é+").spans("xéé é")) == [(1, 3), (4, 5)]
    assert CHUNK_BYTES > 0
