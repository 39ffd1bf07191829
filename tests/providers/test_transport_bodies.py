"""Bodies both ways: large ones sent in pieces, early answers read, compressed ones undone."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import BadWire, ConnectionLost, FirstTokenTimeout
from providers.transport import Transport
from tests.providers.permits import bound_for
from tests.providers.transport_harness import (
    BACKENDS,
    LIMITS,
    RawServer,
    answer,
    fetch,
    read_request,
    serve_forever,
)

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
SIZES = {
    "nothing": [],
    "empty pieces": [b"", b"", b""],
    "one small piece": [b"a"],
    "many small pieces": [b"%d," % number for number in range(200)],
    "just below a slice": [b"x" * (256 * 1024 - 1)],
    "a slice and one byte": [b"x" * (256 * 1024 + 1)],
    "small pieces around a large one": [b'{"image":"', b"A" * 3 * MIB, b'","model":', b'"m"}'],
    "several large pieces": [bytes([number]) * MIB for number in range(7)],
}


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


@pytest.mark.parametrize("pieces", SIZES.values(), ids=SIZES.keys())
async def test_a_body_in_pieces_arrives_as_one(pieces: list[bytes]) -> None:
    received: list[tuple[str, bytes]] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            received.append(await read_request(reader))
            writer.write(answer(b"ok"))

    async with RawServer(keep) as server:
        transport = Transport([server.url])
        for _ in range(2):
            assert (await fetch(transport, server.url, body=pieces))[1] == b"ok"
        await transport.close()
        assert [body for _, body in received] == [b"".join(pieces)] * 2
        assert f"content-length: {sum(map(len, pieces))}\r\n" in received[0][0]
        assert len(server.accepted) == 1


async def test_a_large_body_is_not_copied_and_waits_for_a_slow_upstream() -> None:
    may_read = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        size = 0
        while size < 32 * MIB:
            size += len(await reader.read(MIB))
        writer.write(answer(b"ok"))

    body = b"x" * (32 * MIB)
    async with RawServer(slow) as server:
        transport = Transport([server.url])
        tracemalloc.start()
        try:
            call = asyncio.create_task(fetch(transport, server.url, body=body))
            await asyncio.sleep(0.2)
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # asyncio's own transports copy what a socket does not take; it is one slice of ours.
        assert held_bytes < 2 * MIB
        assert not call.done()
        may_read.set()
        assert (await call)[1] == b"ok"
        await transport.close()


async def test_sending_a_large_body_does_not_hold_the_loop() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"ok"))

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with RawServer(swallow) as server:
        transport = Transport([server.url])
        counting = asyncio.create_task(count_turns())
        await fetch(transport, server.url, body=b"x" * (16 * MIB))
        counting.cancel()
        # At most a MiB goes between two turns.
        assert turns >= 16
        await transport.close()


REFUSALS = {
    "and goes on reading": False,
    "and hangs up": True,
}


@pytest.mark.parametrize("hangs_up", REFUSALS.values(), ids=REFUSALS.keys())
async def test_an_answer_that_comes_before_the_body_was_sent_is_read(hangs_up: bool) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"too large", status=413))
        await writer.drain()
        if hangs_up:
            writer.write_eof()
            await asyncio.sleep(0.1)
        else:
            while await reader.read(MIB):
                pass

    async with RawServer(refuse) as server:
        transport = Transport([server.url])
        for _ in range(2):
            status, text, _ = await fetch(transport, server.url, body=b"x" * (20 * MIB))
            assert (status, text) == (413, b"too large")
        # A connection with half a request on it is of no more use.
        assert len(server.accepted) == 2
        await transport.close()


async def test_a_connection_that_still_sends_is_not_used_again() -> None:
    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"done already"))
        await asyncio.sleep(0.1)

    async with RawServer(answer_early) as server:
        transport = Transport([server.url])
        for _ in range(2):
            assert (await fetch(transport, server.url, body=b"x" * (20 * MIB)))[0] == 200
        assert len(server.accepted) == 2
        await transport.close()


async def test_an_upstream_that_stops_reading_is_given_up_in_time() -> None:
    async def read_nothing(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async with RawServer(read_nothing) as server:
        transport = Transport([server.url])
        limits = Deadlines(connect_s=1, first_token_s=0.2, between_tokens_s=5, total_s=10)
        with pytest.raises(FirstTokenTimeout):
            await fetch(transport, server.url, body=b"x" * (20 * MIB), limits=limits)
        await transport.close()


async def test_a_flood_of_interim_answers_is_no_answer() -> None:
    # What is here already would be taken without a turn of others, however much it is.
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 300 + answer(b"late"))
        await reader.read()

    async with RawServer(flood) as server:
        transport = Transport([server.url])
        facts = AttemptFacts()
        with pytest.raises(BadWire, match="more than 256 interim answers"):
            await fetch(transport, server.url, facts=facts)
        assert facts.was_sent
        await transport.close()


async def test_an_interim_answer_is_not_the_answer() -> None:
    async def early_hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0.02)
        writer.write(answer(b"the answer"))

    async with RawServer(early_hints) as server:
        transport = Transport([server.url])
        assert (await fetch(transport, server.url))[:2] == (200, b"the answer")
        await transport.close()


HEADERS = {
    "a line break in a value": {"x-a": "b\r\nx-c: d"},
    "a bare line feed": {"x-a": "b\nc"},
    "a bare carriage return": {"x-a": "b\rc"},
    "a zero byte": {"x-a": "b\0c"},
    "a space in a name": {"x a": "b"},
    "a colon in a name": {"x:a": "b"},
    "an empty name": {"": "b"},
    "a length of its own": {"Content-Length": "3"},
    "a coding of its own": {"transfer-encoding": "chunked"},
    "another host": {"host": "elsewhere.test"},
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
async def test_a_head_that_would_mean_something_else_is_not_written(
    headers: dict[str, str],
) -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url])
        with pytest.raises(ValueError, match="header"):
            await fetch(transport, server.url, headers=headers)
        assert server.accepted == []
        await transport.close()


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PLAIN = b'{"choices":[' + b'{"text":"word"},' * 5000 + b"{}]}"
CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in capitals": ("GZIP", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without its header": ("deflate", _deflate_raw),
    "nothing, said so": ("identity", bytes),
}


@pytest.mark.parametrize("framing", ["by length", "in chunks", "to the end"])
@pytest.mark.parametrize(("coding", "pack"), CODINGS.values(), ids=CODINGS.keys())
async def test_a_compressed_answer_is_read_whole(
    coding: str, pack: Callable[[bytes], bytes], framing: str
) -> None:
    packed = pack(PLAIN)

    async def compress(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            if framing == "by length":
                writer.write(answer(packed, f"content-encoding: {coding}"))
                continue
            head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\n"
            if framing == "to the end":
                writer.write(f"{head}\r\n".encode() + packed)
                await writer.drain()
                return
            writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for start in range(0, len(packed), 7):
                part = packed[start : start + 7]
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            writer.write(b"0\r\n\r\n")

    async with RawServer(compress) as server:
        transport = Transport([server.url])
        for _ in range(2):
            assert (await fetch(transport, server.url, max_bytes=MIB))[1] == PLAIN
        assert len(server.accepted) == (2 if framing == "to the end" else 1)
        await transport.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_an_event_that_was_flushed_is_not_held_back(coding: str) -> None:
    events = [b"data: %d\n\n" % number for number in range(5)]
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
        for event in events:
            part = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await go_on.wait()
            go_on.clear()
        part = packer.flush()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(part), part))

    async with RawServer(stream) as server:
        transport = Transport([server.url])
        exchange = await transport.send(
            URL(server.url),
            **bound_for(server.url),
            headers={},
            body=b"{}",
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        async with exchange:
            for event in events:
                assert await exchange.read() == event
                go_on.set()
            assert await exchange.read() == b""
        await transport.close()


UNKNOWN = {
    "a coding of former times": "compress",
    "several codings": "gzip, deflate",
    "a coding of its own": "x-vendor",
    "bytes that are no text": "\xff\xfe",
    "one that takes a library which is no part of this": "br",
    "another one of those": "zstd",
}


@pytest.mark.parametrize("coding", UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_an_unknown_coding_is_said_and_not_passed_on(coding: str) -> None:
    async def encode(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            answer(b"...").replace(
                b"\r\n", f"\r\ncontent-encoding: {coding}\r\n".encode("latin-1"), 1
            )
        )

    async with RawServer(encode) as server:
        transport = Transport([server.url])
        with pytest.raises(BadWire, match="unknown way"):
            await fetch(transport, server.url)
        await transport.close()


async def test_an_error_keeps_its_status_whatever_its_body_is_written_in() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"???", "content-encoding: compress", status=429))

    async with RawServer(refuse) as server:
        transport = Transport([server.url])
        assert (await fetch(transport, server.url))[:2] == (429, b"???")
        await transport.close()


async def test_what_is_no_gzip_is_bad_wire() -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"this is no gzip", "content-encoding: gzip"))

    async with RawServer(lie) as server:
        transport = Transport([server.url])
        with pytest.raises(BadWire, match="compressed in a way"):
            await fetch(transport, server.url)
        await transport.close()


async def test_a_body_that_swells_is_refused_before_it_has_swollen() -> None:
    bomb = gzip.compress(b"0" * (64 * MIB))

    async def explode(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(bomb, "content-encoding: gzip"))
        await writer.drain()
        await reader.read()

    async with RawServer(explode) as server:
        transport = Transport([server.url])
        tracemalloc.start()
        try:
            with pytest.raises(BadWire, match="exceeds 1000000 bytes"):
                await fetch(transport, server.url, max_bytes=1_000_000)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 8 * MIB
        await transport.close()


CUTS = {
    "a length that is never reached": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
    "a chunk that is never finished": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10\r\nshort"
    ),
    "no last chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "nothing": b"",
}


@pytest.mark.parametrize("data", CUTS.values(), ids=CUTS.keys())
async def test_a_body_that_ends_early_is_no_answer(data: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(data)
        await writer.drain()

    async with RawServer(cut) as server:
        transport = Transport([server.url])
        with pytest.raises(ConnectionLost):
            await fetch(transport, server.url)
        await transport.close()


ENDS = {
    "is reset": (b"", ConnectionLost),
    "closes": (b"", ConnectionLost),
    "sends nonsense": (b"zz\r\n", BadWire),
}


@pytest.mark.parametrize("end", ENDS.keys())
async def test_what_came_before_a_failure_is_read_before_it(end: str) -> None:
    nonsense, kind = ENDS[end]

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in (b"one", b"two"):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(0.005)
        writer.write(nonsense)
        await writer.drain()
        if end == "is reset":
            linger = struct.pack("ii", 1, 0)
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async with RawServer(fail) as server:
        transport = Transport([server.url])
        exchange = await transport.send(
            URL(server.url),
            **bound_for(server.url),
            headers={},
            body=b"{}",
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        async with exchange:
            # A slow client: all is over before it comes to read.
            await asyncio.sleep(0.06)
            assert await exchange.read() == b"onetwo"
            with pytest.raises(kind):
                await exchange.read()
            with pytest.raises(kind):
                await exchange.read()
        await transport.close()


MALFORMED = {
    "no HTTP at all": b"SSH-2.0-OpenSSH\r\n",
    "a chunk whose size is no number": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n"
    ),
    "a chunk longer than it says": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n"
    ),
    "a length that is no number": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\nhello",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "a header without end": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000,
    "headers without number": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
}


@pytest.mark.parametrize("pause_s", [0, 0.02], ids=["at once", "with a pause before its end"])
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_answers_are_refused(data: bytes, pause_s: float) -> None:
    async def malform(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in (data[:-8], data[-8:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        await reader.read()

    async with RawServer(malform) as server:
        transport = Transport([server.url])
        async with asyncio.timeout(3):
            with pytest.raises(BadWire):
                await fetch(transport, server.url)
        await transport.close()
