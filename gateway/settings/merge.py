"""`include:` files joined into one tree; what two files both say is a conflict, naming both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.settings import nodes, reader
from gateway.settings.errors import ConfigError, Problem

FILES_MAX = 256

_JOINED_SECTIONS = frozenset(
    {("privacy", "tags"), ("privacy", "sinks"), ("privacy", "detect"), ("server", "timeouts")}
)
"""Mappings below the sections that several files may fill together; deeper, one file owns all."""


def read(path: Path) -> tuple[nodes.Mapping, tuple[Problem, ...]]:
    """Read one file within the bounds.

    Raises:
        ConfigError: It cannot be read, or is no YAML mapping.
    """
    try:
        with path.open("rb") as file:
            content = file.read(reader.FILE_BYTES_MAX + 1)
    except OSError as error:
        problem = Problem(
            file=str(path), line=None, key_path="", message=f"cannot be read: {error.strerror}"
        )
        raise ConfigError((problem,)) from error
    return reader.parse(content, str(path))


def with_includes(
    root: nodes.Mapping, folder: Path, *, own_path: Path | None = None
) -> tuple[nodes.Mapping, tuple[Path, ...], tuple[Problem, ...]]:
    """Join a file with those that it includes.

    Args:
        root: The file that includes.
        folder: Where its globs begin.
        own_path: The including file, which a glob may find too.

    Returns:
        The joined tree, the included files, and what is wrong with them.
    """
    paths, problems = _included(root, folder)
    if own_path is not None:
        own = own_path.resolve()
        paths = [path for path in paths if path.resolve() != own]
    joined = root
    for path in paths:
        try:
            part, found = read(path)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        problems.extend(found)
        if "include" in part.entries:
            line = part.entries["include"].line
            message = "an included file cannot include others"
            problems.append(Problem(file=str(path), line=line, key_path="include", message=message))
        joined = _join(joined, part, (), problems)
    return joined, tuple(paths), tuple(problems)


def _included(root: nodes.Mapping, folder: Path) -> tuple[list[Path], list[Problem]]:
    problems: list[Problem] = []
    paths: dict[Path, None] = {}
    for pattern, place in _patterns(root):
        try:
            found = sorted(path for path in folder.glob(pattern) if path.is_file())
        except (NotImplementedError, ValueError):
            message = "must be a glob below the file's folder, such as conf.d/*.yaml"
            problems.append(_at(place, "include", message))
            continue
        if not found and not any(character in pattern for character in "*?["):
            problems.append(_at(place, "include", "there is no such file"))
        paths.update(dict.fromkeys(found))
        if len(paths) > FILES_MAX:
            problems.append(_at(place, "include", f"includes more than {FILES_MAX} files"))
            break
    return list(paths)[:FILES_MAX], problems


def _patterns(root: nodes.Mapping) -> Iterator[tuple[str, nodes.Scalar]]:
    entry = root.entries.get("include")
    if entry is None or not isinstance(entry.node, nodes.Sequence):
        return
    for item in entry.node.items:
        if isinstance(item, nodes.Scalar) and isinstance(item.value, str):
            yield item.value, item


def _at(node: nodes.Scalar | nodes.Entry, key_path: str, message: str) -> Problem:
    return Problem(file=node.file, line=node.line, key_path=key_path, message=message)


def _join(
    left: nodes.Mapping, right: nodes.Mapping, path: tuple[str, ...], problems: list[Problem]
) -> nodes.Mapping:
    entries = dict(left.entries)
    for key, added in right.entries.items():
        if path == () and key == "include":
            continue
        earlier = entries.get(key)
        here = (*path, key)
        if earlier is None:
            entries[key] = added
        elif (
            (len(here) == 1 or here in _JOINED_SECTIONS)
            and isinstance(earlier.node, nodes.Mapping)
            and isinstance(added.node, nodes.Mapping)
        ):
            node = _join(earlier.node, added.node, here, problems)
            entries[key] = nodes.Entry(file=earlier.file, line=earlier.line, node=node)
        else:
            message = f"is also set in {earlier.file}:{earlier.line}"
            problems.append(_at(added, ".".join(here), message))
    return nodes.Mapping(entries=entries, file=left.file, line=left.line)
