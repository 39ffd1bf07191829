"""Another process holds the database: requests go on, nothing is lost, nothing is booked twice."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.roads import CHEAP, deployments, readyz, running_road
from tests.faults.traffic import Traffic
from tests.support.ledger_rows import billed_pico_usd, ledger_rows, wait_for_rows
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

LOCKED_S = 10.0
HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.rollback()
"""
SCRIPTS = {"m": [Chat(text="Yes of course.", prompt_tokens=9, think_s=0.05)]}
CONFIG = {
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"m": deployments(("up/m", CHEAP))},
    "teams": {"red": {}},
}


@pytest.mark.ci
def test_a_database_locked_for_ten_seconds_delays_the_books_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    """GW-091, GW-153."""
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        traffic = Traffic(
            gateway.port, keys=[gateway.key("red")], models=["m"], seed=seed, clients=2
        )
        with traffic:
            wait_for_some(gateway.database)
            with subprocess.Popen(
                [sys.executable, "-c", HOLD, str(gateway.database), str(LOCKED_S)],
                stdout=subprocess.PIPE,
            ) as holder:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"locked\n"
                answered, booked = len(traffic.answers), len(ledger_rows(gateway.database))
                while holder.poll() is None:
                    assert readyz(gateway)[0] == 200
                    time.sleep(0.5)
                    if holder.poll() is None:
                        # The lock really kept the books closed meanwhile.
                        assert len(ledger_rows(gateway.database)) == booked
                answered_meanwhile = len(traffic.answers) - answered
        assert traffic.broken == 0
        assert {(one.status, one.is_complete) for one in traffic.answers} == {(200, True)}
        assert answered_meanwhile >= 20
        rows = wait_for_rows(gateway.database, len(traffic.answers))
        gateway.run("ledger", "verify")
        bill = {line.attempt_id: line for line in road.upstream.bill()}
    assert {row.request_id for row in rows} == {one.request_id for one in traffic.answers}
    assert bill.keys() == {row.event_id for row in rows}
    assert all(row.cost_pico_usd == billed_pico_usd(bill[row.event_id], CHEAP) for row in rows)


def wait_for_some(database: Path) -> None:
    """Return once the ledger is being written; workers serve before the database is made."""
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(sqlite3.OperationalError):
            if ledger_rows(database):
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_holder_really_locks(tmp_path: Path) -> None:
    """Guards the test above."""
    path = tmp_path / "some.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), "5"], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connection = sqlite3.connect(path, timeout=0)
            try:
                connection.execute("create table t (a)")
            finally:
                connection.close()
        holder.kill()
