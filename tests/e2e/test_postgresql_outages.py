"""A whole gateway while its PostgreSQL is away, at the start too: what goes on and what waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.traffic import Answer, ask
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import ledger_rows
from tests.support.postgres import PostgresServer
from tests.support.scripted_upstream import Chat, UpstreamProcess

pytestmark = [pytest.mark.ci, pytest.mark.timeout(180)]

PRICE = {"input_usd_per_mtok": "1", "output_usd_per_mtok": "2"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
STRANGE_KEY = "a-key-that-nobody-has-ever-made-0123"


def gateway_for(url: str, base_url: str, folder: Path) -> GatewayProcess:
    config = {
        "server": {"workers": 2},
        "storage": {"database": url},
        "secrets": {"master_key_env": "FAREWAY_MASTER_KEY"},
        "providers": {"up": {"kind": "openai_compatible", "base_url": base_url}},
        "models": {"m": {"deployments": [{"deployment": "up/m", "price": PRICE}]}},
        "teams": {"red": {}, "blue": {"budget": {"usd": "1"}}},
    }
    return GatewayProcess(folder, config, {"FAREWAY_MASTER_KEY": "ab" * 32})


def told(gateway: GatewayProcess, key: str) -> tuple[int, str]:
    """Status, and code of an error, of one request."""
    found = ask(gateway.port, key, CHAT)
    return found.status, _code(found)


def _code(found: Answer) -> str:
    return "" if found.status == 200 else json.loads(found.body)["error"]["code"]


def wait_for(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("way", ["stopped", pytest.param("frozen", marks=pytest.mark.soak)])
def test_a_start_without_the_database_serves_by_what_was_known_last(
    tmp_path: Path, postgres_server: PostgresServer, way: str
) -> None:
    url = postgres_server.create_database()
    with UpstreamProcess({"m": [Chat(text="Yes.", prompt_tokens=7)] * 50}, folder=tmp_path) as up:
        gateway = gateway_for(url, up.base_url, tmp_path / "gateway")
        with gateway:
            made = json.loads(
                gateway.run("keys", "create", "--team", "red", "--name", "made", "--json")
            )
            assert told(gateway, made["key"]) == (200, "")
            assert told(gateway, gateway.key("blue")) == (200, "")
            gateway.kill()
            if way == "stopped":
                postgres_server.stop()
            else:
                postgres_server.freeze()
            gateway.start()
            assert told(gateway, gateway.key("red")) == (200, "")
            assert told(gateway, made["key"]) == (200, "")
            assert told(gateway, gateway.key("blue")) == (503, "budget_unavailable")
            assert told(gateway, STRANGE_KEY) == (503, "ledger_unavailable")
            assert "serving by keys and budgets of" in gateway.log()
            if way == "stopped":
                postgres_server.start()
            else:
                postgres_server.thaw()
            wait_for(lambda: told(gateway, STRANGE_KEY) == (401, "invalid_api_key"))
            wait_for(lambda: told(gateway, gateway.key("blue")) == (200, ""))
            gateway.run("keys", "revoke", made["key_id"])
            assert told(gateway, made["key"]) == (401, "invalid_api_key")
            assert gateway.stop() == 0
        assert len(ledger_rows(url)) == len(up.bill())


@pytest.mark.soak
def test_a_first_start_without_the_database_serves_by_the_configuration(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    postgres_server.stop()
    with UpstreamProcess({"m": [Chat(text="Yes.", prompt_tokens=7)] * 50}, folder=tmp_path) as up:
        gateway = gateway_for(url, up.base_url, tmp_path / "gateway")
        with gateway:
            assert told(gateway, gateway.key("red")) == (200, "")
            assert told(gateway, gateway.key("blue")) == (503, "budget_unavailable")
            assert told(gateway, STRANGE_KEY) == (503, "ledger_unavailable")
            refused = gateway.run("spend", "report", check=False)
            assert refused == ""
            postgres_server.start()
            wait_for(lambda: told(gateway, gateway.key("blue")) == (200, ""))
            assert told(gateway, STRANGE_KEY) == (401, "invalid_api_key")
            report = json.loads(gateway.run("spend", "report", "--json"))["total"]
            assert report["attempts"] == len(up.bill()) == 2
            assert gateway.stop() == 0
