"""What every page needs: who looks, forms and where they came from, cookies, templates."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import anyio.to_thread
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment

from gateway.access.calls import PeopleCalls
from gateway.access.people import Caller, Person, SessionQuery, viewer_of_person
from gateway.access.permissions import ROUTES, restriction_for
from gateway.access.roles import ADMINISTRATOR, Viewer, key_holder
from gateway.auth.directory import Principal
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.desk import PageForm
from gateway.dashboard.front import Front
from gateway.dashboard.multipart import BadForm, Form, boundary_of, parse_form
from gateway.dashboard.sessions import DEVICE, LOGIN, LOGIN_S, SESSION, Sessions, cookie_name
from gateway.errors import InvalidField
from gateway.forms import form_sent
from gateway.settings.login import LoginSettings

PATH = "/ui"
LOGIN_PATH = f"{PATH}/login"
NAVIGATION = (
    (PATH, "Spend today"),
    (f"{PATH}/month", "Month"),
    (f"{PATH}/story", "Story"),
    (f"{PATH}/spend", "Explorer"),
    (f"{PATH}/requests", "Requests"),
    (f"{PATH}/savings", "Savings"),
    (f"{PATH}/commitments", "Commitments"),
    (f"{PATH}/budgets", "Budgets"),
    (f"{PATH}/keys", "Keys"),
    (f"{PATH}/exports", "Exports"),
    (f"{PATH}/close", "Month close"),
    (f"{PATH}/machines", "Machines"),
    (f"{PATH}/users", "Users"),
    (f"{PATH}/account", "Account"),
)
"""Pages that those who may see them find at the top of each."""
GROUPS = (f"{PATH}/budgets", f"{PATH}/exports", f"{PATH}/users")
"""Pages with which something else begins: what is spent, what may be, the books, who may what."""
_FORM = "application/x-www-form-urlencoded"
_FIELDS_MAX = 64
FORM_BYTES_MAX = 1024 * 1024
"""Of a form without files; the body of one with files may be longer."""
_SMALL_BYTES = 256 * 1024
"""Forms below it are taken apart on the event loop: a thread would take longer."""
FORM_NUMBER = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SEEN = "fareway.session"
_NEXT = re.compile(r"/ui(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*){0,6}(?:\?[A-Za-z0-9_.~%=&+:,-]{0,512})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A session whose cookie came with a request.

    Attributes:
        viewer: Who has it now.
        digest: What the ledger knows it by.
        person: Whose it is, None for the holder of a key.
    """

    viewer: Viewer
    digest: bytes
    person: Person | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """What pages share.

    Attributes:
        sessions: Makes and reads cookies.
        people: The ledger, about people.
        front: How browsers reach us.
        login: The operator's settings.
        clock: Time.
        templates: Compiled once.
    """

    sessions: Sessions
    people: PeopleCalls
    front: Front
    login: LoginSettings
    clock: Clock
    templates: Environment

    async def find(self, request: Request) -> Seen | None:
        """Whose session a request comes with, None for nobody's; noted in its scope.

        Raises:
            LedgerUnavailable: Nobody can say.
        """
        digest = self.sessions.digest(self.cookie(request, SESSION))
        if digest is None:
            return None
        query = SessionQuery(session=digest, idle_s=self.login.idle_s)
        found = await self.people.find_session(query)
        if found is None:
            return None
        if found.person is not None:
            viewer = viewer_of_person(found.person)
        else:
            holder = self._holder(found.key_id, found.mark)
            if holder is None:
                return None
            viewer = holder
        seen = Seen(viewer=viewer, digest=digest, person=found.person)
        request.scope[_SEEN] = seen
        return seen

    def _holder(self, key_id: str, mark: bytes) -> Viewer | None:
        """Who holds the key of a session now; None when it is void or another one."""
        now = self.sessions.mark(key_id)
        if now is None or not hmac.compare_digest(now, mark):
            return None
        principal = self.sessions.directory().recall(key_id, now_us=self.clock.wall_us())
        return viewer_of_principal(principal) if isinstance(principal, Principal) else None

    def seen(self, request: Request) -> Seen:
        """The session that let a request in; only behind the entrance."""
        return cast("Seen", request.scope[_SEEN])

    def frame(self, request: Request, here: str | None = None) -> dict[str, object]:
        """What every page of those who are logged in shows.

        Args:
            request: Who looks.
            here: The page of the navigation that this one belongs to; None for itself.
        """
        seen = self.seen(request)
        place = here or request.url.path.rstrip("/")
        return {
            "viewer": seen.viewer,
            "here": request.url.path,
            "again": str(request.url.replace(scheme="", netloc="")),
            "form_token": self.sessions.form_token(seen.digest),
            "once": self.new_number(),
            "seen_at": f"{from_microseconds(self.clock.wall_us()):%Y-%m-%d %H:%M:%S}",
            "groups": GROUPS,
            "navigation": [
                (path, label, path == place)
                for path, label in NAVIGATION
                if not restriction_for(seen.viewer, ROUTES["GET", path]).is_nothing
            ],
        }

    def new_number(self) -> str:
        """The number of a form that is about to be shown."""
        return self.sessions.random_bytes(16).hex()

    def sent(self, request: Request, form: Mapping[str, str]) -> PageForm:
        """The form that a request sends, to be acted on once.

        Args:
            request: Whose path says what the form acts on.
            form: Its fields.

        Raises:
            InvalidField: It has no number of ours.
        """
        number = form.get("once", "")
        if not FORM_NUMBER.fullmatch(number):
            raise InvalidField("this form is not complete; open the page again")
        seen = cast("Seen | None", request.scope.get(_SEEN))
        sent = form_sent(
            number,
            actor="" if seen is None else seen.viewer.actor,
            subject=(request.url.path, form.get("do", ""), form.get("name", "")),
            fields={name: text for name, text in form.items() if name not in ("token", "once")},
        )
        return PageForm(sent=sent, random_bytes=self.sessions.random_of(sent.number))

    def page(self, name: str, shown: Mapping[str, object], *, status: int = 200) -> Response:
        """A page of a template."""
        return HTMLResponse(self.templates.get_template(name).render(shown), status_code=status)

    def away(self, shown: Mapping[str, object]) -> Response:
        """Say that the ledger does not answer."""
        return self.page("away.html", shown, status=503)

    def bad_address(self, shown: Mapping[str, object], message: str) -> Response:
        """Say that an address has no meaning."""
        return self.page("bad_address.html", {**shown, "message": message}, status=422)

    def entry_page(
        self,
        request: Request,
        name: str,
        shown: Mapping[str, object],
        *,
        status: int = 200,
        retry_after_s: int | None = None,
    ) -> Response:
        """A page with a form for people who are not logged in."""
        cookie = self.cookie(request, LOGIN) or self.sessions.new_login()
        shown = {
            **shown,
            "login_token": self.sessions.login_token(cookie),
            "once": self.new_number(),
            "is_in_the_clear": self.front.is_in_the_clear(request.scope),
        }
        answer = self.page(name, shown, status=status)
        if retry_after_s is not None:
            answer.headers["retry-after"] = str(retry_after_s)
        self.set_cookie(request, answer, LOGIN, cookie, LOGIN_S)
        return answer

    def is_ours(self, request: Request, form: Mapping[str, str], seen: Seen | None) -> bool:
        """Whether a form was filled in on a page of ours, by whoever has the session, if any."""
        if seen is not None:
            token = self.sessions.form_token(seen.digest)
        else:
            cookie = self.cookie(request, LOGIN)
            token = self.sessions.login_token(cookie) if cookie else ""
        given = form.get("token", "").encode("utf-8", "surrogatepass")
        is_known = bool(token) and hmac.compare_digest(given, token.encode())
        return is_known and self.front.is_same_origin(request.scope)

    def csrf(self, request: Request) -> str | None:
        """What calls of the API with this request's session carry; None without one."""
        seen = cast("Seen | None", request.scope.get(_SEEN))
        return None if seen is None else self.sessions.form_token(seen.digest)

    def is_our_call(self, request: Request) -> bool:
        """Whether a call of the API with a cookie comes from a page of ours."""
        given = request.headers.get("x-fareway-csrf", "").encode("latin-1")
        token = self.sessions.form_token(self.seen(request).digest).encode()
        return hmac.compare_digest(given, token) and self.front.is_same_origin(request.scope)

    def caller(self, request: Request) -> Caller:
        """Where a login comes from."""
        device = self.sessions.unseal("device", self.cookie(request, DEVICE)) or b""
        return Caller(
            address=self.front.address(request.scope), device=device.decode("ascii", "replace")
        )

    def cookie(self, request: Request, name: str) -> str:
        """A cookie's value, empty when there is none. Over TLS, only one that was set over TLS."""
        is_secure = self.front.is_secure(request.scope)
        return request.cookies.get(cookie_name(name, is_secure=is_secure), "")

    def set_cookie(
        self, request: Request, answer: Response, name: str, value: str, lifetime_s: int
    ) -> None:
        """Have the browser keep a cookie, out of reach for scripts and other sites' forms."""
        is_secure = self.front.is_secure(request.scope)
        answer.set_cookie(
            cookie_name(name, is_secure=is_secure),
            value,
            max_age=lifetime_s,
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="lax",
        )

    def drop_cookie(self, request: Request, answer: Response, name: str) -> None:
        """Have the browser forget a cookie."""
        self.set_cookie(request, answer, name, "", 0)

    def link(self, request: Request, path: str, **query: str) -> str:
        """A whole address of ours, for people to copy."""
        base = self.login.public_url
        if base is None:
            scheme = "https" if self.front.is_secure(request.scope) else "http"
            base = f"{scheme}://{request.headers.get('host', '')}"
        return f"{base}{path}?{urlencode(query)}"


def viewer_of_principal(principal: Principal) -> Viewer:
    """Whom pages and API see in the holder of a key."""
    if principal.is_admin:
        return ADMINISTRATOR
    return key_holder(principal.key_id, principal.key_name, principal.team)


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form, files left out; nothing when the body is no form."""
    said = request.headers.get("content-type", "")
    if boundary_of(said) is not None:
        return (await upload_of(request)).fields
    body = await request.body()
    if said.partition(";")[0].strip().lower() != _FORM or len(body) > FORM_BYTES_MAX:
        return {}
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            max_num_fields=_FIELDS_MAX,
            keep_blank_values=True,
        )
    except ValueError:
        return {}
    return {} if any("\0" in one for pair in pairs for one in pair) else dict(pairs)


async def upload_of(request: Request) -> Form:
    """The fields and files of a form with files; nothing when the body is none."""
    boundary = boundary_of(request.headers.get("content-type", ""))
    if boundary is None:
        return Form()
    body = await request.body()
    try:
        if len(body) < _SMALL_BYTES:
            return parse_form(body, boundary)
        return await anyio.to_thread.run_sync(parse_form, body, boundary)
    except BadForm:
        return Form()


def to(path: str) -> RedirectResponse:
    """Send the browser to a page of ours."""
    return RedirectResponse(path, status_code=303)


def next_of(path: str) -> str:
    """A page of ours to go to after the login; the first one for everything else."""
    return path if _NEXT.fullmatch(path) else PATH


def login_path(scope: Mapping[str, Any]) -> str:
    """Where somebody who asked for a page is sent to log in, and back from."""
    wanted = cast("str", scope["path"])
    query = cast("bytes", scope.get("query_string", b"")).decode("latin-1")
    if query:
        wanted += f"?{query}"
    if scope["method"] != "GET" or next_of(wanted) in (PATH, f"{PATH}/"):
        return LOGIN_PATH
    return f"{LOGIN_PATH}?{urlencode({'next': wanted})}"
