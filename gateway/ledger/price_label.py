"""How `Intent.price_version` says that a price is nominal, so that every report can tell.

A worker labels, the loader reads; neither side needs anything else of the other.
"""

from __future__ import annotations

NOMINAL = "nominal:"
"""What the label of a nominal price begins with."""


def price_label(version_id: str, *, is_nominal: bool) -> str:
    """The text for `Intent.price_version`; an empty id, for no price, stays empty."""
    return f"{NOMINAL}{version_id}" if is_nominal and version_id else version_id


def is_nominal(label: str) -> bool:
    """Whether a label was made for a nominal price."""
    return label.startswith(NOMINAL)


def plain_version(label: str) -> str:
    """The identity of the price version that a label was made for."""
    return label.removeprefix(NOMINAL)
