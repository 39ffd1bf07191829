"""Connections: kept, bounded, waited for, found dead, opened to whatever the name means now."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import ConnectionLost, NoConnectionFree, NotSent
from providers.transport import Transport, TransportOptions
from tests.providers.permits import bound_for
from tests.providers.transport_harness import (
    BACKENDS,
    LIMITS,
    Names,
    RawServer,
    answer,
    fetch,
    read_request,
    serve_forever,
)

pytestmark = pytest.mark.anyio

HURRIED = Deadlines(connect_s=0.1, first_token_s=5, between_tokens_s=5, total_s=10)


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


async def eventually(claim: Callable[[], bool]) -> bool:
    """Whether a claim comes true within a second."""
    for _ in range(100):
        if claim():
            return True
        await asyncio.sleep(0.01)
    return False


async def send(transport: Transport, url: str, limits: Deadlines = LIMITS):
    """Send and leave the answer unread."""
    return await transport.send(
        URL(url), **bound_for(url), headers={}, body=b"{}", deadlines=limits, facts=AttemptFacts()
    )


async def test_a_connection_is_used_again() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url])
        for _ in range(5):
            assert (await fetch(transport, server.url))[1] == b"13"
        assert len(server.accepted) == 1
        await transport.close()
        assert await eventually(lambda: server.open_count == 0)


async def test_requests_at_once_have_a_connection_each_and_no_more_than_allowed() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=3))
        exchanges = [await send(transport, server.url) for _ in range(3)]
        with pytest.raises(NoConnectionFree, match="came free within the deadline"):
            await fetch(transport, server.url, limits=HURRIED)
        async with exchanges[0] as exchange:
            await exchange.read_all(max_bytes=10)
        assert (await fetch(transport, server.url))[0] == 200
        assert len(server.accepted) == 3
        for exchange in exchanges[1:]:
            async with exchange:
                pass
        await transport.close()


async def test_a_wait_ends_when_a_connection_is_given_back() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1))
        exchange = await send(transport, server.url)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(fetch(transport, server.url)) for _ in range(5)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in waiting)
            async with exchange:
                await exchange.read_all(max_bytes=10)
        assert [task.result()[0] for task in waiting] == [200] * 5
        assert len(server.accepted) == 1
        await transport.close()


async def test_a_wait_ends_when_a_connection_is_closed() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1))
        exchange = await send(transport, server.url)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(fetch(transport, server.url)) for _ in range(3)]
            await asyncio.sleep(0.05)
            async with exchange:
                pass  # left before its body was read: the socket is closed
        assert [task.result()[0] for task in waiting] == [200] * 3
        assert len(server.accepted) == 2
        await transport.close()


async def test_one_more_than_may_wait_is_refused_at_once() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1, waiting_max=2))
        exchange = await send(transport, server.url)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(fetch(transport, server.url)) for _ in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(NoConnectionFree, match="in use and 2 requests wait"):
                await fetch(transport, server.url)
            async with exchange:
                await exchange.read_all(max_bytes=10)
        assert [task.result()[0] for task in waiting] == [200] * 2
        await transport.close()


async def test_waits_that_are_given_up_leave_no_trace() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1, waiting_max=4))
        for _ in range(3):
            exchange = await send(transport, server.url)
            tasks = [asyncio.create_task(fetch(transport, server.url)) for _ in range(4)]
            await asyncio.sleep(0.02)
            async with exchange:
                await exchange.read_all(max_bytes=10)
            # The first of them has been handed the connection, and has not seen it yet.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (await fetch(transport, server.url))[0] == 200
        assert len(server.accepted) <= 2
        await transport.close()


async def test_connections_that_cannot_be_opened_take_no_place() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        transport = Transport([url], TransportOptions(connections_max=1))
        for _ in range(3):
            with pytest.raises(NotSent, match="No connection to the upstream"):
                await fetch(transport, url)
        await transport.close()


async def test_closing_sends_away_who_waits() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1))
        exchange = await send(transport, server.url)
        waiting = asyncio.create_task(fetch(transport, server.url))
        await asyncio.sleep(0.02)
        await transport.close()
        with pytest.raises(NotSent, match="closed"):
            await waiting
        async with exchange:
            pass
        assert await eventually(lambda: server.open_count == 0)


async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and hang up without saying so."""
    await read_request(reader)
    writer.write(answer(b"once"))
    await writer.drain()


async def test_a_connection_that_ended_while_idle_is_not_used() -> None:
    async with RawServer(serve_once) as server:
        transport = Transport([server.url])
        for _ in range(5):
            assert (await fetch(transport, server.url))[1] == b"once"
            await asyncio.sleep(0.02)
        assert len(server.accepted) == 5
        await transport.close()


async def test_an_end_that_the_loop_has_not_seen_yet_is_found_in_the_kernel() -> None:
    client, upstream = socket.socket(), socket.socket()
    upstream.bind(("127.0.0.1", 0))
    upstream.listen()
    upstream.setblocking(False)
    client.close()
    url = f"http://127.0.0.1:{upstream.getsockname()[1]}/v1"
    transport = Transport([url])
    loop = asyncio.get_running_loop()
    accepted: list[socket.socket] = []
    for body in (b"first", b"second"):
        call = asyncio.create_task(fetch(transport, url))
        peer, _ = await loop.sock_accept(upstream)
        accepted.append(peer)
        await loop.sock_recv(peer, 4096)
        await loop.sock_sendall(peer, answer(body))
        assert (await call)[1] == body
        await asyncio.sleep(0.05)
        # From here to the next request the loop does not run.
        peer.close()
    upstream.close()
    await transport.close()


async def test_an_upstream_that_hangs_up_at_the_request_may_have_seen_it() -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with RawServer(hang_up) as server:
        transport = Transport([server.url])
        facts = AttemptFacts()
        with pytest.raises(ConnectionLost):
            await fetch(transport, server.url, facts=facts)
        assert facts.was_sent
        await transport.close()


async def test_an_idle_connection_is_closed_in_time() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(keep_alive_s=0.05))
        await fetch(transport, server.url)
        assert server.open_count == 1
        assert await eventually(lambda: server.open_count == 0)
        await fetch(transport, server.url)
        assert len(server.accepted) == 2
        await transport.close()


async def test_an_announced_keep_alive_is_kept_to() -> None:
    async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer(b"", "Keep-Alive: timeout=1, max=100"))

    async with RawServer(announce) as server:
        transport = Transport([server.url])
        await fetch(transport, server.url)
        await asyncio.sleep(0.02)
        await fetch(transport, server.url)
        # One second less a margin of one: it is never idle long enough to be met closing.
        assert len(server.accepted) == 2
        await transport.close()


async def test_a_connection_grows_only_so_old() -> None:
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connection_age_max_s=0.1))
        await fetch(transport, server.url)
        await fetch(transport, server.url)
        assert len(server.accepted) == 1
        await asyncio.sleep(0.15)
        await fetch(transport, server.url)
        await fetch(transport, server.url)
        assert len(server.accepted) == 2
        await transport.close()


async def test_an_answer_that_asks_to_close_is_the_last_on_its_connection() -> None:
    async def farewell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer(b"bye", "connection: close"))

    async with RawServer(farewell) as server:
        transport = Transport([server.url])
        for _ in range(2):
            assert (await fetch(transport, server.url))[1] == b"bye"
        assert len(server.accepted) == 2
        assert await eventually(lambda: server.open_count == 0)
        await transport.close()


async def test_a_name_is_looked_up_once_for_many_connections() -> None:
    async with RawServer(serve_forever) as server:
        names = Names(("127.0.0.1", server.port))
        transport = Transport(["http://upstream.test/v1"], TransportOptions(resolve=names.resolve))
        exchanges = [await send(transport, "http://upstream.test/v1") for _ in range(3)]
        assert (names.asked, len(server.accepted)) == (1, 3)
        for exchange in exchanges:
            async with exchange:
                pass
        await transport.close()


async def test_a_changed_address_is_noticed_after_a_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        names = Names(("127.0.0.1", unused.getsockname()[1]))
        options = TransportOptions(resolve=names.resolve, connection_age_max_s=0)
        transport = Transport(["http://upstream.test/v1"], options)
        with pytest.raises(NotSent):
            await fetch(transport, "http://upstream.test/v1")
        async with RawServer(serve_forever) as server:
            names.addresses = [("127.0.0.1", server.port)]
            assert (await fetch(transport, "http://upstream.test/v1"))[0] == 200
        with pytest.raises(NotSent):
            await fetch(transport, "http://upstream.test/v1")
        async with RawServer(serve_forever) as server:
            names.addresses = [("127.0.0.1", server.port)]
            assert (await fetch(transport, "http://upstream.test/v1"))[0] == 200
        await transport.close()


async def test_a_name_that_means_nothing_sends_nothing() -> None:
    transport = Transport(["http://upstream.invalid/v1"])
    facts = AttemptFacts()
    with pytest.raises(NotSent, match="No connection to the upstream"):
        await fetch(transport, "http://upstream.invalid/v1", facts=facts)
    assert not facts.was_sent
    await transport.close()


async def test_an_address_that_refuses_is_passed_over_for_the_next() -> None:
    async with RawServer(serve_forever) as server:
        names = Names(("::1", server.port), ("127.0.0.1", server.port))
        transport = Transport(["http://upstream.test/v1"], TransportOptions(resolve=names.resolve))
        assert (await fetch(transport, "http://upstream.test/v1"))[0] == 200
        await transport.close()


async def test_an_address_that_says_nothing_is_overtaken_by_the_next() -> None:
    # A full backlog is how a dead address looks: SYNs are not answered.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        async with RawServer(serve_forever) as server:
            names = Names(("127.0.0.1", port), ("127.0.0.1", server.port))
            transport = Transport(
                ["http://upstream.test/v1"], TransportOptions(resolve=names.resolve)
            )
            before = asyncio.get_running_loop().time()
            assert (await fetch(transport, "http://upstream.test/v1"))[0] == 200
            assert asyncio.get_running_loop().time() - before < 1.5
            await transport.close()
        for filler in fillers:
            filler.close()


async def test_an_upstream_that_says_things_twice_gets_a_connection_for_each_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def parrot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            number = head.split("number: ")[1].split("\r\n")[0].encode()
            writer.write(answer(number))
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(answer(number))  # while the next request may be on its way

    async def ask(transport: Transport, url: str, number: str) -> bytes:
        exchange = await transport.send(
            URL(url),
            **bound_for(url),
            headers={"number": number},
            body=b"{}",
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        async with exchange:
            found = await exchange.read_all(max_bytes=100)
        await asyncio.sleep(0.005)
        return found

    async with RawServer(parrot) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1))
        answers = [await ask(transport, server.url, str(number)) for number in range(12)]
        # Nothing shows the first one: its bytes are an answer, on a line that waits for one.
        wrong = [number for number, found in enumerate(answers) if found != str(number).encode()]
        assert len(wrong) <= 1
        assert len(server.accepted) > 8
        told = [one for one in caplog.records if "nobody asked for" in one.getMessage()]
        assert len(told) == 1
        await transport.close()
