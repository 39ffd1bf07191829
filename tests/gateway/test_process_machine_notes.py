"""What a supervisor tells of machines: those of the configuration, and what engines' meters say."""

from __future__ import annotations

import pytest

from gateway.channel import RemoteError
from gateway.finance.machines.declared import declared_machines, machine_pools
from gateway.finance.machines.messages import Hours, NoteMachines
from gateway.ledger import node
from gateway.process.machine_notes import MachineNotes, node_of
from gateway.settings.loader import load_text
from local_engine.api import EngineStats
from tests.gateway.ledger_samples import FakeClock

pytestmark = pytest.mark.anyio
HOUR_US = 3_600_000_000
CONFIG = """
storage: {database: 'sqlite:///ledger.db', spool_dir: spool}
providers:
  local:
    kind: local
    models: [{id: smol, source: "file:/m"}, {id: big, source: "file:/b"}]
  vllm:
    kind: vllm
    base_url: "http://127.0.0.1:9/v1"
    price:
      - {gpu_usd_per_hour: 3.00, gpus: 2, ops_usd_per_month: 3000}
      - {gpu_usd_per_hour: 2.5, marginal_usd_per_hour: 0.4, hours: seen, valid_from: 2026-12-01}
      - {input_usd_per_mtok: 1, output_usd_per_mtok: 2, valid_from: 2027-01-01}
  hosted: {kind: openai_compatible, base_url: "http://127.0.0.1:8/v1"}
models:
  chat:
    deployments:
      - local/smol
      - vllm/llama
      - {deployment: vllm/qwen, price: {gpu_usd_per_hour: 1}}
      - {deployment: hosted/m, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}}
finance:
  machines: {idle: by_use, target_utilisation_percent: 70, work_units: {cached_input: 0.25, output: 5}}
teams: {t: {keys: [{name: k, value_env: K}]}}
"""


def configured(tmp_path, text=CONFIG):
    return load_text(text, environ={"K": "key-of-a-team-0123456789"}, base_dir=tmp_path)


def test_machines_are_providers_by_the_hour_and_the_engine_without_a_price(tmp_path):
    settings = configured(tmp_path).settings
    engine, server, apart = declared_machines(settings, node="a-1")
    assert [one.machine for one in (engine, server, apart)] == ["local@a-1", "vllm", "vllm/qwen"]
    [dated] = engine.terms
    assert dated.terms is not None
    assert (dated.terms.gpu_usd_per_hour, dated.terms.is_nominal) == ("0.1", True)
    assert dated.terms.hours is Hours.SEEN
    assert dated.terms.deployments == ("local/big", "local/smol")
    first, second, third = (dated.terms for dated in server.terms)
    assert third is None
    assert first is not None
    assert second is not None
    assert (first.gpu_usd_per_hour, first.gpus, first.ops_usd_per_month) == ("3", 2, "3000")
    assert (first.hours, second.hours) == (Hours.ALWAYS_ON, Hours.SEEN)
    assert (first.marginal_usd_per_hour, second.marginal_usd_per_hour) == ("3", "0.4")
    assert (first.input_weight, first.cached_input_weight, first.output_weight) == (
        "1",
        "0.25",
        "5",
    )
    assert (first.idle, first.target_utilisation_percent) == ("by_use", 70)
    assert first.deployments == ("vllm/llama",)
    assert first.price_version != second.price_version
    assert server.terms[1].from_us is not None
    assert machine_pools(settings) == {
        "local/big": "local",
        "local/smol": "local",
        "vllm/llama": "vllm",
        "vllm/qwen": "vllm/qwen",
    }


class Teller:
    """Takes notes, or is away."""

    def __init__(self) -> None:
        self.notes: list[NoteMachines] = []
        self.is_away = False

    async def tell(self, note: NoteMachines) -> None:
        if self.is_away:
            raise RemoteError("ledger_unavailable", "away")
        self.notes.append(note)


def stats(up_s: float, busy_s: float) -> EngineStats:
    return EngineStats(state="ready", wall_s=up_s, busy_s=busy_s, idle_s=up_s - busy_s)


@pytest.fixture
def parts(tmp_path):
    """Notes, the time they go by, the engines' stats, and who is told."""
    settings, clock, teller = configured(tmp_path).settings, FakeClock(), Teller()
    engines: dict[str, EngineStats] = {}
    numbers = iter(range(256))
    notes = MachineNotes(
        settings=lambda: settings,
        node="",
        engine_stats=lambda: engines,
        tell=teller.tell,
        clock=clock.clock,
        random_bytes=lambda size: bytes([next(numbers)]) * size,
    )
    return notes, clock, engines, teller


async def test_what_meters_say_waits_until_the_ledger_takes_it(parts):
    notes, clock, engines, teller = parts
    engines["local/smol"] = stats(100, 10)
    engines["hosted/odd"] = stats(1, 1)  # no machine of the configuration
    notes.look()
    teller.is_away = True
    await notes.note()
    assert teller.notes == []
    clock.wall += 5_000_000
    clock.monotonic += 5
    engines["local/smol"] = stats(105, 14)
    notes.look()
    teller.is_away = False
    await notes.note()
    await notes.note()
    first, second = teller.notes
    assert [one.machine for one in first.machines] == ["local", "vllm", "vllm/qwen"]
    assert [(one.up_us, one.busy_us) for one in first.samples] == [
        (100_000_000, 10_000_000),
        (105_000_000, 14_000_000),
    ]
    assert len({one.session for one in first.samples}) == 1
    assert len({one.started_us for one in first.samples}) == 1
    assert second.samples == ()
    series = {(one.family, one.labels): one.values for one in notes.series()}
    assert series["fareway_machine_busy_ratio", ("local/smol",)] == [14 / 105]
    assert series["fareway_machine_usd_per_hour", ("vllm",)] == [6.0]


async def test_a_clock_that_was_set_and_an_engine_that_was_started_again_begin_sessions(parts):
    notes, clock, engines, teller = parts
    engines["local/smol"] = stats(100, 10)
    notes.look()
    clock.wall += HOUR_US  # an hour forward, within five seconds
    clock.monotonic += 5
    engines["local/smol"] = stats(105, 12)
    notes.look()
    engines["local/smol"] = stats(1, 0)
    notes.look()
    engines.clear()
    notes.look()
    engines["local/smol"] = stats(2, 1)
    notes.look()
    await notes.note()
    samples = teller.notes[0].samples
    assert len({one.session for one in samples}) == 4
    assert [(one.up_us, one.busy_us) for one in samples] == [
        (100_000_000, 10_000_000),
        (5_000_000, 2_000_000),
        (1_000_000, 0),
        (2_000_000, 1_000_000),
    ]
    assert samples[1].started_us == clock.wall - 5_000_000


async def test_readings_that_nobody_takes_do_not_grow_without_end(parts):
    notes, _, engines, teller = parts
    notes.samples_max = 10
    for second in range(40):
        engines["local/smol"] = stats(second, 0)
        notes.look()
    await notes.note()
    samples = teller.notes[0].samples
    assert len(samples) <= 10
    assert (samples[0].up_us, samples[-1].up_us) == (0, 39_000_000)


def test_a_node_has_a_name_where_several_share_the_storage(tmp_path):
    assert node_of(configured(tmp_path)) == ""
    shared = configured(tmp_path, CONFIG.replace("sqlite:///ledger.db", "postgresql://u@h/d"))
    assert f"{node_of(shared)}/" == node.load(shared.spool_dir)
