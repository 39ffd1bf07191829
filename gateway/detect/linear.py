"""RE2 behind a typed door: time linear in the text, whatever the pattern and whoever wrote it.

Texts are ASCII bytes (see `body_text`), so patterns are compiled for single bytes. Matching lets go
of the interpreter's lock, so that a thread of its own really runs beside the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import re2

from gateway.detect.errors import BadPattern, ScanFailed

CHUNK_BYTES = 64 * 1024
"""Looked through at once; between two of them the time is looked at. Whoever makes a set forget
what it remembers waits for all who look through a chunk with it, and that may be the event loop."""

OVERLAP_BYTES = 1024
"""Longer than anything a prefilter needs to see."""

MEMORY_BYTES = 8 * 1024 * 1024
"""Most memory of one of our sets. What RE2 remembers of the texts it saw grows up to that, and is
forgotten then; new text of many kinds takes 11 MiB of all sets together."""

CUSTOM_MEMORY_BYTES = 32 * 1024 * 1024
"""The same of the operator's patterns, which may be large."""

_SENTINEL = b"\x7f#\x7f#\x7f"  # no letter or digit, which patterns could match


class _Match(Protocol):
    def span(self, group: int = 0) -> tuple[int, int]: ...


class _Compiled(Protocol):
    @property
    def groups(self) -> int: ...
    def finditer(self, text: bytes | str) -> Iterator[_Match]: ...
    def search(self, text: bytes | str) -> _Match | None: ...


class _Options(Protocol):
    encoding: object
    max_mem: int
    log_errors: bool


class _CompiledSet(Protocol):
    def Add(self, pattern: bytes | str) -> int: ...  # noqa: N802  # the library's own name
    def Compile(self) -> None: ...  # noqa: N802
    def Match(self, text: bytes | str) -> list[int]: ...  # noqa: N802


class _Sets(Protocol):
    def SearchSet(self, options: _Options) -> _CompiledSet: ...  # noqa: N802


class _Library(Protocol):
    """What is used of the library, which has no types of its own."""

    @property
    def Set(self) -> _Sets: ...  # noqa: N802
    @property
    def error(self) -> type[Exception]: ...
    def Options(self) -> _Options: ...  # noqa: N802
    def compile(self, pattern: bytes | str, options: _Options) -> _Compiled: ...


_RE2 = cast("_Library", re2)
_LATIN_1 = cast("object", re2.Options.Encoding.LATIN1)  # pyright: ignore[reportUnknownMemberType]


class Pattern:
    """One compiled pattern.

    Args:
        pattern: RE2 syntax; ASCII.

    Raises:
        BadPattern: RE2 does not take it.
    """

    __slots__ = ("_compiled", "_group")

    def __init__(self, pattern: str) -> None:
        self._compiled = _compile(pattern.encode("ascii"), is_text=False)
        self._group = 1 if self._compiled.groups else 0

    def spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Half-open spans of all matches from left to right; of the first group if there is one."""
        group = self._group
        for match in self._compiled.finditer(text):
            yield match.span(group)


class TextPattern:
    """One compiled pattern for text in any script; for custom detectors.

    Args:
        pattern: RE2 syntax.

    Raises:
        BadPattern: RE2 does not take it, or it matches nothing at all, which is everywhere.
    """

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        self._compiled = _compile(pattern, is_text=True)
        if self._compiled.search("") is not None:
            raise BadPattern("matches the empty text, and so everything; make it match something")

    def is_in(self, text: str) -> bool:
        """Whether it matches anywhere."""
        return self._compiled.search(text) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Half-open spans of all matches, in characters, from left to right."""
        for match in self._compiled.finditer(text):
            yield match.span()


class PatternSet:
    """Which of many patterns a text matches anywhere, in one pass over it.

    Args:
        patterns: RE2 syntax; ASCII.
    """

    __slots__ = ("_compiled",)

    def __init__(self, patterns: Sequence[str]) -> None:
        made = _RE2.Set.SearchSet(_options(is_text=False, max_mem=MEMORY_BYTES))
        made.Add(_SENTINEL)
        for pattern in patterns:
            made.Add(pattern.encode("ascii"))
        made.Compile()
        self._compiled = made

    def matches(self, text: bytes) -> list[int]:
        """Indices of the patterns that match, in no order.

        Raises:
            ScanFailed: RE2 could not look; it says so by reporting no match at all, and so each
                text ends with one that must be reported.
        """
        found = self._compiled.Match(text + _SENTINEL)
        if len(found) == 1 and found[0] == 0:  # as nearly always
            return []
        if 0 not in found:
            raise ScanFailed("the prefilter did not run")
        return [index - 1 for index in found if index]


class TextPatternSet:
    """Which of many patterns a text in any script matches; anchors mean the text's own ends.

    Args:
        patterns: RE2 syntax; each is known to compile.

    Raises:
        BadPattern: Together they are too large.
    """

    __slots__ = ("_compiled",)

    def __init__(self, patterns: Sequence[str]) -> None:
        made = _RE2.Set.SearchSet(_options(is_text=True, max_mem=CUSTOM_MEMORY_BYTES))
        made.Add("")  # as the sentinel above: it matches every text
        for pattern in patterns:
            made.Add(pattern)
        try:
            made.Compile()
        except _RE2.error as error:
            raise BadPattern("all patterns together are too large; repeat less") from error
        self._compiled = made

    def matches(self, text: str) -> list[int]:
        """Indices of the patterns that match, in no order.

        Raises:
            ScanFailed: RE2 could not look.
        """
        found = self._compiled.Match(text)
        if 0 not in found:
            raise ScanFailed("the prefilter did not run")
        return [index - 1 for index in found if index]


def _options(*, is_text: bool, max_mem: int | None = None) -> _Options:
    options = _RE2.Options()
    options.log_errors = False
    if max_mem is not None:
        options.max_mem = max_mem
    if not is_text:
        options.encoding = _LATIN_1
    return options


def _compile(pattern: bytes | str, *, is_text: bool) -> _Compiled:
    try:
        return _RE2.compile(pattern, _options(is_text=is_text))
    except _RE2.error as error:
        detail: object = error.args[0] if error.args else ""
        shown = detail.decode() if isinstance(detail, bytes) else str(detail)
        raise BadPattern(f"is no RE2 pattern: {shown[:200]}") from error
