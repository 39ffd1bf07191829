"""The race for a kept connection that the upstream closes just as a request goes out on it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from providers.contract import AttemptFacts
from providers.errors import Billing, ConnectionLost, StaleConnection
from providers.transport import Transport
from tests.providers.transport_harness import RawServer, answer, fetch, read_request

pytestmark = pytest.mark.anyio


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def server(*, before_close_s: float = 0.0, part: bytes = b"", resets: bool = False) -> RawServer:
    """Answers the first request of a connection and ends at the second one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"ok"))
        await read_request(reader)
        await asyncio.sleep(before_close_s)
        writer.write(part)
        await writer.drain()
        if resets:
            reset(writer)

    return RawServer(serve)


ENDS = {
    "closed at once": ({}, StaleConnection),
    "reset at once": ({"resets": True}, StaleConnection),
    "closed after a while: it worked on the request": ({"before_close_s": 1.1}, ConnectionLost),
    "closed in the middle of a head": ({"part": b"HTTP/1.1 200 OK\r\nx-a"}, ConnectionLost),
}


@pytest.mark.parametrize(("options", "kind"), ENDS.values(), ids=ENDS.keys())
async def test_what_the_end_of_a_kept_connection_means(options, kind) -> None:
    async with server(**options) as upstream:
        transport = Transport([upstream.url])
        await fetch(transport, upstream.url)
        facts = AttemptFacts()
        with pytest.raises(ConnectionLost) as caught:
            await fetch(transport, upstream.url, facts=facts)
        assert len(upstream.accepted) == 1
        assert type(caught.value) is kind
        assert facts.was_sent
        assert caught.value.billing is Billing.UNKNOWN
        # Another try gets another connection.
        assert (await fetch(transport, upstream.url))[1] == b"ok"
        assert len(upstream.accepted) == 2
        await transport.close()


async def test_a_new_connection_is_never_stale() -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with RawServer(hang_up) as upstream:
        transport = Transport([upstream.url])
        with pytest.raises(ConnectionLost) as caught:
            await fetch(transport, upstream.url)
        assert type(caught.value) is ConnectionLost
        await transport.close()
