"""Looks at real servers on loopback: up, busy, idle, starting, gone, and what is told of it."""

from __future__ import annotations

import asyncio
import socket
import threading

import anyio
import pytest

from gateway.egress.destinations import Purpose, Role, destinations
from gateway.finance.machines.messages import EngineSample
from gateway.process import machine_watch
from gateway.process.machine_load import is_loaded
from gateway.process.machine_watch import MachineWatch, metrics_url
from gateway.settings.loader import LoadedConfig, load_text
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_process_machine_load import LLAMA_CPP, SGLANG, TGI, VLLM

pytestmark = pytest.mark.anyio
S = 10**6


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class MetricsServer:
    """Answers each request with what it is told to, and keeps what was asked."""

    def __init__(self) -> None:
        self.status, self.page = 200, ""
        self.heads: list[str] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> MetricsServer:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = self.page.encode()
        head = f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        writer.write(head.encode() + b"content-type: text/plain; version=0.0.4\r\n\r\n" + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def server():
    made = await MetricsServer().start()
    yield made
    await made.stop()


def config(tmp_path, port: int, *, kind="vllm", machines="watch: true", path="/v1") -> LoadedConfig:
    text = f"""
storage: {{database: 'sqlite:///ledger.db', spool_dir: spool}}
providers:
  gpu: {{kind: {kind}, base_url: "http://127.0.0.1:{port}{path}", price: {{gpu_usd_per_hour: 3}}}}
  other: {{kind: openai_compatible, base_url: "http://127.0.0.1:9/v1"}}
models: {{m: {{deployments: [gpu/llama, other/m]}}}}
finance: {{machines: {{{machines}}}}}
"""
    return load_text(text, environ={}, base_dir=tmp_path)


class Watching:
    """A watch whose clock the test moves."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self.loaded = loaded
        self.samples: list[EngineSample] = []
        self.clock = FakeClock()
        self.watch = MachineWatch(
            served=lambda: self.loaded,
            environ={},
            note=self.samples.append,
            clock=self.clock.clock,
            random_bytes=lambda count: bytes([len(self.samples) + 1]) * count,
        )

    async def look(self, after_s: float = 0.0) -> EngineSample | None:
        """What is told of a look, None where nothing is."""
        self.clock.pass_s(after_s)
        before = len(self.samples)
        await self.watch.look()
        return self.samples[-1] if len(self.samples) > before else None


PAGES = {"vllm": VLLM, "sglang": SGLANG, "tgi": TGI, "llamacpp": LLAMA_CPP}


@pytest.mark.parametrize("kind", PAGES)
async def test_a_server_is_busy_and_idle_as_its_metrics_say(tmp_path, server, kind):
    watching = Watching(config(tmp_path, server.port, kind=kind))
    server.page = PAGES[kind].format(running="0", waiting="0")
    first = await watching.look()
    assert first is not None
    assert (first.machine, first.deployment, first.is_down) == ("gpu", "", False)
    assert (first.started_us, first.up_us, first.busy_us) == (watching.clock.wall, 0, 0)
    server.page = PAGES[kind].format(running="3", waiting="1")
    second = await watching.look(15)
    server.page = PAGES[kind].format(running="0", waiting="2")
    third = await watching.look(15)
    assert second is not None
    assert third is not None
    # Idle, then busy: half of the time between; busy twice: all of it.
    assert (second.up_us, second.busy_us) == (15 * S, 15 * S // 2)
    assert (third.up_us, third.busy_us) == (30 * S, 15 * S // 2 + 15 * S)
    assert first.session == second.session == third.session
    assert {head.partition("\r\n")[0] for head in server.heads} == {"GET /metrics HTTP/1.1"}
    assert all("authorization" not in head.lower() for head in server.heads)
    await watching.watch._close()


async def test_a_server_that_is_gone_is_down_from_the_first_look_that_failed(tmp_path, server):
    server.page = TGI.format(running="1", waiting="0")
    watching = Watching(config(tmp_path, server.port))
    await watching.look()
    up = await watching.look(15)
    await server.stop()
    assert await watching.look(15) is None  # one look may fail
    down = await watching.look(15)
    assert up is not None
    assert down is not None
    assert (down.is_down, down.up_us, down.busy_us) == (True, 15 * S, 0)
    assert down.started_us == watching.clock.wall - 15 * S
    assert down.session != up.session
    await server.start()
    back = await watching.look(15)
    assert back is not None
    assert (back.is_down, back.up_us) == (False, 0)


async def test_one_look_that_failed_is_passed_over(tmp_path, server):
    watching = Watching(config(tmp_path, server.port))
    first = await watching.look()
    await server.stop()
    assert await watching.look(15) is None
    await server.start()
    third = await watching.look(15)
    assert first is not None
    assert third is not None
    assert (third.session, third.up_us) == (first.session, 30 * S)


STATUSES = {
    "without metrics": (404, False),
    "that wants a key": (401, False),
    "that is starting": (503, True),
    "behind a proxy that has no way to it": (502, True),
}


@pytest.mark.parametrize(("status", "is_down"), STATUSES.values(), ids=STATUSES.keys())
async def test_a_server(tmp_path, server, status, is_down):
    server.status = status
    server.page = TGI.format(running="1", waiting="0")  # which is no page of metrics then
    watching = Watching(config(tmp_path, server.port))
    await watching.look()
    found = await watching.look(15)
    assert found is not None
    assert (found.is_down, found.busy_us) == (is_down, 0)


async def test_a_page_that_never_ends_is_given_up_and_the_server_is_up(tmp_path, server):
    server.page = "x" * (machine_watch.PAGE_BYTES_MAX + 1)
    found = await Watching(config(tmp_path, server.port)).look()
    assert found is not None
    assert not found.is_down


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_long_page_is_read_beside_the_event_loop(tmp_path, server, monkeypatch, is_long):
    threads: list[threading.Thread] = []

    def noted(page: str, *, model: str | None) -> bool | None:
        threads.append(threading.current_thread())
        return is_loaded(page, model=model)

    monkeypatch.setattr(machine_watch, "is_loaded", noted)
    lines = (machine_watch.SMALL_BYTES if is_long else 100) // 2
    server.page = "\n " * lines + TGI.format(running="1", waiting="0")
    watching = Watching(config(tmp_path, server.port))
    await watching.look()
    found = await watching.look(10)
    assert found is not None
    assert found.busy_us == 10 * S
    assert {one is threading.main_thread() for one in threads} == {not is_long}


async def test_a_server_that_says_nothing_is_down_and_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_watch, "LOOK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = await Watching(config(tmp_path, silent.getsockname()[1])).look()
    assert found is not None
    assert found.is_down


async def test_a_set_clock_and_a_machine_that_slept_begin_anew(tmp_path, server):
    watching = Watching(config(tmp_path, server.port))
    first = await watching.look()
    watching.clock.wall += 3_600 * S
    set_clock = await watching.look(15)
    slept = await watching.look(600)
    assert first is not None
    assert set_clock is not None
    assert slept is not None
    assert len({first.session, set_clock.session, slept.session}) == 3
    assert set_clock.up_us == slept.up_us == 0


async def test_nobody_is_asked_who_is_not_to_be_watched(tmp_path, server):
    for machines in ("", "watch: true, pools: {gpu: {watch: false}}"):
        assert await Watching(config(tmp_path, server.port, machines=machines)).look() is None
    assert server.heads == []
    only = Watching(config(tmp_path, server.port, machines="pools: {gpu: {watch: true}}"))
    assert await only.look() is not None
    only.loaded = config(tmp_path, server.port, machines="")
    assert await only.look(15) is None
    only.loaded = config(tmp_path, server.port)
    again = await only.look(15)
    assert again is not None
    assert again.up_us == 0  # what was not watched meanwhile is not taken to have been up


async def test_it_looks_until_it_is_stopped(tmp_path, server, monkeypatch):
    monkeypatch.setattr(machine_watch, "WATCH_EVERY_S", 0.0)
    watching = Watching(config(tmp_path, server.port))
    running = asyncio.ensure_future(watching.watch.run())
    with anyio.fail_after(5):
        while not watching.samples:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not watching.watch._transports


URLS = {
    "http://10.0.0.5:8000/v1": "http://10.0.0.5:8000/metrics",
    "http://10.0.0.5:8000/v1/": "http://10.0.0.5:8000/metrics",
    "http://10.0.0.5:8000": "http://10.0.0.5:8000/metrics",
    "https://gpu.example/llama/v1": "https://gpu.example/llama/metrics",
}


@pytest.mark.parametrize(("base_url", "url"), URLS.items())
def test_metrics_are_beside_the_api(base_url, url):
    assert str(metrics_url(base_url)) == url


def test_the_supervisor_may_connect_to_what_is_watched_and_to_nothing_else(tmp_path):
    for machines, is_watched in (("", False), ("watch: true", True)):
        listed = destinations(config(tmp_path, 8000, machines=machines).settings)
        roles = {one.place: one.roles for one in listed if one.purpose is Purpose.PROVIDER}
        assert (Role.SUPERVISOR in roles["127.0.0.1:8000"]) is is_watched
        assert roles["127.0.0.1:9"] == {Role.WORKER}
