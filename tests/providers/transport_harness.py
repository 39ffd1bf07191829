"""What the tests of `providers.transport` share: calls, a server of raw bytes, a forward proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.transport import Transport
from providers.transport.options import Address
from tests.providers.permits import bound_for

LIMITS = Deadlines(connect_s=2, first_token_s=5, between_tokens_s=5, total_s=10)
TLS_FOLDER = Path(__file__).with_name("transport_tls")
BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
}
"""The loops of tests and of production; their sockets and their TLS have nothing in common."""


async def fetch(
    transport: Transport,
    url: str,
    *,
    facts: AttemptFacts | None = None,
    headers: dict[str, str] | None = None,
    body: bytes | Sequence[bytes] = b'{"model":"m"}',
    max_bytes: int = 10_000,
    limits: Deadlines = LIMITS,
) -> tuple[int, bytes, dict[str, str]]:
    """Send, read the whole answer, and return status, body and headers."""
    exchange = await transport.send(
        URL(url),
        **bound_for(url),
        headers=headers or {},
        body=body,
        deadlines=limits,
        facts=facts or AttemptFacts(),
    )
    async with exchange:
        return exchange.status, await exchange.read_all(max_bytes=max_bytes), dict(exchange.headers)


def answer(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A whole answer with its length."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read one request by its length; an end of the connection raises `IncompleteReadError`."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
    return head, await reader.readexactly(size)


class RawServer:
    """A server whose every byte a test decides; an async context manager.

    Attributes:
        accepted: The connections so far, TLS done.
        open_count: How many of them are open.
    """

    def __init__(
        self,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._serve = serve
        self._host = host
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = port
        self.accepted: list[asyncio.StreamWriter] = []

    @property
    def open_count(self) -> int:
        return len(self._tasks)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http{'s' if self._tls else ''}://{self._host}:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, self._host, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self.accepted.append(writer)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client left, or the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


async def serve_forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with the number of bytes in its body."""
    while True:
        _, body = await read_request(reader)
        writer.write(answer(str(len(body)).encode()))


class Names:
    """A resolver that a test tells what names mean."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.addresses = list(addresses)
        self.asked = 0

    async def resolve(self, _host: str, _port: int) -> list[Address]:
        self.asked += 1
        kind = socket.SOCK_STREAM
        return [
            info
            for host, port in self.addresses
            for info in socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
        ]


def server_context(*, asks_for_client: bool = False) -> ssl.SSLContext:
    """A TLS server's context with the tests' certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS_FOLDER / "upstream.pem", TLS_FOLDER / "upstream.key")
    if asks_for_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(TLS_FOLDER / "authority.pem")
    return context


class ForwardProxy(RawServer):
    """A proxy that tunnels CONNECT and forwards absolute URLs to one port of this machine.

    Attributes:
        heads: What clients asked it, in full.
    """

    def __init__(
        self, *, to_port: int, credentials: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(self._relay, tls=tls)
        self._to_port = to_port
        self._credentials = credentials
        self.heads: list[str] = []

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if self._credentials is not None and self._credentials not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        if head.startswith("CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream_writer.write(head.encode())
        try:
            await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))
        finally:
            upstream_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
