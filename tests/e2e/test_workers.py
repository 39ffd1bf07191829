"""Three workers on one port: one that dies, a key that is revoked, an end in good order."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tests.e2e.roads import CHEAP, Road, deployments, running_road
from tests.e2e.steady_load import SteadyLoad
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import ledger_rows, open_intents
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

CONFIG = {
    "server": {"workers": 3},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {name: deployments((f"up/{name}", CHEAP)) for name in ("quick", "slow", "endless")},
    "teams": {"red": {}},
}
SCRIPTS = {
    "quick": [Chat(text="Yes.", think_s=0.01)],
    "slow": [Chat(text="word " * 20, frame_delay_s=0.1)],
    "endless": [Chat(text="word " * 300, frame_delay_s=0.1)],
}
BODY = {"model": "quick", "messages": [{"role": "user", "content": "hi"}]}


def running(folder: Path):
    return running_road(folder, scripts=SCRIPTS, config=CONFIG)


class Kept:
    """A connection that is kept; a context manager."""

    def __init__(self, gateway: GatewayProcess, key: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        self._key = key
        self._answers: list[http.client.HTTPResponse] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for answer in self._answers:
            answer.close()
        self.connection.close()

    def ask(self, body: dict[str, Any] = BODY) -> http.client.HTTPResponse:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return self.answer()

    def answer(self) -> http.client.HTTPResponse:
        self._answers.append(self.connection.getresponse())
        return self._answers[-1]

    def status(self) -> int:
        answer = self.ask()
        answer.read()
        return answer.status


def test_a_dead_worker_is_replaced_while_the_others_serve_on_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as road:
        gateway = road.gateway
        before = set(gateway.pids_of("worker"))
        with SteadyLoad(
            gateway.port, gateway.key("red"), model="quick", stream_model="slow", idle=0
        ) as load:
            time.sleep(1)
            victim = min(before)
            killed_s = time.monotonic()
            gateway.kill_pids([victim])
            answered = load.total
            time.sleep(0.3)
            assert load.total > answered, "the others serve on"
            while len(set(gateway.pids_of("worker"))) < 3:
                assert time.monotonic() - killed_s < 10
                time.sleep(0.02)
            replaced_s = time.monotonic() - killed_s
            time.sleep(2)
        assert set(gateway.pids_of("worker")) > before - {victim}
        assert gateway.stop() == 0
        _check_ledger(road, load)
        # Only what stood on the victim's connections broke: no 5xx, nothing refused, nobody hung.
        assert len(load.failures) <= 23, load.failures
        assert not [failure for failure in load.failures if "refused" in failure]
        assert not [failure for failure in load.failures if ": 5" in failure]
        print(f"started again after {replaced_s:.2f} s; broken: {len(load.failures)}")


def _check_ledger(road: Road, load: SteadyLoad) -> None:
    rows = ledger_rows(road.gateway.database)
    bill = road.upstream.bill()
    assert open_intents(road.gateway.database) == 0
    assert {line.attempt_id for line in bill} <= {row.event_id for row in rows}
    assert len({row.event_id for row in rows}) == len(rows)
    assert sum(row.status == "ok" for row in rows) >= load.total
    lost = [row for row in rows if row.is_lost]
    assert len(lost) <= 23, "only what the dead worker had in its hands"
    road.gateway.run("ledger", "verify")


def test_a_revoked_key_is_dead_on_every_worker_when_the_command_returns(tmp_path: Path) -> None:
    with running(tmp_path) as road, contextlib.ExitStack() as stack:
        gateway = road.gateway
        made = json.loads(gateway.run("keys", "create", "--team", "red", "--name", "a", "--json"))
        clients = [stack.enter_context(Kept(gateway, made["key"])) for _ in range(24)]
        assert {client.status() for client in clients} == {200}
        with SteadyLoad(
            gateway.port, gateway.key("red"), model="quick", stream_model="slow", idle=0
        ) as load:
            time.sleep(0.5)
            gateway.run("keys", "revoke", made["key_id"])
            after = [client.status() for client in clients]
        assert after == [401] * len(clients)
        assert load.failures == []


def test_sigterm_finishes_streams_refuses_what_is_new_and_ends_well(tmp_path: Path) -> None:
    with running(tmp_path) as road, contextlib.ExitStack() as stack:
        gateway = road.gateway
        kept, probe, stream = (
            stack.enter_context(Kept(gateway, gateway.key("red"))) for _ in range(3)
        )
        assert (kept.status(), probe.status()) == (200, 200)
        answer = stream.ask({**BODY, "model": "slow", "stream": True})
        first = answer.read(10)
        bodies: list[bytes] = []
        reading = threading.Thread(target=lambda: bodies.append(answer.read()))
        reading.start()
        gateway.signal(signal.SIGTERM)
        time.sleep(0.2)
        with Kept(gateway, gateway.key("red")) as newcomer:
            for refused in (kept.ask(), newcomer.ask()):
                assert refused.status == 503
                assert json.loads(refused.read())["error"]["code"] == "draining"
                assert refused.headers["retry-after"]
                assert refused.headers["connection"] == "close"
        probe.connection.request("GET", "/readyz")
        unready = probe.answer()
        assert (unready.status, json.loads(unready.read())["reasons"]) == (503, ["draining"])
        assert gateway.wait() == 0
        reading.join(10)
        assert (first + bodies[0]).endswith(b"data: [DONE]\n\n")
        assert {row.status for row in ledger_rows(gateway.database)} == {"ok"}


def test_a_second_signal_waits_for_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as road, contextlib.ExitStack() as stack:
        gateway = road.gateway
        stream = stack.enter_context(Kept(gateway, gateway.key("red")))
        stream.ask({**BODY, "model": "endless", "stream": True}).read(10)
        gateway.signal(signal.SIGTERM)
        time.sleep(0.2)
        began_s = time.monotonic()
        gateway.signal(signal.SIGTERM)
        gateway.wait()
        assert time.monotonic() - began_s < 10
        assert "ending at once" in gateway.log()
        gateway.start()
        assert gateway.stop() == 0
        assert len(ledger_rows(gateway.database)) == 1
