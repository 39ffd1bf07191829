"""When a configuration is read again, what is refused, and what stays in service then."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from gateway.clock import system_clock
from gateway.process import reload, snapshot
from gateway.process.preflight import require_same_ground
from gateway.process.reload import Reloader
from gateway.process.worker_set import SetFailed
from gateway.settings.errors import ConfigError
from gateway.settings.loader import LoadedConfig, load, load_text

BASE = """\
server: {port: 8642, workers: 2}
providers:
  up: {kind: openai_compatible, base_url: "http://127.0.0.1:9/v1"}
  here: {kind: local, models: [{id: m, source: "file:m.gguf"}]}
models:
  m: {deployments: [up/m]}
include: [conf.d/*.yaml]
"""


def loaded(folder: Path, text: str) -> LoadedConfig:
    return load_text(text, environ={"FAREWAY_STATE_DIR": str(folder / "s")}, base_dir=folder)


NEEDS_RESTART = {
    "the port": ("port: 8642", "port: 8643", "server.port: the port"),
    "the address": ("port: 8642", "port: 8642, host: 0.0.0.0", "server.host: the address"),
    "the database": ("include:", "storage: {database: 'sqlite:///o.db'}\ninclude:", "storage.database: the database"),
    "the journal": ("include:", "storage: {spool_dir: other}\ninclude:", "storage.spool_dir: the journal's folder"),
    "the master key": ("include:", "secrets: {master_key_env: OTHER}\ninclude:", "secrets: the master key"),
    "the administrator's key": ("include:", "admin: {key_env: OTHER}\ninclude:", "admin: the place of the administrator's key"),
    "an engine's model": ("file:m.gguf", "file:n.gguf", "providers.here: what the embedded engine runs"),
    "an engine's device": ("kind: local,", "kind: local, device: cpu,", "providers.here: what the embedded engine runs"),
    "another engine": ("models:\n", "  b: {kind: local, models: [{id: m, source: 'file:m.gguf'}]}\nmodels:\n", "providers.b: what the embedded engine runs"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "sentence"), NEEDS_RESTART.values(), ids=NEEDS_RESTART.keys()
)
def test_a_reload_refuses_what_running_processes_stand_on(tmp_path, old, new, sentence):
    with pytest.raises(ConfigError) as caught:
        require_same_ground(loaded(tmp_path, BASE), loaded(tmp_path, BASE.replace(old, new, 1)))
    assert [str(one).partition("fareway.yaml:")[2].partition(": ")[2] for one in caught.value.problems] == [
        f"{sentence} changes with a restart of the gateway only"
    ]  # fmt: skip


RELOADS = {
    "the number of workers": ("workers: 2", "workers: 5"),
    "the region": ("port: 8642", "port: 8642, region: eu"),
    "a price": ("models: [{id: m,", "price: {gpu_usd_per_hour: 2}, models: [{id: m,"),
    "a provider's address": ("127.0.0.1:9", "127.0.0.1:10"),
    "the durability": ("include:", "storage: {durability: strict}\ninclude:"),
    "a model": ("[up/m]", "[up/m, here/m]"),
}


@pytest.mark.parametrize(("old", "new"), RELOADS.values(), ids=RELOADS.keys())
def test_everything_else_may_change(tmp_path, old, new):
    changed = loaded(tmp_path, BASE.replace(old, new, 1))
    assert changed.digest != loaded(tmp_path, BASE).digest
    require_same_ground(loaded(tmp_path, BASE), changed)


def test_all_refused_changes_are_told_at_once(tmp_path):
    new = BASE.replace("8642", "1").replace("m.gguf", "n.gguf")
    with pytest.raises(ConfigError) as caught:
        require_same_ground(loaded(tmp_path, BASE), loaded(tmp_path, new))
    assert len(caught.value.problems) == 2


def test_a_snapshot_holds_the_whole_configuration(tmp_path):
    config = loaded(tmp_path, BASE)
    again = snapshot.restore(snapshot.take(config))
    assert again.settings == config.settings
    assert (again.digest, again.spool_dir, again.database_url, again.state_dir) == (
        config.digest, config.spool_dir, config.database_url, config.state_dir
    )  # fmt: skip


@dataclass(kw_only=True)
class Here:
    """A reloader, and what it put in service."""

    path: Path
    served: list[LoadedConfig]
    refuses: str = ""
    reloader: Reloader = field(init=False)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    async def replace(self, config: LoadedConfig) -> None:
        if self.refuses:
            raise SetFailed(self.refuses)
        self.served.append(config)

    async def until(self, count: int) -> None:
        with anyio.fail_after(20):
            while len(self.served) < count:
                await anyio.sleep(0.01)

    async def until_fault(self) -> str:
        with anyio.fail_after(20):
            while not self.reloader.fault:
                await anyio.sleep(0.01)
        return self.reloader.fault


@asynccontextmanager
async def reloading(tmp_path, monkeypatch) -> AsyncIterator[Here]:
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.05)
    environ = {"FAREWAY_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "conf.d").mkdir()
    path = tmp_path / "fareway.yaml"
    path.write_text(BASE)
    here = Here(path=path, served=[load(path, environ=environ)])
    here.reloader = Reloader(
        config_path=path,
        environ=environ,
        clock=system_clock(),
        served=lambda: here.served[-1],
        replace=here.replace,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(here.reloader.run)
        await anyio.sleep(0.02)
        yield here
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_changed_file_and_a_new_included_one_are_found(tmp_path, monkeypatch):
    async with reloading(tmp_path, monkeypatch) as here:
        here.write(BASE.replace("workers: 2", "workers: 3"))
        await here.until(2)
        assert here.served[-1].settings.server.workers == 3
        (tmp_path / "conf.d" / "teams.yaml").write_text("teams: {red: {}}")
        await here.until(3)
        assert set(here.served[-1].settings.teams) == {"red"}
        (tmp_path / "conf.d" / "teams.yaml").unlink()
        await here.until(4)
        assert not here.served[-1].settings.teams
        assert here.reloader.fault == ""


@pytest.mark.anyio
async def test_a_file_that_is_replaced_by_another_is_found(tmp_path, monkeypatch):
    async with reloading(tmp_path, monkeypatch) as here:
        other = tmp_path / "new"
        other.write_text(BASE.replace("workers: 2", "workers: 4"))
        other.replace(here.path)
        await here.until(2)
        assert here.served[-1].settings.server.workers == 4


@pytest.mark.anyio
async def test_a_file_that_says_the_same_in_other_words_changes_nothing_until_asked(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    async with reloading(tmp_path, monkeypatch) as here:
        here.write(f"# a remark\n{BASE}")
        with anyio.fail_after(20):
            while "say the same" not in caplog.text:
                await anyio.sleep(0.01)
        assert len(here.served) == 1
        here.reloader.ask()  # a key in a file may have changed
        await here.until(2)


@pytest.mark.anyio
async def test_every_problem_of_a_bad_file_is_told_and_a_good_one_clears_it(
    tmp_path, monkeypatch, caplog
):
    async with reloading(tmp_path, monkeypatch) as here:
        here.write(BASE.replace("workers:", "wrokers:").replace("providers:", "providres:"))
        fault = await here.until_fault()
        assert "wrokers" in fault
        assert "providres" in fault
        assert "the old one stays in service" in caplog.text
        here.write(BASE)
        with anyio.fail_after(20):
            while here.reloader.fault:
                await anyio.sleep(0.01)
        assert len(here.served) == 1


REFUSED = {
    "what is not built": ("include:", "stored_objects: {enabled: true}\ninclude:", "not built yet"),
    "a key that is missing": ('9/v1"}', '9/v1", api_key_env: NOWHERE}', "NOWHERE"),
    "another port": ("port: 8642", "port: 1", "changes with a restart"),
    "a file that is none": (BASE, "{", "fareway.yaml"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(("old", "new", "sentence"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_configuration_that_cannot_be_served_is_not_tried(
    tmp_path, monkeypatch, old, new, sentence
):
    async with reloading(tmp_path, monkeypatch) as here:
        here.write(BASE.replace(old, new, 1))
        here.reloader.ask()
        assert sentence in await here.until_fault()
        assert len(here.served) == 1


@pytest.mark.anyio
async def test_a_fault_of_our_own_leaves_the_old_configuration_too(tmp_path, monkeypatch, caplog):
    async def fail(_config):
        raise ZeroDivisionError

    async with reloading(tmp_path, monkeypatch) as here:
        here.reloader.replace = fail
        here.reloader.ask()
        assert "an internal error (ZeroDivisionError)" in await here.until_fault()
        assert "Traceback" in caplog.text
        here.reloader.replace = here.replace
        here.reloader.ask()
        await here.until(2)


@pytest.mark.anyio
async def test_workers_that_do_not_start_leave_the_old_ones_and_the_reason(tmp_path, monkeypatch):
    async with reloading(tmp_path, monkeypatch) as here:
        here.refuses = "worker-2 could not be started: no room"
        here.reloader.ask()
        assert await here.until_fault() == here.refuses
        here.refuses = ""
        here.reloader.ask()
        await here.until(2)
        assert here.reloader.fault == ""
