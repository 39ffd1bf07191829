"""Which schema this release needs, without anything that knows databases."""

from __future__ import annotations

from importlib.resources import files


def versions() -> frozenset[str]:
    """Every version that this release knows, by the names of the migrations' files."""
    found = files("migrations").joinpath("versions").iterdir()
    return frozenset(one.name.partition("_")[0] for one in found if _is_version(one.name))


def newest_version() -> str:
    """The newest of them."""
    return max(versions())


def _is_version(name: str) -> bool:
    return name.endswith(".py") and not name.startswith("_")
