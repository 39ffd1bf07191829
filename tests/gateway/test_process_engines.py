"""Engines that die, that cannot be served or that are late; and the links that workers hold to them."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest

from gateway.channel import Channel, method, socket_pair
from gateway.clock import system_clock
from gateway.health import HealthBoard
from gateway.process.engines import EngineSpec, EngineSupervisor
from gateway.process.local_links import LocalLinks
from gateway.process.messages import EngineFault
from gateway.process.messages import EngineLink as LinkMessage
from local_engine.api import EngineConfig, EngineGone, GenerateRequest, spawn_engine
from local_engine.model_store import ModelStore, StoredModel
from local_engine.protocol import Done, GenerationUsage
from providers.native.local import EngineLink

pytestmark = pytest.mark.anyio

FAKE_ENGINE = "tests.local_engine.fake_engine"
HANGING_PROMPT = "\x01"  # the fake engine's word for a step without end


class Store(ModelStore):
    """Finds every source under its own name; knows `late` only once it was pulled."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pulled: list[str] = []

    def find(self, source: str) -> StoredModel | None:
        if source == "late" and not self.pulled:
            return None
        return StoredModel(path=Path("/fake") / source, sha256="0", size_bytes=1, source=source)

    def pull(self, source, *, on_progress):
        self.pulled.append(source)
        found = self.find(source)
        assert found is not None
        return found


@dataclass
class FakeWorker:
    """A worker's side: its channel to the supervisor and its links to engines."""

    models: tuple[str, ...]
    faults: list[EngineFault] = field(default_factory=list)
    added: int = 0

    def __post_init__(self) -> None:
        self.health = HealthBoard(monotonic_s=system_clock().monotonic_s)
        self.links = LocalLinks(
            links={"local": {model: EngineLink() for model in self.models}}, health=self.health
        )
        self.links.start()
        ours, theirs = socket_pair()
        methods = {
            "add_engine": method(LinkMessage, self._add),
            "engine_fault": method(EngineFault, self._fault),
        }
        self.channel = Channel(ours, methods, name="supervisor")
        self.supervisors_end = Channel(theirs, {}, name="worker")

    async def _add(self, message, fds) -> None:
        await self.links.add(message, socket.socket(fileno=fds[0]))
        self.added += 1

    async def _fault(self, fault, _fds) -> None:
        self.faults.append(fault)
        self.links.note_fault(fault)

    def state(self, model: str):
        return self.health.state(f"local/{model}")

    async def generate(self, model: str, prompt: str = "hello") -> str:
        client = self.links.links["local"][model].client
        assert client is not None
        request = GenerateRequest(
            id=os.urandom(4).hex(), namespace=b"n" * 16, prompt=prompt, max_tokens=3, temperature=0.0
        )  # fmt: skip
        async with client.generate(request) as generation:
            async for _ in generation:
                pass
        assert generation.done is not None
        return generation.done.finish_reason


def config(model_id: str, path: str) -> EngineConfig:
    return EngineConfig(
        model_id=model_id, path=path, namespace_key=b"k" * 32, block_size=4, kv_memory_bytes=4000,
        max_num_seqs=4,
    )  # fmt: skip


@asynccontextmanager
async def running(
    tmp_path, *models: str, workers: int = 1, module: str = FAKE_ENGINE, **options: float
):
    """Engines for `models`, and workers that hold links to them."""
    made = [FakeWorker(models) for _ in range(workers)]
    store = Store(tmp_path)
    engines = EngineSupervisor(
        specs=[
            EngineSpec(
                provider="local", model_id=model, source=model, make_config=partial(config, model)
            )
            for model in models
        ],
        store=store,
        clock=system_clock(),
        on_progress=lambda _: None,
        spawn=partial(spawn_engine, module=module),
        **options,
    )
    async with anyio.create_task_group() as tasks:
        for worker in made:
            tasks.start_soon(worker.channel.run)
            tasks.start_soon(worker.supervisors_end.run)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(engines.run, lambda: [one.supervisors_end for one in made])
                with anyio.fail_after(110):
                    while not engines.states():
                        await anyio.sleep(0)
                    yield engines, made, store
                scope.cancel()
        for worker in made:
            await worker.links.close()
            worker.channel.close()
        tasks.cancel_scope.cancel()


async def until(condition) -> None:
    with anyio.fail_after(90):  # torch is imported first, on machines that do other things too
        while not condition():
            await anyio.sleep(0.01)


@pytest.mark.slow
async def test_every_worker_gets_a_link_to_every_engine(tmp_path):
    async with running(tmp_path, "fast", workers=2) as (engines, workers, _):
        assert engines.states() == {"local/fast": "starting"}
        assert not workers[0].state("fast").is_available
        await until(lambda: engines.states()["local/fast"] == "ready")
        for worker in workers:
            assert worker.state("fast").is_available
            assert await worker.generate("fast") == "length"
        pid = engines.pids()["engine-local/fast"]
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists(), "the engine outlived its supervisor"


@pytest.mark.slow
async def test_a_dead_engine_is_replaced_and_workers_are_linked_to_the_new_one(tmp_path):
    async with running(tmp_path, "fast", workers=2) as (engines, workers, _):
        await until(lambda: engines.states()["local/fast"] == "ready")
        dead = engines.pids()["engine-local/fast"]
        os.kill(dead, signal.SIGKILL)
        await until(lambda: all(worker.faults for worker in workers))
        assert "started again" in workers[0].faults[0].reason
        await until(lambda: all(worker.added == 2 for worker in workers))
        await until(lambda: engines.states()["local/fast"] == "ready")
        assert engines.pids()["engine-local/fast"] != dead
        for worker in workers:
            assert worker.state("fast").is_available
            assert await worker.generate("fast") == "length"


async def check_replacement(engines, worker, hanging: int) -> None:
    """What waits for a hanging engine fails, and the next one serves."""
    with anyio.fail_after(90), pytest.raises(EngineGone):
        await worker.generate("hangs", HANGING_PROMPT)
    await until(lambda: worker.added == 2)
    await until(lambda: engines.states()["local/hangs"] == "ready")
    assert engines.pids()["engine-local/hangs"] != hanging
    assert await worker.generate("hangs") == "length"


@pytest.mark.ci
@pytest.mark.slow
async def test_an_engine_that_no_longer_answers_is_replaced(tmp_path):
    async with running(tmp_path, "hangs", answer_within_s=1) as (engines, (worker,), _):
        await until(lambda: engines.states()["local/hangs"] == "ready")
        hanging = engines.pids()["engine-local/hangs"]
        os.kill(hanging, signal.SIGSTOP)
        await check_replacement(engines, worker, hanging)
        assert "did not answer within 1 s" in worker.faults[0].reason


@pytest.mark.ci
@pytest.mark.slow
async def test_an_engine_whose_step_never_ends_is_replaced(tmp_path):
    async with running(tmp_path, "hangs", step_within_s=1) as (engines, (worker,), _):
        await until(lambda: engines.states()["local/hangs"] == "ready")
        await check_replacement(engines, worker, engines.pids()["engine-local/hangs"])
        assert "computed one step for" in worker.faults[0].reason


@pytest.mark.slow
async def test_a_model_that_cannot_be_served_is_not_tried_again(tmp_path):
    async with running(tmp_path, "corrupt", "fast") as (engines, (worker,), _):
        await until(lambda: "corrupt" in engines.states()["local/corrupt"])
        await until(lambda: engines.states()["local/fast"] == "ready")
        await until(lambda: worker.faults)  # told on a channel, behind the state
        assert [fault.model_id for fault in worker.faults] == ["corrupt"]
        assert "the model file is corrupt" in worker.state("corrupt").reason
        await anyio.sleep(0.5)  # a restart would come after 0.1 s
        assert len(worker.faults) == 1
        assert set(engines.pids()) == {"engine-local/fast"}
        assert await worker.generate("fast") == "length"


@pytest.mark.slow
async def test_an_engine_that_never_gets_ready_is_tried_again_and_said_so(tmp_path):
    async with running(tmp_path, "defect") as (engines, (worker,), _):
        await until(lambda: len(worker.faults) >= 2)
        assert "secret words" not in worker.faults[0].reason
        assert not worker.state("defect").is_available


async def test_a_program_that_cannot_run_is_tried_again(tmp_path):
    async with running(tmp_path, "fast", module="tests.no_such_module") as (_, (worker,), _):
        await until(lambda: len(worker.faults) >= 2)
        assert "tried again" in worker.faults[0].reason


@pytest.mark.slow
async def test_a_missing_model_is_fetched_first(tmp_path):
    async with running(tmp_path, "late") as (engines, _, store):
        await until(lambda: engines.states()["local/late"] == "ready")
        assert store.pulled == ["late"]


@pytest.mark.slow
async def test_a_worker_that_comes_later_is_linked_or_told_why_not(tmp_path):
    async with running(tmp_path, "fast", "corrupt") as (engines, workers, _):
        await until(lambda: engines.states()["local/fast"] == "ready")
        await until(lambda: "corrupt" in engines.states()["local/corrupt"])
        late = FakeWorker(("fast", "corrupt"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.channel.run)
            tasks.start_soon(late.supervisors_end.run)
            await engines.link_worker(late.supervisors_end)
            assert late.state("fast").is_available
            assert await late.generate("fast") == "length"
            assert "corrupt" in late.state("corrupt").reason
            await late.links.close()
            tasks.cancel_scope.cancel()
        assert workers[0].added == 1


@pytest.mark.slow
async def test_a_worker_that_comes_later_serves_before_a_busy_engine_was_measured(tmp_path):
    async with running(tmp_path, "hangs", "fast") as (engines, (worker,), _):
        await until(lambda: set(engines.states().values()) == {"ready"})
        late = FakeWorker(("hangs", "fast"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.generate, "hangs", HANGING_PROMPT)
            tasks.start_soon(late.channel.run)
            tasks.start_soon(late.supervisors_end.run)
            await anyio.sleep(0.1)
            tasks.start_soon(engines.link_worker, late.supervisors_end)
            await until(lambda: late.state("hangs").is_available)
            await until(lambda: late.state("fast").is_available)
            assert late.added < 2, "the busy engine was measured after all"
            assert await late.generate("fast") == "length"
            tasks.cancel_scope.cancel()
        await late.links.close()


@pytest.mark.slow
async def test_a_worker_that_is_gone_costs_the_others_nothing(tmp_path):
    async with running(tmp_path, "fast", workers=2) as (engines, workers, _):
        workers[0].channel.close()
        await until(lambda: engines.states()["local/fast"] == "ready")
        assert workers[1].added == 1
        await engines.link_worker(workers[0].supervisors_end)


@pytest.mark.slow
async def test_an_engine_that_dies_while_a_worker_is_linked_does_not_end_its_keeper(tmp_path):
    async with running(tmp_path, "fast") as (engines, _, _):
        await until(lambda: engines.states()["local/fast"] == "ready")
        os.kill(engines.pids()["engine-local/fast"], signal.SIGKILL)
        late = FakeWorker(("fast",))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.channel.run)
            tasks.start_soon(late.supervisors_end.run)
            await engines.link_worker(late.supervisors_end)
            await late.links.close()
            tasks.cancel_scope.cancel()
        await until(lambda: engines.states()["local/fast"] == "ready")


def done(**facts) -> Done:
    counts = {"prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 11}
    usage = GenerationUsage(**{**counts, **facts.pop("usage", {})})
    times = {"busy_s": 1.0, "queue_s": 0.5, "prefill_s": 0.5, "e2e_s": 2.5}
    return Done(id="r", finish_reason="stop", usage=usage, **{**times, **facts})


SPEEDS = {
    "busy time is shared out by how long each part took": (done(), (400, 13)),
    "cached tokens were not computed": (done(usage={"cached_tokens": 60}), (160, 13)),
    "nothing was sampled": (done(prefill_s=None), None),
    "no time passed": (done(e2e_s=0.5), None),
    "no busy time": (done(busy_s=0.0), None),
    "a short prompt says nothing of the prefill": (done(usage={"prompt_tokens": 31}), None),
    "one token says nothing of the decoding": (done(usage={"output_tokens": 1}), None),
    "an answer that was all prefill": (done(prefill_s=5.0), None),
}


@pytest.mark.parametrize(("account", "speed"), SPEEDS.values(), ids=SPEEDS.keys())
def test_what_a_generation_says_about_the_engines_speed(account, speed):
    health = HealthBoard(monotonic_s=lambda: 0.0)
    LocalLinks(links={}, health=health).note_done("local/m", account)
    found = health.speed("local/m")
    assert (None if found is None else (found.prefill_tps, found.decode_tps)) == speed
