"""The files that the style tests look at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "providers", "local_engine", "pricing", "migrations")


def tracked_files() -> list[Path]:
    """Files under version control that are still there; in a release, every file of the tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False
    )
    if listing.returncode:
        hidden = (".git", ".venv", "__pycache__")
        paths = (path for path in REPOSITORY.rglob("*") if path.is_file())
        return [path for path in paths if not any(part in hidden for part in path.parts)]
    names = listing.stdout.decode().split("\0")
    return [REPOSITORY / name for name in names if name and (REPOSITORY / name).is_file()]


def python_files() -> Iterator[Path]:
    """Tracked Python files."""
    return (path for path in tracked_files() if path.suffix == ".py")


def package_files() -> Iterator[Path]:
    """Tracked Python files of the shipped packages."""
    return (path for path in python_files() if path.relative_to(REPOSITORY).parts[0] in PACKAGES)


def name_of(path: Path) -> str:
    """A path as it is written in messages: from the root of the tree, with slashes."""
    return path.relative_to(REPOSITORY).as_posix()
