"""Which part of the suite a test belongs to, and which files a part can do without.

A test says by a marker that it takes long; one that needs a PostgreSQL is `slow` without saying so.

Importing 300 files of tests costs seconds in each process that shares the tests, and no part needs
all of them: the unit part none of those whose every test is marked `slow`, the others only those
that name their marker. What a file can hold is told from its text, before it is imported.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

MARKERS = frozenset({"slow", "ci", "soak", "gpu", "live"})
"""Markers that move a test to another part of the suite."""

_SERVER_FIXTURE = "shared_postgres"
_SERVER_PARAMETER = "postgresql"
_REPOSITORY = Path(__file__).resolve().parents[2]
_MARK = re.compile(r"\bmark\.(\w+)")
_OF_ALL = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)$", re.MULTILINE)
_HARNESS = re.compile(r"^from (tests\.[\w.]+) import", re.MULTILINE)


def needs_server(item: pytest.Item) -> bool:
    """Whether a test asks for a PostgreSQL, by a fixture or by a parameter that says so."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = _SERVER_PARAMETER in (value for value in parameters if isinstance(value, str))
    return named or _SERVER_FIXTURE in getattr(item, "fixturenames", ())


@functools.cache
def markers_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The markers that every test of a file has, and those that some may have."""
    text = path.read_text()
    stated = _OF_ALL.search(text)
    of_all = _MARK.findall(stated.group(1)) if stated else []
    # A fixture may come from a harness.
    harnesses = (_REPOSITORY / f"{name.replace('.', '/')}.py" for name in _HARNESS.findall(text))
    whole = "\n".join([text, *(each.read_text() for each in harnesses if each.is_file())])
    of_some = {*_MARK.findall(whole), *(["slow"] if "postgres" in whole else [])}
    return MARKERS.intersection(of_all), MARKERS.intersection(of_some)


def can_select(selection: str, path: Path) -> bool:
    """Whether a marker expression can select a test of a file.

    Args:
        selection: As given to `-m`; one that names other markers can select anything.
        path: The file.
    """
    try:
        parsed = ast.parse(selection, mode="eval")
    except SyntaxError:
        return True  # pytest says what is wrong with it
    if not {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)} <= MARKERS:
        return True
    of_all, of_some = markers_of(path)
    free = of_some - of_all
    program = compile(parsed, "-m", "eval")
    chosen = itertools.product((False, True), repeat=len(free))
    return any(
        eval(program, dict.fromkeys(MARKERS, False) | dict.fromkeys(of_all, True) | one)
        for one in (dict(zip(free, values, strict=True)) for values in chosen)
    )


def is_needless(path: Path, selection: str) -> bool:
    """Whether a selection needs nothing of a file; only of files of tests."""
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    return is_test and bool(selection) and not can_select(selection, path)


def place(item: pytest.Item) -> None:
    """Give a test that needs a PostgreSQL its marker.

    Raises:
        UsageError: A test has a marker that its file does not show, so that the file could be left
            out where the test belongs.
    """
    if needs_server(item):
        item.add_marker("slow")
    hidden = MARKERS.intersection(mark.name for mark in item.iter_markers())
    hidden -= markers_of(item.path)[1]
    if hidden:
        raise pytest.UsageError(
            f"{item.nodeid} is marked {', '.join(sorted(hidden))} by something that its file does"
            " not show: write pytest.mark into the file, or into a module of tests that it imports"
        )
