"""The worker's application: hot routes here, pages in FastAPI, which is loaded on first use.

A chat request to the usual paths comes straight from the connection; everything else comes through
ASGI, finds the same connection in its scope, and is answered by it unless FastAPI answers.

Vendors' own path prefixes (`/openai/v1`, `/inference/v1`, `/v1`) reach the same routes, so that a
vendor's unmodified SDK works after swapping the host.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import anyio
import anyio.to_thread
import msgspec

from gateway import errors
from gateway.http.chat import ROUTE, ChatCall, authenticate
from gateway.http.cycle import CYCLE, Cycle, HotApplication
from gateway.http.errors import error_headers, openai_body, row_of
from gateway.http.messages import (
    JSON_TYPE,
    AsgiApplication,
    Headers,
    Receive,
    Scope,
    Send,
    header_lines,
    request_id_lines,
)
from gateway.http.models import model_entry, model_list
from gateway.http.service import Service
from gateway.telemetry.exposition import PROMETHEUS_CONTENT_TYPE
from gateway.telemetry.scrape import ScrapeFailed

logger = logging.getLogger(__name__)

VENDOR_PREFIXES: Final = ("/openai/v1/", "/inference/v1/")
MODELS_PREFIX: Final = "/v1/models/"
_SLOW_PREFIXES: Final = ("/ui", "/admin/v1/", "/openapi.json")

CHAT_PATH: Final = "/v1/chat/completions"

Handler = Callable[[Cycle], Awaitable[None]]


class _Health(msgspec.Struct):
    status: str
    reasons: list[str]
    engines: Mapping[str, str]
    limits: str


class Application(HotApplication):
    """Answers a worker's requests.

    Args:
        service: The worker's parts.
        make_pages: Makes the FastAPI application behind the hot routes.
    """

    def __init__(self, service: Service, make_pages: Callable[[Service], AsgiApplication]) -> None:
        self.service = service
        self._make_pages = make_pages
        self._pages: AsgiApplication | None = None
        self._pages_lock = anyio.Lock()
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            CHAT_PATH: {"POST": self._chat},
            "/v1/models": {"GET": self._models},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._metrics},
        }
        tail = CHAT_PATH.removeprefix("/v1/")
        self.hot = {f"{prefix}{tail}".encode(): self._chat for prefix in ("/v1/", *VENDOR_PREFIXES)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification, version 3."""
        if scope["type"] != "http":
            return  # websockets are closed by the server when nobody accepts them
        path = canonical_path(cast("str", scope["path"]))
        if path.startswith(_SLOW_PREFIXES):
            await self._slow(scope, receive, send)
            return
        method, cycle = cast("str", scope["method"]), cast("Cycle", scope[CYCLE])
        try:
            await self._handler(path, method)(cycle)
        except errors.GatewayError as error:
            self._send_error(cycle, error)
        except Exception:  # the request boundary
            logger.exception("%s %r failed", method, path[:200])
            fault = errors.InternalFault("an internal error; the operator's log says more")
            self._send_error(cycle, fault)

    def _handler(self, path: str, method: str) -> Handler:
        if path.startswith(MODELS_PREFIX) and len(path) > len(MODELS_PREFIX):
            methods: Mapping[str, Handler] | None = {"GET": self._model(path)}
        else:
            methods = self._routes.get(path)
        if methods is None:
            mend = "see /openapi.json"
            if f"/v1{path}" in self._routes:
                mend = "the base URL ends in /v1"
            raise errors.RouteNotFound(f"no route {path[:200]!r}; {mend}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = sorted(methods)
            raise errors.MethodNotAllowed(
                f"{method} is not allowed on {path[:200]}; use {' or '.join(allowed)}",
                allowed=allowed,
            )
        return handler

    async def _slow(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages is None:
            # Loading FastAPI takes long; streams in flight go on meanwhile.
            async with self._pages_lock:
                if self._pages is None:
                    self._pages = await anyio.to_thread.run_sync(self._make_pages, self.service)
        await self._pages(scope, receive, send)

    def _chat(self, cycle: Cycle) -> Awaitable[None]:
        service = self.service
        if service.overload.is_on and service.overload.refuses():
            return self._shed(cycle)
        return ChatCall(service=service, headers=cycle.headers, cycle=cycle).run()

    async def _shed(self, cycle: Cycle) -> None:
        service = self.service
        head = request_id_lines(service.new_id()) + service.overload.head
        cycle.send_whole(503, head, service.overload.body)
        service.metrics.note_request(ROUTE, 503, 0.0, None)

    async def _models(self, cycle: Cycle) -> None:
        principal = authenticate(self.service, cycle.headers)
        self._send(cycle, 200, model_list(self.service, principal))

    def _model(self, path: str) -> Handler:
        name = path.removeprefix(MODELS_PREFIX)

        async def answer(cycle: Cycle) -> None:
            principal = authenticate(self.service, cycle.headers)
            self._send(cycle, 200, model_entry(self.service, principal, name))

        return answer

    async def _healthz(self, cycle: Cycle) -> None:
        self._send(cycle, 200, b'{"status":"ok"}')

    async def _readyz(self, cycle: Cycle) -> None:
        service = self.service
        reasons = [reason for reason in (service.spool_fault(),) if reason]
        if service.is_draining:
            reasons.append("draining")
        body = msgspec.json.encode(
            _Health(
                status="not ready" if reasons else "ready",
                reasons=reasons,
                engines=service.engine_states(),
                limits=service.limits.fault or "shared",
            )
        )
        self._send(cycle, 503 if reasons else 200, body)

    async def _metrics(self, cycle: Cycle) -> None:
        status = 200
        try:
            text = await self.service.scraper.text()
        except ScrapeFailed as error:
            logger.warning("%s", error)
            status, text = 503, f"{error}\n".encode()
        self._send(cycle, status, text, content_type=PROMETHEUS_CONTENT_TYPE)

    def _send_error(self, cycle: Cycle, error: errors.GatewayError) -> None:
        if not cycle.response_started:
            extra = error_headers(error)
            self._send(cycle, row_of(error).status, openai_body(error), extra=extra)

    def _send(
        self,
        cycle: Cycle,
        status: int,
        body: bytes,
        *,
        content_type: bytes = JSON_TYPE,
        extra: Headers = (),
    ) -> None:
        headers = header_lines([*extra, (b"content-type", content_type)])
        cycle.send_whole(status, request_id_lines(self.service.new_id()) + headers, body)


def canonical_path(path: str) -> str:
    """The path without a vendor's prefix and without a last slash."""
    for prefix in VENDOR_PREFIXES:
        if path.startswith(prefix):
            path = "/v1/" + path[len(prefix) :]
    return path.rstrip("/") or "/"
