"""Keys over several workers: a key that was made works everywhere, a revoked one nowhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.roads import CHEAP, deployments, running_road
from tests.faults.traffic import ask
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

CONFIG = {
    "server": {"workers": 2},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"m": deployments(("up/m", CHEAP))},
    "teams": {"red": {}},
}
ASKS = 40
"""Each on a connection of its own, so that the kernel spreads them over both workers."""


def test_a_key_is_good_on_every_worker_once_made_and_on_none_once_revoked(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with running_road(tmp_path, scripts={"m": [Chat()]}, config=CONFIG) as road:
        gateway = road.gateway
        made = json.loads(gateway.run("keys", "create", "--team", "red", "--name", "a", "--json"))
        before = [ask(gateway.port, made["key"], body).status for _ in range(ASKS)]
        gateway.run("keys", "revoke", made["key_id"])
        after = [ask(gateway.port, made["key"], body).status for _ in range(ASKS)]
        fixed = [ask(gateway.port, gateway.key("red"), body).status for _ in range(3)]
        # Both workers really answered: each has a spool of its own with records in it.
        spools = [
            path for path in gateway.spool.glob("worker-*/*.seg") if path.stat().st_size > 500
        ]
        listed = json.loads(gateway.run("keys", "list", "--json"))
    assert before == [200] * ASKS
    assert after == [401] * ASKS
    assert fixed == [200] * 3
    assert len({path.parent for path in spools}) == 2
    assert made["key"] not in json.dumps(listed)


def test_a_key_can_be_made_while_the_ledger_process_is_being_started_again(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with running_road(tmp_path, scripts={"m": [Chat()]}, config=CONFIG) as road:
        gateway = road.gateway
        gateway.run("keys", "create", "--team", "red", "--name", "a")  # the ledger runs
        (ledger,) = gateway.pids_of("ledger")
        os.kill(ledger, signal.SIGKILL)
        made = json.loads(gateway.run("keys", "create", "--team", "red", "--name", "b", "--json"))
        assert ask(gateway.port, made["key"], body).status == 200
        assert gateway.pids_of("ledger") != [ledger]
