"""Hot routes over plain ASGI: what a connection does for them, kept until the application returns.

For tests that call the application without a socket. What connections do beside this (waiting for
bodies, back-pressure, clients that leave) is tested over sockets.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from gateway.http.cycle import CYCLE


class AsgiCycle:
    """Stands in for `gateway.http.cycle.Cycle`."""

    disconnected = False
    response_started = False
    is_blocked = False
    on_gone = task = None

    def __init__(self, headers, receive) -> None:
        self.headers = headers
        self._receive = receive
        self.messages: list[MutableMapping[str, Any]] = []

    def take_whole_body(self) -> bytes | None:
        return None

    async def gather_body(self, *, max_bytes: int, stall_s: float) -> bytes:
        parts = []
        while True:
            message = await self._receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        self.start(status, headers)
        self.finish(body)

    def start(self, status: int, headers: bytes, first: bytes = b"") -> None:
        self.response_started = True
        pairs = [tuple(line.split(b": ", 1)) for line in headers.split(b"\r\n") if line]
        self.messages.append({"type": "http.response.start", "status": status, "headers": pairs})
        if first:
            self.write(first)

    def write(self, data: bytes) -> None:
        self.messages.append({"type": "http.response.body", "body": data, "more_body": True})

    def finish(self, data: bytes) -> None:
        self.messages.append({"type": "http.response.body", "body": data})

    async def drain(self) -> None:
        raise AssertionError("nothing is ever blocked here")


def over_asgi(app):
    """The application, served without a connection."""

    async def served(scope, receive, send) -> None:
        cycle = AsgiCycle(scope["headers"], receive)
        await app({**scope, CYCLE: cycle}, receive, send)
        for message in cycle.messages:
            await send(message)

    return served
