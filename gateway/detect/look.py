"""One look at one request: its strings, the borders between them, and what is in base64."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.detect import encoded
from gateway.detect.body_text import MARK, flatten, fold, to_ascii
from gateway.detect.borders import Seam, is_across, seams
from gateway.detect.budget import Budget
from gateway.detect.contacts import CONTACTS
from gateway.detect.custom import CustomScanner
from gateway.detect.encoded import DEPTH_MAX, Decoder, is_base64
from gateway.detect.errors import BeyondBounds
from gateway.detect.hits import Hit
from gateway.detect.paths import paths_of
from gateway.detect.published import bare
from gateway.detect.scanner import Scanner
from gateway.dialects.long_strings import SetAside, set_aside

SET_ASIDE_BYTES_MIN = 64 * 1024
"""Shortest body whose long base64 is looked at by itself."""

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Longest text that is looked through, long base64 not counted."""

FINDINGS_MAX = 64
"""Places that are named; more of them say nothing new."""

_END_OF_OBJECT = b"},{"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a detector found at one place; never the value.

    Attributes:
        detector: Name of its setting.
        kind: What exactly, for example `us_ssn`.
        path: Where, for example `messages[2].tool_calls[0].function.arguments`.
        count: How many different values there.
    """

    detector: str
    kind: str
    path: str
    count: int


@dataclass(slots=True, kw_only=True)
class Look:
    """What is being found in one request; used once.

    Attributes:
        scanner: The built-in detectors.
        custom: The operator's own, None for none.
        allowed: Values that are nobody's, bare (see `published.bare`).
        budget: The time that is left.
        values: Different values per detector, bare; they stay in here.
    """

    scanner: Scanner
    custom: CustomScanner | None
    allowed: frozenset[bytes]
    budget: Budget
    values: dict[str, set[bytes]] = field(default_factory=dict[str, set[bytes]])
    _decoder: Decoder = field(default_factory=Decoder)
    _places: dict[tuple[str, str, str], set[bytes]] = field(
        default_factory=dict[tuple[str, str, str], set[bytes]]
    )

    def findings(self) -> tuple[Finding, ...]:
        """What was found, place by place."""
        return tuple(
            Finding(detector=detector, kind=kind, path=path, count=len(values))
            for (detector, kind, path), values in self._places.items()
        )

    def at_body(self, body: bytes) -> None:
        """Look at a request's top-level members, as JSON.

        Raises:
            Unfinished: It could not be looked through to its end.
        """
        aside = set_aside(body) if len(body) >= SET_ASIDE_BYTES_MIN else None
        if aside is not None:
            body = aside.text
        if len(body) > BODY_BYTES_MAX:
            raise BeyondBounds("the body is larger than is looked through")
        if len(body) > SET_ASIDE_BYTES_MIN:
            self.budget.check()  # begins, as what follows takes its time already
        text = flatten(body)
        folded = fold(text)
        ascii_text = to_ascii(folded)
        hits, has_encoded = self._hits(ascii_text)
        if self.custom is not None:
            hits += self.custom.hits(folded, self.budget)
            if text != folded:
                self._note_in_body(to_ascii(text), self.custom.hits(text, self.budget))
        self._note_in_body(ascii_text, hits)
        if _END_OF_OBJECT in body:
            self._at_seams(seams(body))
        if has_encoded:
            self._at_encoded(ascii_text)
        if aside is not None:
            self._at_runs(ascii_text, aside)

    def _hits(self, text: bytes) -> tuple[list[Hit], bool]:
        """What the built-in detectors find in a folded text, and whether it may hold base64."""
        rules = self.scanner.candidates(text, self.budget)
        found = [hit for rule in rules for hit in rule.find(text, self.budget)]
        return found, encoded.RULE in rules

    def _note_in_body(self, text: bytes, hits: Iterable[Hit]) -> None:
        known = sorted(hits, key=lambda hit: hit.start)
        if known:
            paths = paths_of(text, [hit.start for hit in known])
            for hit, path in zip(known, paths, strict=True):
                self._note(hit, text, path)

    def _note(self, hit: Hit, text: bytes, path: str) -> None:
        value = bare(text[hit.start : hit.end])
        if value in self.allowed:
            return
        self.values.setdefault(hit.detector, set()).add(value)
        place = hit.detector, hit.kind, path
        if place in self._places or len(self._places) < FINDINGS_MAX:
            self._places.setdefault(place, set()).add(value)

    def _at_text(self, text: str, path: str, *, depth: int) -> None:
        """Look at a text that is not a string of the body itself."""
        self.budget.check()
        folded = fold(text)
        ascii_text = to_ascii(folded)
        hits, has_encoded = self._hits(ascii_text)
        if self.custom is not None:
            hits += self.custom.hits(folded, self.budget)
        for hit in hits:
            self._note(hit, ascii_text, path)
        if has_encoded:
            if depth >= DEPTH_MAX:
                raise BeyondBounds("base64 within base64, deeper than is looked through")
            for _, inner in self._decoder.texts(ascii_text, self.budget):
                self._at_text(inner, path, depth=depth + 1)

    def _at_encoded(self, text: bytes) -> None:
        found = list(self._decoder.texts(text, self.budget))
        if found:
            paths = paths_of(text, [offset for offset, _ in found])
            for (_, inner), path in zip(found, paths, strict=True):
                self._at_text(inner, f"{path} (base64)", depth=1)

    def _at_seams(self, found: Iterable[Seam]) -> None:
        """Look at what stands around borders, all of it as one text; what reaches over counts."""
        pieces, size = [MARK], 1
        starts, paths, borders = list[int](), list[str](), list[int]()
        for seam in found:
            self.budget.note_candidate()
            for joined, within in seam.readings():
                starts.append(size)
                paths.append(f"{seam.first} to {seam.last}")
                borders += [size + border for border in within]
                pieces += (joined, MARK, MARK)
                size += len(joined) + 2
        if not starts:
            return
        text = "".join(pieces)
        ascii_text = to_ascii(text)
        hits, _ = self._hits(ascii_text)
        if self.custom is not None:
            hits += self.custom.hits(text, self.budget)
        for hit in hits:
            # Two addresses side by side are no third one.
            if hit.detector not in CONTACTS and is_across(borders, hit.start, hit.end):
                self._note(hit, ascii_text, paths[bisect_right(starts, hit.start) - 1])

    def _at_runs(self, text: bytes, aside: SetAside) -> None:
        """Look at what was set aside because it looked like long base64."""
        for index, run in enumerate(aside.runs):
            whole = bytes(run)
            offset = max(0, text.find(aside.mark + b"%04d" % index))
            (path,) = paths_of(text, [offset])
            if not is_base64(whole):
                text_of_run = flatten(b'"%b"' % whole).strip(MARK)
                whole = text_of_run.encode()
                if not is_base64(whole):  # not even without its escapes
                    self._at_text(text_of_run, path, depth=1)
                    continue
            inner = self._decoder.text_of(whole)
            if inner is not None:
                self._at_text(inner, f"{path} (base64)", depth=1)
