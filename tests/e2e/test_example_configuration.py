"""The example configuration runs, and every team in it gets an answer.

Taken out is exactly what `serve` names as not built yet, and every base URL leads to a scripted
upstream. Of the providers whose kind is not built, those with a base URL of their own speak the
OpenAI wire and run as `openai_compatible`, with their trust and their price; team payments has no
other that satisfies its tags. Vendors are taken out with the deployments that name them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.settings.loader import load
from gateway.settings.providers import ServerProvider
from gateway.settings.unbuilt import unbuilt
from tests.e2e.roads import Road, running_road
from tests.faults.traffic import Answer, ask
from tests.support.gateway_process import REPOSITORY
from tests.support.scripted_upstream import Chat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = REPOSITORY / "fareway.example.yaml"
NOT_BUILT_YET = {
    "providers.groq.kind",
    "providers.bedrock-eu.kind",
    "providers.foundry.kind",
    "providers.eu-vllm.kind",
    "models.chat-small.routing.sla",
    "organisation.budget",
    "organisation.cost_tag_budgets.feature=search",
    "teams.payments.budget",
    "teams.payments.projects.fraud.budget",
    "privacy.sinks.response_cache",
}
"""May only shrink."""
SECRETS = {
    "FRAUD_BOT_KEY": "fraud-bot-key-of-the-example-0123456789",
    "NEXT_DOOR_KEY": "next-door-key-of-the-example-0123456789",
}
SCRIPTS = {"*": [Chat(text="Good day.", prompt_tokens=17)]}


def runnable_example() -> dict[str, Any]:
    """The example without what cannot run yet."""
    loaded = load(EXAMPLE, environ={})
    config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for problem in unbuilt(loaded):
        *parents, last = problem.key_path.split(".")
        place = config
        for name in parents:
            place = place[name]
        if parents[:1] != ["providers"]:
            del place[last]
        elif isinstance(loaded.settings.providers[parents[1]], ServerProvider):
            place["kind"] = "openai_compatible"
        else:
            del config["providers"][parents[1]]
    for model in config["models"].values():
        model["deployments"] = [
            entry for entry in model["deployments"] if _provider_of(entry) in config["providers"]
        ]
    for provider in config["providers"].values():
        provider.pop("base_url", None)  # the road puts the upstream's in
    return json.loads(json.dumps(config, default=str))


def _provider_of(entry: str | dict[str, Any]) -> str:
    name = entry if isinstance(entry, str) else entry["deployment"]
    return name.partition("/")[0]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("example")
    with running_road(folder, scripts=SCRIPTS, config=runnable_example(), environ=SECRETS) as road:
        yield road


def call(road: Road, key: str, **fields: Any) -> Answer:
    body = {"model": "chat-small", "messages": [{"role": "user", "content": "hi"}], **fields}
    return ask(road.gateway.port, key, body)


def test_what_the_example_cannot_run_yet_only_becomes_less() -> None:
    assert {problem.key_path for problem in unbuilt(load(EXAMPLE, environ={}))} <= NOT_BUILT_YET


def test_every_team_has_a_test_below() -> None:
    assert set(runnable_example()["teams"]) == {"payments", "research"}


def test_payments_is_answered_by_the_self_hosted_server_alone(road: Road) -> None:
    answer = call(road, SECRETS["FRAUD_BOT_KEY"])
    assert answer.status == 200
    [row] = road.rows(answer.request_id, 1)
    assert row.deployment == "eu-vllm/llama-3.1-8b"
    assert (row.team, row.project) == ("payments", "fraud")
    assert row.tags == ["card", "confidential", "gdpr", "internal", "private"]
    # No vendor's key goes to a server of one's own.
    assert "authorization" not in road.received(row).headers


def test_payments_cannot_ask_for_what_is_not_its_own(road: Road) -> None:
    assert call(road, SECRETS["FRAUD_BOT_KEY"], model="demo").status == 403
    refused = call(road, SECRETS["FRAUD_BOT_KEY"], model="gateway-next-door/llama-3.1-8b")
    assert refused.status == 403


def test_research_is_answered_by_the_cheapest_that_does_not_train(road: Road) -> None:
    answer = call(road, road.gateway.key("research"), model="small", max_tokens=10)
    assert answer.status == 200
    [row] = road.rows(answer.request_id, 1)
    assert row.deployment in {"eu-vllm/llama-3.1-8b", "gateway-next-door/llama-3.1-8b"}
    assert (row.model, row.tags) == ("chat-small", ["internal"])


def test_research_is_sent_next_door_with_the_key_for_it(road: Road) -> None:
    answer = call(road, road.gateway.key("research"), model="gateway-next-door/llama-3.1-8b")
    assert answer.status == 200
    [row] = road.rows(answer.request_id, 1)
    sent = road.received(row).headers["authorization"]
    assert sent == f"Bearer {SECRETS['NEXT_DOOR_KEY']}"


def test_the_books_hold(road: Road) -> None:
    road.gateway.run("ledger", "verify")
