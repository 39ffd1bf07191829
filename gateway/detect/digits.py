"""Numbers made of digits: runs of them in a text, and which card or identity number they are.

A run is digits with at most three spaces, dashes or points between two of them. Which of its groups
belong together is decided by the forms in which people write such numbers; every group by itself is
a candidate too, and so is a run of single digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gateway.detect.budget import Budget
from gateway.detect.cards import CARD_DIGITS_MAX, CARD_DIGITS_MIN, is_card
from gateway.detect.hits import DIGITS, Hit, Rule, is_apart
from gateway.detect.linear import Pattern
from gateway.detect.national_ids import KINDS, NationalId, is_named, words_pattern

CARD = "payment_card"
NATIONAL_ID = "national_id"

_RUN = r"[0-9](?:[ .\-]{0,3}[0-9OoIl]){8,}"
_LOOK_ALIKES = bytes.maketrans(b"OoIl", b"0011")
_LOOK_ALIKE_LETTERS = b"OoIl"
_GROUP = re.compile(rb"[0-9]+")
_CARD_FORMS = (
    (4, 4, 4, 4), (4, 4, 4, 4, 1), (4, 4, 4, 4, 2), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4),
    (4, 4, 5), (4, 5, 4), (8, 8), (6, 10), (6, 13), (4, 12), (12, 4),
)  # fmt: skip
_GROUPS_SPELT_MIN = 5
"""A run of so many groups of one size was spelt out digit by digit, or two by two."""
_GROUP_DIGITS_SPELT_MAX = 3
_GROUP_DIGITS_MIN = 9
"""The shortest number that stands in one group."""
_SHAPES_MAX = 4096
_SHAPE = bytes.maketrans(b"123456789", b"000000000")
_APART = bytes.maketrans(b".-", b"  ")
_UNNAMED_CARD_DIGITS_MAX = 16
_CARD_WORDS = words_pattern(
    r"card|karte|carte|tarjeta|carta|visa|union.?pay|maestro|\bpan\b|\bmir\b"
)


@dataclass(frozen=True, slots=True)
class _Form:
    """Which kinds people write with these sizes of groups, and whether each needs a word by it."""

    kinds: tuple[tuple[NationalId, bool], ...]
    is_card: bool


class _Forms:
    """Forms as a tree by the size of each group, so that most groups are left after one step."""

    def __init__(self) -> None:
        self.next: dict[int, _Forms] = {}
        self.here: _Form | None = None

    def add(self, sizes: tuple[int, ...], *kinds: tuple[NationalId, bool]) -> None:
        """Add a form; without kinds, of cards."""
        node = self
        for size in sizes:
            node = node.next.setdefault(size, _Forms())
        known = node.here or _Form((), False)
        node.here = _Form((*known.kinds, *kinds), known.is_card or not kinds)


def _all_forms() -> _Forms:
    root = _Forms()
    for sizes in _CARD_FORMS:
        root.add(sizes)
    for kind in KINDS:
        for sizes in kind.forms:
            root.add(sizes, (kind, False))
        for sizes in kind.weak_forms:
            root.add(sizes, (kind, True))
    return root


_FORMS = _all_forms()
_BY_DIGITS: Mapping[int, tuple[NationalId, ...]] = {
    count: tuple(kind for kind in KINDS if kind.digits == count)
    for count in {kind.digits for kind in KINDS}
}
_WORDS = {kind.kind: words_pattern(kind.words) for kind in KINDS if kind.words}
_PATTERN = Pattern(_RUN)


def find(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Payment cards and identity numbers made of digits."""
    for start, end in _PATTERN.spans(text):
        budget.note_candidate()
        if not _is_hopeless(text[start:end].translate(_SHAPE)):
            yield from _look(text, start, end, budget)


RULE = Rule(prefilters=(_RUN,), find=find)


@lru_cache(maxsize=_SHAPES_MAX)
def _is_hopeless(shape: bytes) -> bool:
    """Whether no number is written in this shape, whatever its digits: most are days and times.

    Args:
        shape: A run with a zero for each digit.
    """
    sizes = [len(group) for group in shape.translate(_APART).split()]
    if any(letter in shape for letter in _LOOK_ALIKE_LETTERS) or max(sizes) >= _GROUP_DIGITS_MIN:
        return False
    if len(sizes) >= _GROUPS_SPELT_MIN and sizes[0] <= _GROUP_DIGITS_SPELT_MAX:
        return False
    return not any(_has_form(sizes[index:]) for index in range(len(sizes)))


def _has_form(sizes: list[int]) -> bool:
    node = _FORMS
    for size in sizes:
        found = node.next.get(size)
        if found is None:
            return False
        if found.here is not None:
            return True
        node = found
    return False


def _look(text: bytes, start: int, end: int, budget: Budget) -> Iterator[Hit]:
    """What a run holds; of hits that overlap only the first."""
    run = text[start:end]
    bare = run.rstrip(_LOOK_ALIKE_LETTERS)
    is_found = False
    for hit in _look_at(text, start, _as_digits(run), budget):
        is_found = True
        yield hit
    if not is_found and len(bare) != len(run):  # a word that only begins like a digit
        yield from _look_at(text, start, _as_digits(bare), budget)


def _as_digits(run: bytes) -> bytes:
    """A run with its look-alike letters as digits, if most of it is digits anyway."""
    letters = sum(map(run.count, (b"O", b"o", b"I", b"l")))
    if not letters:
        return run
    digits = sum(1 for byte in run if byte in DIGITS)
    return run.translate(_LOOK_ALIKES) if digits >= letters else run


def _look_at(text: bytes, start: int, run: bytes, budget: Budget) -> Iterator[Hit]:
    groups = [match.span() for match in _GROUP.finditer(run)]
    if len(groups) >= _GROUPS_SPELT_MIN:
        spelt = _spelt(text, start, run, groups)
        if spelt is not None:
            yield spelt
            return
    done = 0
    for index, (from_, _) in enumerate(groups):
        if from_ < done:
            continue
        if index & 1:  # one that begins a card takes as long as any candidate
            budget.note_candidate()
        hit = _form_at(text, start, run, groups, index) or _group(text, start, run, groups, index)
        if hit is not None:
            done = hit.end - start
            yield hit


def _spelt(text: bytes, start: int, run: bytes, groups: list[tuple[int, int]]) -> Hit | None:
    """A card of which each digit, or two or three of them, was written by itself."""
    size = groups[0][1] - groups[0][0]
    if size > _GROUP_DIGITS_SPELT_MAX or any(to - from_ != size for from_, to in groups[:-1]):
        return None
    digits = _digits(run, groups)
    if not CARD_DIGITS_MIN <= len(digits) <= CARD_DIGITS_MAX or not is_card(digits):
        return None
    return _hit(text, start, groups[0][0], groups[-1][1], CARD, CARD)


def _form_at(
    text: bytes, start: int, run: bytes, groups: list[tuple[int, int]], index: int
) -> Hit | None:
    """What begins with a group and is written in one of the known forms."""
    node = _FORMS
    for last in range(index, len(groups)):
        from_, to = groups[last]
        found = node.next.get(to - from_)
        if found is None:
            return None
        node = found
        form = node.here
        if form is None:
            continue
        parts = groups[index : last + 1]
        between, digits = _between(run, parts), _digits(run, parts)
        # Two groups around a point are a decimal number.
        is_uniform = len(between) == 1 and not (len(parts) == 2 and b"." in between)
        span = groups[index][0], to
        if form.is_card and is_uniform and is_card(digits):
            return _hit(text, start, *span, CARD, CARD)
        for kind, needs_word in form.kinds:
            if not (is_uniform or kind.is_mixed) or not between <= kind.between:
                continue
            if _is_kind(kind, digits, text, start + span[0], start + span[1], needs_word):
                return _hit(text, start, *span, NATIONAL_ID, kind.kind)
    return None


def _group(
    text: bytes, start: int, run: bytes, groups: list[tuple[int, int]], index: int
) -> Hit | None:
    """What a group is by itself; nothing where it is the fraction of a decimal number."""
    from_, to = groups[index]
    size = to - from_
    if size < _GROUP_DIGITS_MIN or _is_fraction(text, start + from_, start + to):
        return None
    digits = run[from_:to].decode()
    for kind in _BY_DIGITS.get(size, ()):
        needs_word = kind.words != ""
        if _is_kind(kind, digits, text, start + from_, start + to, needs_word):
            return _hit(text, start, from_, to, NATIONAL_ID, kind.kind)
    if not CARD_DIGITS_MIN <= size <= CARD_DIGITS_MAX or not is_card(digits):
        return None
    # Random numbers of 64 bits have as many digits, and are in every log.
    if size > _UNNAMED_CARD_DIGITS_MAX and not is_named(
        _CARD_WORDS, text, start + from_, start + to
    ):
        return None
    return _hit(text, start, from_, to, CARD, CARD)


def _is_kind(
    kind: NationalId, digits: str, text: bytes, start: int, end: int, needs_word: bool
) -> bool:
    if not kind.is_valid(digits):
        return False
    return not needs_word or is_named(_WORDS[kind.kind], text, start, end)


def _between(run: bytes, groups: list[tuple[int, int]]) -> set[bytes]:
    """What stands between groups; one thing, where people wrote one number."""
    return {run[one[1] : other[0]] for one, other in pairwise(groups)}


def _digits(run: bytes, groups: list[tuple[int, int]]) -> str:
    return b"".join(run[from_:to] for from_, to in groups).decode()


def _is_fraction(text: bytes, start: int, end: int) -> bool:
    if start and text[start - 1] == ord(".") and not (start > 1 and _is_letter(text[start - 2])):
        return True
    return end + 1 < len(text) and text[end] == ord(".") and text[end + 1] in DIGITS


def _is_letter(byte: int) -> bool:
    return chr(byte).isalpha()


def _hit(text: bytes, start: int, from_: int, to: int, detector: str, kind: str) -> Hit | None:
    if not is_apart(text, start + from_, start + to):
        return None
    return Hit(detector, kind, start + from_, start + to)
