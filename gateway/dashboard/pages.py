"""`/ui`: log in, the first page, log out. Rendered here, without a script.

Rows are filtered by the query, never by the template: what a team may not see is not read.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.access.asking import viewer_of
from gateway.access.permissions import Action, restriction_for
from gateway.access.roles import ADMINISTRATOR, Viewer, key_holder
from gateway.auth.credentials import is_sendable
from gateway.auth.directory import AuthFailure, KeyDirectory, Principal
from gateway.auth.keys import RandomBytes
from gateway.clock import Clock
from gateway.dashboard.assets import Assets, load_assets
from gateway.dashboard.figures import clock_time, day_query, request_lines, spend_table
from gateway.dashboard.protection import is_https, is_same_origin
from gateway.dashboard.sessions import (
    LOGIN_COOKIE,
    LOGIN_S,
    SESSION_COOKIE,
    SESSION_S,
    Session,
    Sessions,
)
from gateway.errors import LedgerUnavailable
from gateway.ledger.views import RecentQuery, RecentRequest, SpendQuery, SpendReport

PATH = "/ui"
ASSETS = f"{PATH}/static/"
LOGIN = f"{PATH}/login"
REQUESTS_SHOWN = 50
_FORM = "application/x-www-form-urlencoded"
_FIELDS_MAX = 8
_PACKAGE = "gateway.dashboard"


class LedgerReader(Protocol):
    """What the pages ask of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def recent_requests(self, query: RecentQuery) -> list[RecentRequest]:
        """The newest requests, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """The pages.

    Attributes:
        sessions: Opens and reads sessions.
        ledger: Where the numbers come from.
        clock: Time.
        templates: Compiled once.
        assets: Style sheets and scripts.
    """

    sessions: Sessions
    ledger: LedgerReader
    clock: Clock
    templates: Environment
    assets: Assets

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=PATH, include_in_schema=False)
        routes: Sequence[tuple[str, str, Callable[..., object]]] = (
            ("GET", "", self.overview),
            ("GET", "/", self.overview),
            ("GET", "/login", self.login_form),
            ("POST", "/login", self.log_in),
            ("POST", "/logout", self.log_out),
            ("GET", "/static/{name:path}", self.asset),
        )
        for method, path, endpoint in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None)
        return router

    async def overview(self, request: Request) -> Response:
        """Spend of the day and the newest requests: of everybody, or of the key's team."""
        viewer = viewer_of(request)
        now_us = self.clock.wall_us()
        shown = {**self._frame(request), "now": clock_time(now_us)}
        of_spend = restriction_for(viewer, Action.READ_SPEND)
        of_requests = restriction_for(viewer, Action.READ_REQUESTS)
        try:
            is_complete = await self.ledger.catch_up()
            report = await self.ledger.spend_report(day_query(now_us, of_spend.sums))
            requests = await self.ledger.recent_requests(
                RecentQuery(count=REQUESTS_SHOWN, teams=of_requests.sums)
            )
        except LedgerUnavailable:
            return self._page("away.html", shown, status=503)
        shown |= {
            "is_complete": is_complete,
            "sees_spend": not of_spend.is_nothing,
            "sees_requests": not of_requests.is_nothing,
            "spend": spend_table(report, now_us),
            "requests": request_lines(requests, now_us),
        }
        return self._page("overview.html", shown)

    async def refused(self, request: Request, reason: str) -> Response:
        """Say that the roles of whoever looks do not include this page."""
        shown = {**self._frame(request), "reason": reason}
        return self._page("role_required.html", shown, status=403)

    async def login_form(self, request: Request) -> Response:
        """Ask for a key, unless the browser has a session."""
        if self._session(request) is not None:
            return _to(PATH)
        return self._login_page(request, message="", status=200)

    async def log_in(self, request: Request) -> Response:
        """Open a session with the administrator's key or a team's."""
        form = await _form(request)
        cookie = request.cookies.get(LOGIN_COOKIE, "")
        token = self.sessions.login_token(cookie) if cookie else ""
        if not self._is_ours(request, form, token):
            return self._login_page(request, message=_STALE, status=403)
        found = self._find(form.get("key", "").strip())
        if isinstance(found, str):
            return self._login_page(request, message=found, status=401)
        answer = _to(PATH)
        self._set_cookie(request, answer, SESSION_COOKIE, self.sessions.open(found), SESSION_S)
        answer.delete_cookie(LOGIN_COOKIE, path=PATH)
        return answer

    async def log_out(self, request: Request) -> Response:
        """End the browser's session."""
        session = self._session(request)
        if session is not None:
            form = await _form(request)
            if not self._is_ours(request, form, self.sessions.form_token(session)):
                return self._page("refused.html", {}, status=403)
        answer = _to(f"{PATH}/login")
        answer.delete_cookie(SESSION_COOKIE, path=PATH)
        return answer

    async def asset(self, request: Request, name: str) -> Response:
        """A style sheet, a script or a library of the pages."""
        return self.assets.response(
            name,
            digest=request.query_params.get("v"),
            known=request.headers.get("if-none-match"),
        )

    async def viewer(self, request: Request) -> Viewer | None:
        """Who has the browser's session, None for nobody."""
        session = self._session(request)
        if session is None:
            return None
        principal = session.principal
        if principal.is_admin:
            return ADMINISTRATOR
        return key_holder(principal.key_id, principal.key_name, principal.team)

    def _frame(self, request: Request) -> dict[str, object]:
        """What every page of those who are logged in shows."""
        session = self._session(request)
        assert session is not None, "the entrance lets nobody else in"
        return {"viewer": viewer_of(request), "form_token": self.sessions.form_token(session)}

    def _session(self, request: Request) -> Session | None:
        return self.sessions.read(request.cookies.get(SESSION_COOKIE, ""))

    def _find(self, key: str) -> Principal | str:
        """Whose key it is, or why it opens nothing."""
        token = key.encode("utf-8", "surrogatepass")
        if not is_sendable(token):
            return "the API key is malformed: check that it was copied whole"
        directory = self.sessions.directory()
        found = directory.identify(token, now_us=self.clock.wall_us())
        if isinstance(found, AuthFailure):
            return found.message
        if not found.is_admin and not found.team:
            return "this key belongs to no team, so there is nothing that it could show"
        return found

    def _is_ours(self, request: Request, form: Mapping[str, str], token: str) -> bool:
        given = form.get("token", "").encode("utf-8", "surrogatepass")
        is_known = bool(token) and hmac.compare_digest(given, token.encode())
        return is_known and is_same_origin(request.headers)

    def _login_page(self, request: Request, *, message: str, status: int) -> Response:
        cookie = request.cookies.get(LOGIN_COOKIE, "") or self.sessions.new_login()
        shown = {"message": message, "login_token": self.sessions.login_token(cookie)}
        answer = self._page("login.html", shown, status=status)
        self._set_cookie(request, answer, LOGIN_COOKIE, cookie, LOGIN_S)
        return answer

    def _set_cookie(
        self, request: Request, answer: Response, name: str, value: str, lifetime_s: int
    ) -> None:
        answer.set_cookie(
            name,
            value,
            max_age=lifetime_s,
            path=PATH,
            secure=is_https(request.url.scheme, request.headers),
            httponly=True,
            samesite="strict",
        )

    def _page(self, name: str, shown: Mapping[str, object], *, status: int = 200) -> Response:
        return HTMLResponse(self.templates.get_template(name).render(shown), status_code=status)


_STALE = "this form is too old, or the browser keeps no cookies for this site; try again"


def make_dashboard(
    *,
    session_key: bytes,
    directory: Callable[[], KeyDirectory],
    ledger: LedgerReader,
    clock: Clock,
    random_bytes: RandomBytes,
) -> Dashboard:
    """Put the pages together.

    Args:
        session_key: 32 bytes that sessions are signed with.
        directory: The keys of the moment; asked at every page.
        ledger: Where the numbers come from.
        clock: Time.
        random_bytes: A cryptographic source.
    """
    templates = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters["shown"] = _shown
    assets = load_assets()
    cast("dict[str, object]", templates.globals)["asset"] = assets.url
    return Dashboard(
        sessions=Sessions(
            key=session_key, directory=directory, wall_us=clock.wall_us, random_bytes=random_bytes
        ),
        ledger=ledger,
        clock=clock,
        templates=templates,
        assets=assets,
    )


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form; nothing when the body is no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    try:
        pairs = parse_qsl((await request.body()).decode("ascii"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        return {}
    return dict(pairs)


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, status_code=303)


def _shown(name: str) -> str:
    """A name that cannot disturb the page's text: control characters stand out."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
