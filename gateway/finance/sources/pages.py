"""JSON as vendors' APIs return it: one page, several in a list, or one per line.

Digits are kept (`Decimal`), a key that stands twice is an error, and so is a last page that says
that there are more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NoReturn, cast

from gateway.finance.errors import UnreadableSource
from gateway.finance.sources.rows import SourceFile, Wrong, to_list, to_object


def decode_text(content: bytes, name: str, *, encoding: str = "utf-8-sig") -> str:
    """The text of a file.

    Raises:
        UnreadableSource: It is not of that encoding.
    """
    try:
        return content.decode(encoding)
    except (ValueError, LookupError) as error:
        raise UnreadableSource([f"{name}: is not {encoding} text: {error}"]) from error


def load_pages(content: bytes, file: SourceFile) -> list[Mapping[str, object]]:
    """The pages of a file, in its order.

    Raises:
        UnreadableSource: It is no JSON, or a page is no object.
    """
    text = decode_text(content, file.name)
    try:
        whole = _loads(text)
        documents = cast("list[object]", whole) if isinstance(whole, list) else [whole]
    except _UNREADABLE as error:
        documents = _load_lines(text, file, error)
    try:
        pages = [
            to_object(page, f"page {number}") for number, page in enumerate(documents, start=1)
        ]
    except Wrong as error:
        raise UnreadableSource([f"{file.name}: {error}"]) from error
    if pages and pages[-1].get("has_more") is True:
        raise UnreadableSource(
            [f"{file.name}: the last page says has_more; fetch the pages that are missing"]
        )
    return pages


def entries(
    pages: Sequence[Mapping[str, object]], file: SourceFile
) -> Iterator[tuple[int, str, Mapping[str, object]]]:
    """The entries of every page's `data`, with a running number and their place in the file."""
    number = 0
    for page_number, page in enumerate(pages, start=1):
        prefix = f"page {page_number} " if len(pages) > 1 else ""
        try:
            data = to_list(page.get("data"), "data")
        except Wrong as error:
            file.wrong(f"{prefix}".strip() or "page 1", error)
            continue
        for index, entry in enumerate(data):
            number += 1
            place = f"{prefix}data[{index}]"
            try:
                yield number, place, to_object(entry, place)
            except Wrong as error:
                file.wrong(place, error)


def _load_lines(text: str, file: SourceFile, error: Exception) -> list[object]:
    """One document per line; a file of a single line is told by its own error."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line]
    problems: list[str] = []
    documents: list[object] = []
    for number, line in lines:
        try:
            documents.append(_loads(line))
        except _UNREADABLE as line_error:
            problems.append(f"{file.name}:{number}: is no JSON: {line_error}")
    if not documents:
        raise UnreadableSource([f"{file.name}: is no JSON: {error}"]) from error
    if problems:
        raise UnreadableSource(problems)
    return documents


def _loads(text: str) -> object:
    return cast(
        "object",
        json.loads(
            text,
            parse_float=Decimal,
            parse_constant=_refuse,
            object_pairs_hook=_once_each,
        ),
    )


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


_UNREADABLE = (ValueError, RecursionError)
"""What decoding raises; `JSONDecodeError` is a `ValueError`."""
