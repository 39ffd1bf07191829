"""The worker's ASGI application: hot routes here, everything else in FastAPI, loaded on first use.

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
from gateway.http.cycle import Cycle
from gateway.http.errors import error_headers, openai_body, row_of
from gateway.http.messages import (
    AsgiApplication,
    Headers,
    Receive,
    Scope,
    Send,
    request_id_headers,
    request_id_lines,
)
from gateway.http.models import model_entry, model_list
from gateway.http.protocol import CYCLE
from gateway.http.service import Service
from gateway.telemetry.exposition import PROMETHEUS_CONTENT_TYPE
from gateway.telemetry.scrape import ScrapeFailed

logger = logging.getLogger(__name__)

VENDOR_PREFIXES: Final = ("/openai/v1/", "/inference/v1/")
MODELS_PREFIX: Final = "/v1/models/"
_SLOW_PREFIXES: Final = ("/ui", "/admin/v1/", "/openapi.json")

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Health(msgspec.Struct):
    status: str
    reasons: list[str]
    engines: Mapping[str, str]


class Application:
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
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": {"GET": self._models},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._metrics},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification, version 3."""
        if scope["type"] != "http":
            return  # websockets are closed by the server when nobody accepts them
        path = canonical_path(cast("str", scope["path"]))
        if path.startswith(_SLOW_PREFIXES):
            await self._slow(scope, receive, send)
            return
        method = cast("str", scope["method"])
        try:
            await self._handler(path, method)(scope, receive, send)
        except errors.GatewayError as error:
            await self._send_error(send, error)
        except Exception:  # the request boundary
            logger.exception("%s %r failed", method, path[:200])
            fault = errors.InternalFault("an internal error; the operator's log says more")
            await self._send_error(send, fault)

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

    async def _chat(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        service, cycle = self.service, cast("Cycle", scope[CYCLE])
        if service.overload.refuses():
            head = request_id_lines(service.new_id()) + service.overload.head
            cycle.send_whole(503, head, service.overload.body)
            service.metrics.note_request(ROUTE, 503, 0.0, None)
            return
        await ChatCall(service=service, headers=_headers(scope), cycle=cycle).run()

    async def _models(self, scope: Scope, _receive: Receive, send: Send) -> None:
        principal = authenticate(self.service, _headers(scope))
        await self._send(send, 200, model_list(self.service, principal))

    def _model(self, path: str) -> Handler:
        name = path.removeprefix(MODELS_PREFIX)

        async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
            principal = authenticate(self.service, _headers(scope))
            await self._send(send, 200, model_entry(self.service, principal, name))

        return answer

    async def _healthz(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self._send(send, 200, b'{"status":"ok"}')

    async def _readyz(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        service = self.service
        reasons = [reason for reason in (service.spool_fault(),) if reason]
        if service.is_draining:
            reasons.append("draining")
        body = msgspec.json.encode(
            _Health(
                status="not ready" if reasons else "ready",
                reasons=reasons,
                engines=service.engine_states(),
            )
        )
        await self._send(send, 503 if reasons else 200, body)

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        status = 200
        try:
            text = await self.service.scraper.text()
        except ScrapeFailed as error:
            logger.warning("%s", error)
            status, text = 503, f"{error}\n".encode()
        await self._send(send, status, text, content_type=PROMETHEUS_CONTENT_TYPE)

    async def _send_error(self, send: Send, error: errors.GatewayError) -> None:
        await self._send(send, row_of(error).status, openai_body(error), extra=error_headers(error))

    async def _send(
        self,
        send: Send,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        extra: Headers = (),
    ) -> None:
        headers = [
            *request_id_headers(self.service.new_id()),
            *extra,
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _headers(scope: Scope) -> Headers:
    return cast("Headers", scope["headers"])


def canonical_path(path: str) -> str:
    """The path without a vendor's prefix and without a last slash."""
    for prefix in VENDOR_PREFIXES:
        if path.startswith(prefix):
            path = "/v1/" + path[len(prefix) :]
    return path.rstrip("/") or "/"
