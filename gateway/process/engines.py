"""Keep one engine process per local model, and a socket pair from each to every worker.

A model file that is missing is fetched first. A model that cannot be served (a broken file) is not
tried again; an engine that died is, with a growing pause, and one that hangs is ended first: its
requests fail then instead of waiting for all their deadlines. Whatever an engine's state, the
gateway serves: workers learn why a local deployment is not there and say so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.channel import Channel, ChannelError, socket_pair
from gateway.clock import Clock
from gateway.process.backoff import Backoff
from gateway.process.messages import EngineFault, EngineLink
from local_engine.api import (
    EngineConfig,
    EngineError,
    EngineGone,
    EngineProcess,
    EngineStats,
    ModelFileError,
    spawn_engine,
)
from local_engine.model_store import ModelStore, ModelStoreError, OnProgress, StoredModel, digest_of

logger = logging.getLogger(__name__)

LINK_TIMEOUT_S = 30.0
TERMINATE_AFTER_S = 5.0
LOOK_EVERY_S = 5.0

FILE_SOURCE = "file:"
STARTING = "starting"
READY = "ready"
TRIED_AGAIN = "; it is tried again"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One local model to keep running.

    Attributes:
        provider: The provider's name in the configuration.
        model_id: The model's name at it.
        source: Where its file comes from; after `file:` stands an absolute path.
        sha256: Digest in hexadecimal that the file must have, None for any.
        make_config: Completes the engine's configuration once the file's path is known.
    """

    provider: str
    model_id: str
    source: str
    make_config: Callable[[str], EngineConfig]
    sha256: str | None = None

    @property
    def deployment(self) -> str:
        """`provider/model-id`."""
        return f"{self.provider}/{self.model_id}"


@dataclass(slots=True, kw_only=True)
class _Running:
    spec: EngineSpec
    state: str = STARTING
    process: EngineProcess | None = None
    stats: EngineStats | None = None  # as of the last look
    is_loaded: bool = False  # from here on workers can be linked; `ready` is when they are


@dataclass(slots=True, kw_only=True)
class EngineSupervisor:
    """Keeps engines.

    Attributes:
        specs: What to run.
        store: Where model files are kept.
        clock: For restart pauses.
        on_progress: Told about downloads.
        spawn: Starts an engine process.
        answer_within_s: An engine that says nothing for longer hangs.
        step_within_s: One whose step takes longer hangs; prompts on slow machines take a while.
    """

    specs: Sequence[EngineSpec]
    store: ModelStore
    clock: Clock
    on_progress: OnProgress
    spawn: Callable[[EngineConfig], EngineProcess] = spawn_engine
    answer_within_s: float = 20.0
    step_within_s: float = 300.0
    _engines: dict[str, _Running] = field(default_factory=dict[str, _Running])
    _workers: Callable[[], Sequence[Channel]] = field(default=lambda: ())

    def states(self) -> dict[str, str]:
        """State per deployment: `ready`, `starting`, or a sentence that says why not."""
        return {name: running.state for name, running in self._engines.items()}

    def pids(self) -> Mapping[str, int]:
        """Process ids of the running engines."""
        return {
            f"engine-{name}": running.process.pid
            for name, running in self._engines.items()
            if running.process is not None
        }

    def stats(self) -> Mapping[str, EngineStats]:
        """What each running engine told at its last sign of life, by deployment."""
        return {
            name: running.stats
            for name, running in self._engines.items()
            if running.stats is not None
        }

    async def run(self, workers: Callable[[], Sequence[Channel]]) -> None:
        """Keep every engine until cancelled, then end them.

        Args:
            workers: The channels of the workers that are configured now.
        """
        self._workers = workers
        self._engines |= {spec.deployment: _Running(spec=spec) for spec in self.specs}
        async with anyio.create_task_group() as tasks:
            for running in self._engines.values():
                tasks.start_soon(self._keep, running)

    async def link_worker(self, channel: Channel) -> None:
        """Give a new worker its links to the engines that are ready, and the reasons for others."""
        # All at once, here and below: a link is measured before its call returns.
        async with anyio.create_task_group() as tasks:
            for running in list(self._engines.values()):
                if running.is_loaded and running.process is not None:
                    tasks.start_soon(self._link, running, running.process, channel)
                elif running.state != STARTING:
                    tasks.start_soon(_tell, channel, _fault(running))

    async def _keep(self, running: _Running) -> None:
        backoff = Backoff(monotonic_s=self.clock.monotonic_s)
        while True:
            running.state = STARTING
            is_hopeless = False
            try:
                await self._run_once(running)
                running.state = "its process ended and is being started again"
            except ModelFileError as error:
                running.state = str(error)
                is_hopeless = True
            except (EngineError, OSError) as error:
                running.state = f"{error}{TRIED_AGAIN}"
            logger.error("engine %s: %s", running.spec.deployment, running.state)
            for channel in self._workers():
                await _tell(channel, _fault(running))
            if is_hopeless:
                return
            await anyio.sleep(backoff.next_s())

    async def _run_once(self, running: _Running) -> None:
        spec = running.spec
        path = await self._fetch(spec)
        # On this thread: the engine is killed when the thread that started it ends.
        process = self.spawn(spec.make_config(str(path)))
        running.process = process
        try:
            await process.control.wait_ready()
            running.is_loaded = True
            async with anyio.create_task_group() as tasks:
                for channel in self._workers():
                    tasks.start_soon(self._link, running, process, channel)
            running.state = READY
            await self._watch(running, process)
        finally:
            running.process = None
            running.stats = None
            running.is_loaded = False
            with anyio.CancelScope(shield=True):
                await _end(process)

    async def _watch(self, running: _Running, process: EngineProcess) -> None:
        """Wait until the engine ends.

        Raises:
            EngineGone: It hangs.
        """
        while not await _has_ended(process, within_s=LOOK_EVERY_S):
            try:
                stats = await process.control.ping(timeout_s=self.answer_within_s)
            except EngineGone:
                # It may have died just now, which is said in other words.
                if await _has_ended(process, within_s=TERMINATE_AFTER_S):
                    return
                raise
            running.stats = stats
            if stats.step_age_s > self.step_within_s:
                raise EngineGone(f"the engine has computed one step for {stats.step_age_s:.0f} s")

    async def _fetch(self, spec: EngineSpec) -> Path:
        """The model's file, held against the digest that the configuration wants."""
        if spec.source.startswith(FILE_SOURCE):
            path, sha256 = Path(spec.source.removeprefix(FILE_SOURCE)), None
            if spec.sha256 is not None:
                sha256 = await anyio.to_thread.run_sync(digest_of, path)
        else:
            stored = await self._fetch_stored(spec.source)
            path, sha256 = stored.path, stored.sha256
        if spec.sha256 not in (None, sha256):
            raise ModelFileError(
                f"{path} has SHA-256 {sha256}, the configuration wants {spec.sha256}"
            )
        return path

    async def _fetch_stored(self, source: str) -> StoredModel:
        found = await anyio.to_thread.run_sync(self.store.find, source)
        if found is not None:
            return found
        is_abandoned = threading.Event()

        def show(done_bytes: int, total_bytes: int | None, what: str) -> None:
            if is_abandoned.is_set():  # ends the thread, for which the interpreter would wait
                raise ModelStoreError(f"the fetch of {source} was given up")
            self.on_progress(done_bytes, total_bytes, what)

        pull = partial(self.store.pull, source, on_progress=show)
        try:
            return await anyio.to_thread.run_sync(pull, abandon_on_cancel=True)
        finally:
            is_abandoned.set()

    async def _link(self, running: _Running, process: EngineProcess, channel: Channel) -> None:
        spec = running.spec
        try:
            ours, theirs = socket_pair()
        except OSError as error:
            logger.warning("a worker got no link to %s: %s", spec.deployment, error)
            return
        try:
            await process.control.add_link(ours)
            # At once: while we held the engine's end, a worker would wait for a dead engine.
            ours.close()
            await channel.call(
                "add_engine",
                EngineLink(provider=spec.provider, model_id=spec.model_id),
                result_type=type(None),
                timeout_s=LINK_TIMEOUT_S,
                fds=[theirs.fileno()],
            )
        except (ChannelError, EngineError) as error:
            # The worker or the engine died meanwhile; whoever is started next is linked again.
            logger.warning("a worker got no link to %s: %s", spec.deployment, error)
        finally:
            ours.close()
            theirs.close()


def _fault(running: _Running) -> EngineFault:
    spec = running.spec
    return EngineFault(provider=spec.provider, model_id=spec.model_id, reason=running.state)


async def _tell(channel: Channel, fault: EngineFault) -> None:
    try:
        await channel.call("engine_fault", fault, result_type=type(None), timeout_s=LINK_TIMEOUT_S)
    except ChannelError as error:
        logger.warning("a worker was not told about %s: %s", fault.model_id, error)


async def _has_ended(process: EngineProcess, *, within_s: float) -> bool:
    try:
        await process.control.wait(timeout_s=within_s)
    except TimeoutError:
        return False
    return True


async def _end(process: EngineProcess) -> None:
    await process.control.terminate()
    try:
        await process.control.wait(timeout_s=TERMINATE_AFTER_S)
    except TimeoutError:
        await process.control.kill()
        await process.control.wait()
