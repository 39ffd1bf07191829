"""Identity numbers with letters in them."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.detect.budget import Budget
from gateway.detect.digits import NATIONAL_ID
from gateway.detect.hits import Find, Hit, Rule, stands_alone
from gateway.detect.linear import Pattern
from gateway.detect.national_ids import LETTERED, LetteredId, is_named, words_pattern


def _finder(kind: LetteredId) -> Find:
    pattern = Pattern(kind.pattern)
    words = words_pattern(kind.words) if kind.words else None

    def find(text: bytes, budget: Budget) -> Iterator[Hit]:
        for start, end in pattern.spans(text):
            budget.note_candidate()
            if not stands_alone(text, start, end):
                continue
            bare = text[start:end].translate(None, b" -.").decode().upper()
            if kind.keeps_signs:
                bare = text[start:end].decode().upper()
            if not kind.is_valid(bare):
                continue
            if words is None or is_named(words, text, start, end):
                yield Hit(NATIONAL_ID, kind.kind, start, end)

    return find


RULES: tuple[Rule, ...] = tuple(
    Rule(prefilters=(kind.pattern,), find=_finder(kind)) for kind in LETTERED
)
