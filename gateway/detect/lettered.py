"""Identity numbers with letters in them."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.detect.budget import Budget
from gateway.detect.digits import NATIONAL_ID
from gateway.detect.hits import DIGITS, Find, Hit, Rule, stands_alone
from gateway.detect.linear import Pattern, PatternSet
from gateway.detect.national_ids import (
    GERMAN_CARD_WORDS,
    LETTERED,
    LetteredId,
    is_named,
    words_pattern,
)


def _finder(kind: LetteredId) -> Find:
    pattern = Pattern(kind.pattern)
    words = words_pattern(kind.words) if kind.words else None

    def find(text: bytes, budget: Budget) -> Iterator[Hit]:
        for start, end in pattern.spans(text):
            budget.note_candidate()
            if not stands_alone(text, start, end) or _is_fraction(text, start):
                continue
            bare = text[start:end].translate(None, b" -.").decode().upper()
            if kind.keeps_signs:
                bare = text[start:end].decode().upper()
            if not kind.is_valid(bare):
                continue
            if words is None or is_named(words, text, start, end):
                yield Hit(NATIONAL_ID, kind.kind, start, end)

    return find


def _is_fraction(text: bytes, start: int) -> bool:
    """Whether what begins here are the decimals of a number, as in `1.06156156e-315`."""
    return start > 1 and text[start - 1] == ord(".") and text[start - 2] in DIGITS


_FINDERS = tuple(_finder(kind) for kind in LETTERED)
_SET = PatternSet([kind.pattern for kind in LETTERED])

_GATE = (
    r"[0-9][ .\-]?[0-9][ .\-]?[0-9][ .\-]?[0-9][ .\-]?[0-9][ .\-]?[0-9][ .\-]?[A-Za-z]",
    next(kind.pattern for kind in LETTERED if kind.kind == "fi_hetu"),  # may end in a digit
    r"[A-Za-z]{3} ?[0-9]{2}[A-Za-z][0-9]{2} ?[A-Za-z][0-9]{3}[A-Za-z]",  # it_codice_fiscale
    f"(?i){GERMAN_CARD_WORDS}",
)
"""All have a row of digits and a letter behind it, but for three; most text has none of these."""


def find(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Identity numbers with letters in them, of all kinds."""
    for index in sorted(_SET.matches(text)):
        yield from _FINDERS[index](text, budget)


RULE = Rule(prefilters=_GATE, find=find)
