"""Everything behind the hot routes: administration, dashboard, the OpenAPI document.

FastAPI is loaded with this module, so a worker imports it when a page is first asked for. Around
FastAPI stands one gate: it names the request, asks the entrance who may go on, bounds bodies before
anything reads them, and is the boundary at which a fault of ours becomes an answer.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import MutableMapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypedDict, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from gateway import errors
from gateway.access.asking import is_let_in
from gateway.access.calls import PeopleCalls
from gateway.access.roles import Viewer
from gateway.auth.keys import RandomBytes
from gateway.dashboard.books.imports_pages import UPLOAD_PATH
from gateway.dashboard.finance_pages import Calendar
from gateway.dashboard.pages import ASSETS, Dashboard, make_dashboard
from gateway.dashboard.protection import SECURITY_HEADERS
from gateway.dashboard.shell import FORM_BYTES_MAX, form_of, login_path, to, viewer_of_principal
from gateway.finance.form_messages import FILE_BYTES_MAX
from gateway.http import admin, admin_budgets, admin_commitments, admin_finance, openapi
from gateway.http.admin_books import BooksApi
from gateway.http.admin_close import CloseApi
from gateway.http.admin_machines import MachinesApi
from gateway.http.admin_people import PeopleApi
from gateway.http.admin_prices import PricesApi
from gateway.http.chat import RETRY_WHEN_DRAINING_S, authenticate
from gateway.http.entrance import API, Entrance, LoginNeeded, check_routes
from gateway.http.errors import error_headers, openai_body, row_of
from gateway.http.messages import (
    AsgiApplication,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    check_is_json,
    read_body,
    request_id_headers,
)
from gateway.http.openapi_models import ErrorAnswer
from gateway.http.page_desk import PageDesk
from gateway.http.service import Service
from gateway.http.spend_export import SpendExportApi
from gateway.http.supervisor_calls import WRITE_TIMEOUT_S, SupervisorCalls

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = FORM_BYTES_MAX
UPLOAD_BYTES_MAX = FILE_BYTES_MAX + BODY_BYTES_MAX
"""Of the form with which a vendor's file is uploaded."""
_PROBLEMS_MAX = 5
_NAME_CHARACTERS_MAX = 80
_REQUEST_ID = "fareway.request_id"


def make_pages(
    service: Service, *, random_bytes: RandomBytes = secrets.token_bytes
) -> AsgiApplication:
    """Make the application behind the hot routes.

    Args:
        service: The worker's parts.
        random_bytes: A cryptographic source, for new keys and sessions.
    """
    calls = SupervisorCalls(service.supervisor)
    people = PeopleCalls(calls.ask, write_timeout_s=WRITE_TIMEOUT_S)
    app = FastAPI(
        title="Fareway",
        version=_version(),
        description="One API in front of every deployment, priced exactly, private by policy.",
        openapi_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorAnswer, "description": "A refusal"}},
    )
    admin_api = admin.AdminApi(service, calls, random_bytes=random_bytes)
    budget_api = admin_budgets.BudgetApi(service, calls)
    dashboard = make_dashboard(
        session_key=service.session_key,
        directory=lambda: service.directory,
        ledger=calls,
        people=people,
        login=service.login,
        calendar=_calendar(service),
        reporting=service.reporting,
        desk=PageDesk(admin=admin_api, budget_api=budget_api),
        oidc_secret=service.oidc_secret,
        teams=lambda: service.admission.teams,
        fleet=lambda: service.admission.fleet,
        clock=service.clock,
        random_bytes=random_bytes,
    )
    routers = [
        admin_api.router(),
        budget_api.router(),
        admin_finance.FinanceApi(service, calls).router(),
        CloseApi(service, calls).router(),
        PricesApi(calls).router(),
        MachinesApi(service, calls).router(),
        BooksApi(service, calls).router(),
        admin_commitments.CommitmentApi(service, calls).router(),
        PeopleApi(service, people, dashboard.shell, random_bytes=random_bytes).router(),
        dashboard.router(),
        SpendExportApi(
            calls, parties=service.parties, pseudonym_key=service.pseudonym_key
        ).router(),
        openapi.Document(app).router(),
    ]
    for router in routers:
        app.include_router(router)
    app.state.dashboard = dashboard
    app.state.routes = [route for router in routers for route in router.routes]
    check_routes(app.state.routes)
    app.add_exception_handler(errors.GatewayError, _answer_refusal)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_fault)
    entrance = Entrance(
        routes=app.state.routes,
        viewer_of_key=lambda headers: _viewer_of_key(service, headers),
        viewer_of_session=lambda scope: _viewer_of_session(dashboard, scope),
        is_our_call=lambda scope: dashboard.shell.is_our_call(Request(scope)),
    )
    return Gate(service, app, entrance=entrance, dashboard=dashboard)


def _calendar(service: Service) -> Calendar:
    finance = service.finance
    return Calendar(
        zone=finance.time_zone,
        fiscal_month=finance.fiscal_year_start_month,
        cost_tags=tuple(finance.cost_tags),
        organisation=finance.organisation,
        cost_centres=service.reporting.cost_centres,
    )


class Gate:
    """Stands around FastAPI; an ASGI application.

    Args:
        service: The worker's parts.
        app: What is behind it.
        entrance: Decides who gets in.
        dashboard: Says on a page why not.
    """

    def __init__(
        self, service: Service, app: FastAPI, *, entrance: Entrance, dashboard: Dashboard
    ) -> None:
        self._service = service
        self._app = app
        self._entrance = entrance
        self._dashboard = dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification, version 3."""
        service = self._service
        is_asset = cast("str", scope["path"]).startswith(ASSETS)
        answer = _Answer(service.new_id(), send, may_be_kept=is_asset)
        service.enter()
        try:
            # A HEAD is answered like a GET; the server leaves the body out.
            method = "GET" if scope["method"] == "HEAD" else cast("str", scope["method"])
            inner = {**scope, "method": method, _REQUEST_ID: answer.request_id.hex()}
            try:
                body = await self._admit(inner, receive)
            except LoginNeeded:
                await to(login_path(inner))(inner, receive, answer.send)
                return
            except errors.LedgerUnavailable:
                if _is_api(inner):
                    raise
                await self._dashboard.unreachable()(inner, receive, answer.send)
                return
            except errors.BodyTooLarge:
                if _is_api(inner) or not is_let_in(inner):
                    raise
                page = self._dashboard.too_large(Request(inner), _bytes_max(inner))
                await page(inner, receive, answer.send)
                return
            except errors.RoleRequired as error:
                if _is_api(inner):
                    raise
                page = await self._dashboard.refused(Request(inner), error.message)
                await page(inner, receive, answer.send)
                return
            if await self._is_forged(inner, body, receive):
                await self._dashboard.forged()(inner, receive, answer.send)
                return
            await self._app(inner, _replay(body, receive), answer.send)
        except errors.GatewayError as error:
            await answer.refuse(error)
        except ClientGone:
            return
        except Exception:  # the request boundary; FastAPI has answered, if it still could
            logger.exception("request %s failed", answer.request_id.hex())
            if not answer.is_started:
                await answer.refuse(_fault(answer.request_id.hex()))
        finally:
            service.leave()

    async def _is_forged(self, scope: Scope, body: bytes, receive: Receive) -> bool:
        """Whether a form of somebody who is logged in comes from no page of theirs."""
        if scope["method"] == "GET" or _is_api(scope) or not is_let_in(scope):
            return False
        request = Request(scope, _replay(body, receive))
        shell = self._dashboard.shell
        return not shell.is_ours(request, await form_of(request), shell.seen(request))

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """Check who asks, then read the body.

        Raises:
            GatewayError: The request is not for this door.
        """
        service = self._service
        if service.is_draining:
            raise errors.Draining(
                "this process is shutting down; try again", retry_after_s=RETRY_WHEN_DRAINING_S
            )
        _check_address(scope)
        await self._entrance.admit(scope)
        headers = cast("Headers", scope["headers"])
        if _is_api(scope) and scope["method"] in ("POST", "PUT", "PATCH"):
            check_is_json(headers)
        body = await read_body(receive, headers, max_bytes=_bytes_max(scope))
        if _is_api(scope) and b"\\u0000" in body:
            raise errors.InvalidRequest("the body holds a NUL, which is no text")
        return body


def _viewer_of_key(service: Service, headers: Headers) -> Viewer:
    return viewer_of_principal(authenticate(service, headers))


async def _viewer_of_session(dashboard: Dashboard, scope: Scope) -> Viewer | None:
    seen = await dashboard.shell.find(Request(scope))
    return None if seen is None else seen.viewer


def _bytes_max(scope: Scope) -> int:
    """The bound of a body; only whoever may import gets as far as a file's."""
    place = cast("str", scope["method"]), cast("str", scope["path"])
    return UPLOAD_BYTES_MAX if place == ("POST", UPLOAD_PATH) else BODY_BYTES_MAX


def _check_address(scope: Scope) -> None:
    """Refuse what no database takes, not even in a question.

    Raises:
        InvalidRequest: The address holds a NUL.
    """
    if "\0" in cast("str", scope["path"]) or b"%00" in cast("bytes", scope["query_string"]):
        raise errors.InvalidRequest("the address holds a NUL, which is no text")


def _is_api(scope: Scope) -> bool:
    return cast("str", scope["path"]).startswith(API)


class _Answer:
    """One answer: its request id and the headers that every answer carries.

    Args:
        may_be_kept: Whether it may say itself for how long browsers keep it.
    """

    def __init__(self, request_id: bytes, send: Send, *, may_be_kept: bool) -> None:
        self.request_id = request_id
        self.is_started = False
        self.may_be_kept = may_be_kept
        self._send = send

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass a message on; the first one gets our headers, which win over others."""
        if message["type"] == "http.response.start":
            self.is_started = True
            ours = [*request_id_headers(self.request_id), *SECURITY_HEADERS]
            if self.may_be_kept:
                ours = [one for one in ours if one[0] != b"cache-control"]
            names = {name for name, _ in ours}
            theirs = cast("Headers", message.get("headers", ()))
            message["headers"] = [*ours, *(one for one in theirs if one[0].lower() not in names)]
        await self._send(message)

    async def refuse(self, error: errors.GatewayError) -> None:
        """Answer with an error."""
        body = openai_body(error)
        headers = [
            *error_headers(error),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        status = row_of(error).status
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, then what the connection says."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> MutableMapping[str, Any]:
        message = next(messages, None)
        return await receive() if message is None else message

    return replay


def _response(error: errors.GatewayError) -> Response:
    response = Response(
        openai_body(error), status_code=row_of(error).status, media_type="application/json"
    )
    response.raw_headers.extend(error_headers(error))
    return response


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.GatewayError)
    if isinstance(error, errors.LedgerUnavailable) and not _is_api(request.scope):
        dashboard = cast("Dashboard", cast("FastAPI", request.app).state.dashboard)
        return dashboard.unreachable()
    return _response(error)


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(_invalid(error))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = _allowed(request)
        message = f"{request.method} is not allowed on {path}; use {' or '.join(allowed)}"
        return _response(errors.MethodNotAllowed(message, allowed=allowed))
    if error.status_code == 404:
        return _response(errors.RouteNotFound(f"no route {path!r}; see /openapi.json"))
    return _response(errors.InvalidRequest(error.detail))


async def _answer_fault(request: Request, _error: Exception) -> Response:
    return _response(_fault(cast("str", request.scope[_REQUEST_ID])))


def _fault(request_id: str) -> errors.InternalFault:
    return errors.InternalFault(f"an internal error; quote request id {request_id} to the operator")


def _allowed(request: Request) -> list[str]:
    """Methods of every route with the request's path."""
    found: set[str] = set()
    app = cast("FastAPI", request.app)
    for route in cast("list[BaseRoute]", app.state.routes):
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= cast("set[str]", getattr(route, "methods", None) or set())
    return sorted(found)


class _Problem(TypedDict):
    loc: tuple[str | int, ...]
    type: str
    msg: str


def _invalid(error: RequestValidationError) -> errors.GatewayError:
    """What is wrong with which field, without the value that was sent."""
    problems = cast("list[_Problem]", error.errors())
    told = [(_param(one["loc"]), one["type"], one["msg"]) for one in problems]
    if any(kind == "json_invalid" for _, kind, _ in told):
        return errors.InvalidRequest("the body is not valid JSON")
    sentences = [
        f"{param}: unknown field" if kind == "extra_forbidden" else f"{param}: {message}"
        for param, kind, message in told[:_PROBLEMS_MAX]
    ]
    return errors.InvalidField("; ".join(sentences), param=told[0][0] if told else None)


def _param(location: tuple[str | int, ...]) -> str:
    """`query.from` is `from`, `body.models.0` is `models.0`; the place itself where it is alone."""
    inner = location[1:] or location
    return ".".join(str(part)[:_NAME_CHARACTERS_MAX] for part in inner)


def _version() -> str:
    try:
        return version("fareway")
    except PackageNotFoundError:
        return "0"
