"""The building block: the least that a gateway of the same parts can do.

uvicorn (uvloop, httptools), raw ASGI, aiohttp's client: check a key, look one model up, forward,
read nothing. No privacy, no prices, no journal, no errors: what Fareway costs beyond it is what
those cost. Run as `python -m bench.gateway.least_gateway UPSTREAM_ROOT PORT KEY`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import aiohttp
import msgspec
import uvicorn

from bench.gateway.cases import MODELS

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _Body(msgspec.Struct):
    """The only member that is read."""

    model: str


class LeastGateway:
    """A raw ASGI application that forwards chat requests to one upstream.

    Args:
        upstream: Its root, without the `/v1`.
        key: The only key.
    """

    def __init__(self, upstream: str, key: str) -> None:
        self._keys = {f"Bearer {key}".encode(): "team"}
        self._routes = dict.fromkeys(MODELS, f"{upstream}/v1/chat/completions")
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward one request."""
        if scope["type"] != "http":
            return
        headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
        if headers.get(b"authorization") not in self._keys:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = await _read(receive)
        url = self._routes[msgspec.json.decode(body, type=_Body).model]
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        sent = {"content-type": "application/json"}
        async with self._session.post(url, data=body, headers=sent) as answer:
            kept = ("content-type", "content-length")
            head = [
                (name.encode(), answer.headers[name].encode())
                for name in kept
                if name in answer.headers
            ]
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(cast("bytes", message.get("body", b"")))
        if not message.get("more_body"):
            return b"".join(parts)


def main(upstream: str, port: int, key: str) -> None:
    """Serve until the process is ended."""
    config = uvicorn.Config(
        LeastGateway(upstream, key),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="error",
        backlog=2048,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
