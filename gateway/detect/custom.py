"""Detectors of the operator's own: a pattern in RE2's syntax, and perhaps a check digit.

They look at each string by itself, so `^` and `$` are its ends, both as it is and folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stdnum import verhoeff
from stdnum.iso7064 import mod_97_10

from gateway.detect.body_text import MARK
from gateway.detect.budget import Budget
from gateway.detect.cards import is_luhn
from gateway.detect.hits import Hit
from gateway.detect.linear import TextPattern, TextPatternSet


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomDetector:
    """A detector of the operator's own.

    Attributes:
        name: As settings and findings name it.
        pattern: RE2 syntax.
        check: Name of a check that the match must pass, of `CHECKS`; None for none.
    """

    name: str
    pattern: str
    check: str | None = None


def _is_luhn(text: str) -> bool:
    digits = "".join(character for character in text if character in "0123456789")
    return len(digits) > 1 and is_luhn(digits)


def _is_mod_97(text: str) -> bool:
    return mod_97_10.is_valid(_bare(text))


def _is_verhoeff(text: str) -> bool:
    return verhoeff.is_valid(_bare(text))


def _bare(text: str) -> str:
    return "".join(character for character in text if character.isalnum())


CHECKS: Mapping[str, Callable[[str], bool]] = {
    "luhn": _is_luhn,
    "mod97": _is_mod_97,
    "verhoeff": _is_verhoeff,
}
"""Check digits by name: Luhn (ISO/IEC 7812-1), mod 97-10 (ISO/IEC 7064), Verhoeff."""


class CustomScanner:
    """Compiled custom detectors.

    Args:
        detectors: They.

    Raises:
        BadPattern: One of the patterns cannot be used.
    """

    __slots__ = ("_checks", "_names", "_patterns", "_set")

    def __init__(self, detectors: Sequence[CustomDetector]) -> None:
        self._names = tuple(one.name for one in detectors)
        self._patterns = tuple(TextPattern(one.pattern) for one in detectors)
        self._checks = tuple(None if one.check is None else CHECKS[one.check] for one in detectors)
        self._set = TextPatternSet([one.pattern for one in detectors])

    def hits(self, text: str, budget: Budget) -> Iterator[Hit]:
        """What is found in each string of a body's text, or in a text that is one string.

        Raises:
            Unfinished: There was no time, or the prefilter did not run.
        """
        start = 0
        for place, string in enumerate(text.split(MARK)):
            # Between two strings stand signs of the document; a text without marks is all string.
            is_string = place & 1 or len(string) == len(text)
            if is_string and string:
                budget.note_candidate()
                yield from self._hits(string, start, budget)
            start += len(string) + 1

    def _hits(self, string: str, start: int, budget: Budget) -> Iterator[Hit]:
        for index in sorted(self._set.matches(string)):
            name, check = self._names[index], self._checks[index]
            for from_, to in self._patterns[index].spans(string):
                budget.note_candidate()
                if check is None or check(string[from_:to]):
                    yield Hit(name, name, start + from_, start + to)
