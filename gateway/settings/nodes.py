"""Configuration as a tree that knows its lines, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from gateway.settings.errors import Problem

Plain = str | int | bool | Decimal | None | dict[str, "Plain"] | tuple["Plain", ...]
"""A tree without lines, as the models take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value and the line on which it stands."""

    value: str | int | bool | Decimal | None
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One `key: value`, with the place of the key."""

    file: str
    line: int
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Keys with their values, in the order of the file."""

    entries: dict[str, Entry]
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Items in the order of the file.

    Attributes:
        items: The items.
        file: The file.
        line: Where the list begins.
        numbers: What each item is counted as in the file, where items were left out.
    """

    items: list[Node]
    file: str
    line: int
    numbers: tuple[int, ...] | None = None


Node = Scalar | Mapping | Sequence


def plain(node: Node) -> Plain:
    """Strip the lines: mappings become dicts with text keys, sequences become tuples."""
    match node:
        case Scalar():
            return node.value
        case Mapping():
            return {key: plain(entry.node) for key, entry in node.entries.items()}
        case Sequence():
            return tuple(plain(item) for item in node.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a key stands; `key_path` is as much of the asked path as the tree holds."""

    file: str
    line: int
    key_path: str

    def problem(self, message: str) -> Problem:
        """A problem with what stands here."""
        return Problem(file=self.file, line=self.line, key_path=self.key_path, message=message)


def locate(root: Mapping, path: tuple[str | int, ...]) -> Place:
    """Find the deepest key or item of a path that the tree has.

    Steps that the tree does not know (the tag of a union, the index of a single value that stands
    for a list) are passed over.
    """
    node: Node = root
    place = Place(file=root.file, line=root.line, key_path="")
    for step in path:
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            entry = node.entries[step]
            name = shorten(step)
            key_path = f"{place.key_path}.{name}" if place.key_path else name
            node, place = entry.node, Place(file=entry.file, line=entry.line, key_path=key_path)
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            number = step if node.numbers is None else node.numbers[step]
            node = node.items[step]
            key_path = f"{place.key_path}[{number}]"
            place = Place(file=node.file, line=node.line, key_path=key_path)
    return place


def known_steps(root: Mapping, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The steps of a path that the tree has, as `locate` takes them."""
    node: Node = root
    steps: list[str | int] = []
    for step in path:
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            node = node.entries[step].node
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        else:
            continue
        steps.append(step)
    return tuple(steps)


def without(root: Mapping, paths: frozenset[tuple[str | int, ...]]) -> Mapping:
    """A copy of a tree without what stands at `paths`; an empty path leaves nothing.

    Args:
        root: The tree; not modified.
        paths: Paths as `known_steps` gives them.
    """
    if () in paths:
        return Mapping(entries={}, file=root.file, line=root.line)
    copy = _without(root, (), paths)
    assert isinstance(copy, Mapping)
    return copy


def _without(
    node: Node, path: tuple[str | int, ...], paths: frozenset[tuple[str | int, ...]]
) -> Node:
    match node:
        case Scalar():
            return node
        case Mapping():
            entries = {
                key: replace(entry, node=_without(entry.node, (*path, key), paths))
                for key, entry in node.entries.items()
                if (*path, key) not in paths
            }
            return replace(node, entries=entries)
        case Sequence():
            kept = [index for index in range(len(node.items)) if (*path, index) not in paths]
            numbers = node.numbers or tuple(range(len(node.items)))
            return replace(
                node,
                items=[_without(node.items[index], (*path, index), paths) for index in kept],
                numbers=tuple(numbers[index] for index in kept),
            )


def shorten(name: str) -> str:
    """A key as it may be shown: on one line, and not endless."""
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return shown if len(shown) <= 128 else f"{shown[:125]}..."
