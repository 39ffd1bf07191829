"""The server's side of one HTTP/1.1 connection, with every byte and every end under control."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping

from tests.support.upstream_scripts import Received

HEAD_MAX_BYTES = 256 * 1024


class ClientLeft(Exception):
    """The other side closed or reset the connection."""


class Connection:
    """One accepted socket: reads requests, writes answers, notices a client that leaves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = bytearray()

    async def _more(self) -> None:
        try:
            data = await self._reader.read(1 << 16)
        except ConnectionError as error:
            raise ClientLeft from error
        if not data:
            raise ClientLeft
        self._unread += data

    async def _line_block(self, end: bytes) -> bytes:
        while (at := self._unread.find(end)) < 0:
            if len(self._unread) > HEAD_MAX_BYTES:
                raise ClientLeft
            await self._more()
        block = bytes(self._unread[:at])
        del self._unread[: at + len(end)]
        return block

    async def _exactly(self, size_bytes: int) -> bytes:
        while len(self._unread) < size_bytes:
            await self._more()
        block = bytes(self._unread[:size_bytes])
        del self._unread[:size_bytes]
        return block

    async def request(self) -> Received:
        """Read one request, its body by length or in chunks."""
        first, *lines = (await self._line_block(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._line_block(b"\r\n")).split(b";")[0], 16):
                body += await self._exactly(size)
                await self._line_block(b"\r\n")
            await self._line_block(b"\r\n")
        else:
            body = await self._exactly(int(headers.get("content-length", "0")))
        return Received(method=method, path=path, headers=headers, body=body)

    async def pause(self, seconds_s: float) -> None:
        """Wait, and raise `ClientLeft` at once when the client goes meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_s):
                while True:
                    await self._more()

    async def write(self, data: bytes, *, cuts: Iterator[int] | None = None, gap_s: float = 0.0):
        """Send bytes, in pieces when `cuts` gives their sizes."""
        at = 0
        while at < len(data):
            size = len(data) if cuts is None else next(cuts)
            self._writer.write(data[at : at + size])
            at += size
            try:
                await self._writer.drain()
            except ConnectionError as error:
                raise ClientLeft from error
            if cuts is not None:
                await self.pause(gap_s)
        if self._writer.is_closing():
            raise ClientLeft

    def reset(self) -> None:
        """Send RST: what is unsent is lost, and the client sees a connection reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        """Flush and close."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def answer_bytes(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """A whole HTTP answer with its length."""
    return head_bytes(status, {"content-length": str(len(body)), **headers}) + body


def head_bytes(status: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} Scripted"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
