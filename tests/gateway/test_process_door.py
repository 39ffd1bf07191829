"""Connections are taken in as they come, many at once, until the door is closed."""

from __future__ import annotations

import asyncio
import resource
import socket

import anyio
import pytest
import uvloop

from gateway.process import door
from gateway.process.door import TAKEN_MAX, Door
from gateway.process.listeners import bind


@pytest.fixture
def anyio_backend():
    return ("asyncio", {"loop_factory": uvloop.new_event_loop})


pytestmark = pytest.mark.anyio


class Greeting(asyncio.Protocol):
    """Says one word to whoever comes."""

    def connection_made(self, transport):
        transport.write(b"hello")


def connected(address, count):
    return [socket.create_connection(address, timeout=5) for _ in range(count)]


async def greeted(client) -> bytes:
    return await anyio.to_thread.run_sync(client.recv, 16)


async def test_many_connections_are_taken_in_by_one_turn_of_the_loop():
    made = []

    def make():
        made.append(True)
        return asyncio.Protocol()

    listener = bind("127.0.0.1", 0).sockets[0]
    clients = connected(listener.getsockname(), TAKEN_MAX + 10)
    opened = Door(listener, make)
    counts, loop = [], asyncio.get_running_loop()
    turned = asyncio.Event()

    def count() -> None:
        counts.append(len(made))
        if len(counts) == 6:
            turned.set()
        else:
            loop.call_soon(count)

    loop.call_soon(count)
    await turned.wait()
    steps = [after - before for before, after in zip(counts, counts[1:], strict=False)]
    assert max(steps) == TAKEN_MAX
    assert counts[-1] == TAKEN_MAX + 10
    opened.close()
    for client in clients:
        client.close()


async def test_what_was_accepted_outlives_the_door_and_nothing_is_accepted_behind_it():
    listener = bind("127.0.0.1", 0).sockets[0]
    address, kept = listener.getsockname(), listener.dup()
    opened = Door(listener, Greeting)
    (before,) = connected(address, 1)
    assert await greeted(before) == b"hello"
    opened.close()
    opened.close()
    (behind,) = connected(address, 1)  # by the supervisor's copy of the socket, until one takes it
    behind.settimeout(0.1)
    with pytest.raises(TimeoutError):
        await greeted(behind)
    again = Door(kept, Greeting)
    behind.settimeout(5)
    assert await greeted(behind) == b"hello"
    again.close()
    before.close()
    behind.close()


async def test_a_process_that_may_open_nothing_more_tries_again(caplog):
    assert door.PAUSE_S >= 0.5  # it would fill the log
    listener = bind("127.0.0.1", 0).sockets[0]
    opened = Door(listener, Greeting)
    client = socket.socket()
    client.settimeout(5)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 8, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(socket.socket())
        client.connect(listener.getsockname())
        await anyio.sleep(0.1)
        assert "no connection can be accepted" in caplog.text
        assert len(caplog.records) == 1
    finally:
        for one in taken:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert await greeted(client) == b"hello"
    opened.close()
    client.close()
