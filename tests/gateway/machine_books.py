"""Machines written down for October 2026, for the tests of finance."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.machines.messages import (
    ENGINE,
    SERVER,
    DatedTerms,
    DeclaredMachine,
    EngineSample,
    Hours,
    MachineTerms,
    NoteMachines,
)
from gateway.finance.machines.recording import note_machines

MINUTE_US = 60 * 10**6
HOUR_US = 60 * MINUTE_US
USD = 10**12

SERVER_TERMS = MachineTerms(
    gpu_usd_per_hour="3",
    gpus=2,
    ops_usd_per_month="744",
    marginal_usd_per_hour="1",
    hours=Hours.ALWAYS_ON,
    price_version="server-1",
    target_utilisation_percent=50,
    input_weight="1",
    output_weight="8",
    deployments=("vllm/llama",),
)
ENGINE_TERMS = MachineTerms(
    gpu_usd_per_hour="0.1",
    marginal_usd_per_hour="0.1",
    hours=Hours.SEEN,
    is_nominal=True,
    price_version="engine-1",
    deployments=("local/smol",),
)


def at(text: str) -> int:
    return to_microseconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


OCTOBER, NOVEMBER = at("2026-10-01"), at("2026-11-01")


def machine(name="vllm", kind=SERVER, terms=SERVER_TERMS, *later: DatedTerms, pool=None):
    dated = (DatedTerms(from_us=None, terms=terms), *later)
    return DeclaredMachine(machine=name, pool=pool or name, kind=kind, terms=dated)


def changed(terms: MachineTerms, **changes) -> MachineTerms:
    return msgspec.structs.replace(terms, **changes)


VLLM = machine()
LOCAL = machine("local", ENGINE, ENGINE_TERMS)


def sample(up_us: int, busy_us: int, *, session=1, started_us=0, name="local") -> EngineSample:
    return EngineSample(
        session=bytes([session]) * 16,
        machine=name,
        deployment="local/smol",
        started_us=started_us,
        up_us=up_us,
        busy_us=busy_us,
    )


def note(engine: sa.Engine, now_us: int, *machines, samples=(), node="") -> None:
    """Have the ledger write machines down at a moment."""
    with engine.begin() as connection:
        said = NoteMachines(node=node, machines=machines, samples=tuple(samples))
        note_machines(connection, said, now_us=now_us)


def note_october(engine: sa.Engine, *machines, samples=()) -> None:
    """Machines that are there all of October."""
    note(engine, OCTOBER, *machines)
    note(engine, NOVEMBER, *machines, samples=samples)
