"""Functions and files stay small; what is longer has a reason, and only shrinks."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

import pytest

from tests.style.tree import REPOSITORY, name_of, python_files

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500


def functions_of(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Qualified name and length of every function below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # most of a tree, and no function stands in one
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield prefix + child.name, child.end_lineno - child.lineno + 1
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")
        else:
            yield from functions_of(child, prefix)


def too_long() -> dict[str, int]:
    """Lines of everything that is over its limit, by file or `file::function`."""
    found: dict[str, int] = {}
    for path in python_files():
        text = path.read_text()
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            found[name_of(path)] = lines
        for name, length in functions_of(ast.parse(text)):
            if length > FUNCTION_LINES_MAX:
                found[f"{name_of(path)}::{name}"] = length
    return found


@pytest.mark.slow
def test_only_what_has_a_reason_is_long_and_it_never_grows() -> None:
    text = (REPOSITORY / "tests/style/exceptions.toml").read_text()
    entries = {entry["subject"]: entry for entry in tomllib.loads(text)["exceptions"]}
    assert all(len(entry["reason"]) > 20 for entry in entries.values())
    found = too_long()
    grown = {
        subject: f"{lines} lines, allowed are {entries.get(subject, {}).get('lines', 'none')}"
        for subject, lines in found.items()
        if lines > entries.get(subject, {"lines": 0})["lines"]
    }
    assert grown == {}
    assert sorted(set(entries) - set(found)) == [], "these fit again: remove their exceptions"


def test_the_measure_sees_nested_functions() -> None:
    text = (
        "class A:\n    def outer(self):\n        def inner():\n            pass\n        inner()\n"
    )
    assert dict(functions_of(ast.parse(text))) == {"A.outer": 4, "A.outer.inner": 2}
