"""The one place that decides whether whoever asks may use a route of `/ui` or `/admin/v1`.

It runs before a body is read: find the route, find who asks, look both up in the one table
(`gateway.access.permissions`). Handlers get the rows that they may touch as `Within`; a route whose
action some role may use on some rows only has to ask for them, or the pages do not start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match

from gateway import errors
from gateway.access.asking import let_in, restriction_of
from gateway.access.permissions import ROUTES, Action, has_narrow_reach, restriction_for
from gateway.access.roles import Viewer
from gateway.http.messages import Headers, Scope

API = "/admin/v1/"
PAGES = "/ui"
_SAFE = frozenset({"GET", "HEAD"})
_KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})


class UnknownRoute(Exception):
    """A route has no entry in the table of permissions, or does not ask for its rows."""


class LoginNeeded(Exception):
    """A page is for those who are logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Lets requests in.

    Attributes:
        routes: Every route of pages and API.
        viewer_of_key: Who sends a key; raises what the client is to be answered.
        viewer_of_session: Who has the session of a request's cookie, None for nobody.
        is_our_call: Whether a call with a session's cookie comes from a page of ours.
    """

    routes: Sequence[BaseRoute]
    viewer_of_key: Callable[[Headers], Viewer]
    viewer_of_session: Callable[[Scope], Awaitable[Viewer | None]]
    is_our_call: Callable[[Scope], bool]

    async def admit(self, scope: Scope) -> None:
        """Find out whether a request may go on, and put into its scope who asks.

        Raises:
            LoginNeeded: A page was asked for without a session.
            GatewayError: Who asks may not, or is nobody.
        """
        action = self._action(scope)
        if action is Action.PUBLIC:
            return
        is_api = cast("str", scope["path"]).startswith(API)
        if action is None and not is_api:
            return  # there is no such page, and the answer says so
        viewer, has_session = await self._viewer(scope, is_api=is_api)
        if is_api and viewer.is_key_holder:
            raise errors.AdminRequired("this needs the administrator's key, or a person's session")
        if action is None:
            return
        restriction = restriction_for(viewer, action)
        if restriction.is_nothing:
            held = ", ".join(grant.text for grant in viewer.grants)
            raise errors.RoleRequired(f"none of your roles ({held}) may {_spoken(action)}")
        if has_session and is_api and scope["method"] not in _SAFE and not self.is_our_call(scope):
            raise errors.ForeignCall(
                "a call with a session's cookie needs the header x-fareway-csrf, as GET"
                " /admin/v1/session tells it, and comes from a page of this site"
            )
        let_in(scope, viewer, restriction)

    async def _viewer(self, scope: Scope, *, is_api: bool) -> tuple[Viewer, bool]:
        """Who asks, and whether a browser's cookie says so, which other sites can have it send."""
        headers = cast("Headers", scope["headers"])
        # A request with a key is its holder's, whatever cookies come along.
        if is_api and any(name in _KEY_HEADERS for name, _ in headers):
            return self.viewer_of_key(headers), False
        viewer = await self.viewer_of_session(scope)
        if viewer is not None:
            return viewer, True
        if is_api:
            return self.viewer_of_key(headers), False
        raise LoginNeeded

    def _action(self, scope: Scope) -> Action | None:
        """What the request wants to do, None where no route takes it."""
        for route in self.routes:
            if route.matches(scope)[0] is Match.FULL:
                return ROUTES[cast("str", scope["method"]), cast("APIRoute", route).path]
        return None


def check_routes(routes: Sequence[BaseRoute]) -> None:
    """See that the table of permissions and the routes are about the same things.

    Raises:
        UnknownRoute: A route has no entry, an entry has no route, or a handler does not ask for its
            rows.
    """
    found: set[tuple[str, str]] = set()
    for route in cast("Sequence[APIRoute]", routes):
        for method in route.methods or ():
            where = f"{method} {route.path}"
            action = ROUTES.get((method, route.path))
            if action is None:
                raise UnknownRoute(
                    f"{where} has no entry in gateway.access.permissions.ROUTES: say what it does"
                )
            if has_narrow_reach(action) and restriction_of not in _calls(route.dependant):
                raise UnknownRoute(
                    f"{where} ({action.value}) is open to roles that may see some rows only, and"
                    " takes no `Within`"
                )
            found.add((method, route.path))
    for method, path in ROUTES.keys() - found:
        raise UnknownRoute(f"{method} {path} of gateway.access.permissions.ROUTES is no route")


def _calls(dependant: Dependant) -> Iterator[object]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)


def _spoken(action: Action) -> str:
    return action.value.replace("_", " ")
