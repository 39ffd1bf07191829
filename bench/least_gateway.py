"""The peer: the least that a gateway of the same parts can do.

uvicorn (uvloop, httptools), raw ASGI, aiohttp's client: check a key, look one model up, forward,
read nothing. No privacy, no prices, no journal, no errors: what Fareway costs beyond it is what
those cost. Run as `python -m bench.least_gateway UPSTREAM_BASE_URL`; prints its port.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import aiohttp
import uvicorn

KEYS = {b"Bearer bench-key-of-twenty-characters": "team"}


class LeastGateway:
    """A raw ASGI application that forwards chat requests to one upstream."""

    def __init__(self, base_url: str) -> None:
        self._routes = {"m": f"{base_url}/chat/completions"}
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Forward one request."""
        if scope["type"] != "http":
            return
        if dict(scope["headers"]).get(b"authorization") not in KEYS:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = b""
        is_complete = False
        while not is_complete:
            message = await receive()
            body += message.get("body", b"")
            is_complete = not message.get("more_body")
        url = self._routes[json.loads(body)["model"]]
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        headers = {"content-type": "application/json"}
        async with self._session.post(url, data=body, headers=headers) as answer:
            kind = answer.headers["content-type"].encode()
            head = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        LeastGateway(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="error",
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
