"""One connection after another request, behind its last answer, and when its client leaves early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http.bounds import LINGER_BYTES_MAX, READ_ON_MAX, Closing
from gateway.http.cycle import Cycle, HotApplication, Route
from gateway.http.guard import Ending, Guards
from gateway.http.protocol import BoundedProtocol
from gateway.ledger.records import AttemptStatus
from gateway.relay.client_stream import ClientStream
from gateway.relay.job import RelayLimits
from providers.contract import Deadlines
from providers.deadline import Deadline
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    KEY,
    NOWHERE,
    body,
    request_bytes,
    running_gateway,
    serving,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """The loop of the workers."""
    return ("asyncio", {"use_uvloop": True})


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


def chat(**changes: object) -> bytes:
    return request_bytes(json.dumps(body(**changes)).encode(), is_last=False)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a whole answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


ORDERS = {
    "hot ones": [chat()] * 4,
    "others": [HEALTH] * 4,
    "both by turns": [chat(), HEALTH, chat(), HEALTH, HEALTH, chat(), chat()],
}


@pytest.mark.parametrize("is_at_once", [False, True], ids=["each after the other", "all at once"])
@pytest.mark.parametrize("requests", ORDERS.values(), ids=ORDERS.keys())
async def test_requests_on_one_connection_are_answered_in_their_order(
    tmp_path, requests, is_at_once
):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        if is_at_once:
            writer.write(b"".join(requests))
        with anyio.fail_after(10):
            for request in requests:
                if not is_at_once:
                    writer.write(request)
                status, content = await read_answer(reader)
                assert status == 200
                assert (b"chat.completion" in content) == (request != HEALTH)
        writer.close()
        await writer.wait_closed()
        assert len(await gateway.settled()) == requests.count(chat())


async def test_an_answer_that_was_cut_does_not_cut_the_next_one_of_its_connection(tmp_path):
    provider = FakeProvider(name="a", scripts=[[3600, *answer("late")], answer("soon")])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        with anyio.fail_after(10):
            writer.write(chat())
            while not gateway.service.relays:
                await anyio.sleep(0.005)
            await gateway.service.cut()
            assert (await read_answer(reader))[0] == 503
            writer.write(chat())
            status, content = await read_answer(reader)
            assert (status, b"soon" in content) == (200, True)
        writer.close()
        await writer.wait_closed()


async def test_a_fault_of_a_route_is_told_and_the_connection_stays(tmp_path, caplog):
    async with serving(tmp_path) as gateway:
        clock = gateway.service.new_id

        def broken() -> bytes:
            raise RuntimeError("no id today")

        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        with anyio.fail_after(10):
            gateway.service.new_id = broken
            writer.write(chat())
            status, told = await read_answer(reader)
            assert (status, json.loads(told)["error"]["code"]) == (500, "internal_error")
            gateway.service.new_id = clock
            writer.write(chat())
            assert (await read_answer(reader))[0] == 200
        writer.close()
        await writer.wait_closed()
    assert "no id today" in caplog.text


async def test_a_request_that_comes_byte_by_byte_is_the_same_request(tmp_path):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        with anyio.fail_after(20):
            for byte in chat():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.0005)
            assert (await read_answer(reader))[0] == 200
        writer.close()
        await writer.wait_closed()


class Routes(HotApplication):
    """An application with one hot route and nothing else."""

    def __init__(self, route: Route) -> None:
        self.hot = {b"/hot": route}

    async def __call__(self, scope, receive, send) -> None:
        raise AssertionError("nothing takes ASGI here")


@asynccontextmanager
async def connected(
    route: Route, *, http: type[BoundedProtocol] = BoundedProtocol
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, ServerState]]:
    """A client of a server with one route, and the server's state."""
    config = uvicorn.Config(
        Routes(route), http=http, ws="none", lifespan="off", log_config=None,
        proxy_headers=False,
    )  # fmt: skip
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: http(config, state, {}), host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        with anyio.fail_after(5):
            yield reader, writer, state
            writer.close()
            while state.connections or state.tasks:
                await anyio.sleep(0.005)
    finally:
        server.close()


HOT = b"POST /hot HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


class Page:
    """An ASGI application that answers at once, or behind the request's body."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads

    async def __call__(self, scope, receive, send) -> None:
        got = b""
        more = self._reads
        while more:
            message = await receive()
            got, more = got + message["body"], message["more_body"]
        length = b"%d" % len(got)
        start = {"status": 200, "headers": [(b"content-length", length)]}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": got})


@pytest.mark.parametrize("reads", [True, False])
async def test_a_page_that_does_not_want_its_clients_body_ends_the_connection(reads):
    config = uvicorn.Config(Page(reads=reads), ws="none", lifespan="off", log_config=None)
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BoundedProtocol(config, state, {}), host="127.0.0.1", port=0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    with anyio.fail_after(5):
        writer.write(
            b"GET /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
        )
        if reads:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert await read_answer(reader) == (200, b"abc")
        else:
            assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    server.close()


async def test_an_answer_that_breaks_off_ends_its_connection(caplog):
    async def breaks(cycle: Cycle) -> None:
        cycle.start(200, b"")
        cycle.write(b"half")
        raise RuntimeError("no more")

    async with connected(breaks) as (reader, writer, _):
        writer.write(HOT)
        assert (await reader.read()).endswith(b"4\r\nhalf\r\n")
    assert "no more" in caplog.text


async def test_a_connection_goes_on_when_its_waiting_task_is_cancelled():
    async def answers(cycle: Cycle) -> None:
        cycle.send_whole(200, b"", b"here")

    async with connected(answers) as (reader, writer, state):
        for _ in range(3):
            writer.write(HOT)
            assert await read_answer(reader) == (200, b"here")
            [task] = state.tasks
            task.cancel()


async def test_requests_of_one_connection_share_a_task_and_others_do_not():
    tasks: list[asyncio.Task[None] | None] = []

    async def notes(cycle: Cycle) -> None:
        tasks.append(asyncio.current_task())
        assert cycle.task is tasks[-1]
        cycle.send_whole(200, b"", b"here")

    for _ in range(2):
        async with connected(notes) as (reader, writer, _):
            for _ in range(3):
                writer.write(HOT)
                await read_answer(reader)
    assert len(set(tasks[:3])) == len(set(tasks[3:])) == 1
    assert tasks[0] is not tasks[3]


async def test_http_1_0_ends_with_its_answer_when_connections_shall_end_too():
    class Closes(BoundedProtocol):
        closing = Closing()

    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def streams(cycle: Cycle) -> None:
        arrived.set()
        await goes_on.wait()
        cycle.start(200, b"")
        cycle.finish(b"unframed")

    old = HOT.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nconnection: keep-alive\r\n\r\n")
    async with connected(streams, http=Closes) as (reader, writer, state):
        writer.write(old * 2)
        await arrived.wait()
        Closes.closing.begin(1)
        for connection in state.connections:
            connection.begin_closing()
        goes_on.set()
        assert (await reader.read()).partition(b"\r\n\r\n")[2] == b"unframed"


OLD_BODIES = {
    "whole": (b'{"model":"chat","messages":[{"role":"user","content":"hi"}]}', b"}"),
    "streamed": (
        b'{"model":"chat","messages":[{"role":"user","content":"hi"}],"stream":true}',
        b"data: [DONE]\n\n",
    ),
}


@pytest.mark.parametrize(("content", "end"), OLD_BODIES.values(), ids=OLD_BODIES.keys())
async def test_http_1_0_gets_no_chunks_and_an_end_that_is_the_connections(tmp_path, content, end):
    head = (
        b"POST /v1/chat/completions HTTP/1.0\r\nconnection: keep-alive\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
    ) % (KEY.encode(), len(content))
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head + content)
        with anyio.fail_after(5):
            told, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert b"\r\nconnection: close" in told
    assert b"chunked" not in told
    assert rest.endswith(end)


class Hasty(BoundedProtocol):
    rest_s_max = 0.2
    look_every_s = 0.02


ENDS = {
    "a body that is refused unread": (
        request_bytes(b"", headers=["content-length: 99999999999"]),
        b"HTTP/1.1 413 ",
    ),
    "what is no HTTP": (b"HELO there\r\n\r\n", b"HTTP/1.1 400 "),
    "a body without a key": (
        request_bytes(b"", headers=["content-length: 1000000"]).replace(KEY.encode(), b"k"),
        b"HTTP/1.1 401 ",
    ),
}


@pytest.mark.parametrize(("start", "told"), ENDS.values(), ids=ENDS.keys())
async def test_a_client_that_still_sends_can_read_its_last_answer_and_its_end(
    tmp_path, start, told
):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(start)
        with anyio.fail_after(5):
            assert (await reader.readexactly(len(told))) == told
            for _ in range(10):
                writer.write(b"z" * 10_000)
                await writer.drain()
                await anyio.sleep(0.005)
            assert json.loads((await reader.read()).partition(b"\r\n\r\n")[2])["error"]
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("size", [1, LINGER_BYTES_MAX], ids=["for long", "much"])
async def test_a_client_may_not_send_for_ever_behind_its_last_answer(tmp_path, size):
    async with serving(tmp_path, http=Hasty) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request_bytes(b"", headers=["content-length: 99999999999"]))
        with anyio.fail_after(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b"z" * size)
                    await writer.drain()
                    await anyio.sleep(0.01)
        writer.close()
        with pytest.raises(ConnectionError):
            await writer.wait_closed()


async def test_a_client_that_leaves_is_noticed_behind_any_number_of_its_requests(tmp_path):
    provider = FakeProvider(name="a", scripts=[[3600, *answer("late")]])
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers={"a": provider}, http=Hasty
    ) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        with anyio.fail_after(5):
            for _ in range(READ_ON_MAX + 2):
                writer.write(chat())
                await writer.drain()
                await anyio.sleep(0.02)
            writer.close()
            await gateway.wait_idle()
        [(_, settled)] = await gateway.settled()
        assert settled.status == AttemptStatus.CLIENT_LEFT


class FakeLoop:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.made = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s, callback):
        timer = (at_s, callback)
        self.timers.append(timer)
        self.made += 1
        loop = self

        class Handle:
            def cancel(self) -> None:
                if timer in loop.timers:
                    loop.timers.remove(timer)

        return Handle()

    def run_until(self, end_s: float) -> None:
        while self.timers and min(self.timers)[0] <= end_s:
            due = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(due)
            self.now_s = max(self.now_s, due[0])
            due[1]()
        self.now_s = end_s


def deadline_on(loop: FakeLoop) -> tuple[Deadline, list[float]]:
    rung: list[float] = []
    return Deadline(lambda: rung.append(loop.now_s), loop=loop), rung


def test_a_deadline_that_moves_on_rings_once_when_it_was_not_moved_and_costs_few_timers():
    loop = FakeLoop()
    deadline, rung = deadline_on(loop)
    for _ in range(1000):
        deadline.set(10)
        loop.run_until(loop.now_s + 0.1)
    assert loop.made <= 12
    loop.run_until(500)
    assert rung == [pytest.approx(109.9)]


def test_a_deadline_that_moves_closer_rings_at_its_new_time():
    loop = FakeLoop()
    deadline, rung = deadline_on(loop)
    deadline.set(100)
    deadline.set(1)
    loop.run_until(200)
    assert rung == [1]


def test_a_deadline_that_was_taken_away_does_not_ring():
    loop = FakeLoop()
    deadline, rung = deadline_on(loop)
    deadline.set(1)
    deadline.cancel()
    loop.run_until(10)
    assert (rung, loop.timers) == ([], [])


def limits(total_s: float) -> RelayLimits:
    return RelayLimits(
        deadlines=Deadlines(connect_s=1, first_token_s=1, between_tokens_s=1, total_s=total_s),
        attempts_max=1,
        within_s=1,
        heartbeat_s=1,
        is_strict=False,
        flush_s=0.0,
    )


class Unheard:
    on_gone = task = None
    is_blocked = False


async def test_each_answer_ends_when_its_own_time_is_up():
    guards = Guards()
    ended: dict[float, Ending | None] = {}

    async def serve(total_s: float) -> None:
        wire = Unheard()
        guard = guards.add(wire, ClientStream(wire, lambda: 0.0), limits=limits(total_s))
        try:
            await anyio.sleep(0.3)
        except asyncio.CancelledError:
            if not guard.took_over():
                raise
        finally:
            guards.remove(guard)
            ended[total_s] = guard.ending

    async with anyio.create_task_group() as tasks:
        for total_s in (0.1, 60.0, 0.05, 0.15):
            tasks.start_soon(serve, total_s)
    late = Ending.OUT_OF_TIME
    assert list(ended.items()) == [(0.05, late), (0.1, late), (0.15, late), (60.0, None)]
    assert not guards
