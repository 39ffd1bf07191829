"""Long reads full of tiny parts: how much of them one turn of the loop takes, and that none is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import suppress
from typing import ClassVar

import anyio
import anyio.to_thread
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.bounds import HEADERS_MAX
from gateway.http.pieces import (
    EVENTS_MAX,
    FULL_READ_BYTES,
    FULL_READS_MAX,
    PIECE_BYTES,
    divides,
    pieces_of,
)
from gateway.http.protocol import BoundedProtocol
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import NOWHERE, body, request_bytes, running_gateway, serving

HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
LAST = HEAD + b"connection: close\r\n\r\n"
IN_ONE_PIECE = PIECE_BYTES // 4
"""No more parts or headers are in a piece: the shortest header is four bytes long."""


def chunked(content: bytes, size: int) -> bytes:
    parts = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def chat(content: bytes, *, is_last: bool = True) -> bytes:
    return request_bytes(content, headers=["transfer-encoding: chunked"], is_last=is_last)


class Counting(BoundedProtocol):
    """Counts what the parser calls back with in each turn of the loop."""

    in_turns: ClassVar[list[int]] = []
    is_counting: ClassVar[bool] = False

    def on_body(self, part: bytes) -> None:
        self._count()
        super().on_body(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count()
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        self._count()
        super().on_message_complete()

    def _count(self) -> None:
        cls = type(self)
        if not cls.is_counting:
            cls.is_counting = True
            cls.in_turns.append(0)
            asyncio.get_running_loop().call_soon(cls.end_turn)
        cls.in_turns[-1] += 1

    @classmethod
    def end_turn(cls) -> None:
        cls.is_counting = False


def exchange(port: int, data: bytes) -> bytes:
    """Send all, then read until the end, on a thread so that one read finds much."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        with suppress(ConnectionError):
            client.sendall(data)
        got = b""
        with suppress(ConnectionError):
            while part := client.recv(65536):
                got += part
        return got


LONG_BODY = json.dumps(body(messages=[{"role": "user", "content": "u" * 100_000}])).encode()
CROWDED = {
    "a body in chunks of one byte": (chat(chunked(LONG_BODY, 1)), [b"200"]),
    "a body that nobody reads": (
        chat(chunked(LONG_BODY, 1), is_last=False).replace(b"Bearer", b"Nobody") + LAST,
        [b"401", b"200"],
    ),
    "a head of nothing but headers": (HEAD + b"a:\r\n" * 16_000 + b"\r\n", [b"431"]),
    "trailers": (
        chat(chunked(b"{}", 1)[:-2] + b"a:\r\n" * 15_000 + b"\r\n", is_last=False) + LAST,
        [b"400", b"200"],
    ),
    "requests with many headers in advance": (
        (HEAD + b"a:\r\n" * 250 + b"\r\n") * 40 + LAST,
        [b"200"] * 41,
    ),
}


@pytest.mark.parametrize(("data", "statuses"), CROWDED.values(), ids=CROWDED.keys())
def test_a_turn_of_the_loop_takes_a_bounded_part_of_what_was_read(tmp_path, data, statuses):
    class Counted(Counting):
        in_turns: ClassVar[list[int]] = []

    async def send() -> bytes:
        async with serving(tmp_path, http=Counted) as gateway:
            return await anyio.to_thread.run_sync(exchange, gateway.port, data)

    got = uvloop.run(send())
    assert [line[:3] for line in got.split(b"HTTP/1.1 ")[1:]] == statuses
    assert max(Counted.in_turns) <= EVENTS_MAX + IN_ONE_PIECE


def test_what_is_behind_pieces_does_not_overtake_them(tmp_path):
    texts = [f"{number}-" * 20_000 for number in range(3)]
    contents = [
        json.dumps(body(messages=[{"role": "user", "content": text}])).encode() for text in texts
    ]
    *firsts, last = (chunked(content, 3) for content in contents)
    data = b"".join(chat(first, is_last=False) for first in firsts) + chat(last)
    provider = FakeProvider(name="a", scripts=[answer("hello")])

    async def send() -> bytes:
        async with running_gateway(
            tmp_path, {"a": NOWHERE}, providers={"a": provider}, http=BoundedProtocol
        ) as gateway:
            return await anyio.to_thread.run_sync(exchange, gateway.port, data)

    assert uvloop.run(send()).count(b"HTTP/1.1 200 ") == 3
    got = [json.loads(bytes(call.fields["messages"]))[0]["content"] for call in provider.calls]
    assert got == texts


def test_a_wish_to_upgrade_in_a_head_of_several_pieces_loses_no_body(tmp_path):
    wish = ["connection: upgrade, close", "upgrade: h2c"]
    long = [f"x-{number}: {'v' * 400}" for number in range(60)]
    content = json.dumps(body(), indent=1).encode() + b"\n" * 30_000
    data = request_bytes(content, headers=[*long, *wish])

    async def send() -> bytes:
        async with serving(tmp_path) as gateway:
            return await anyio.to_thread.run_sync(exchange, gateway.port, data)

    assert uvloop.run(send()).startswith(b"HTTP/1.1 200 ")


def test_a_turn_takes_a_bounded_part_of_a_body_that_comes_fast(tmp_path):
    content = json.dumps(body(messages=[{"role": "user", "content": "u" * 20_000_000}])).encode()
    turns = 0
    bytes_in_turns: dict[int, int] = {}

    class Measured(BoundedProtocol):
        def data_received(self, data: bytes) -> None:
            bytes_in_turns[turns] = bytes_in_turns.get(turns, 0) + len(data)
            super().data_received(data)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send() -> bytes:
        async with serving(tmp_path, http=Measured) as gateway, anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            got = await anyio.to_thread.run_sync(exchange, gateway.port, request_bytes(content))
            tasks.cancel_scope.cancel()
        return got

    assert uvloop.run(send()).startswith(b"HTTP/1.1 200 ")
    assert sum(bytes_in_turns.values()) > len(content)
    assert max(bytes_in_turns.values()) <= FULL_READS_MAX * FULL_READ_BYTES


LEAVING = {"at once": struct.pack("ii", 1, 0), "in good order": struct.pack("ii", 0, 0)}


@pytest.mark.parametrize("linger", LEAVING.values(), ids=LEAVING.keys())
def test_a_client_that_leaves_behind_its_pieces_leaves_nothing(tmp_path, linger):
    data = chat(chunked(LONG_BODY * 4, 1))[:-5]  # the last chunk is missing

    def leave(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.sendall(data)

    async def send() -> None:
        async with serving(tmp_path) as gateway:
            await anyio.to_thread.run_sync(leave, gateway.port)
            await gateway.wait_idle()
            assert (await gateway.post(body())).status_code == 200

    uvloop.run(send())  # which fails where a connection is left at the end


COUNTS = {"as many headers as there may be": (HEADERS_MAX, 200), "one more": (HEADERS_MAX + 1, 431)}


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "status"), COUNTS.values(), ids=COUNTS.keys())
async def test_headers_are_counted(tmp_path, count, status):
    async with serving(tmp_path) as gateway:
        got = await gateway.raw(HEAD + b"a: b\r\n" * (count - 2) + b"connection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 %d " % status)


@given(st.lists(st.binary(max_size=3) | st.just(b"\n") | st.just(b"x" * PIECE_BYTES), max_size=40))
def test_pieces_are_the_read_and_only_the_last_may_end_within_a_line(parts):
    data = b"".join(parts)
    pieces = list(pieces_of(data))
    assert b"".join(pieces) == data
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n")
        assert len(piece) > PIECE_BYTES
        assert piece.count(b"\n", PIECE_BYTES) == 1
    assert divides(data) is (len(pieces) > 1)


@pytest.mark.ci
@pytest.mark.slow
def test_others_are_served_while_a_client_sends_tiny_parts_without_end(tmp_path):
    content = chunked(b"u" * 400_000, 1)

    async def send() -> int:
        served = 0
        async with serving(tmp_path) as gateway, anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def crowd() -> None:
                for _ in range(10):
                    await anyio.to_thread.run_sync(exchange, gateway.port, chat(content))
                done.set()

            tasks.start_soon(crowd)
            while not done.is_set():
                assert (await gateway.post(body())).status_code == 200
                served += 1
        return served

    assert uvloop.run(send()) >= 10
