"""The admin socket: who gets in, where it lives, and what hostile callers can do to it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat

import anyio
import msgspec
import pytest

from gateway.channel import (
    Channel,
    ChannelClosed,
    ChannelError,
    RemoteError,
    method,
    socket_pair,
)
from gateway.clock import system_clock
from gateway.ledger.database import sqlite_path
from gateway.process import admin_socket
from gateway.process.engines import EngineSupervisor
from gateway.process.listeners import CannotListen, bind
from gateway.process.preflight import ServeError
from gateway.process.supervisor import Supervisor
from gateway.settings.loader import load_text
from local_engine.model_store import ModelStore

pytestmark = pytest.mark.anyio


class Echo(msgspec.Struct):
    text: str


async def echo(params, _fds):
    return params.text


METHODS = {"echo": method(Echo, echo)}


async def call(directory, text="hi") -> str:
    sock = admin_socket.connect(directory)
    assert sock is not None
    channel = Channel(sock, {}, name="gateway")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        found = await channel.call("echo", Echo(text=text), result_type=str, timeout_s=5)
        channel.close()
    return found


PATHS = {
    "a short one": ("spool",),
    "one that is not there yet": ("a", "b", "spool"),
    "one longer than a socket's address": ("d" * 100, "e" * 100, "spool"),
}


@pytest.mark.parametrize("parts", PATHS.values(), ids=PATHS.keys())
async def test_calls_are_answered_and_nothing_is_left_behind(tmp_path, parts):
    directory = tmp_path.joinpath(*parts)
    # The group's end shows that no task of the socket's is left.
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(directory, METHODS, tasks=tasks),
    ):
        assert await call(directory) == "hi"
        mode = (directory / admin_socket.SOCKET_NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert list(directory.iterdir()) == []
    assert admin_socket.connect(directory) is None


async def test_the_creation_mask_is_as_before(tmp_path):
    before = os.umask(0o022)
    try:
        async with (
            anyio.create_task_group() as tasks,
            admin_socket.listening(tmp_path, METHODS, tasks=tasks),
        ):
            assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


async def test_the_socket_of_a_dead_gateway_is_replaced(tmp_path):
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / admin_socket.SOCKET_NAME))
    dead.close()
    assert admin_socket.connect(tmp_path) is None
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, METHODS, tasks=tasks),
    ):
        assert await call(tmp_path) == "hi"


async def test_a_living_gateways_socket_is_not_taken(tmp_path):
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, METHODS, tasks=tasks),
    ):
        with pytest.raises(admin_socket.AlreadyRunning, match="running already"):
            async with admin_socket.listening(tmp_path, METHODS, tasks=tasks):
                raise AssertionError("two gateways on one spool")
        assert await call(tmp_path) == "hi"


async def test_what_the_callers_lines_raise_comes_out_as_it_is(tmp_path):
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            with pytest.raises(ServeError, match="worker-0"):
                async with admin_socket.listening(tmp_path, METHODS, tasks=tasks):
                    raise ServeError("worker-0 did not start")
            raise RuntimeError("the group's own")
    assert [type(one) for one in caught.value.exceptions] == [RuntimeError]
    assert list(tmp_path.iterdir()) == []


HOSTILE = {
    "nothing and gone": b"",
    "half a length": b"\x01",
    "a length over the cap": b"\xff\xff\xff\xff",
    "no msgpack": b"\x05\x00\x00\x00\xc1\xc1\xc1\xc1\xc1",
    "no frame": b"\x01\x00\x00\x00\x01",
    "HTTP": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 50,
    "a frame that names descriptors that did not come": b"\x0d\x00\x00\x00"
    + msgspec.msgpack.encode(["call", 1, "echo", 9, None]),
    "an answer that nobody asked for": b"\x0d\x00\x00\x00"
    + msgspec.msgpack.encode(["reply", 7, "echo", 0, 1])[:13].ljust(13, b"\x00"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_bytes_end_their_connection_and_nothing_else(tmp_path, data):
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, METHODS, tasks=tasks),
    ):
        sock = admin_socket.connect(tmp_path)
        assert sock is not None
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert await call(tmp_path) == "hi"
        sock.close()


async def test_a_descriptor_that_comes_with_refused_parameters_is_closed(tmp_path):
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, METHODS, tasks=tasks),
    ):
        sock = admin_socket.connect(tmp_path)
        assert sock is not None
        channel = Channel(sock, {}, name="gateway")
        tasks.start_soon(channel.run)
        for name in ("echo", "nothing"):
            reader, writer = os.pipe()
            with pytest.raises(RemoteError):
                await channel.call(name, 7, result_type=str, timeout_s=5, fds=[writer])
            os.close(writer)
            with anyio.fail_after(5):
                assert await anyio.to_thread.run_sync(os.read, reader, 1) == b""
            os.close(reader)
        channel.close()


async def test_an_answer_over_the_cap_is_an_error_of_its_call_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.channel.FRAME_BYTES_MAX", 1_000)

    async def long_answer(_params, _fds):
        return "x" * 5_000

    methods = {**METHODS, "long": method(type(None), long_answer)}
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, methods, tasks=tasks),
    ):
        sock = admin_socket.connect(tmp_path)
        assert sock is not None
        channel = Channel(sock, {}, name="gateway")
        tasks.start_soon(channel.run)
        with pytest.raises(RemoteError) as caught:
            await channel.call("long", result_type=str, timeout_s=5)
        assert caught.value.code == "answer_too_large"
        with pytest.raises(ChannelError, match="wrongly"):
            await channel.call("echo", Echo(text="hi"), result_type=int, timeout_s=5)
        found = await channel.call("echo", Echo(text="still"), result_type=str, timeout_s=5)
        assert found == "still"
        channel.close()


async def test_connections_beyond_the_limit_wait_for_their_turn(tmp_path):
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(tmp_path, METHODS, tasks=tasks),
    ):
        idle = [admin_socket.connect(tmp_path) for _ in range(32)]
        found: list[str] = []

        async def late() -> None:
            found.append(await call(tmp_path, "late"))

        tasks.start_soon(late)
        await anyio.sleep(0.1)
        assert found == []
        for sock in idle:
            assert sock is not None
            sock.close()
        with anyio.fail_after(5):
            while not found:
                await anyio.sleep(0.01)


def supervisor(tmp_path) -> Supervisor:
    config = load_text(
        "storage: {spool_dir: spool}",
        environ={"FAREWAY_STATE_DIR": str(tmp_path / "state")},
        base_dir=tmp_path,
    )
    clock = system_clock()
    return Supervisor(
        loaded=config,
        config_path=None,
        engines=EngineSupervisor(
            specs=[], store=ModelStore(tmp_path / "models"), clock=clock, on_progress=lambda _: None
        ),
        listeners=bind("127.0.0.1", 0),
        environ={},
        clock=clock,
        on_ready=lambda _: None,
    )


async def test_a_second_gateway_on_one_spool_says_so_before_it_starts_anything(tmp_path):
    second = supervisor(tmp_path)
    directory = second.loaded.spool_dir
    async with (
        anyio.create_task_group() as tasks,
        admin_socket.listening(directory, METHODS, tasks=tasks),
    ):
        with pytest.raises(ServeError, match="running already"):
            await second.run()
    second.listeners.close()


@pytest.mark.slow
async def test_a_gateway_whose_ledger_waits_for_its_database_ends_without_waiting_for_it(tmp_path):
    made = supervisor(tmp_path)
    sqlite_path(made.loaded.database_url).mkdir(parents=True)  # no file can be there
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        with anyio.fail_after(30):
            await made._starter.unreachable.wait()
        made.stop()
        # Well under the 15 s for which one that is starting is waited for.
        tasks.cancel_scope.deadline = anyio.current_time() + 10
    assert not tasks.cancel_scope.cancelled_caught
    assert made.is_stopping


@pytest.mark.slow
async def test_a_gateway_whose_database_is_none_ends_at_once_with_a_sentence(tmp_path):
    made = supervisor(tmp_path)
    path = sqlite_path(made.loaded.database_url)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"notes of a meeting, long enough for a page" * 100)
    with anyio.fail_after(30), pytest.raises(ServeError, match="file is not a database"):
        await made.run()
    made.listeners.close()


def test_a_port_that_is_taken_is_one_sentence():
    taken = bind("127.0.0.1", 0, count=2)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(CannotListen, match=rf"127.0.0.1:{port}.*server.port"):
        bind("127.0.0.1", port, count=2)
    taken.close()


URLS = {"IPv4": ("127.0.0.1", "http://127.0.0.1:"), "IPv6": ("::1", "http://[::1]:")}


@pytest.mark.parametrize(("host", "start"), URLS.values(), ids=URLS.keys())
async def test_the_base_url_names_the_bound_port(tmp_path, host, start):
    made = supervisor(tmp_path)
    made.listeners.close()
    made.listeners = bind(host, 0)
    assert made.url == f"{start}{made.listeners.sockets[0].getsockname()[1]}"
    made.listeners.close()


async def test_closing_ones_own_end_ends_its_run_and_frees_the_descriptor_for_another_socket():
    for _ in range(3):
        ours, theirs = socket_pair()
        channel = Channel(ours, METHODS, name="ours")
        other = Channel(theirs, METHODS, name="theirs")
        number = ours.fileno()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run)
            tasks.start_soon(other.run)
            assert await other.call("echo", Echo(text="x"), result_type=str, timeout_s=5) == "x"
            channel.close()
            # The kernel gives the lowest free number to the next descriptor.
            reused, peer = socket.socketpair()
            assert number in (reused.fileno(), peer.fileno())
            reused.setblocking(False)
            loop = asyncio.get_running_loop()
            peer.send(b"y")
            with anyio.fail_after(5):
                assert await loop.sock_recv(reused, 1) == b"y"
        reused.close()
        peer.close()


async def test_a_write_that_waits_ends_with_the_channel():
    ours, theirs = socket_pair()
    channel = Channel(ours, METHODS, name="ours")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run)

            async def shout() -> None:
                with pytest.raises(ChannelClosed):
                    await channel.call("echo", "x" * 5_000_000, result_type=str, timeout_s=30)

            tasks.start_soon(shout)
            await anyio.sleep(0.05)
            # This one waits behind the long frame and never leaves.
            reader, writer = os.pipe()
            with pytest.raises(ChannelError):
                await channel.call("echo", None, result_type=str, timeout_s=0.05, fds=[writer])
            os.close(writer)
            theirs.close()
    assert channel.is_closed
    assert os.read(reader, 1) == b"", "a copy of the descriptor is still open"
    os.close(reader)
