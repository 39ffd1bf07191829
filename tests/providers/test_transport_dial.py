"""Names, addresses and handshakes of connections that are opened."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from dataclasses import replace

import pytest
from yarl import URL

from providers.errors import NotSent
from providers.transport import TransportOptions
from providers.transport import dial as dialling
from providers.transport.dial import Dialer, Opening
from providers.transport.tls import client_context
from tests.providers.transport_harness import (
    BACKENDS,
    TLS_FOLDER,
    Names,
    RawServer,
    serve_forever,
    server_context,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", BACKENDS.values(), ids=BACKENDS.keys()),
]
ORIGIN = URL("http://upstream.test:1")


def has_ipv6() -> bool:
    """Whether a server can listen on the loopback of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def serve_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def open_to(dialer: Dialer, origin: URL = ORIGIN) -> tuple[str, int]:
    """Open a connection, close it, and tell where it led."""
    dialled = await dialer.dial(origin)
    peer = dialled.transport.get_extra_info("peername")
    dialled.transport.abort()
    return peer[:2]


async def test_the_addresses_of_a_name_take_turns() -> None:
    async with RawServer(serve_nothing) as one, RawServer(serve_nothing) as other:
        names = Names(("127.0.0.1", one.port), ("127.0.0.1", other.port))
        dialer = Dialer(TransportOptions(resolve=names.resolve))
        ports = [(await open_to(dialer))[1] for _ in range(4)]
        assert ports == [one.port, other.port] * 2
        assert names.asked == 1
        await dialer.close()


async def test_many_connections_at_once_look_a_name_up_once() -> None:
    async with RawServer(serve_nothing) as server:
        names = Names(("127.0.0.1", server.port))

        async def slowly(host: str, port: int):
            await asyncio.sleep(0.05)
            return await names.resolve(host, port)

        dialer = Dialer(TransportOptions(resolve=slowly))
        await asyncio.gather(*(open_to(dialer) for _ in range(20)))
        assert names.asked == 1


async def test_who_gives_up_waiting_for_a_name_takes_nothing_from_the_others() -> None:
    async with RawServer(serve_nothing) as server:
        names = Names(("127.0.0.1", server.port))

        async def slowly(host: str, port: int):
            await asyncio.sleep(0.1)
            return await names.resolve(host, port)

        dialer = Dialer(TransportOptions(resolve=slowly))
        first = asyncio.create_task(open_to(dialer))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(open_to(dialer))
        await asyncio.sleep(0.02)
        first.cancel()
        assert (await second)[1] == server.port
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_name_that_takes_longer_than_a_connection_may_is_known_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with RawServer(serve_nothing) as server:
        names = Names(("127.0.0.1", server.port))
        asked: list[str] = []

        async def slowly(host: str, port: int):
            asked.append(host)
            await asyncio.sleep(0.1)
            if host == "nowhere.test":
                raise OSError("no such name")
            return await names.resolve(host, port)

        dialer = Dialer(TransportOptions(resolve=slowly))
        for host in ("nowhere.test", "upstream.test"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03):
                    await open_to(dialer, URL(f"http://{host}:1"))
        await asyncio.sleep(0.12)
        async with asyncio.timeout(0.05):
            assert (await open_to(dialer))[1] == server.port
        assert asked == ["nowhere.test", "upstream.test"]
        del dialer
        gc.collect()
        assert not caplog.records


async def test_closing_sends_away_who_waits_for_a_name() -> None:
    async def never(host: str, port: int):
        await asyncio.sleep(60)
        raise AssertionError

    dialer = Dialer(TransportOptions(resolve=never))
    waiting = asyncio.create_task(open_to(dialer))
    await asyncio.sleep(0.02)
    await dialer.close()
    with pytest.raises(NotSent):
        await waiting


async def test_a_name_is_looked_up_as_it_is_written_for_dns() -> None:
    asked: list[str] = []

    async def note(host: str, port: int):
        asked.append(host)
        raise OSError("no such name")

    dialer = Dialer(TransportOptions(resolve=note))
    for host in ("xn--strae-oqa.test", "bücher.test"):
        with pytest.raises(NotSent):
            await dialer.dial(URL(f"http://{host}:1"))
    # Python's own encoding would make strasse.test of the first, which is somebody else's.
    assert asked == ["xn--strae-oqa.test", "xn--bcher-kva.test"]


async def test_a_name_that_dns_cannot_hold_sends_nothing() -> None:
    dialer = Dialer(TransportOptions())
    for host in ("a" * 64 + ".test", "a..test"):
        with pytest.raises(NotSent):
            await dialer.dial(URL(f"http://{host}:1"))


async def test_a_name_is_looked_up_again_when_its_addresses_are_old(monkeypatch) -> None:
    monkeypatch.setattr(dialling, "NAMES_TTL_S", 0.1)
    async with RawServer(serve_nothing) as server:
        names = Names(("127.0.0.1", server.port))
        dialer = Dialer(TransportOptions(resolve=names.resolve))
        await open_to(dialer)
        await asyncio.sleep(0.15)
        await open_to(dialer)
        assert names.asked == 2


async def test_an_address_whose_handshake_fails_is_passed_over_for_the_next() -> None:
    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 This is plain HTTP\r\n\r\n")
        await writer.drain()
        writer.close()

    trusted = client_context(ca_file=TLS_FOLDER / "authority.pem")
    trusted.check_hostname = False
    async with RawServer(no_tls) as bad, RawServer(serve_forever, tls=server_context()) as good:
        names = Names(("127.0.0.1", bad.port), ("127.0.0.1", good.port))
        options = TransportOptions(resolve=names.resolve, ssl_context=trusted)
        dialer = Dialer(options)
        assert (await open_to(dialer, URL("https://upstream.test:1")))[1] == good.port
        only_bad = Names(("127.0.0.1", bad.port), ("127.0.0.1", bad.port))
        dialer = Dialer(replace(options, resolve=only_bad.resolve))
        with pytest.raises(NotSent, match="No connection to the upstream"):
            await open_to(dialer, URL("https://upstream.test:1"))


def test_what_comes_before_anything_was_asked_spoils_a_connection(anyio_backend) -> None:
    for happen in (
        lambda opening: opening.data_received(b"HTTP/1.1 200 OK"),
        lambda opening: opening.eof_received(),
        lambda opening: opening.connection_lost(None),
    ):
        opening = Opening()
        assert not opening.is_spoilt
        happen(opening)
        assert opening.is_spoilt


async def test_a_handshake_given_up_at_any_instant_leaves_the_loop_as_it_was() -> None:
    trusted = client_context(ca_file=TLS_FOLDER / "authority.pem")
    trusted.check_hostname = False
    async with RawServer(serve_nothing, tls=server_context()) as server:
        origin = URL(server.url).origin()
        tasks_before = len(asyncio.all_tasks())
        dialer = Dialer(TransportOptions(ssl_context=trusted))
        await open_to(dialer, origin)
        for turns in range(15):
            for _ in range(3):
                task = asyncio.create_task(open_to(dialer, origin))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                # Its socket's number is free again, and the next connection's.
                assert (await open_to(dialer, origin))[1] == server.port
        async with asyncio.timeout(1):
            while len(asyncio.all_tasks()) > tasks_before:
                await asyncio.sleep(0.01)


async def test_a_name_without_addresses_is_not_sent() -> None:
    dialer = Dialer(TransportOptions(resolve=Names().resolve))
    with pytest.raises(NotSent, match="No connection"):
        await open_to(dialer)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no loopback for IPv6")
async def test_ipv6_literals_are_reached() -> None:
    dialer = Dialer(TransportOptions())
    async with RawServer(serve_nothing, host="::1") as server:
        assert await open_to(dialer, URL(f"http://[::1]:{server.port}")) == ("::1", server.port)


async def test_names_of_this_machine_are_reached() -> None:
    dialer = Dialer(TransportOptions())
    async with RawServer(serve_nothing) as server:
        assert (await open_to(dialer, URL(f"http://localhost:{server.port}")))[1] == server.port


async def test_connections_do_not_wait_to_fill_packets_and_notice_dead_peers() -> None:
    async with RawServer(serve_nothing) as server:
        dialled = await Dialer(TransportOptions()).dial(URL(server.url).origin())
        sock = dialled.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        dialled.transport.abort()


async def test_the_platforms_authorities_are_read_once_and_off_the_loop(monkeypatch) -> None:
    made = []

    def count() -> ssl.SSLContext:
        made.append(asyncio._get_running_loop())
        return client_context()

    monkeypatch.setattr(dialling, "client_context", count)
    async with RawServer(serve_forever, tls=server_context()) as server:
        dialer = Dialer(TransportOptions())
        for _ in range(2):
            with pytest.raises(NotSent, match="Cert"):
                await open_to(dialer, URL(server.url).origin())
    assert made == [None]
