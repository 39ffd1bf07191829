"""SIGKILL at random points, under traffic, against an upstream that keeps its own bill.

The upstream bills what it generates, whether or not anybody reads it, and writes down the id that
each attempt carries. After the last restart the ledger must explain that bill line by line.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from tests.faults.traffic import Answer as Seen
from tests.faults.traffic import Traffic
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import LedgerRow, billed_pico_usd, ledger_rows, open_intents
from tests.support.scripted_upstream import Answer, BillLine, Chat, UpstreamProcess

PRICE = {
    "input_usd_per_mtok": "0.13370051",
    "cached_input_usd_per_mtok": "0.01003007",
    "output_usd_per_mtok": "0.61010033",
}
"""No picodollar divides evenly, so that each line is rounded."""

MODELS = {
    "quick": [Chat(text="Yes.", prompt_tokens=7)],
    "cached": [Chat(text="One two three four", prompt_tokens=1003, cached_tokens=517)],
    "slow": [Chat(text="word " * 12, prompt_tokens=91, frame_delay_s=0.02)],
    "thinking": [Chat(text="Well then", prompt_tokens=33, think_s=0.15)],
    # Generates, and bills, to the end when the gateway is gone.
    "stubborn": [Chat(text="word " * 9, prompt_tokens=5, frame_delay_s=0.03, runs_on=True)],
    "busy": [Answer(status=503, body={"error": {"message": "busy"}}), Chat(text="At last")] * 500,
}
KILLS = {"tree": 1, "start": 2, "worker": 1, "ledger": 1, "supervisor": 1}
"""Kinds of rounds, and how many kills each holds."""
ROUNDS = ("tree", "start", "supervisor", *("worker", "ledger") * 3)
PAUSE_S_MAX = 0.6


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_fifty_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path, seed: int) -> None:
    _survive(tmp_path, kills=50, seed=seed, workers=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path, seed: int) -> None:
    _survive(tmp_path, kills=250, seed=seed, workers=2)


def _survive(folder: Path, *, kills: int, seed: int, workers: int) -> None:
    rng = random.Random(seed)
    rounds = _draw_rounds(kills, rng)
    with UpstreamProcess(MODELS, folder=folder) as upstream:
        gateway = GatewayProcess(folder / "gateway", _config(upstream.base_url, workers))
        keys = [gateway.key("red"), gateway.key("blue")]
        traffic = Traffic(gateway.port, keys=keys, models=tuple(MODELS), seed=seed)
        with gateway:
            with traffic:
                for kind in rounds:
                    _kill(gateway, kind, rng)
            gateway.kill()
            gateway.start()
            gateway.run("keys", "list")  # waits for the ledger process, which starts last
            assert gateway.stop() == 0  # which loads what the spools hold
            bill = upstream.bill()
            rows = ledger_rows(gateway.database)
            assert open_intents(gateway.database) == 0
            gateway.run("ledger", "verify")  # exits 1 when anything does not hold
            report = json.loads(gateway.run("spend", "report", "--json"))["total"]
    print(_summary(seed, rounds, traffic, bill, rows))
    _check_bill(bill, rows)
    _check_answers(traffic.answers, rows)
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


def _config(base_url: str, workers: int) -> dict:
    return {
        "server": {"workers": workers},
        "providers": {"up": {"kind": "openai_compatible", "base_url": base_url}},
        "models": {
            name: {"deployments": [{"deployment": f"up/{name}", "price": PRICE}]} for name in MODELS
        },
        "teams": {"red": {}, "blue": {}},
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
        assert one.request_id in last or one.status == 503, one


def _summary(
    seed: int, rounds: list[str], traffic: Traffic, bill: list[BillLine], rows: list[LedgerRow]
) -> str:
    lost = sum(row.is_lost for row in rows)
    return (
        f"seed {seed}: {sum(KILLS[one] for one in rounds)} kills {dict(Counter(rounds))}; {len(traffic.answers)} answers, "
        f"{traffic.broken} without a head; {len(bill)} lines on the bill, {len(rows)} events, "
        f"{lost} of them lost with a kill: {dict(Counter(row.status for row in rows))}"
    )
