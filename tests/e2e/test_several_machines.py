"""Two gateways on one PostgreSQL: what one of them changes, the other goes by within a second."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.traffic import ask
from tests.support.gateway_process import GatewayProcess
from tests.support.postgres import execute
from tests.support.scripted_upstream import Chat, UpstreamProcess

pytestmark = pytest.mark.slow

PRICE = {"input_usd_per_mtok": "1", "output_usd_per_mtok": "2"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
WITHIN_S = 1.0
TRIES = 3
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@dataclass
class Pair:
    """Two machines and their database."""

    here: GatewayProcess
    there: GatewayProcess
    url: str

    def make_key(self, name: str) -> tuple[str, str]:
        """Make a key on one machine; its text and its id."""
        made = self.call(self.here, "POST", "keys", {"team": "red", "name": name})
        return made["key"], made["key_id"]

    def revoke(self, key_id: str) -> None:
        self.call(self.here, "DELETE", f"keys/{key_id}")

    def status_there(self, key: str) -> int:
        return ask(self.there.port, key, CHAT).status

    def call(self, gateway: GatewayProcess, method: str, path: str, body: object = None) -> dict:
        """Ask an administration route."""
        request = urllib.request.Request(
            f"{gateway.url}/admin/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {gateway.environ['FAREWAY_ADMIN_KEY']}",
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def two_gateways(folder: Path, url: str, **changes: object) -> Iterator[Pair]:
    with UpstreamProcess({"m": [Chat()] * 2_000}, folder=folder) as upstream:
        config = {
            "server": {"workers": 2},
            "storage": {"database": url},
            "providers": {"up": {"kind": "openai_compatible", "base_url": upstream.base_url}},
            "models": {"m": {"deployments": [{"deployment": "up/m", "price": PRICE}]}},
            "teams": {"red": {}},
            **changes,
        }
        environ = {"FAREWAY_MASTER_KEY": "a master key of enough letters 0123"}
        here = GatewayProcess(folder / "here", config, environ)
        there = GatewayProcess(folder / "there", config, environ)
        with here, there:
            yield Pair(here, there, url)


def seconds_until(is_so: Callable[[], bool], *, patience_s: float = 20.0) -> float:
    """How long it took until a question was asked that is answered with yes."""
    began_s = time.monotonic()
    while True:
        asked_s = time.monotonic() - began_s
        if is_so():
            return asked_s
        assert asked_s < patience_s, "it never was"
        time.sleep(0.01)


def fastest(change: Callable[[int], float]) -> float:
    """The least time of three tries: a machine that is busy with other tests has slow ones."""
    took_s = [change(0)]
    while min(took_s) >= WITHIN_S and len(took_s) < TRIES:
        took_s.append(change(len(took_s)))
    return min(took_s)


def test_what_one_machine_changes_another_goes_by_within_a_second(
    tmp_path: Path, postgres_url: str
) -> None:
    with two_gateways(tmp_path, postgres_url) as pair:

        def make_and_revoke(number: int) -> float:
            key, key_id = pair.make_key(f"a{number}")
            made_s = seconds_until(lambda: pair.status_there(key) == 200)
            pair.revoke(key_id)
            revoked_s = seconds_until(lambda: pair.status_there(key) == 401)
            assert [pair.status_there(key) for _ in range(10)] == [401] * 10
            return max(made_s, revoked_s)

        def cut_and_revoke(number: int) -> float:
            key, key_id = pair.make_key(f"b{number}")
            seconds_until(lambda: pair.status_there(key) == 200)
            execute(postgres_url, CUT)
            pair.revoke(key_id)
            return seconds_until(lambda: pair.status_there(key) == 401)

        def set_budget(number: int) -> float:
            own = pair.there.key("red")
            assert pair.status_there(own) == 200
            name = f"budgets/stop{number}"
            order = {"scope": "team", "team": "red", "usd": "0"}
            pair.call(pair.here, "PUT", name, order)
            stopped_s = seconds_until(lambda: pair.status_there(own) == 402)
            pair.call(pair.here, "DELETE", name)
            return max(stopped_s, seconds_until(lambda: pair.status_there(own) == 200))

        assert fastest(make_and_revoke) < WITHIN_S
        assert fastest(cut_and_revoke) < WITHIN_S
        assert fastest(set_budget) < WITHIN_S
        told = pair.call(pair.there, "GET", "status")["ledger"]
        assert told["news_fault"] == ""
