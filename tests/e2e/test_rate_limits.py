"""Rate limits of whole gateways: one worker and four, deaths, reloads, two machines and one Redis."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.roads import CHEAP, Road, deployments, readyz, running_road
from tests.faults.traffic import Answer, ask
from tests.support.gateway_process import GatewayProcess
from tests.support.redis import RedisServer
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

SCRIPTS = {
    "quick": [Chat(text="Yes.")],
    "endless": [Chat(text="word " * 600, frame_delay_s=0.1)],
}
LIMITS = {
    "red": {"rpm": 60, "rpm_burst": 40},
    "blue": {"concurrency": 6},
    "free": None,
}


def config(workers: int, **storage: object) -> dict[str, Any]:
    return {
        "server": {"workers": workers},
        "storage": storage,
        "providers": {"up": {"kind": "openai_compatible"}},
        "models": {name: deployments((f"up/{name}", CHEAP)) for name in SCRIPTS},
        "teams": {
            name: {} if limits is None else {"limits": limits} for name, limits in LIMITS.items()
        },
    }


def body(model: str = "quick", **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


def ask_at_once(gateways: list[GatewayProcess], team: str, count: int) -> list[Answer]:
    """Ask from many connections at the same time, so that every worker gets some."""
    found: list[Answer] = []

    def run(gateway: GatewayProcess) -> None:
        found.append(ask(gateway.port, gateway.key(team), body()))

    threads = [
        threading.Thread(target=run, args=(gateways[number % len(gateways)],))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == count
    return found


def admitted(answers: list[Answer]) -> int:
    """How many were served; the others were refused by a limit of ours."""
    refused = [one for one in answers if one.status != 200]
    assert {one.status for one in refused} <= {429}
    assert all(one.headers["x-fareway-limited-by"] == "gateway" for one in refused)
    return len(answers) - len(refused)


class Stream:
    """A stream in flight on a connection of its own."""

    def __init__(self, gateway: GatewayProcess, team: str = "blue") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        headers = {
            "authorization": f"Bearer {gateway.key(team)}",
            "content-type": "application/json",
        }
        content = json.dumps(body("endless", stream=True))
        self._connection.request("POST", "/v1/chat/completions", content, headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        if self.status != 200:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextlib.contextmanager
def streams(gateway: GatewayProcess, count: int) -> Iterator[list[Stream]]:
    made: list[Stream] = []
    try:
        for _ in range(count):
            made.append(Stream(gateway))
        yield made
    finally:
        for one in made:
            one.close()


def until_admitted(gateway: GatewayProcess, count: int, timeout_s: float = 15.0) -> float:
    """Wait until so many streams can be in flight at once; how long it took."""
    began_s = time.monotonic()
    while True:
        with streams(gateway, count) as made:
            if all(one.status == 200 for one in made):
                return time.monotonic() - began_s
        assert time.monotonic() - began_s < timeout_s
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_together_admit_a_limit_and_a_lone_one_all_of_it(
    tmp_path: Path, workers: int
) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=config(workers)) as road:
        gateway = road.gateway
        began_s = time.monotonic()
        count = admitted(ask_at_once([gateway], "red", 90))
        # One a second flows in.
        assert 40 <= count <= 40 + (time.monotonic() - began_s) + 1
        # One connection leads to one worker: it can have all there is again after a while.
        time.sleep(3)
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        headers = {
            "authorization": f"Bearer {gateway.key('red')}",
            "content-type": "application/json",
        }
        statuses = []
        for _ in range(8):
            connection.request("POST", "/v1/chat/completions", json.dumps(body()), headers)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
        assert 3 <= statuses.count(200) <= 6
        assert admitted(ask_at_once([gateway], "free", 20)) == 20
        found = urllib.request.urlopen(f"{gateway.url}/metrics", timeout=10).read().decode()
        assert 'fareway_limited_total{limit="team_rpm",team="red"}' in found


def test_a_killed_workers_places_come_back_and_a_reload_keeps_the_rest(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=config(3)) as road:
        gateway = road.gateway
        count = admitted(ask_at_once([gateway], "red", 60))
        assert count >= 40
        with streams(gateway, 6) as made:
            assert {one.status for one in made} == {200}
            assert Stream(gateway).status == 429
            gateway.kill_pids(gateway.pids_of("worker"))
        print(f"places came back after {until_admitted(gateway, 6):.2f} s")
        with streams(gateway, 5) as made:
            assert {one.status for one in made} == {200}
            before = set(gateway.pids_of("worker"))
            gateway.signal(signal.SIGHUP)
            deadline = time.monotonic() + 30
            while len(set(gateway.pids_of("worker")) - before) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1.0)
            # Five streams of the old workers count for the new ones, too.
            with streams(gateway, 2) as more:
                assert sorted(one.status for one in more) == [200, 429]
        until_admitted(gateway, 6)


def test_a_client_that_hangs_up_frees_its_place(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=config(2)) as road:
        for _ in range(5):
            until_admitted(road.gateway, 6)


@contextlib.contextmanager
def two_machines(
    folder: Path, url: str, environ: dict[str, str] | None = None, **storage: object
) -> Iterator[tuple[Road, Road]]:
    """Two gateways, each a machine of its own, with one Redis."""
    environ = {"FAREWAY_MASTER_KEY": "ab" * 32, **(environ or {})}
    for name in ("one", "two"):
        (folder / name).mkdir()
    asked = config(2, redis=url, **storage)
    asked["secrets"] = {"master_key_env": "FAREWAY_MASTER_KEY"}
    with (
        running_road(folder / "one", scripts=SCRIPTS, config=asked, environ=environ) as one,
        running_road(folder / "two", scripts=SCRIPTS, config=asked, environ=environ) as two,
    ):
        yield one, two


def wait_limits(road: Road, wanted: str, timeout_s: float = 20.0) -> str:
    """Wait until whichever worker answers says so, several times in a row."""
    deadline, seen = time.monotonic() + timeout_s, 0
    while seen < 8:
        status, told = readyz(road.gateway)
        assert status == 200
        seen = seen + 1 if wanted in told["limits"] else 0
        assert time.monotonic() < deadline, told
        time.sleep(0.02)
    return told["limits"]


@pytest.mark.ci
def test_machines_share_limits_in_redis_and_hold_shares_without_it(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with two_machines(tmp_path, redis_server.url) as (one, two):
        gateways = [one.gateway, two.gateway]
        for road in (one, two):
            wait_limits(road, "shared")
        began_s = time.monotonic()
        count = admitted(ask_at_once(gateways, "red", 100))
        print(f"{count} admitted of 100; {readyz(one.gateway)[1]['limits']}")
        assert 40 <= count <= 40 + (time.monotonic() - began_s) + 1
        with streams(one.gateway, 4) as made, streams(two.gateway, 2) as more:
            assert {one.status for one in made + more} == {200}
            assert Stream(two.gateway).status == 429
        time.sleep(6)  # each has learnt of the other
        redis_server.kill()
        for road in (one, two):
            # GW-155: nobody waits for it, and each machine has half.
            assert "1 of 2 equal shares" in wait_limits(road, "equal shares")
        assert admitted(ask_at_once([one.gateway], "red", 50)) in range(20, 28)
        began_s = time.monotonic()
        assert ask(two.gateway.port, two.gateway.key("red"), body()).status == 200
        assert time.monotonic() - began_s < 5
        redis_server.start()
        for road in (one, two):
            wait_limits(road, "shared")
        assert admitted(ask_at_once(gateways, "red", 90)) >= 40
        assert one.gateway.stop() == 0


# GW-155
def test_a_gateway_starts_and_serves_with_a_redis_that_does_not_answer(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    redis_server.freeze()
    asked = config(1, redis=redis_server.url)
    asked["secrets"] = {"master_key_env": "FAREWAY_MASTER_KEY"}
    environ = {"FAREWAY_MASTER_KEY": "ab" * 32}
    with running_road(tmp_path, scripts=SCRIPTS, config=asked, environ=environ) as road:
        assert "equal shares" in wait_limits(road, "equal shares")
        assert admitted(ask_at_once([road.gateway], "red", 60)) >= 40
        redis_server.thaw()
        wait_limits(road, "shared")
        client = openai.OpenAI(
            base_url=f"{road.gateway.url}/v1", api_key=road.gateway.key("red"), max_retries=2
        )
        with client:
            answered = client.chat.completions.with_raw_response.create(
                model="quick", messages=[{"role": "user", "content": "hi"}]
            )
        assert answered.headers["x-ratelimit-limit-requests"] == "60"
