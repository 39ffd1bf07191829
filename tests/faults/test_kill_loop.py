"""SIGKILL at random points, under traffic, against an upstream that keeps its own bill.

The upstream bills what it generates, whether or not anybody reads it, and writes down the id that
each attempt carries. After the last restart the ledger must explain that bill line by line. All the
while the database and Redis go away and come back: stopped, killed, or frozen.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from tests.faults.outages import Outages, of_file, of_server
from tests.faults.traffic import Answer as Seen
from tests.faults.traffic import Traffic
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import LedgerRow, billed_pico_usd, ledger_rows, open_intents
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.scripted_upstream import Answer, BillLine, Chat, UpstreamProcess

PRICE = {
    "input_usd_per_mtok": "0.13370051",
    "cached_input_usd_per_mtok": "0.01003007",
    "output_usd_per_mtok": "0.61010033",
}
"""No picodollar divides evenly, so that each line is rounded."""

# No prompt has more tokens than a request's body has bytes, which is what its hold goes by.
MODELS = {
    "quick": [Chat(text="Yes.", prompt_tokens=7)],
    "cached": [Chat(text="One two three four", prompt_tokens=83, cached_tokens=51)],
    "slow": [Chat(text="word " * 12, prompt_tokens=61, frame_delay_s=0.02)],
    "thinking": [Chat(text="Well then", prompt_tokens=33, think_s=0.15)],
    # Generates, and bills, to the end when the gateway is gone.
    "stubborn": [Chat(text="word " * 9, prompt_tokens=5, frame_delay_s=0.03, runs_on=True)],
    "busy": [Answer(status=503, body={"error": {"message": "busy"}}), Chat(text="At last")] * 500,
}
KILLS = {"tree": 1, "start": 2, "worker": 1, "ledger": 1, "supervisor": 1}
"""Kinds of rounds, and how many kills each holds."""
ROUNDS = ("tree", "start", "supervisor", *("worker", "ledger") * 3)
PAUSE_S_MAX = 0.6
REFUSALS = {402, 503}
BUDGETS = {"red": "5", "blue": "0.002"}
"""Dollars: more than a team can spend here, and less than it would; `green` has none."""
MASTER_KEY = {"FAREWAY_MASTER_KEY": "ab" * 32}
LIMITS = {"rpm": 600_000}
"""So that Redis is asked for every request, and refuses none."""


@pytest.mark.ci
@pytest.mark.timeout(400)
@pytest.mark.parametrize("back_end", ["sqlite", "postgresql"])
def test_some_kills_lose_nothing_and_count_nothing_twice(
    tmp_path: Path, seed: int, back_end: str, request: pytest.FixtureRequest
) -> None:
    _survive(tmp_path, request, kills=25, seed=seed, back_end=back_end)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("back_end", ["sqlite", "postgresql"])
def test_a_thousand_kills_lose_nothing_and_count_nothing_twice(
    tmp_path: Path, seed: int, back_end: str, request: pytest.FixtureRequest
) -> None:
    # Each back end gets half of them, a hundred to a ledger.
    for part in range(int(os.environ.get("FAREWAY_TEST_KILL_PARTS", "5"))):
        folder = tmp_path / str(part)
        folder.mkdir()
        _survive(folder, request, kills=100, seed=seed + part, back_end=back_end)


def _survive(
    folder: Path, request: pytest.FixtureRequest, *, kills: int, seed: int, back_end: str
) -> None:
    rng = random.Random(seed)
    rounds = _draw_rounds(kills, rng)
    redis: RedisServer = request.getfixturevalue("redis_server")
    ways = [of_server(redis, "Redis")]
    storage: dict[str, str] = {"redis": redis.url}
    ledger: Path | str = folder / "gateway" / "fareway.db"
    if back_end == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        ledger = storage["database"] = server.create_database()
        ways.append(of_server(server, "PostgreSQL"))
    else:
        ways.append(of_file(ledger))
    with UpstreamProcess(MODELS, folder=folder) as upstream:
        config = _config(upstream.base_url, storage)
        gateway = GatewayProcess(folder / "gateway", config, MASTER_KEY)
        keys = [gateway.key(team) for team in ("red", "blue", "green")]
        traffic = Traffic(gateway.port, keys=keys, models=tuple(MODELS), seed=seed)
        with gateway:
            with traffic, Outages(*ways, seed=seed) as outages:
                for kind in rounds:
                    _kill(gateway, kind, rng)
            gateway.kill()
            gateway.start()
            gateway.run("keys", "list")  # waits for the ledger process, which starts last
            assert gateway.stop() == 0  # which loads what the spools hold
            bill = upstream.bill()
            rows = ledger_rows(ledger)
            assert open_intents(ledger) == 0
            gateway.run("ledger", "verify")  # exits 1 when anything does not hold
            report = json.loads(gateway.run("spend", "report", "--json"))["total"]
            listed = json.loads(gateway.run("budgets", "list", "--json"))["budgets"]
    print(_summary(seed, rounds, traffic, bill, rows))
    print(f"  on {back_end}; meanwhile {dict(sorted(outages.seen.items()))}")
    _check_bill(bill, rows)
    _check_answers(traffic.answers, rows)
    _check_budgets({budget["team"]: budget for budget in listed}, bill, rows)
    assert report["cost_pico_usd"] == sum(row.cost_pico_usd or 0 for row in rows)
    assert report["attempts"] == len(rows)


def _draw_rounds(kills: int, rng: random.Random) -> list[str]:
    """At least that many kills, every kind in turn, in random order."""
    rounds: list[str] = []
    for kind in itertools.cycle(ROUNDS):
        if sum(KILLS[one] for one in rounds) >= kills:
            break
        rounds.append(kind)
    rng.shuffle(rounds)
    return rounds


def _config(base_url: str, storage: dict[str, str]) -> dict:
    return {
        "server": {"workers": 4},
        "storage": storage,
        "secrets": {"master_key_env": "FAREWAY_MASTER_KEY"},
        "providers": {"up": {"kind": "openai_compatible", "base_url": base_url}},
        "models": {
            name: {"deployments": [{"deployment": f"up/{name}", "price": PRICE}]} for name in MODELS
        },
        "teams": {
            **{team: {"budget": {"usd": usd}, "limits": LIMITS} for team, usd in BUDGETS.items()},
            "green": {"limits": LIMITS},
        },
    }


def _kill(gateway: GatewayProcess, kind: str, rng: random.Random) -> None:
    """One round: wait, kill, and see to it that the gateway is coming up again."""
    time.sleep(rng.uniform(0.0, PAUSE_S_MAX))
    match kind:
        case "worker":
            gateway.kill_role(kind)
            gateway.wait_ready()
        case "ledger":
            gateway.kill_role(kind)  # nobody waits for the ledger
        case "supervisor":
            gateway.kill_supervisor()
            gateway.start()
        case "tree":
            gateway.kill()
            gateway.start()
        case "start":
            gateway.kill()
            gateway.spawn()
            time.sleep(rng.uniform(0.0, 1.5))
            gateway.kill()
            gateway.start()


def _check_bill(bill: list[BillLine], rows: list[LedgerRow]) -> None:
    """Each line of the bill has one event; what settled is equal, what is unknown is bounded."""
    by_id = {row.event_id: row for row in rows}
    assert len(by_id) == len(rows)
    assert len({line.attempt_id for line in bill}) == len(bill)
    assert {line.attempt_id for line in bill} <= by_id.keys()
    settled = unknown_billed = 0
    for line in bill:
        row, billed = by_id[line.attempt_id], billed_pico_usd(line, PRICE)
        if row.status == "ok":
            settled += row.cost_pico_usd or 0
            assert (row.cost_pico_usd, row.quality) == (billed, "exact"), (line, row)
            assert row.upstream_request_id == line.id
        else:
            unknown_billed += billed
            assert (row.status, row.is_lost, row.cost_pico_usd) == ("unknown_billing", True, 0), row
            assert row.exposure_pico_usd is not None
            assert billed <= row.exposure_pico_usd
    assert settled == sum(row.cost_pico_usd or 0 for row in rows)
    assert settled + unknown_billed == sum(billed_pico_usd(line, PRICE) for line in bill)
    billed_ids = {line.attempt_id for line in bill}
    for row in rows:
        if row.event_id not in billed_ids:
            assert row.status in {"unknown_billing", "rejected"}, row
            assert row.cost_pico_usd == 0


def _check_answers(answers: list[Seen], rows: list[LedgerRow]) -> None:
    """What a client got whole is booked, at the cost that it was told."""
    last = {row.request_id: row for row in sorted(rows, key=lambda row: row.attempt)}
    complete = [one for one in answers if one.is_complete and one.status == 200]
    assert complete
    for one in complete:
        row = last[one.request_id]
        assert row.status == "ok", (one, row)
        assert one.cost_usd is not None
        assert Decimal(one.cost_usd) * 10**12 == row.cost_pico_usd
    for one in answers:
        # A head was sent, so the attempt was journaled; a refusal was not sent anywhere.
        assert one.request_id in last or one.status in REFUSALS, one


def _check_budgets(
    budgets: Mapping[str, Mapping[str, int]], bill: list[BillLine], rows: list[LedgerRow]
) -> None:
    """Nobody was billed more than allowed; nothing is held any more; what is spent is booked."""
    team_of = {row.event_id: row.team for row in rows}
    assert budgets.keys() == BUDGETS.keys()
    for team, found in budgets.items():
        booked = [row for row in rows if row.team == team]
        billed = [line for line in bill if team_of[line.attempt_id] == team]
        assert found["limit_pico_usd"] == Decimal(BUDGETS[team]) * 10**12
        assert sum(billed_pico_usd(line, PRICE) for line in billed) <= found["limit_pico_usd"]
        assert found["spent_pico_usd"] == sum(row.cost_pico_usd or 0 for row in booked)
        assert found["exposed_pico_usd"] == sum(row.exposure_pico_usd or 0 for row in booked)
        assert found["reserved_pico_usd"] == 0, "everything is loaded, and nobody holds anything"
        assert found["spent_pico_usd"] + found["exposed_pico_usd"] <= found["limit_pico_usd"]


def _summary(
    seed: int, rounds: list[str], traffic: Traffic, bill: list[BillLine], rows: list[LedgerRow]
) -> str:
    lost = sum(row.is_lost for row in rows)
    return (
        f"seed {seed}: {sum(KILLS[one] for one in rounds)} kills {dict(Counter(rounds))}; {len(traffic.answers)} answers, "
        f"{traffic.broken} without a head; {len(bill)} lines on the bill, {len(rows)} events, "
        f"{lost} of them lost with a kill: {dict(Counter(row.status for row in rows))}"
    )
