"""Read a rendered page as a person would: tables, fields of forms, visible text."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class PageReader(HTMLParser):
    """A parsed page.

    Attributes:
        tables: Rows of cell texts by the table's id; header and footer rows included.
        captions: By the table's id.
        fields: Values of hidden fields by name.
        text: All text between tags.
        tags: Names of all elements with their attributes.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.captions: dict[str, str] = {}
        self.fields: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self._table = ""
        self._words: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "every element that was opened is closed"
        self.tables = {
            name: [[" ".join(cell.split()) for cell in row] for row in rows]
            for name, rows in self.tables.items()
        }
        self.text = " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag, attrs) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = attributes["id"]
            self.tables[self._table] = []
            self.captions[self._table] = ""
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        elif tag == "input" and attributes.get("type") == "hidden":
            self.fields[attributes["name"]] = attributes["value"]

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if self._open and self._open[-1] != "title":
            self._words.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[self._table][-1][-1] += data
        elif "caption" in self._open:
            self.captions[self._table] += data
