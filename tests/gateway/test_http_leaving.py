"""Clients that leave or stay in odd ways: with much sent in advance, in mid-head, amid an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from contextlib import suppress

import anyio
import anyio.to_thread
import pytest

from gateway.http.protocol import READ_ON_MAX, BoundedProtocol
from gateway.ledger.records import AttemptStatus
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import NOWHERE, body, request_bytes, running_gateway, serving

pytestmark = pytest.mark.anyio


def request(**changes: object) -> bytes:
    return request_bytes(json.dumps(body(**changes)).encode(), is_last=False)


def thinking(folder, pause_s: float, *, http: type[asyncio.Protocol] = BoundedProtocol):
    """A gateway whose provider is silent for a while."""
    provider = FakeProvider(name="a", scripts=[[pause_s, *answer("late")]])
    return running_gateway(folder, {"a": NOWHERE}, providers={"a": provider}, http=http)


LEAVERS = {
    "a body that one read brought": request(user="u" * 100_000),
    "another request in advance": request() * 2,
    "several requests in advance": request() * READ_ON_MAX,
}


@pytest.mark.parametrize("sent", LEAVERS.values(), ids=LEAVERS.keys())
async def test_a_client_that_leaves_before_its_answer_is_noticed_whatever_it_sent(tmp_path, sent):
    async with thinking(tmp_path, 3600) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(sent)
        with anyio.fail_after(5):
            while not gateway.service.relays:
                await anyio.sleep(0.005)
        writer.close()
        await gateway.wait_idle()
        [(_, settled)] = await gateway.settled()
        assert settled.status == AttemptStatus.CLIENT_LEFT


class Impatient(BoundedProtocol):
    head_s_max = 0.05


async def test_the_start_of_another_request_does_not_end_an_answer(tmp_path):
    async with thinking(tmp_path, 0.15, http=Impatient) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request() * 2 + request()[:30])
        with anyio.fail_after(5):
            for _ in range(2):
                assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
                await reader.readuntil(b'"late"')
                await reader.readuntil(b"}}")
            await until_closed(reader)  # the rest of the third one never comes
        writer.close()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


LATE = {
    "a body behind its answer": (b"content-length: 3\r\n\r\n", b"abc"),
    "empty lines behind an answer": (b"\r\n", b"\r\n\r\n"),
}


@pytest.mark.parametrize(("head_end", "late"), LATE.values(), ids=LATE.keys())
async def test_what_comes_behind_an_answer_does_not_keep_a_connection_for_ever(
    tmp_path, head_end, late
):
    class Short(Impatient):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.timeout_keep_alive = 0.1

    async with serving(tmp_path, http=Short) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + head_end)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(late)
        with anyio.fail_after(3):
            assert await until_closed(reader) == b""
        writer.close()


async def test_a_body_in_chunks_of_two_bytes_takes_little_more_memory_than_it_has_bytes(tmp_path):
    content = json.dumps(body(user="u" * 200_000)).encode()
    pairs = [content[start : start + 2] for start in range(0, len(content), 2)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(pair), pair) for pair in pairs) + b"0\r\n\r\n"
    whole = request_bytes(chunks, headers=["transfer-encoding: chunked"])
    del pairs
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        tracemalloc.start()
        for start in range(0, len(whole), 50_000):
            writer.write(whole[start : start + 50_000])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        writer.close()
    assert peak_bytes < 10 * len(content)


class SmallSocket(BoundedProtocol):
    unread_s_max = 0.1

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.timeout_keep_alive = 0.05

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        super().connection_made(transport)


ENDINGS = {
    "as the client asked": request_bytes(json.dumps(body()).encode()),
    "because nothing more is asked": request(),
}


@pytest.mark.parametrize("sent", ENDINGS.values(), ids=ENDINGS.keys())
async def test_the_unread_end_of_an_answer_does_not_hold_a_connection_that_closes(tmp_path, sent):
    # Less than what a transport may hold before it says that the client does not read.
    async with serving(tmp_path, "x" * 50_000, http=SmallSocket) as gateway:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.connect(("127.0.0.1", gateway.port))
            client.sendall(sent)
            await anyio.sleep(0.25)  # the server's two waits and more
            got = 0
            with suppress(ConnectionError):
                while part := client.recv(1_000_000):
                    got += len(part)
                    await anyio.sleep(0.01)
    assert got < 50_000
