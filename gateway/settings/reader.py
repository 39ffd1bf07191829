"""YAML read into a tree that knows its lines, within fixed bounds.

The tree is built from the parser's events, without recursion, so that a hostile file meets the
bounds on size, depth and aliases before it costs anything. Only JSON's scalars are recognised, so
`no`, `1:30` and `010` stay text, and a fraction becomes a `Decimal`: no money ever passes through
a float. Repeated keys are problems, with both lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol, cast

import yaml

from gateway.settings.errors import ConfigError, Problem
from gateway.settings.nodes import Entry, Mapping, Node, Scalar, Sequence, shorten

FILE_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 32
NODES_MAX = 100_000
"""Nodes of one file after aliases are written out; 20 laughs that double are a million."""
PROBLEMS_MAX = 100

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,29})")
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]{0,29})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,2})?")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}
_TEXT_TAG = "tag:yaml.org,2002:str"


def parse(content: bytes, file: str) -> tuple[Mapping, tuple[Problem, ...]]:
    """Read one YAML document whose root is a mapping.

    Args:
        content: The file; UTF-8, with or without a byte order mark.
        file: Its name in problems.

    Returns:
        The tree, and problems that leave it usable (repeated keys, refused tags).

    Raises:
        ConfigError: The bytes are no YAML mapping, or larger than the bounds.
    """
    if len(content) > FILE_BYTES_MAX:
        raise _fatal(file, None, f"the file is larger than {FILE_BYTES_MAX // 1024} KiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _fatal(file, line, "the file is not UTF-8") from error
    builder = _Builder(file=file)
    try:
        for event in _events(text):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        reason = str(error.problem or error.context)
        if mark is not None and _character(text, mark) == "\t":
            reason = "a tab; indent with spaces"
        raise _fatal(file, line, f"not valid YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise _fatal(file, None, "not valid YAML: it holds a character YAML forbids") from error
    root = builder.root
    if root is None or (isinstance(root, Scalar) and root.value is None):
        root = Mapping(entries={}, file=file, line=1)
    if not isinstance(root, Mapping):
        raise _fatal(file, root.line, "the file must be a mapping of sections such as `server:`")
    return root, tuple(builder.problems)


def _character(text: str, mark: yaml.Mark) -> str:
    """What stands where YAML gave up; libyaml's marks have no text of their own."""
    lines = text.split("\n")
    return lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""


def _events(text: str) -> Iterator[yaml.Event]:
    # libyaml is 20 times faster; the wheel carries it nearly everywhere.
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read_events = cast("Callable[[str, type], Iterator[yaml.Event]]", cast("object", yaml.parse))
    return read_events(text, loader)


class _Mark(Protocol):
    """Where an event begins."""

    line: int


class _Event(Protocol):
    """What the stubs leave untyped; all but the mark only where the kind of event has it."""

    start_mark: _Mark
    tag: str | None
    anchor: str | None
    value: str
    style: str | None


def _fatal(file: str, line: int | None, message: str) -> ConfigError:
    return ConfigError((Problem(file=file, line=line, key_path="", message=message),))


@dataclass(slots=True, kw_only=True)
class _Open:
    """A collection whose end has not been read yet."""

    node: Mapping | Sequence
    anchor: str | None
    size: int = 1
    key: Scalar | None = None


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Turns events into nodes with a stack of open collections."""

    file: str
    root: Node | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    _stack: list[_Open] = field(default_factory=list[_Open])
    _anchors: dict[str, tuple[Node, int]] = field(default_factory=dict[str, tuple[Node, int]])
    _nodes: int = 0
    _documents: int = 0

    def feed(self, event: yaml.Event) -> None:
        """Take the next event.

        Raises:
            ConfigError: A bound is passed, or the file means nothing that could go on.
        """
        facts = cast("_Event", cast("object", event))
        line = facts.start_mark.line + 1
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise _fatal(self.file, line, "the file holds more than one document")
            case yaml.ScalarEvent():
                self._check_tag(facts.tag, line)
                scalar = Scalar(value=_value(facts), file=self.file, line=line)
                self._remember(facts.anchor, scalar, 1)
                self._place(scalar, size=1, line=line)
            case yaml.MappingStartEvent():
                self._open(Mapping(entries={}, file=self.file, line=line), facts.tag, facts.anchor)
            case yaml.SequenceStartEvent():
                self._open(Sequence(items=[], file=self.file, line=line), facts.tag, facts.anchor)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = self._stack.pop()
                self._remember(done.anchor, done.node, done.size)
                self._place(done.node, size=done.size, line=done.node.line)
            case yaml.AliasEvent():
                self._alias(facts.anchor or "", line)
            case _:
                return

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self._anchors:
            raise _fatal(self.file, line, f"alias *{anchor} refers to nothing above it")
        node, size = self._anchors[anchor]
        self._place(node, size=size, line=line)

    def _open(self, node: Mapping | Sequence, tag: str | None, anchor: str | None) -> None:
        if len(self._stack) >= DEPTH_MAX:
            raise _fatal(self.file, node.line, f"the file is nested deeper than {DEPTH_MAX}")
        self._check_tag(tag, node.line)
        self._stack.append(_Open(node=node, anchor=anchor))

    def _remember(self, anchor: str | None, node: Node, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, size)

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag not in (None, "!", _TEXT_TAG):
            self._report(line, "YAML tags are not allowed here")

    def _place(self, node: Node, *, size: int, line: int) -> None:
        """Put a finished node, `size` nodes large, where it belongs."""
        self._nodes += size if not isinstance(node, Scalar) and size > 1 else 1
        if self._nodes > NODES_MAX or size > NODES_MAX:
            raise _fatal(self.file, line, f"the file stands for more than {NODES_MAX} values")
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        parent.size += size
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            if not isinstance(node, Scalar):
                raise _fatal(self.file, line, "a key must be plain text")
            parent.key = Scalar(value=_key_text(node), file=self.file, line=line)
        else:
            self._add_entry(parent.node, parent.key, node)
            parent.key = None

    def _add_entry(self, mapping: Mapping, key: Scalar, node: Node) -> None:
        name = str(key.value)
        earlier = mapping.entries.get(name)
        if earlier is not None:
            self._report(key.line, f"key `{shorten(name)}` repeats line {earlier.line}", name)
        elif name == "<<":
            self._report(key.line, "merge keys (`<<`) are not supported; use `include:`")
        else:
            mapping.entries[name] = Entry(file=self.file, line=key.line, node=node)

    def _report(self, line: int, message: str, name: str = "") -> None:
        self.problems.append(
            Problem(file=self.file, line=line, key_path=shorten(name), message=message)
        )
        if len(self.problems) >= PROBLEMS_MAX:
            raise ConfigError(tuple(self.problems))


def _key_text(node: Scalar) -> str:
    match node.value:
        case bool() | None:
            return "null" if node.value is None else str(node.value).lower()
        case _:
            return str(node.value)


def _value(event: _Event) -> str | int | bool | Decimal | None:
    """The value of a scalar; only unquoted ones can be anything but text."""
    text = event.value
    if event.style or event.tag is not None:  # libyaml gives '' for unquoted, PyYAML None
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    return text
