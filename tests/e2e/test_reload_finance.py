"""A reload that names cost tags and recipients of statements takes effect without a restart."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gateway.clock import system_clock
from gateway.dashboard.finance import periods
from tests.e2e.roads import CHEAP, deployments, running_road
from tests.e2e.test_budgets import ask
from tests.support.ledger_rows import wait_for_rows
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

CONFIG = {
    "server": {"workers": 1},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"quick": deployments(("up/quick", CHEAP))},
    "teams": {"red": {}},
}
HOOK = "http://127.0.0.1:9/hook"
WAIT_S = 30.0


def test_cost_tags_and_statements_of_a_reload_need_no_restart(tmp_path: Path) -> None:
    secret = {"HOOK_SECRET": "what-signs-the-statements"}
    scripts = {"quick": [Chat(text="Yes.")]}
    with running_road(tmp_path, scripts=scripts, config=CONFIG, environ=secret) as road:
        gateway, tags = road.gateway, {"fareway_cost_tags": "feature=search"}
        assert ask(gateway, "quick", metadata=tags).status == 200
        [row] = wait_for_rows(gateway.database, 1)
        ledger = gateway.pids()["ledger"]
        gateway.config["alerts"] = {
            "webhooks": [{"name": "books", "url": HOOK, "secret_env": "HOOK_SECRET"}]
        }
        gateway.config["finance"] = {
            "cost_tags": ["feature"],
            "statements": [{"name": "monthly", "teams": ["red"], "webhooks": ["books"]}],
        }
        gateway.write_config()
        deadline = time.monotonic() + WAIT_S
        # What was booked before the tag was named has its sums too.
        told: dict[str, str] = {}
        while told.get("search") is None and time.monotonic() < deadline:
            text = gateway.run("spend", "report", "--by", "cost_tag:feature", "--json", check=False)
            rows = json.loads(text)["rows"] if text else []
            told = {one["cost_tag:feature"]: one["cost_pico_usd"] for one in rows}
        assert told == {"search": row.cost_pico_usd}
        this = periods.month_named(None, now_us=system_clock().wall_us(), time_zone="UTC")
        assert this is not None
        month = periods.month_before(this, time_zone="UTC").name
        sent = gateway.run("spend", "statement", "--team", "red", "--month", month, "--send")
        assert sent == f"the statement of {month} goes out to 1 schedule\n"
        [one] = json.loads(gateway.run("spend", "statement", "--sent", "--json"))
        assert (one["recipient"], one["kind"]) == ("webhook:books", "statement")
        assert gateway.pids()["ledger"] == ledger
