"""The ledger process stands back for the workers, and is never starved for ever."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from tests.e2e.roads import CHEAP, deployments, running_road
from tests.gateway.ledger_samples import PRICE_PICO, intent, open_spool, settlement
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import LedgerRow, ledger_rows
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

EVENTS = 5_000
SCRIPTS = {"m": [Chat(text="Yes of course.", prompt_tokens=9)]}
CONFIG = {
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"m": deployments(("up/m", CHEAP))},
    "teams": {"red": {}},
}


async def write_backlog(directory: Path) -> None:
    """What a worker that died leaves behind."""
    writer = open_spool(directory)
    for n in range(EVENTS):
        writer.append(intent(n))
        writer.append(settlement(n))
    await writer.close()


def rows_in(database: Path) -> list[LedgerRow]:
    with contextlib.suppress(sqlite3.OperationalError):  # not made yet
        return ledger_rows(database)
    return []


def priority_of(gateway: GatewayProcess, role: str) -> int | None:
    """The niceness of a process; None while it does not run."""
    pids = gateway.pids_of(role)
    return os.getpriority(os.PRIO_PROCESS, pids[0]) if pids else None


def wait_until_the_ledger_stands_back(gateway: GatewayProcess) -> None:
    """A higher number stands back; the process starts after the workers and says so itself."""
    deadline = time.monotonic() + 30
    while True:
        ledger, worker = (priority_of(gateway, role) for role in ("ledger", "worker"))
        if ledger is not None and worker is not None and ledger > worker:
            return
        assert time.monotonic() < deadline, (ledger, worker)
        time.sleep(0.05)


@contextlib.contextmanager
def every_core_busy():
    """Twice as many busy processes as cores, at our own priority."""
    count = 2 * (os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_backlog_is_loaded_although_every_core_is_busy_with_something_else(tmp_path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        wait_until_the_ledger_stands_back(gateway)
        with every_core_busy():
            anyio.run(write_backlog, gateway.spool / "orphan")
            deadline = time.monotonic() + 100
            while len(rows_in(gateway.database)) < EVENTS:
                assert time.monotonic() < deadline, len(rows_in(gateway.database))
                time.sleep(0.5)
        rows = ledger_rows(gateway.database)
        assert len(rows) == EVENTS
        assert sum(row.cost_pico_usd or 0 for row in rows) == EVENTS * 100 * PRICE_PICO
