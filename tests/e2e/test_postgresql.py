"""A whole gateway on PostgreSQL: served, reported, verified, and its schema changed by command."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.traffic import ask
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import ledger_rows
from tests.support.postgres import PostgresServer, execute, fetch, with_user
from tests.support.scripted_upstream import Chat, UpstreamProcess

pytestmark = pytest.mark.slow

PASSWORD = "p@ss/wörd:%"
PRICE = {"input_usd_per_mtok": "1", "output_usd_per_mtok": "2"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database whose owner needs a password."""
    execute(
        postgres_server.url,
        "CREATE ROLE needs_password",
        f"CREATE ROLE fareway LOGIN PASSWORD '{PASSWORD}' IN ROLE needs_password",
        "CREATE DATABASE fareway OWNER fareway",
    )
    return with_user(postgres_server.url, "fareway").rpartition("/")[0] + "/fareway"


def config_for(url: str, base_url: str) -> dict:
    return {
        "storage": {"database": url, "database_password_env": "LEDGER_PASSWORD"},
        "providers": {"up": {"kind": "openai_compatible", "base_url": base_url}},
        "models": {"m": {"deployments": [{"deployment": "up/m", "price": PRICE}]}},
        "teams": {"red": {}},
    }


def gateway_for(url: str, base_url: str, folder: Path) -> GatewayProcess:
    return GatewayProcess(
        folder,
        config_for(url, base_url),
        {"LEDGER_PASSWORD": PASSWORD, "FAREWAY_MASTER_KEY": "a master key of enough letters 0123"},
    )


def test_a_gateway_on_postgresql_serves_reports_and_verifies(
    tmp_path: Path, url: str, postgres_server: PostgresServer
) -> None:
    with UpstreamProcess(
        {"m": [Chat(text="Yes.", prompt_tokens=7)] * 50}, folder=tmp_path
    ) as upstream:
        gateway = gateway_for(url, upstream.base_url, tmp_path / "gateway")
        with gateway:
            made = json.loads(
                gateway.run("keys", "create", "--team", "red", "--name", "new", "--json")
            )
            assert ask(gateway.port, made["key"], CHAT).status == 200
            assert ask(gateway.port, gateway.key("red"), CHAT).status == 200
            gateway.run("keys", "revoke", made["key_id"])
            assert ask(gateway.port, made["key"], CHAT).status == 401
            report = json.loads(gateway.run("spend", "report", "--json"))["total"]
            assert report["attempts"] == 2
            request = urllib.request.Request(
                f"{gateway.url}/admin/v1/spend",
                headers={"authorization": f"Bearer {gateway.environ['FAREWAY_ADMIN_KEY']}"},
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert json.load(answer)["total"]["attempts"] == 2
            assert gateway.run("ledger", "verify").startswith("ok: 2 entries")
            assert "answers" in gateway.run("doctor", check=False)
            refused = gateway.run("db", "downgrade", "base", "--accept-loss", check=False)
            assert refused == ""
            # The database goes away: requests go on, and nothing of them is lost.
            postgres_server.kill()
            assert ask(gateway.port, gateway.key("red"), CHAT).status == 200
            postgres_server.start()
            report = json.loads(gateway.run("spend", "report", "--json"))["total"]
            assert report["attempts"] == 3
            assert gateway.stop() == 0
        everything = gateway.log() + (gateway.folder / "fareway.yaml").read_text()
        assert PASSWORD not in everything
        assert "p%40ss" not in everything
        full = url.replace("fareway@", "fareway:p%40ss%2Fw%C3%B6rd%3A%25@")
        rows = ledger_rows(full)
        assert len(rows) == 3
        assert report["cost_pico_usd"] == sum(row.cost_pico_usd for row in rows)
        current = json.loads(gateway.run("db", "current", "--json"))
        assert current["current"] == current["needed"]
        gateway.run("db", "downgrade", "base", "--accept-loss")
        assert fetch(full, "SELECT count(*) FROM pg_tables WHERE tablename = 'spend_event'") == [
            (0,)
        ]
        gateway.run("db", "upgrade")
        assert json.loads(gateway.run("spend", "report", "--json"))["total"]["attempts"] == 0


WRONG = {
    "a wrong password": (lambda url: url, "wrong", "check the user in storage.database"),
    "a database that is not there": (
        lambda url: url.removesuffix("fareway") + "nowhere",
        PASSWORD,
        "create it, or name another one",
    ),
}


@pytest.mark.parametrize(("change", "password", "told"), WRONG.values(), ids=WRONG.keys())
def test_what_waiting_does_not_mend_ends_the_start_with_a_sentence(
    tmp_path: Path, url: str, change, password: str, told: str
) -> None:
    gateway = gateway_for(change(url), "http://127.0.0.1:9", tmp_path / "gateway")
    gateway.environ["LEDGER_PASSWORD"] = password
    gateway.write_config()
    with pytest.raises(RuntimeError, match=told):
        gateway.start()
    assert password not in gateway.log()
