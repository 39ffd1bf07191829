"""A process that stood still: what had come by then counts, what has not is late all the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import FirstTokenTimeout, StreamStalled
from providers.transport import Transport
from providers.transport.exchange import Exchange
from tests.providers.permits import bound_for
from tests.providers.transport_harness import BACKENDS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
SHORT_S = 0.15
STALL_S = 0.4
LIMITS = Deadlines(connect_s=2, first_token_s=SHORT_S, between_tokens_s=SHORT_S, total_s=20)


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.contextmanager
def upstream(*parts: tuple[float, bytes]) -> Iterator[str]:
    """Answers one request in a thread, which goes on while the loop does not."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.settimeout(5)
                connection.recv(65_536)
                for pause_s, data in parts:
                    time.sleep(pause_s)
                    connection.sendall(data)
                is_over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            is_over.set()
            thread.join()


@contextlib.asynccontextmanager
async def asked(url: str, *, stalls_after_s: Sequence[float] = ()):
    """An exchange while the loop stands still so long after the request was sent."""
    transport = Transport([url])
    loop = asyncio.get_running_loop()
    for after_s in stalls_after_s:
        loop.call_later(after_s, time.sleep, STALL_S)
    try:
        exchange = await transport.send(
            URL(url),
            **bound_for(url),
            headers={},
            body=b"{}",
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        async with exchange:
            yield exchange
    finally:
        await transport.close()


async def read_content(exchange: Exchange) -> bytes:
    found = b""
    while part := await exchange.read():
        exchange.note_content()
        found += part
    return found


async def test_an_answer_that_came_while_the_loop_stood_still_is_not_late() -> None:
    parts = [(0.1, HEAD), (0.05, chunk(b"one")), (0.35, chunk(b"two") + END)]
    with upstream(*parts) as url:
        async with asked(url, stalls_after_s=[0.05]) as exchange:
            assert await read_content(exchange) == b"onetwo"


async def test_each_silence_is_measured_anew() -> None:
    parts = [(0.0, HEAD + chunk(b"one")), (0.1, chunk(b"two")), (0.45, chunk(b"three") + END)]
    with upstream(*parts) as url:
        async with asked(url, stalls_after_s=[0.05, 0.5]) as exchange:
            assert await read_content(exchange) == b"onetwothree"


async def test_what_has_not_come_when_the_loop_goes_on_is_late() -> None:
    with upstream((0.0, HEAD + chunk(b"one"))) as url:
        async with asked(url, stalls_after_s=[0.05]) as exchange:
            exchange.note_content()
            assert await exchange.read() == b"one"
            with pytest.raises(StreamStalled):
                await exchange.read()


async def test_a_part_of_a_head_is_forgiven_once() -> None:
    parts = [(0.1, HEAD[:20]), (1.0, HEAD[20:])]
    with upstream(*parts) as url, pytest.raises(FirstTokenTimeout):
        async with asked(url, stalls_after_s=[0.05]):
            raise AssertionError("no head came in time")
