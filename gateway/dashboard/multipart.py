"""Forms with files, as browsers send them: `multipart/form-data`, whole and in memory.

A small part of RFC 7578, and strict: what a browser sends is taken, anything else is refused. The
body is bounded before it gets here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PARTS_MAX = 64
FIELD_BYTES_MAX = 70_000
_HEAD_BYTES_MAX = 4_096
_BOUNDARY = re.compile(
    r"""multipart/form-data;(?:[^"]*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";]{1,70}))\s*""",
    re.ASCII | re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb'content-disposition: *form-data; *name="([^"\r\n]{1,128})"'
    rb'(?:; *filename="([^"\r\n]{0,1024})")? *',
    re.IGNORECASE,
)
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}
_ESCAPED = re.compile("|".join(_ESCAPES), re.IGNORECASE)


class BadForm(ValueError):
    """A body is not what a browser sends for a form with files; the message says why."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form.

    Attributes:
        name: As the browser says; the last part of a path, empty where no file was chosen.
        content: Its bytes.
    """

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """The fields and files of a form by name; of several with one name, the last one."""

    fields: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, Upload] = field(default_factory=dict[str, Upload])


def boundary_of(content_type: str) -> bytes | None:
    """The boundary between parts; None where the body is no form with files."""
    found = _BOUNDARY.fullmatch(content_type.strip())
    return None if found is None else (found[1] or found[2]).encode("ascii", "replace")


def parse_form(body: bytes, boundary: bytes) -> Form:
    """Take a body apart.

    Args:
        body: Whole.
        boundary: As the header names it.

    Raises:
        BadForm: It is not well formed, or has too many or too large fields.
    """
    mark = b"--" + boundary
    if not body.startswith(mark):
        raise BadForm("the form does not begin with its boundary")
    form, at = Form(), len(mark)
    for _ in range(PARTS_MAX):
        if body.startswith(b"--", at):
            return form
        if not body.startswith(b"\r\n", at):
            raise BadForm("a boundary of the form is not followed by a new line")
        end = body.find(b"\r\n" + mark, at)
        head_end = body.find(b"\r\n\r\n", at, at + _HEAD_BYTES_MAX)
        if not 0 <= head_end <= end - 4:
            raise BadForm("a part of the form has no head, or no end")
        _take(form, body[at + 2 : head_end], body[head_end + 4 : end])
        at = end + 2 + len(mark)
    raise BadForm(f"the form has more than {PARTS_MAX} parts")


def _take(form: Form, head: bytes, content: bytes) -> None:
    """Add a part.

    Raises:
        BadForm: It has no name, or is a field that is no text.
    """
    found = next(filter(None, map(_DISPOSITION.fullmatch, head.split(b"\r\n"))), None)
    if found is None:
        raise BadForm("a part of the form has no name")
    name = _text(found[1], "a name")
    if found[2] is not None:
        said = _ESCAPED.sub(lambda one: _ESCAPES[one[0].upper()], _text(found[2], "a file's name"))
        form.files[name] = Upload(re.split(r"[/\\]", said)[-1], content)
        return
    if len(content) > FIELD_BYTES_MAX:
        raise BadForm(f"the field {name!r} is longer than {FIELD_BYTES_MAX} bytes")
    form.fields[name] = _text(content, f"the field {name!r}")


def _text(content: bytes, what: str) -> str:
    """What bytes say.

    Raises:
        BadForm: They are no text that a database keeps.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BadForm(f"{what} of the form is no UTF-8 text") from error
    if "\0" in text:
        raise BadForm(f"{what} of the form holds a NUL")
    return text
