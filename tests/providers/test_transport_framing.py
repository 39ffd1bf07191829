"""How answers are framed: what is read, what is refused, and what is never another one's answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip

import pytest
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import BadWire, ConnectionLost, ProviderError, TotalTimeout
from providers.transport import Exchange, Transport
from providers.transport.line import Line
from providers.transport.upload import Upload
from tests.providers.permits import bound_for
from tests.providers.transport_harness import (
    BACKENDS,
    LIMITS,
    RawServer,
    answer,
    fetch,
    read_request,
)

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


def saying(*parts: bytes, closes: bool = False, pause_s: float = 0.0) -> RawServer:
    """A server that answers each request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if closes:
                return

    return RawServer(serve)


async def send(transport: Transport, url: str, limits: Deadlines = LIMITS) -> Exchange:
    return await transport.send(
        URL(url), **bound_for(url), headers={}, body=b"{}", deadlines=limits, facts=AttemptFacts()
    )


READ = {
    # What came, the status and body that it is, and whether the connection is used again.
    "by length": (answer(b"own"), (200, b"own"), True),
    "in chunks": (CHUNKED + b"1\r\no\r\n2\r\nwn\r\n0\r\n\r\n", (200, b"own"), True),
    "in a chunk with an extension": (CHUNKED + b"3;x=y\r\nown\r\n0\r\n\r\n", (200, b"own"), True),
    "in a chunk with a blank behind its size": (
        CHUNKED + b"3 \r\nown\r\n0\r\n\r\n",
        (200, b"own"),
        True,
    ),
    "in chunks with a trailer": (
        CHUNKED + b"3\r\nown\r\n0\r\ncontent-type: text/late\r\n\r\n",
        (200, b"own"),
        True,
    ),
    "with lines that end in a bare line feed": (
        b"HTTP/1.1 200 OK\ncontent-length: 3\n\nown",
        (200, b"own"),
        True,
    ),
    "with blank lines before it": (b"\r\n\r\n" + answer(b"own"), (200, b"own"), True),
    "with a blank line behind it": (answer(b"own") + b"\r\n", (200, b"own"), True),
    "without a reason": (b"HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nown", (200, b"own"), True),
    "with an offer to upgrade": (
        answer(b"own", "upgrade: h2c", "connection: upgrade"),
        (200, b"own"),
        True,
    ),
    "that has no content": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), True),
    "that was not modified": (b"HTTP/1.1 304 No\r\ncontent-length: 9\r\n\r\n", (304, b""), True),
    "of length nothing": (answer(b""), (200, b""), True),
    "of HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nown", (200, b"own"), False),
    "of HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3\r\n\r\nown",
        (200, b"own"),
        True,
    ),
    "in another protocol from here on": (
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n\1\2\3",
        (101, b""),
        False,
    ),
    "with another one behind it": (answer(b"own") + answer(b"others"), (200, b"own"), False),
    "with the start of another one behind it": (answer(b"own") + b"HT", (200, b"own"), False),
}


@pytest.mark.parametrize(("data", "expected", "is_kept"), READ.values(), ids=READ.keys())
async def test_an_answer_is_read(data: bytes, expected: tuple[int, bytes], is_kept: bool) -> None:
    async with saying(data) as server:
        transport = Transport([server.url])
        for _ in range(3):
            status, body, headers = await fetch(transport, server.url)
            assert (status, body) == expected
            assert "content-type" not in headers
        assert len(server.accepted) == (1 if is_kept else 3)
        await transport.close()


REFUSED = {
    "more than its length": answer(b"own") + b"more",
    "more than its chunks": CHUNKED + b"3\r\nown\r\n0\r\n\r\n3\r\nown\r\n",
    "something behind its farewell": answer(b"own", "connection: close") + b"more",
    "a body where none may be": (b"HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nown"),
    "a chunk, and then none": CHUNKED + b"3\r\nown\r\nzz\r\n",
    "a length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n" + CHUNKED[17:],
    "chunks and a length": CHUNKED[:-2] + b"content-length: 3\r\n\r\n",
    "a length beside a coding": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ncontent-length: 3\r\n\r\nown"
    ),
    "the same length twice": answer(b"own", "content-length: 3"),
    "a list of lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 3, 3\r\n\r\nown",
    "a length with a sign": b"HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\nown",
    "an empty length": b"HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nown",
    "a length beyond numbers": b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 30 + b"\r\n\r\nown",
    "a chunk beyond numbers": CHUNKED + b"f" * 20 + b"\r\nown\r\n",
    "a chunk with a sign": CHUNKED + b"-3\r\nown\r\n0\r\n\r\n",
    "a chunk in another notation": CHUNKED + b"0x3\r\nown\r\n0\r\n\r\n",
    "a chunk whose size ends in a bare line feed": CHUNKED + b"3\nown\r\n0\r\n\r\n",
    "a folded header": answer(b"own", "x-a: b\r\n c"),
    "a coding that is folded": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding:\r\n chunked\r\n\r\n3\r\nown\r\n0\r\n\r\n"
    ),
    "a blank before a header's colon": answer(b"own", "x-a : b"),
    "a bare carriage return in a header": answer(b"own", "x-a: b\rx-c: d"),
    "a zero byte in a header": answer(b"own", "x-a: b\0c"),
    "a control character in a header": answer(b"own", "x-a: b\1c"),
    "a header without a name": answer(b"own", ": b"),
    "another version": b"HTTP/9.9 200 OK\r\ncontent-length: 3\r\n\r\nown",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 3\r\n\r\nown",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
async def test_what_could_be_read_in_two_ways_is_no_answer(data: bytes) -> None:
    async with saying(data) as server:
        transport = Transport([server.url])
        async with asyncio.timeout(3):
            with pytest.raises(BadWire, match="not valid HTTP"):
                await fetch(transport, server.url)
        await transport.close()


async def test_an_answer_that_was_read_may_turn_out_longer_than_it_said() -> None:
    async with saying(answer(b"own"), b"more", pause_s=0.02) as server:
        transport = Transport([server.url])
        for _ in range(3):
            assert (await fetch(transport, server.url))[1] == b"own"
            await asyncio.sleep(0.05)
        assert len(server.accepted) == 3
        await transport.close()


async def test_a_body_in_an_unknown_framing_is_not_ended_by_the_end_of_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n"
    async with saying(head + b"own", closes=True) as server:
        transport = Transport([server.url])
        with pytest.raises(ConnectionLost):
            await fetch(transport, server.url)
        await transport.close()


async def test_an_answer_is_the_same_wherever_it_is_split() -> None:
    data = (
        b"HTTP/1.1 103 Hints\r\nlink: </a>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nX-Request-Id: one\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\nfirst\r\n6;x=y\r\nsecond\r\n0\r\nx-late: 1\r\n\r\n"
    )
    offsets = iter(range(1, len(data)))

    async def split(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            at = next(offsets)
            writer.write(data[:at])
            await writer.drain()
            await asyncio.sleep(0.001)
            writer.write(data[at:])

    async with RawServer(split) as server:
        transport = Transport([server.url])
        for _ in range(1, len(data)):
            status, body, headers = await fetch(transport, server.url)
            assert (status, body, headers["x-request-id"]) == (200, b"firstsecond", "one")
            assert "x-late" not in headers
        assert len(server.accepted) == 1
        await transport.close()


FLOODS = {
    "a head that does not end": [b"HTTP/1.1 200 OK\r\n", *[b"x-a: " + b"b" * 1000 + b"\r\n"] * 100],
    "one header that does not end": [b"HTTP/1.1 200 OK\r\nx-a: ", *[b"b" * 1000] * 100],
    "one header that is too long": [b"HTTP/1.1 200 OK\r\nx-a: " + b"b" * 20_000 + b"\r\n\r\n"],
    "an extension that does not end": [CHUNKED + b"3;", *[b"x" * 1000] * 1000],
    "a trailer that does not end": [CHUNKED + b"0\r\nx-a: ", *[b"b" * 1000] * 1000],
    "trailers that do not end": [CHUNKED + b"0\r\n", *[b"x-a: b\r\n" * 100] * 1000],
}


@pytest.mark.parametrize("parts", FLOODS.values(), ids=FLOODS.keys())
async def test_what_frames_an_answer_is_bounded(parts: list[bytes]) -> None:
    async with saying(*parts) as server:
        transport = Transport([server.url])
        async with asyncio.timeout(5):
            with pytest.raises(BadWire):
                await fetch(transport, server.url)
        await transport.close()


async def test_a_kept_connection_never_tires_of_framing() -> None:
    # Each answer ends with a read that brings no body; what they add up to is no flood.
    async with saying(
        CHUNKED + b"3\r\nown\r\n", b"0" * 2000 + b"\r\n\r\n", pause_s=0.001
    ) as server:
        transport = Transport([server.url])
        for _ in range(100):
            assert (await fetch(transport, server.url))[1] == b"own"
        assert len(server.accepted) == 1
        await transport.close()


@pytest.mark.parametrize("size_bytes", [128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1, 3 * MIB])
async def test_a_body_of_any_size_is_read_in_bounds(size_bytes: int) -> None:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    async with saying(answer(body[:size_bytes])) as server:
        transport = Transport([server.url])
        for _ in range(2):
            exchange = await send(transport, server.url)
            async with exchange:
                parts: list[bytes] = []
                while part := await exchange.read():
                    parts.append(part)
                assert b"".join(parts) == body[:size_bytes]
                assert max(map(len, parts)) <= 128 * 1024
        assert len(server.accepted) == 1
        await transport.close()


async def test_a_slow_reader_slows_the_upstream() -> None:
    written_bytes = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written_bytes
        await read_request(reader)
        writer.write(CHUNKED)
        piece = b"%x\r\n%s\r\n" % (64 * 1024, b"x" * 64 * 1024)
        for _ in range(1024):
            writer.write(piece)
            await writer.drain()
            written_bytes += 64 * 1024
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async with RawServer(flood) as server:
        transport = Transport([server.url])
        exchange = await send(transport, server.url)
        async with exchange:
            await asyncio.sleep(0.2)
            stood_at = written_bytes
            assert stood_at < 32 * MIB  # what the kernel holds, which is a matter of its settings
            await asyncio.sleep(0.05)
            assert written_bytes == stood_at
            size_bytes = 0
            while part := await exchange.read():
                size_bytes += len(part)
            assert size_bytes == 64 * MIB
        await transport.close()


async def test_what_compressed_bytes_swell_to_is_read_in_bounds() -> None:
    packed = gzip.compress(bytes(64 * MIB))
    async with saying(answer(packed, "content-encoding: gzip")) as server:
        transport = Transport([server.url])
        exchange = await send(transport, server.url)
        async with exchange:
            assert exchange.take_rest() is None
            for _ in range(10):
                assert 0 < len(await exchange.read()) <= 128 * 1024
        with pytest.raises(BadWire, match="exceeds"):
            await fetch(transport, server.url, max_bytes=MIB)
        await transport.close()


async def test_a_body_that_breaks_off_in_its_compression_stays_broken() -> None:
    async with saying(answer(b"\x1f\x8b nothing", "content-encoding: gzip")) as server:
        transport = Transport([server.url])
        exchange = await send(transport, server.url)
        async with exchange:
            for _ in range(3):
                with pytest.raises(BadWire, match="cannot be undone"):
                    await exchange.read()
        await transport.close()


async def test_a_whole_answer_that_lay_there_beyond_its_deadline_is_late() -> None:
    async with saying(answer(b"own")) as server:
        transport = Transport([server.url])
        limits = Deadlines(connect_s=1, first_token_s=0.1, between_tokens_s=0.1, total_s=0.1)
        exchange = await send(transport, server.url, limits)
        async with exchange:
            await asyncio.sleep(0.15)
            assert exchange.take_rest() is None
            assert await exchange.read() == b"own"
            with pytest.raises(TotalTimeout):
                await exchange.read()
        await transport.close()


async def test_a_read_that_was_given_up_loses_nothing() -> None:
    async with saying(CHUNKED + b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n", pause_s=0.05) as server:
        transport = Transport([server.url])
        exchange = await send(transport, server.url)
        async with exchange:
            assert await exchange.read() == b"one"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await exchange.read()
            assert await exchange.read() == b"two"
            assert await exchange.read() == b""
        assert (await fetch(transport, server.url))[1] == b"onetwo"
        assert len(server.accepted) == 1
        await transport.close()


ENDS = {
    "closed after its answer": answer(b"own", "connection: close"),
    "said something unasked": answer(b"own") + answer(b"others"),
    "sent nonsense": b"SSH-2.0-OpenSSH\r\n",
    "broke off": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nown",
}


@pytest.mark.parametrize("data", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("size_bytes", [10, MIB], ids=["small request", "large request"])
async def test_a_connection_that_ended_leaves_nothing_to_the_collector(
    data: bytes, size_bytes: int
) -> None:
    async with saying(data, closes=True) as server:
        transport = Transport([server.url])
        gc.freeze()  # what is there already is not looked through
        gc.disable()
        try:
            for _ in range(5):
                with contextlib.suppress(ProviderError):
                    await fetch(transport, server.url, body=b"x" * size_bytes)
            await asyncio.sleep(0.02)
            # By type: `isinstance` asks an object for its class, and torch has some that warn then.
            left = [one for one in gc.get_objects() if issubclass(type(one), Line | Upload)]
            assert left == []
        finally:
            gc.enable()
            gc.unfreeze()
        assert len(server.accepted) == 5
        await transport.close()
