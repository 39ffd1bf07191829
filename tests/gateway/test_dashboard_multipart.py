"""Forms with files: what browsers send is taken byte by byte, everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dashboard.multipart import (
    FIELD_BYTES_MAX,
    PARTS_MAX,
    BadForm,
    Upload,
    boundary_of,
    parse_form,
)

BOUNDARY = b"----WebKitFormBoundaryx1"


def part(head: str, content: bytes) -> bytes:
    return b"--" + BOUNDARY + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def field(name: str, content: bytes) -> bytes:
    return part(f'Content-Disposition: form-data; name="{name}"', content)


def file(name: str, file_name: str, content: bytes) -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"; filename="{file_name}"'
    return part(f"{head}\r\nContent-Type: application/octet-stream", content)


@settings(max_examples=25)
@given(
    text=st.text(max_size=40).filter(lambda one: "\0" not in one),
    content=st.binary(max_size=200).filter(lambda one: BOUNDARY not in one),
)
def test_fields_and_files_arrive_as_they_were_sent(text, content):
    form = parse_form(body(field("a", text.encode()), file("f", "x.csv", content)), BOUNDARY)
    assert form.fields == {"a": text}
    assert form.files == {"f": Upload("x.csv", content)}


@settings(max_examples=25)
@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_refused(content):
    for one in (content, b"--" + BOUNDARY + content, body(field("a", b"x"))[: len(content)]):
        try:
            parse_form(one, BOUNDARY)
        except BadForm:
            continue


def test_a_files_name_is_the_last_part_of_its_path():
    sent = body(file("f", r"C:\bills\a%22b.csv", b""), file("g", "x/../y.csv", b"1"))
    form = parse_form(sent, BOUNDARY)
    assert [one.name for one in form.files.values()] == ['a"b.csv', "y.csv"]
    assert form.files["f"].content == b""


WRONG = {
    "nothing": b"",
    "no boundary at its beginning": b"hello",
    "a boundary without a new line": b"--" + BOUNDARY + b"x",
    "a part without an end": b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data",
    "a part without a head": b"--" + BOUNDARY + b"\r\n--" + BOUNDARY + b"--",
    "a part without a name": body(part("Content-Type: text/plain", b"x")),
    "a field that is no text": body(field("a", b"\xff")),
    "a name that is no text": body(part('Content-Disposition: form-data; name="@"', b"x")).replace(
        b"@", b"\xff"
    ),
    "a field that is too long": body(field("a", b"x" * (FIELD_BYTES_MAX + 1))),
    "a field that no database keeps": body(field("a", b"x\0")),
    "too many parts": body(*[field("a", b"x")] * (PARTS_MAX + 1)),
}


@pytest.mark.parametrize("sent", WRONG.values(), ids=WRONG.keys())
def test_what_no_browser_sends_is_refused(sent):
    with pytest.raises(BadForm):
        parse_form(sent, BOUNDARY)


def test_the_boundary_is_read_from_the_header():
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    for other in ("", "multipart/form-data", "multipart/form-data; boundary=", "text/plain"):
        assert boundary_of(other) is None
