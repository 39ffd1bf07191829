"""Budgets over a whole gateway: what fits is let through, under parallel clients and under kills."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.roads import Road, running_road
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import ledger_rows, wait_for_rows
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

USD = 10**12
CENT = 10**10
FLAT = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0, "request_usd": "0.01"}
PER_TOKEN = {"input_usd_per_mtok": "1", "output_usd_per_mtok": "2"}
MODELS = {
    "slow": [Chat(text="Yes.", think_s=0.3)],
    "quick": [Chat(text="One two three four five six")],
    "long": [Chat(text="word " * 12, frame_delay_s=0.02, runs_on=True)],
}


def config(price: dict[str, Any], *, workers: int, budget: dict[str, Any]) -> dict[str, Any]:
    return {
        "server": {"workers": workers},
        "providers": {"up": {"kind": "openai_compatible"}},
        "models": {
            name: {"deployments": [{"deployment": f"up/{name}", "price": price}]} for name in MODELS
        },
        "teams": {"red": {"budget": budget}, "blue": {}},
    }


@dataclass(frozen=True)
class Told:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def code(self) -> str:
        return self.body["error"]["code"]


def ask(gateway: GatewayProcess, model: str, *, team: str = "red", **fields: object) -> Told:
    body = {
        "model": model, "messages": [{"role": "user", "content": "hi there"}],
        "max_tokens": 20, **fields,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "authorization": f"Bearer {gateway.key(team)}", "content-type": "application/json"
        },
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Told(answer.status, dict(answer.headers), json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return Told(error.code, dict(error.headers), json.load(error))


def ask_until_told(gateway: GatewayProcess, model: str) -> Told:
    """As a client does that is told to come back: on a busy machine the ledger answers late."""
    deadline = time.monotonic() + 60
    while (told := ask(gateway, model)).status == 503 and time.monotonic() < deadline:
        time.sleep(0.2)
    return told


@dataclass(frozen=True)
class Bucket:
    limit: int
    spent: int
    reserved: int
    exposed: int

    @property
    def room(self) -> int:
        return self.limit - self.spent - self.reserved - self.exposed


def bucket(gateway: GatewayProcess) -> Bucket:
    """The one bucket of the one budget."""
    with closing(sqlite3.connect(gateway.database, timeout=10)) as connection:
        [row] = connection.execute(
            "SELECT b.limit_pico_usd, spent_pico_usd, reserved_pico_usd, exposed_pico_usd"
            " FROM budget_bucket b JOIN budget ON budget.id = budget_id"
            " WHERE retired_at_us IS NULL"
        ).fetchall()
    return Bucket(*map(int, row))


@pytest.mark.parametrize("workers", [2, 4])
def test_of_fifty_parallel_requests_exactly_the_ten_that_fit_are_let_through(
    tmp_path: Path, workers: int
) -> None:
    """GW-092: check-then-record lets them all pass on the same remaining budget."""
    settings = config(FLAT, workers=workers, budget={"usd": "0.10"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        with ThreadPoolExecutor(50) as pool:
            told = list(pool.map(lambda _: ask_until_told(road.gateway, "slow"), range(50)))
        assert sorted(one.status for one in told) == [200] * 10 + [402] * 40
        assert len(road.upstream.bill()) == 10
        refused = next(one for one in told if one.status == 402)
        assert refused.headers["x-should-retry"] == "false"
        assert refused.code == "budget_exceeded"
        for part in ("red", "0.1 USD", "starts again at"):
            assert part in refused.body["error"]["message"]
        wait_for_rows(road.gateway.database, 10)
        assert ask(road.gateway, "quick").status == 402
        assert ask(road.gateway, "quick", team="blue").status == 200
        assert bucket(road.gateway) == Bucket(
            limit=10 * CENT, spent=10 * CENT, reserved=0, exposed=0
        )
        road.gateway.run("ledger", "verify")


def test_what_was_held_and_not_spent_is_there_again_once_it_is_booked(tmp_path: Path) -> None:
    settings = config(PER_TOKEN, workers=2, budget={"usd": "0.01"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        # Up to 0.00905 USD each, and a thousandth of it in the end.
        wide = {"max_tokens": 4_000}
        for _ in range(5):
            assert ask(road.gateway, "quick", **wide).status == 200
        assert ask(road.gateway, "quick", max_tokens=6_000).status == 402
        rows = wait_for_rows(road.gateway.database, 5)
        assert bucket(road.gateway).spent == sum(row.cost_pico_usd or 0 for row in rows)


def test_a_reload_that_raises_a_budget_lets_requests_through(tmp_path: Path) -> None:
    settings = config(FLAT, workers=2, budget={"usd": "0.02"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        gateway = road.gateway
        assert [ask(gateway, "quick").status for _ in range(3)] == [200, 200, 402]
        gateway.config["teams"]["red"]["budget"]["usd"] = "0.03"
        gateway.write_config()
        _wait_until(lambda: ask(gateway, "quick").status == 200, 20)
        assert ask(gateway, "quick").status == 402
        gateway.config["teams"]["red"]["budget"]["usd"] = "0.01"
        gateway.write_config()
        _wait_until(lambda: "0.01 USD" in ask(gateway, "quick").body["error"]["message"], 20)


def test_a_restart_knows_what_was_spent_before_it_answers(tmp_path: Path) -> None:
    settings = config(FLAT, workers=2, budget={"usd": "0.03"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        gateway = road.gateway
        assert [ask(gateway, "quick").status for _ in range(2)] == [200, 200]
        gateway.kill()
        gateway.start()
        assert [ask(gateway, "quick").status for _ in range(2)] == [200, 402]
        assert gateway.stop() == 0
        assert bucket(gateway) == Bucket(limit=3 * CENT, spent=3 * CENT, reserved=0, exposed=0)


def test_metrics_show_where_the_budget_stands(tmp_path: Path) -> None:
    settings = config(FLAT, workers=2, budget={"usd": "0.05"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        assert ask(road.gateway, "quick").status == 200
        wait_for_rows(road.gateway.database, 1)
        text = _metrics(road)
        assert 'fareway_budget_limit_usd{budget="' in text
        assert " 0.05\n" in text


def _metrics(road: Road) -> str:
    with urllib.request.urlopen(f"{road.gateway.url}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_kills_of_workers_and_ledger_never_take_a_budget_past_its_limit(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    settings = config(PER_TOKEN, workers=4, budget={"usd": "0.02"})
    with running_road(tmp_path, scripts=MODELS, config=settings) as road:
        gateway, stop = road.gateway, threading.Event()
        seen: list[int] = []

        def client(number: int) -> None:
            mine = random.Random(f"{seed}:{number}")
            while not stop.is_set():
                try:
                    told = ask(
                        gateway, mine.choice(("quick", "long")), stream=False,
                        max_tokens=mine.choice((20, 200, 900)),
                    )  # fmt: skip
                except (OSError, ValueError):
                    time.sleep(0.05)  # its worker was killed
                    continue
                seen.append(told.status)
                if told.status != 200:
                    time.sleep(0.05)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            time.sleep(rng.uniform(0.1, 0.8))
            gateway.kill_role(rng.choice(("worker", "worker", "ledger")))
        gateway.wait_ready()
        time.sleep(2)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(seen) <= {200, 402, 502, 503}, sorted(set(seen))
        assert seen.count(200) > 10
        assert gateway.stop() == 0
        billed = sum(
            line.prompt_tokens * 1_000_000 + line.completion_tokens * 2_000_000
            for line in road.upstream.bill()
        )
        now = bucket(gateway)
        assert billed <= now.limit
        assert now.spent + now.reserved + now.exposed <= now.limit
        rows = ledger_rows(gateway.database)
        assert now.spent == sum(row.cost_pico_usd or 0 for row in rows)
        assert now.reserved == 0, "everything is loaded, and nobody holds anything any more"
        gateway.run("ledger", "verify")
        gateway.start()
        # What is left is let through, up to the last token that a request can be sized to.
        fits = _output_that_fits(gateway, now.room)
        if fits >= 20:
            assert ask(gateway, "quick", max_tokens=fits + 1).status == 402
            assert ask(gateway, "quick", max_tokens=fits).status == 200
        print(f"seed {seed}: {seen.count(200)} let through, {seen.count(402)} refused,"
              f" {seen.count(503)} told to come back, billed {Decimal(billed) / USD} of 0.02 USD")  # fmt: skip


def _output_that_fits(gateway: GatewayProcess, room: int) -> int:
    """The largest `max_tokens` for which a request's upper bound is within the room."""
    asked = 9_999_999
    message = ask(gateway, "quick", max_tokens=asked).body["error"]["message"]
    bound = Decimal(message.partition("may cost up to ")[2].partition(" USD")[0]) * USD
    prompt = int(bound) - asked * 2_000_000
    # One byte of the body is at most one token of the prompt, and a shorter number is fewer bytes.
    sizes = [(prompt - missing * 1_000_000, 7 - missing) for missing in range(7)]
    found = [
        fits
        for size, digits in sizes
        if len(str(fits := min((room - size) // 2_000_000, 10**digits - 1))) == digits
    ]
    return max(found, default=0)


def _wait_until(holds, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
