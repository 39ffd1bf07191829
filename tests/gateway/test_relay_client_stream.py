"""What one answer writes to its connection, and in how many writes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.dialects.openai_answer import DONE, HEARTBEAT
from gateway.relay.client_stream import EVENT_STREAM_HEADERS, ClientStream

pytestmark = pytest.mark.anyio

HEAD = b"x-fareway-attempts: 1\r\n"
EVENT = b'data: {"n":1}\n\n'


class NotedWire:
    """A connection that keeps each write, and whose client reads when it is told to."""

    def __init__(self, *, is_blocked: bool = False) -> None:
        self.is_blocked = is_blocked
        self.writes: list[tuple[bytes, bytes]] = []  # lines of a head, bytes of a body
        self.has_room = asyncio.Event()

    def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        self.writes.append((headers, body))

    def start(self, status: int, headers: bytes, first: bytes = b"") -> None:
        assert status == 200
        self.writes.append((headers, first))

    def write(self, data: bytes) -> None:
        self.writes.append((b"", data))

    def finish(self, data: bytes) -> None:
        self.writes.append((b"", data))

    async def drain(self) -> None:
        await self.has_room.wait()

    def read(self) -> None:
        self.is_blocked = False
        self.has_room.set()


def stream_on(wire: NotedWire) -> ClientStream:
    return ClientStream(wire, iter(range(1, 100)).__next__)


async def test_the_head_and_the_first_events_are_one_write():
    wire = NotedWire()
    client = stream_on(wire)
    assert not await client.start(HEAD, EVENT)
    assert not client.put(EVENT)
    client.finish(b"", is_clean=True)
    assert wire.writes == [(EVENT_STREAM_HEADERS + HEAD, EVENT), (b"", EVENT), (b"", DONE)]


async def test_a_heartbeat_goes_out_with_the_head_and_the_first_events_without():
    wire = NotedWire()
    client = stream_on(wire)
    client.beat(lambda: HEAD)
    assert client.is_started
    await client.start(b"another", EVENT)
    assert wire.writes == [(EVENT_STREAM_HEADERS + HEAD, HEARTBEAT), (b"", EVENT)]


async def test_the_first_events_wait_for_a_client_that_has_yet_to_read_what_came_before():
    wire = NotedWire(is_blocked=True)
    client = stream_on(wire)
    start = asyncio.ensure_future(client.start(HEAD, EVENT))
    await asyncio.sleep(0)
    client.beat(lambda: HEAD)
    assert wire.writes == []
    wire.read()
    assert not await start
    assert wire.writes == [(EVENT_STREAM_HEADERS + HEAD, EVENT)]


async def test_a_heartbeat_while_the_first_events_wait_leaves_them_without_a_head():
    wire = NotedWire(is_blocked=True)
    client = stream_on(wire)
    start = asyncio.ensure_future(client.start(b"another", EVENT))
    await asyncio.sleep(0)
    wire.read()
    client.beat(lambda: HEAD)
    await start
    assert wire.writes == [(EVENT_STREAM_HEADERS + HEAD, HEARTBEAT), (b"", EVENT)]


@pytest.mark.parametrize("is_started", [False, True], ids=["with the head", "behind a heartbeat"])
async def test_who_starts_a_stream_is_told_that_the_client_is_full(is_started):
    class Full(NotedWire):
        def start(self, status: int, headers: bytes, first: bytes = b"") -> None:
            super().start(status, headers, first)
            self.is_blocked = bool(self.is_blocked or first == EVENT)

        def write(self, data: bytes) -> None:
            super().write(data)
            self.is_blocked = True

    wire = Full()
    client = stream_on(wire)
    if is_started:
        client.beat(lambda: HEAD)
    assert await client.start(HEAD, EVENT)
    assert wire.writes[-1][1] == EVENT


async def test_the_first_events_end_the_silence_that_heartbeats_count():
    wire = NotedWire()
    client = stream_on(wire)
    await client.start(HEAD, EVENT)
    assert client.last_sent_s == 1
