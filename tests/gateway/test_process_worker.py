"""A worker as its supervisor sees it, with both ends of the channel in one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import TaskGroup

from gateway.budgets.messages import BudgetRules
from gateway.channel import Channel, RemoteError, socket_pair
from gateway.clock import system_clock
from gateway.process import snapshot
from gateway.process import worker as worker_module
from gateway.process.messages import (
    Drain,
    EngineFault,
    EngineLink,
    KeysUpdate,
    Listen,
    StopListening,
    WindDown,
    WorkerSetup,
)
from gateway.process.preflight import check
from gateway.process.worker import Worker
from gateway.settings.loader import load
from tests.gateway.gateway_harness import (
    KEY,
    OTHER_KEY,
    UPSTREAM_KEY,
    attempts_in,
    body,
    config_text,
    error_of,
)
from tests.gateway.stream_reading import assemble
from tests.support.scripted_upstream import Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio

NOTHING = type(None)


@dataclass(kw_only=True)
class Running:
    """A worker, and what its supervisor holds."""

    channel: Channel
    listener: socket.socket
    setup: WorkerSetup
    spool_dir: object
    tasks: TaskGroup
    ended: anyio.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    async def call(self, name: str, params: object, **fds) -> None:
        await self.channel.call(name, params, result_type=NOTHING, timeout_s=20, **fds)

    async def configure(self, **changes) -> None:
        await self.call("configure", msgspec.structs.replace(self.setup, **changes))
        await self.listen()

    async def listen(self) -> None:
        await self.call("listen", Listen(numbers=[0]), fds=[self.listener.fileno()])

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url + "/v1/chat/completions", trust_env=False, timeout=20
        )

    def request(self, content: dict, key: str = KEY) -> dict:
        return {"json": content, "headers": {"authorization": f"Bearer {key}"}}

    async def ask(self, client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/", **self.request(body()))

    async def post(self, content: dict, key: str = KEY, timeout_s: float = 20) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/", **self.request(content, key), timeout=timeout_s)


@asynccontextmanager
async def running(tmp_path, *scripts, is_proved: bool = True) -> AsyncIterator[Running]:
    """A worker that has not been configured yet."""
    environ = {
        "FAREWAY_STATE_DIR": str(tmp_path / "state"),
        "APP_KEY": KEY,
        "OTHER_KEY": OTHER_KEY,
        "UPSTREAM_KEY": UPSTREAM_KEY,
    }
    async with ScriptedUpstream({"m": list(scripts or (Chat(text="from the worker"),))}) as up:
        path = tmp_path / "fareway.yaml"
        path.write_text(config_text({"a": up.base_url}))
        config = load(path, environ=environ)
        if is_proved:
            check(config, environ=environ, clock=system_clock())
        ours, theirs = socket_pair()
        worker = Worker(control=theirs, environ=environ, clock=system_clock())
        channel = Channel(ours, {}, name="worker")
        ended = anyio.Event()

        async def run() -> None:
            await worker.run()
            ended.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.run)
                tasks.start_soon(run)
                yield Running(
                    channel=channel,
                    listener=listener,
                    setup=WorkerSetup(
                        index=3, config=snapshot.take(config), budgets=BudgetRules(), keys=[], revision=1
                    ),
                    spool_dir=config.spool_dir / "worker-3",
                    tasks=tasks,
                    ended=ended,
                )  # fmt: skip
                with anyio.fail_after(20):
                    channel.close()
                    await ended.wait()


async def test_a_worker_whose_policy_nobody_proved_does_not_start(tmp_path):
    async with running(tmp_path, is_proved=False) as worker:
        with pytest.raises(RemoteError, match="nobody has proved this policy"):
            await worker.configure()


async def test_a_configured_worker_answers_and_writes_its_own_spool(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        got = await worker.post(body())
        assert got.json()["choices"][0]["message"]["content"] == "from the worker"
        ((intent, settled),) = attempts_in(worker.spool_dir)
        assert (intent.team, settled.status) == ("apps", "ok")


async def test_what_no_application_sees_has_a_request_id_too(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        reader, writer = await asyncio.open_connection(*worker.listener.getsockname())
        writer.write(b"HELO there\r\n\r\n")
        with anyio.fail_after(5):
            got = await reader.read()
        assert re.search(rb"\r\nx-fareway-request-id: [0-9a-f]{32}\r\n", got)
        writer.close()


async def test_nothing_is_answered_before_a_worker_is_configured(tmp_path):
    async with running(tmp_path) as worker:
        for name, params in (
            ("update_keys", KeysUpdate(keys=[], revision=2)),
            ("engine_fault", EngineFault(provider="l", model_id="m", reason="x")),
        ):
            with pytest.raises(RemoteError) as caught:
                await worker.call(name, params)
            assert caught.value.code == "invalid_state"


async def test_a_worker_refuses_settings_that_are_not_what_was_sent(tmp_path):
    async with running(tmp_path) as worker:
        other = msgspec.structs.replace(worker.setup.config, digest="0" * 64)
        with pytest.raises(RemoteError) as caught:
            await worker.configure(config=other)
        assert caught.value.code == "config_changed"


async def test_a_worker_needs_no_file_of_the_configuration(tmp_path):
    async with running(tmp_path) as worker:
        (tmp_path / "fareway.yaml").write_text("something: else")
        await worker.configure()
        assert (await worker.post(body())).status_code == 200


async def test_a_worker_is_configured_once_and_links_come_with_a_socket(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        with pytest.raises(RemoteError) as caught:
            await worker.configure()
        assert caught.value.code == "invalid_state"
        with pytest.raises(RemoteError) as caught:
            await worker.call("add_engine", EngineLink(provider="l", model_id="m"))
        assert caught.value.code == "invalid_params"
        assert (await worker.post(body())).status_code == 200


async def test_a_worker_accepts_nothing_before_it_is_told_to_listen_and_nothing_after(tmp_path):
    async with running(tmp_path) as worker:
        await worker.call("configure", worker.setup)
        with pytest.raises(httpx.ReadTimeout):
            await worker.post(body(), timeout_s=0.2)
        await worker.listen()
        assert (await worker.post(body())).status_code == 200
        await worker.call("stop_listening", StopListening(numbers=[0]))
        with pytest.raises(httpx.ReadTimeout):
            await worker.post(body(), timeout_s=0.2)
        await worker.listen()
        assert (await worker.post(body())).status_code == 200


async def test_sockets_without_numbers_are_refused(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        with pytest.raises(RemoteError) as caught:
            await worker.call("listen", Listen(numbers=[1, 2]), fds=[worker.listener.fileno()])
        assert caught.value.code == "invalid_params"


async def test_winding_down_answers_standing_connections_and_tells_each_that_it_ends(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        async with worker.client() as one, worker.client() as other:
            for client in (one, other):
                assert "connection" not in (await worker.ask(client)).headers
            await worker.call("wind_down", WindDown(idle_s=20, deadline_s=20))
            for client in (one, other):
                got = await worker.ask(client)
                assert (got.status_code, got.headers["connection"]) == (200, "close")
            with anyio.fail_after(5):
                await worker.ended.wait()


async def test_winding_down_closes_what_stays_idle_and_not_sooner(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        async with worker.client() as idle:
            await worker.ask(idle)
            await worker.call("wind_down", WindDown(idle_s=0.3, deadline_s=20))
            await anyio.sleep(0.15)
            assert not worker.ended.is_set()
            with anyio.fail_after(5):
                await worker.ended.wait()


async def test_winding_down_ends_a_stream_whole_and_answers_one_more_request_behind_it(tmp_path):
    slow = Chat(text="one two three four", frame_delay_s=0.1)
    async with running(tmp_path, slow, Chat(text="and on")) as worker:
        await worker.configure()
        async with worker.client() as client:
            async with client.stream("POST", "/", **worker.request(body(stream=True))) as stream:
                lines = stream.aiter_bytes()
                found = await anext(lines)
                await worker.call("wind_down", WindDown(idle_s=20, deadline_s=20))
                async for piece in lines:
                    found += piece
            assert assemble(found).texts == {0: "one two three four"}
            assert "connection" not in stream.headers, "the head was out before"
            got = await worker.ask(client)
            assert (got.status_code, got.headers["connection"]) == (200, "close")
        with anyio.fail_after(5):
            await worker.ended.wait()


async def test_of_pipelined_requests_only_the_last_ends_the_connection(tmp_path):
    async with running(tmp_path, Chat(text="x", think_s=0.1)) as worker:
        await worker.configure()
        content = json.dumps(body()).encode()
        request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        ).encode() + content
        port = worker.listener.getsockname()[1]
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(request)
            await anyio.sleep(0.03)
            await worker.call("wind_down", WindDown(idle_s=20, deadline_s=20))
            await stream.send(request + request)
            found = b""
            with anyio.fail_after(10), contextlib.suppress(anyio.EndOfStream):
                while True:
                    found += await stream.receive()
        assert found.count(b"HTTP/1.1 200 OK") == 3
        heads = found.split(b"HTTP/1.1 200 OK")[1:]
        assert [b"connection: close" in head for head in heads] == [False, False, True]


async def test_winding_down_has_an_end_and_a_later_call_can_hurry_it(tmp_path):
    stalled = Chat(text="one two three", stall_after=1, stall_s=60)
    async with running(tmp_path, stalled) as worker:
        await worker.configure()
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await worker.post(body(stream=True)))

        worker.tasks.start_soon(ask)
        await anyio.sleep(0.1)
        await worker.call("wind_down", WindDown(idle_s=20, deadline_s=60))
        await anyio.sleep(0.2)  # it looks ten times a second
        assert not worker.ended.is_set()
        await worker.call("wind_down", WindDown(idle_s=0, deadline_s=0.1))
        with anyio.fail_after(10):
            await worker.ended.wait()
        ((_, settled),) = attempts_in(worker.spool_dir)
        assert (settled.status, settled.error_code) == ("interrupted", "draining")
        assert [error["code"] for error in assemble(answers[0].content).errors] == ["draining"]


async def test_draining_refuses_what_is_new_and_finishes_what_runs(tmp_path):
    slow = Chat(text="one two three four", frame_delay_s=0.1)
    async with running(tmp_path, slow) as worker:
        await worker.configure()
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await worker.post(body(stream=True)))

        worker.tasks.start_soon(ask)
        await anyio.sleep(0.15)
        async with httpx.AsyncClient(trust_env=False) as client:
            kept = {"authorization": f"Bearer {KEY}"}
            assert (await client.get(worker.url + "/readyz")).status_code == 200
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.call, "drain", Drain(deadline_s=10))
                await anyio.sleep(0.05)
                refused = await client.post(
                    worker.url + "/v1/chat/completions", json=body(), headers=kept
                )
                assert refused.status_code == 503
                assert error_of(refused)["code"] == "draining"
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["connection"] == "close"
                newcomer = await worker.post(body())
                assert newcomer.status_code == 503
                assert error_of(newcomer)["code"] == "draining"
                assert newcomer.headers["connection"] == "close"
        with anyio.fail_after(20):
            await worker.ended.wait()
        assert assemble(answers[0].content).texts == {0: "one two three four"}
        ((_, settled),) = attempts_in(worker.spool_dir)
        assert settled.status == "ok"


async def test_what_still_runs_at_the_end_of_the_drain_is_settled_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "LINGER_S", 0.05)
    stalled = Chat(text="one two three", stall_after=1, stall_s=60)
    async with running(tmp_path, stalled) as worker:
        await worker.configure()
        content = b""
        async with (
            worker.client() as client,
            client.stream("POST", "/", **worker.request(body(stream=True))) as got,
        ):
            parts = got.aiter_raw()
            while b'"one' not in content:
                content += await anext(parts)
            await worker.call("drain", Drain(deadline_s=0.1))
            async for part in parts:
                content += part
        with anyio.fail_after(20):
            await worker.ended.wait()
        ((_, settled),) = attempts_in(worker.spool_dir)
        assert (settled.status, settled.error_code) == ("interrupted", "draining")
        found = assemble(content)
        assert (found.texts, found.is_done) == ({0: "one"}, False)
        assert [error["code"] for error in found.errors] == ["draining"]


async def test_a_worker_whose_supervisor_is_gone_ends(tmp_path):
    async with running(tmp_path) as worker:
        await worker.configure()
        assert (await worker.post(body())).status_code == 200
        worker.channel.close()
        with anyio.fail_after(20):
            await worker.ended.wait()


async def test_a_worker_that_was_never_configured_ends_with_its_supervisor(tmp_path):
    async with running(tmp_path) as worker:
        worker.channel.close()
        with anyio.fail_after(20):
            await worker.ended.wait()
