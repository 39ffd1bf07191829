"""Which schema this release needs, without anything that knows databases."""

from __future__ import annotations

from importlib.resources import files


def newest_version() -> str:
    """The newest version by the names of the migrations' files."""
    versions = files("migrations").joinpath("versions").iterdir()
    return max(one.name.partition("_")[0] for one in versions if one.name.endswith(".py"))
