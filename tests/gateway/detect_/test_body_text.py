"""A body becomes one text that reads as a person would read it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detect.body_text import MARK, flatten, fold, fold_with_offsets, to_ascii

FLATTENED = {
    "plain strings": (b'{"a":"b"}', "{|a|:|b|}"),
    "white space between signs": (b'{\n\t"a": "b"\r\n}', "{  |a|: |b|  }"),
    "an escaped quotation mark": (rb'{"a":"say \"b\""}', '{|a|:|say "b"|}'),
    "a backslash before a quotation mark": (rb'{"a":"x\\","b":"y"}', "{|a|:|x\\|,|b|:|y|}"),
    "a line break and a tab": (rb'{"a":"x\n\ty"}', "{|a|:|x\n\ty|}"),
    "letters by number": (rb'{"a":"\u0034\u00e9"}', "{|a|:|4é|}"),
    "a pair of surrogates": (rb'{"a":"\ud83d\ude00"}', "{|a|:|😀|}"),
    "half a pair": (rb'{"a":"x\ud83dy"}', "{|a|:|x?y|}"),
    "our own mark, raw and by number": (b'{"a":"x\x7fy\\u007fz\\u007Fw\\\\u007f"}', "{|a|:|x y z w\\u007f|}"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), FLATTENED.values(), ids=FLATTENED.keys())
def test_strings_are_decoded_in_place(body: bytes, text: str):
    assert flatten(body).replace(MARK, "|") == text


JSON = st.recursive(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def strings_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, one in value.items() for text in (key, *strings_of(one))]
    return [text for one in value for text in strings_of(one)] if isinstance(value, list) else []


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_every_string_of_any_document_stands_between_two_marks(value, is_ascii, indent):
    text = flatten(
        json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "replace")
    )
    given_strings = [one.replace(MARK, " ") for one in strings_of(value)]
    if any("\ud800" <= character <= "\udfff" for one in given_strings for character in one):
        return
    found = text.split(MARK)[1::2]
    # Raw control characters are no JSON; the writer has escaped them all.
    assert found == given_strings


FOLDED = {
    "zero-width characters": ("45\u200b39\u2060\ufeff1", "45391"),
    "soft hyphens": ("45\u00ad39", "4539"),
    "marks on digits": ("4\u03365\u0336", "45"),
    "keycaps": ("4\ufe0f\u20e35\ufe0f\u20e3", "45"),
    "full-width letters and digits": ("ＤＥ４５＠", "DE45@"),
    "Arabic and Devanagari digits": ("٤٥९०", "4590"),
    "mathematical digits": ("𝟒𝟓𝟬", "450"),
    "superscripts and circles": ("⁴⑤", "45"),
    "odd spaces": ("45\u00a039\u300014", "45 39 14"),
    "odd dashes": ("45\u201139\u221214", "45-39-14"),
    "Cyrillic letters beside Latin ones": ("АКIА", "AKIA"),
    "Cyrillic words, left as they are": ("осень ABC", "осень ABC"),
    "escapes within a string": ('{"a":"\\u0034\\x35"}', '{"a":"45"}'),
    "escapes of escapes": ("\\\\\\\\u0034", "4"),
    "written line breaks": ("a\\n45", "a 45"),
    "escapes of a URL": ("card=4%201%2D%341%zz%0a", "card=4 1-41%zz%0a"),
    "a tab": ("4539\t1488", "4539 1488"),
    "a written slash and quotation mark": ('\\/\\"', '/"'),
    "an escape of half a pair, and of our mark": ("\\ud800\\u007f", "  "),
    "escapes of full-width digits": ("\\uff14", "4"),
    "what stands for nothing else": ("é中", "é中"),
}


@pytest.mark.parametrize(("text", "folded"), FOLDED.values(), ids=FOLDED.keys())
def test_a_text_reads_as_a_person_would_read_it(text: str, folded: str):
    assert fold(text) == folded
    assert fold_with_offsets(text)[0] == folded


ODD = "%\t34٤４\u200b\u00ad \u3000\\nuх0АKI-−é😀\ud7ff"


@given(st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=40))
def test_offsets_lead_back_to_where_a_character_came_from(text):
    folded, offsets = fold_with_offsets(text)
    assert folded == fold(text)
    assert len(offsets) == len(folded) + 1
    assert offsets == sorted(offsets)
    assert offsets[-1] == len(text)
    assert len(to_ascii(folded)) == len(folded)
    assert all(
        text[offsets[place]] == character
        for place, character in enumerate(folded)
        if text.isascii() and "\\" not in text and "\t" not in text and "%" not in text
    )
