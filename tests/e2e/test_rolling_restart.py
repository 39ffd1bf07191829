"""New configurations under load: no request fails, none is cut, and the ledger knows them all."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.roads import CHEAP, deployments, running_road
from tests.e2e.steady_load import SteadyLoad
from tests.faults.traffic import ask
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import ledger_rows, open_intents
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

CONFIG = {
    "server": {"workers": 2},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"quick": deployments(("up/quick", CHEAP)), "slow": deployments(("up/slow", CHEAP))},
    "teams": {"red": {}},
}
SCRIPTS = {
    "quick": [Chat(text="Yes.", think_s=0.02)],
    "slow": [Chat(text="word " * 12, frame_delay_s=0.1)],
}
RELOADED = "reloaded the configuration"
REFUSED = "the configuration was not reloaded"


def wait_until(is_so: Callable[[], bool], gateway: GatewayProcess, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, gateway.log()
        time.sleep(0.05)


def change(gateway: GatewayProcess, heartbeat_s: int) -> None:
    gateway.config["server"]["heartbeat_s"] = heartbeat_s
    gateway.write_config()


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_rolling_restarts_under_load_fail_no_request_and_lose_none(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        with SteadyLoad(
            gateway.port, gateway.key("red"), model="quick", stream_model="slow"
        ) as load:
            time.sleep(2)
            for turn in range(1, 4):
                before = set(gateway.pids_of("worker"))
                change(gateway, 15 + turn)
                gateway.config["server"]["workers"] = 2 + turn % 2
                gateway.write_config()
                if turn != 2:  # the second one shall be found by looking at the file
                    gateway.signal(signal.SIGHUP)
                wait_until(lambda turn=turn: gateway.log().count(RELOADED) >= turn, gateway)
                asked = load.total
                time.sleep(2)
                assert load.total > asked, "the new workers answer"
                wait_until(lambda old=before: not old & set(gateway.pids_of("worker")), gateway)
        assert gateway.stop() == 0
        bill = road.upstream.bill()
        rows = ledger_rows(gateway.database)
        assert load.failures == []
        assert min(load.answered.values()) > 5, load.answered
        assert open_intents(gateway.database) == 0
        assert {row.status for row in rows} == {"ok"}
        assert len(rows) == len(bill) == load.total
        assert {row.event_id for row in rows} == {line.attempt_id for line in bill}
        gateway.run("ledger", "verify")


def test_a_bad_file_keeps_the_old_configuration_and_its_workers(tmp_path: Path) -> None:
    body = {"model": "quick", "messages": [{"role": "user", "content": "hi"}]}
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        workers = set(gateway.pids_of("worker"))
        good = (gateway.folder / "fareway.yaml").read_text()
        wrong = good.replace("workers:", "wrokers:").replace("providers:", "providres:")
        (gateway.folder / "fareway.yaml").write_text(wrong)
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: REFUSED in gateway.log(), gateway)
        assert "wrokers" in gateway.log()
        assert "providres" in gateway.log(), "every problem is told at once"
        assert set(gateway.pids_of("worker")) == workers
        assert ask(gateway.port, gateway.key("red"), body).status == 200
        # A worker that dies now is replaced with what is served, not with what the file says.
        gateway.kill_role("worker")
        gateway.wait_ready()
        assert ask(gateway.port, gateway.key("red"), body).status == 200
        # What only a restart can change is refused with its name.
        (gateway.folder / "fareway.yaml").write_text(
            good.replace(f"port: {gateway.port}", "port: 1")
        )
        # Not by how often something was refused: the file's change tells of the wrong one, too.
        told = "server.port: the port changes with a restart of the gateway only"
        wait_until(lambda: told in gateway.log(), gateway)
        assert ask(gateway.port, gateway.key("red"), body).status == 200


def test_one_new_worker_that_cannot_start_drops_them_all_and_the_old_ones_serve_on(
    tmp_path: Path,
) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        workers = set(gateway.pids_of("worker"))
        in_the_way = gateway.spool / "worker-3"  # the second new worker's directory
        in_the_way.write_text("")
        with SteadyLoad(
            gateway.port, gateway.key("red"), model="quick", stream_model="slow", idle=0
        ) as load:
            gateway.signal(signal.SIGHUP)
            wait_until(lambda: REFUSED in gateway.log(), gateway)
            assert "worker-3 could not be started" in gateway.log()
            wait_until(lambda: set(gateway.pids_of("worker")) == workers, gateway)
            status = json.loads(gateway.run("doctor", "--json", check=False))
            [said] = [one for one in status["checks"] if one["name"] == "gateway"]
            assert "worker-3 could not be started" in said["detail"]
            in_the_way.unlink()
            gateway.signal(signal.SIGHUP)
            wait_until(lambda: RELOADED in gateway.log(), gateway)
            wait_until(lambda: not workers & set(gateway.pids_of("worker")), gateway)
        assert load.failures == []
        assert gateway.stop() == 0
        rows = ledger_rows(gateway.database)
        assert len(rows) == len(road.upstream.bill()) == load.total


def test_a_key_that_is_revoked_during_a_reload_is_dead_on_old_workers_too(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        old = set(gateway.pids_of("worker"))
        made = json.loads(gateway.run("keys", "create", "--team", "red", "--name", "a", "--json"))
        headers = {"authorization": f"Bearer {made['key']}", "content-type": "application/json"}
        body = json.dumps({"model": "quick", "messages": [{"role": "user", "content": "hi"}]})
        kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        with contextlib.closing(kept):
            answers = []
            for _ in range(2):
                kept.request("POST", "/v1/chat/completions", body, headers)
                answer = kept.getresponse()
                answers.append((answer.status, answer.headers["connection"], answer.read()))
                if len(answers) == 1:
                    gateway.signal(signal.SIGHUP)
                    wait_until(lambda: RELOADED in gateway.log(), gateway)
                    # Commands go on working, and reach the old worker that has this connection.
                    assert old & set(gateway.pids_of("worker"))
                    gateway.run("keys", "revoke", made["key_id"])
            assert [answer[:2] for answer in answers] == [(200, None), (401, "close")]


def test_a_connection_that_rests_is_not_decided_under_the_rights_of_before(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        key, body = (
            gateway.key("red"),
            {"model": "quick", "messages": [{"role": "user", "content": "a"}]},
        )
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        with contextlib.closing(kept):
            kept.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            assert kept.getresponse().read()
            gateway.config["teams"]["red"]["models"] = ["slow"]
            gateway.write_config()
            gateway.signal(signal.SIGHUP)
            wait_until(lambda: RELOADED in gateway.log(), gateway)
            assert kept.sock is not None
            assert kept.sock.recv(1) == b"", "closed within its second"
        assert ask(gateway.port, key, body).status in (403, 404)
