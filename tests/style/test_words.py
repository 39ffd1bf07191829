"""What never belongs into the tree: private paths, registries' hosts, loose ends, swallowed errors."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.style.tree import REPOSITORY, name_of, package_files, tracked_files

TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".sql", ".toml", ".txt"}
    | {".yaml", ".yml"}
)

# The patterns would find themselves here.
THIS_FILE = Path(__file__).resolve()

BANNED = {
    "paths of one machine": r"(?<![\w.])/(work|root|home/\w+)/",
    "hosts of package registries": r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs|pypi\.python)",
    "loose ends without an issue number": r"\b(TODO|FIXME|XXX)\b(?! #\d+)",
    "markers of a merge": r"^(<{7}|>{7}) ",
    "keys that look real": r"\b(sk-[A-Za-z0-9]{32,}|gsk_[A-Za-z0-9]{32,}|AKIA[0-9A-Z]{16})\b",
}


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Name and text of every tracked text file."""
    paths = (path for path in tracked_files() if path.suffix in TEXT_SUFFIXES)
    # Vendored files are somebody else's words.
    kept = (path for path in paths if path != THIS_FILE and "vendor" not in path.parts)
    return [(name_of(path), path.read_text(errors="replace")) for path in kept]


@pytest.mark.parametrize("pattern", BANNED.values(), ids=BANNED.keys())
def test_the_tree_is_free_of(pattern: str) -> None:
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group(0)}"
        for name, text in texts()
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]
    assert found == []


def test_no_package_swallows_every_error() -> None:
    found = []
    for path in package_files():
        text = path.read_text()
        if not re.search(r"\bpass\b", text):
            continue  # as most files: parsing them all takes a second
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type else "everything"
            is_silent = all(isinstance(part, ast.Pass) for part in node.body)
            if is_silent and caught in {"everything", "Exception", "BaseException"}:
                found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []


def test_the_example_and_the_licence_are_there() -> None:
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()
    assert (REPOSITORY / "fareway.example.yaml").is_file()
