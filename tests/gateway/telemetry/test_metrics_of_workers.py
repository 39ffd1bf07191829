"""A scrape of real processes: every worker's numbers from whichever worker answers."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.roads import CHEAP, deployments, running_road
from tests.faults.traffic import ask
from tests.gateway.telemetry.test_metrics import samples, value
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

CONFIG = {
    "server": {"workers": 3},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"m": deployments(("up/m", CHEAP))},
    "teams": {"red": {}},
}
ASKS = 30
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def scrape(gateway):
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=10) as answer:
        return samples(answer.read().decode())


def served(found) -> float:
    return value(found, "fareway_requests_total", route="chat.completions", status="200") or 0


def settle(gateway, wanted, timeout_s: float = 15.0):
    """Scrape until a scrape is as wanted; every sum on the way only grows."""
    deadline, highest = time.monotonic() + timeout_s, 0.0
    while True:
        found = scrape(gateway)
        assert served(found) >= highest, "a sum fell"
        highest = served(found)
        if wanted(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_three_workers_are_one_sum_that_survives_their_deaths(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts={"m": [Chat()]}, config=CONFIG) as road:
        gateway = road.gateway

        def ask_all(count: int) -> None:
            for _ in range(count):
                assert ask(gateway.port, gateway.key("red"), BODY).status == 200

        ask_all(ASKS)
        # The answer is out before the request is counted.
        found = settle(gateway, lambda found: served(found) == ASKS)
        # From whichever worker: each scrape is a connection of its own.
        assert {served(scrape(gateway)) for _ in range(12)} == {ASKS}
        assert value(found, "fareway_workers") == 3
        ok = {"team": "red", "deployment": "up/m", "status": "ok"}
        assert value(found, "fareway_attempts_total", **ok) == ASKS
        assert value(found, "fareway_gateway_overhead_seconds_count") == ASKS
        # An idle loop is looked at every quarter of a second.
        settle(gateway, lambda found: value(found, "fareway_loop_stall_seconds_count") > 0)
        assert value(found, "fareway_spool_sync_seconds_count") > 0
        # The ledger process may start after the workers.
        found = settle(gateway, lambda found: value(found, "fareway_ledger_events_total") == ASKS)
        for process in ("supervisor", "ledger", "worker-0", "worker-1", "worker-2"):
            memory = value(found, "fareway_process_resident_memory_bytes", process=process)
            assert (memory or 0) > 2**20, process

        (killed, *_) = gateway.pids_of("worker")
        os.kill(killed, signal.SIGKILL)
        settle(gateway, lambda found: value(found, "fareway_workers") == 3)
        ask_all(ASKS)
        found = settle(gateway, lambda found: served(found) == 2 * ASKS)
        assert value(found, "fareway_requests_in_flight") == 0
