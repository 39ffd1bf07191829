"""The YAML reader: lines, digits, repeated keys, and the bounds that a hostile file meets."""

from decimal import Decimal

import pytest

from gateway.settings import nodes, reader
from gateway.settings.errors import ConfigError


def read(content):
    if isinstance(content, str):
        content = content.encode()
    root, problems = reader.parse(content, "f.yaml")
    return nodes.plain(root), [str(problem) for problem in problems]


def fault(content):
    with pytest.raises(ConfigError) as caught:
        read(content)
    return str(caught.value)


VALUES = {
    "a fraction keeps its digits": ("0.10", Decimal("0.10")),
    "more digits than a float holds": ("0.1234567890123456789", Decimal("0.1234567890123456789")),
    "an exponent": ("5e-8", Decimal("5e-8")),
    "a whole number": ("500", 500),
    "a negative number": ("-3", -3),
    "a leading zero is text": ("010", "010"),
    "a sexagesimal number is text": ("1:30", "1:30"),
    "a date is text": ("2027-06-30", "2027-06-30"),
    "the country code of Norway is text": ("no", "no"),
    "on is text": ("on", "on"),
    "true is true": ("true", True),
    "a quoted number is text": ("'5'", "5"),
    "a quoted truth is text": ('"true"', "true"),
    "a tilde is nothing": ("~", None),
    "an empty value is nothing": ("", None),
    "infinity is text": (".inf", ".inf"),
    "five thousand digits are text": ("9" * 5000, "9" * 5000),
    "a list is a tuple": ("[1, a]", (1, "a")),
}


@pytest.mark.parametrize(("text", "value"), VALUES.values(), ids=VALUES.keys())
def test_a_scalar_is_read_without_surprises(text, value):
    (found,) = read(f"key: {text}\n")[0].values()
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_whatever_they_look_like():
    assert read("{1: a, true: b, 2027-01-01: c}")[0] == {"1": "a", "true": "b", "2027-01-01": "c"}


def test_a_repeated_key_names_both_lines_and_the_first_one_counts():
    document, problems = read("a: 1\nb: 2\na: 3\n")
    assert document == {"a": 1, "b": 2}
    assert problems == ["f.yaml:3: a: key `a` repeats line 1"]


def test_every_repeated_key_is_reported():
    assert len(read("a: {x: 1, x: 2}\nb: {y: 1, y: 2}\n")[1]) == 2


def test_a_byte_order_mark_is_no_part_of_the_first_key():
    assert read(b"\xef\xbb\xbfkey: 1")[0] == {"key": 1}


def test_an_empty_file_is_an_empty_mapping():
    assert read("# nothing\n") == ({}, [])


def test_an_alias_stands_for_what_it_names():
    assert read("a: &x [1, 2]\nb: *x\n")[0] == {"a": (1, 2), "b": (1, 2)}


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
FAULTS = {
    "aliases that multiply": (LAUGHS, "stands for more than 100000 values"),
    "an alias of itself": ("a: &a [*a]", "refers to nothing above it"),
    "an unknown alias": ("a: *b", "refers to nothing above it"),
    "nesting without end": ("[" * 50_000, "nest"),
    "nesting a little too deep": ("[" * 33, "nested deeper than 32"),
    "nested mappings without end": ("{a: " * 100, "nested deeper than 32"),
    "a file too large": (b"#" * (reader.FILE_BYTES_MAX + 1), "larger than 1024 KiB"),
    "bytes that are no UTF-8": (b"a: 1\nb: \xff\xfe\n", "f.yaml:2: the file is not UTF-8"),
    "a character that YAML forbids": ("a: \x01", "not valid YAML"),
    "a lone surrogate": ("a: \ud800".encode("utf-8", "surrogatepass"), "not UTF-8"),
    "two documents": ("a: 1\n---\nb: 2\n", "more than one document"),
    "a list at the top": ("- a\n", "must be a mapping of sections"),
    "a word at the top": ("word", "must be a mapping of sections"),
    "a list as a key": ("? [a]\n: 1\n", "a key must be plain text"),
    "an unclosed quote": ('a: 1\nb: "x', "not valid YAML"),
    "a tab as indentation": ("a:\n\tb: 1\n", "f.yaml:2: not valid YAML: a tab; indent"),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_file_beyond_the_bounds_is_refused(content, message):
    assert message in fault(content)


def test_a_syntax_error_names_its_line():
    assert fault("a: 1\nb: [1, 2\nc: 3\n").startswith("f.yaml:3: not valid YAML")


def test_a_tag_that_would_make_an_object_is_refused():
    assert read("a: !!python/object:os.system {}\n")[1] == [
        "f.yaml:1: YAML tags are not allowed here"
    ]


def test_merge_keys_are_refused_by_name():
    assert read("a: &a {x: 1}\nb: {<<: *a}\n")[1] == [
        "f.yaml:2: merge keys (`<<`) are not supported; use `include:`"
    ]


def test_thousands_of_faults_do_not_make_thousands_of_problems():
    assert fault("a: 1\n" * 5000).count("\n") == reader.PROBLEMS_MAX - 1


def test_a_path_is_located_as_deep_as_the_file_goes():
    root, _ = reader.parse(b"a:\n  b:\n    - x\n    - y: 1\n", "f.yaml")
    place = nodes.locate(root, ("a", "tag-of-a-union", "b", 1, "y", "missing"))
    assert (place.line, place.key_path) == (4, "a.b[1].y")


def test_both_parsers_read_the_same(monkeypatch):
    text = "a: {b: [1, 2.50, 'x', \"y\", null, true], c: |\n  long\n }\nd: &k {e: f}\ng: *k\n"
    text = text.replace("c: |\n  long\n ", "c: long")
    fast = read(text)
    monkeypatch.delattr(reader.yaml, "CSafeLoader")
    assert read(text) == fast
