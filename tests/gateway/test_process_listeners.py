"""Sockets on one port: who gets a connection, and whom the port is refused to."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from gateway.process.listeners import CannotListen, Listeners, bind

CONNECTIONS = 256


def waiting(listeners: Listeners) -> list[int]:
    """How many connections wait at each socket."""
    counts: list[int] = []
    for listener in listeners.sockets:
        listener.setblocking(False)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                count += 1
        counts.append(count)
    return counts


def test_connections_spread_over_the_sockets():
    listeners = bind("127.0.0.1", 0, count=3)
    address = listeners.sockets[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(CONNECTIONS)]
    counts = waiting(listeners)
    assert sum(counts) == CONNECTIONS
    # Drawn at random: a socket that gets under half of its share does so once in 10**10 runs.
    assert min(counts) > CONNECTIONS / 3 / 2
    for client in clients:
        client.close()
    listeners.close()


def test_sockets_are_added_and_never_taken_away():
    listeners = bind("127.0.0.1", 0)
    listeners.grow(3)
    first = list(listeners.sockets)
    listeners.grow(2)
    assert listeners.sockets == first
    assert {one.getsockname() for one in first} == {first[0].getsockname()}
    listeners.close()


def test_what_waits_at_a_socket_outlives_the_worker_that_served_it():
    listeners = bind("127.0.0.1", 0, count=2)
    with contextlib.ExitStack() as stack:
        copies = [one.dup() for one in listeners.sockets]
        client = stack.enter_context(
            socket.create_connection(listeners.sockets[0].getsockname(), timeout=5)
        )
        for copy in copies:  # a worker ends
            copy.close()
        time.sleep(0.01)
        assert sum(waiting(listeners)) == 1
        assert client.recv(1) == b"", "it was taken and closed by the next one, not refused"
    listeners.close()


def test_a_port_that_another_gateway_shares_among_its_own_is_refused():
    taken = bind("127.0.0.1", 0, count=3)
    port = taken.sockets[0].getsockname()[1]
    for count in (1, 3):
        with pytest.raises(CannotListen, match="Address already in use"):
            bind("127.0.0.1", port, count=count)
    taken.close()
    again = bind("127.0.0.1", port, count=2)
    again.close()
