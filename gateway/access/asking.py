"""Who asks, and for which rows: what the entrance found out, as handlers take it.

The entrance puts both into the request's scope before a handler runs; FastAPI is loaded with this
module, so only pages and API import it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from gateway.access.restriction import Restriction
from gateway.access.roles import Viewer

_VIEWER = "fareway.viewer"
_RESTRICTION = "fareway.restriction"


def let_in(scope: MutableMapping[str, Any], viewer: Viewer, restriction: Restriction) -> None:
    """Note in a request's scope who asks, and which rows they may touch."""
    scope[_VIEWER] = viewer
    scope[_RESTRICTION] = restriction


def is_let_in(scope: MutableMapping[str, Any]) -> bool:
    """Whether the entrance noted somebody in a request's scope."""
    return _VIEWER in scope


def viewer_of(request: Request) -> Viewer:
    """Who asks."""
    return cast("Viewer", request.scope[_VIEWER])


def restriction_of(request: Request) -> Restriction:
    """The rows that whoever asks may touch here."""
    return cast("Restriction", request.scope[_RESTRICTION])


Asking = Annotated[Viewer, Depends(viewer_of)]
"""Who asks, as a parameter of a handler."""
Within = Annotated[Restriction, Depends(restriction_of)]
"""The rows that whoever asks may touch, as a parameter of a handler."""
