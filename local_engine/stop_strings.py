"""Cutting text at the first completed stop string, without holding back more than needed.

Text is looked at character by character, so the result does not depend on how tokens split it:
output ends at the first character that completes any stop string, and the longest string completed
there is cut off. Only text that may still turn out to begin a stop string is held back.

Source: string matching automaton (Knuth, Morris and Pratt, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def _failure_table(pattern: str) -> list[int]:
    """Per prefix length, the length of its longest proper prefix that is also its suffix."""
    table = [0] * (len(pattern) + 1)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[index] != pattern[matched]:
            matched = table[matched]
        if pattern[index] == pattern[matched]:
            matched += 1
        table[index + 1] = matched
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """What a piece of text led to.

    Attributes:
        text: Text that can be sent now.
        is_stopped: True when a stop string was completed; nothing follows `text`.
    """

    text: str
    is_stopped: bool


class StopMatcher:
    """Matches the stop strings of one generation.

    Args:
        stops: Stop strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._tables = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str, *, may_stop: bool) -> StopResult:
        """Look at more text.

        Args:
            text: Follows all earlier text.
            may_stop: False while the minimum of tokens is not reached: strings completed now do
                not count, but one that began now may be completed later.
        """
        if not self._stops:
            return StopResult(text=text, is_stopped=False)
        pending = self._held + text
        for offset, character in enumerate(text, start=len(self._held) + 1):
            completed = self._advance(character)
            if completed and may_stop:
                return StopResult(text=pending[: offset - completed], is_stopped=True)
        keep = len(pending) - max(self._matched)
        self._held = pending[keep:]
        return StopResult(text=pending[:keep], is_stopped=False)

    def finish(self) -> str:
        """Text that was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Advance every automaton; returns the length of the longest completed string, or 0."""
        completed = 0
        for index, stop in enumerate(self._stops):
            table = self._tables[index]
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = table[matched]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                completed = max(completed, matched)
                # Go on with the longest part that may begin the next occurrence.
                matched = table[matched]
            self._matched[index] = matched
        return completed
