"""All rules behind one prefilter: which can match is known after one pass over a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from gateway.detect import contacts, digits, encoded, ibans, lettered, private_keys, tokens
from gateway.detect.body_text import fold_with_offsets, to_ascii
from gateway.detect.budget import Budget
from gateway.detect.hits import Group, Hit, Rule
from gateway.detect.linear import CHUNK_BYTES, OVERLAP_BYTES, PatternSet
from gateway.detect.published import PUBLISHED, bare

RULES: tuple[Rule, ...] = (
    digits.RULE,
    ibans.RULE,
    lettered.RULE,
    *contacts.RULES,
    *private_keys.RULES,
    *tokens.RULES,
    encoded.RULE,
)

DETECTORS = (
    digits.CARD,
    ibans.IBAN,
    digits.NATIONAL_ID,
    contacts.EMAIL,
    contacts.PHONE,
    contacts.IP_ADDRESS,
    private_keys.PRIVATE_KEY,
    tokens.ACCESS_TOKEN,
    tokens.JWT,
    tokens.FAREWAY_KEY,
)
"""What the built-in rules find, by the names of their settings."""


class Span(NamedTuple):
    """Where something was found in a text as it was given.

    Attributes:
        detector: The detector's name.
        kind: What exactly.
        start: Offset of its first character.
        end: Offset after its last character.
    """

    detector: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Pass:
    """The rules of a group behind their prefilters."""

    prefilters: PatternSet
    rules: tuple[Rule, ...]  # of each prefilter


def _passes(rules: Sequence[Rule]) -> Iterator[_Pass]:
    for group in Group:
        pairs = [(one, rule) for rule in rules if rule.group is group for one in rule.prefilters]
        if pairs:
            patterns = PatternSet([pattern for pattern, _ in pairs])
            yield _Pass(patterns, tuple(rule for _, rule in pairs))


class Scanner:
    """Compiled rules; immutable, shared by all requests and threads.

    Args:
        rules: What to look for.
    """

    __slots__ = ("_passes",)

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._passes = tuple(_passes(rules))

    def candidates(self, text: bytes, budget: Budget) -> Sequence[Rule]:
        """Rules that may find something in a folded text, in their order; mostly none.

        Raises:
            Unfinished: There was no time, or the prefilter did not run.
        """
        found: dict[Rule, None] = {}
        is_short = len(text) <= CHUNK_BYTES
        for one in self._passes:
            matches = one.prefilters.matches
            indices = matches(text) if is_short else _by_chunk(matches, text, budget)
            if indices:
                found |= dict.fromkeys(one.rules[index] for index in sorted(indices))
        return tuple(found)

    def hits(self, text: bytes, budget: Budget) -> Iterator[Hit]:
        """Everything that is found in a folded text, rule by rule.

        Raises:
            Unfinished: There was no time, or the prefilter did not run.
        """
        for rule in self.candidates(text, budget):
            yield from rule.find(text, budget)

    def find_spans(
        self,
        text: str,
        *,
        allowed: AbstractSet[bytes] = PUBLISHED,
        cpu_s: Callable[[], float] = time.thread_time,
        limit_s: float = 1.0,
    ) -> list[Span]:
        """Everything that is found in one text, in its own characters, from left to right.

        Spans do not overlap: of two the one that begins first counts, and of two that begin
        together the longer one. For what has to be taken out or replaced.

        Args:
            text: As it is, not folded.
            allowed: Values that are nobody's, bare (see `published.bare`).
            cpu_s: Processor time of this thread in seconds.
            limit_s: How much of it may be used.

        Raises:
            Unfinished: There was no time, or the prefilter did not run.
        """
        budget = Budget(cpu_s, limit_s)
        folded, offsets = fold_with_offsets(text)
        ascii_text = to_ascii(folded)
        hits = sorted(self.hits(ascii_text, budget), key=lambda hit: (hit.start, -hit.end))
        spans: list[Span] = []
        done = 0
        for hit in hits:
            if hit.start >= done and bare(ascii_text[hit.start : hit.end]) not in allowed:
                done = hit.end
                # Up to the end of its last character, and not of those that were left out after it.
                end = offsets[hit.end - 1] + 1
                spans.append(Span(hit.detector, hit.kind, offsets[hit.start], end))
        return spans


def _by_chunk(matches: Callable[[bytes], Iterable[int]], text: bytes, budget: Budget) -> set[int]:
    found: set[int] = set()
    for start in range(0, len(text), CHUNK_BYTES):
        budget.check()
        found.update(matches(text[max(0, start - OVERLAP_BYTES) : start + CHUNK_BYTES]))
    return found
