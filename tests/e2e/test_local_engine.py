"""The real small model behind the gateway: answers, caches, money, faults. One gateway for all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from tests.e2e.roads import Road, deployments, events_of, readyz, running_road
from tests.faults.raw_client import RawClient
from tests.faults.traffic import Answer, ask
from tests.support.ledger_rows import LedgerRow, wait_for_rows
from tests.support.real_model import smollm2_path
from tests.support.scripted_upstream import Chat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOCAL = "local/smollm2-135m-instruct"
USD_PER_HOUR = "0.37"
CONTEXT_TOKENS = 2048
START_TIMEOUT_S = 120.0
STORY = " ".join(
    f"In year {year} the harvest was good and the river was calm." for year in range(24)
)
NEXT_TO_NOTHING = {"input_usd_per_mtok": "0.000001", "output_usd_per_mtok": "0.000001"}


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    path = smollm2_path()  # fetched here, where a download has time
    model = {
        "id": LOCAL.partition("/")[2],
        "source": f"file:{path}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "max_model_len": CONTEXT_TOKENS,
        "max_num_seqs": 4,
        "kv_memory_gib": 0.5,
    }
    config = {
        "providers": {
            "local": {
                "kind": "local",
                "device": "cpu",
                "models": [model, {**model, "id": "exchanged", "sha256": "0" * 64}],
                "price": {"gpu_usd_per_hour": USD_PER_HOUR},
            },
            "vendor": {"kind": "openai_compatible"},
        },
        "models": {
            "demo": {"deployments": [LOCAL]},
            "either": {
                "deployments": [
                    LOCAL,
                    *deployments(("vendor/cheap", NEXT_TO_NOTHING))["deployments"],
                ]
            },
        },
        "privacy": {"tags": {"private": {"require": ["self_hosted"]}}},
        "routing": {"retries": {"attempts": 1}},
        "teams": {"red": {}, "blue": {}},
    }
    scripts = {"cheap": [Chat(text="from a vendor", prompt_tokens=5)]}
    with running_road(tmp_path_factory.mktemp("engine"), scripts=scripts, config=config) as road:
        wait_for_engine(road)
        yield road


def wait_for_engine(road: Road) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while readyz(road.gateway)[1]["engines"][LOCAL] != "ready":
        assert time.monotonic() < deadline, road.gateway.log()
        time.sleep(0.1)


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 12,
        "temperature": 0,
        **fields,
    }


def call(road: Road, team: str, body: dict[str, Any]) -> Answer:
    return ask(road.gateway.port, road.gateway.key(team), body)


def row_of(road: Road, answer: Answer) -> LedgerRow:
    [row] = road.rows(answer.request_id, 1)
    return row


def text_of_stream(body: bytes) -> str:
    chunks = [json.loads(event) for event in events_of(body) if event != "[DONE]"]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


def cached_tokens(answer: Answer) -> int:
    return json.loads(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def gpu_pico_usd(gpu_us: int) -> int:
    """Busy microseconds at the configured rate, rounded once."""
    return round(Fraction(gpu_us) * Fraction(USD_PER_HOUR) * 10**12 / (3600 * 10**6))


def test_an_answer_and_its_stream_say_the_same(road: Road) -> None:
    whole = call(road, "red", chat("What is the capital of France?"))
    stream = call(
        road,
        "red",
        chat("What is the capital of France?", stream=True, stream_options={"include_usage": True}),
    )
    assert whole.status == stream.status == 200
    text = json.loads(whole.body)["choices"][0]["message"]["content"]
    assert "Paris" in text
    assert text_of_stream(stream.body) == text
    assert stream.is_complete
    assert stream.cost_usd


def test_a_model_file_that_was_exchanged_is_not_loaded_and_readiness_says_why(road: Road) -> None:
    status, shown = readyz(road.gateway)
    assert status == 200
    assert "SHA-256" in shown["engines"]["local/exchanged"]
    refused = call(road, "red", chat("Hello", model="local/exchanged"))
    assert refused.status == 503
    assert json.loads(refused.body)["error"]["code"] == "no_healthy_deployment"


def test_machine_time_is_charged_to_the_picodollar(road: Road) -> None:
    answer = call(road, "red", chat("Name three colours.", max_tokens=20))
    row = row_of(road, answer)
    busy_us = row.usage["gpu_us"]
    assert 0 < busy_us <= row.duration_us
    assert row.cost_pico_usd == gpu_pico_usd(busy_us) > 0
    assert answer.cost_usd is not None
    assert Fraction(answer.cost_usd) * 10**12 == row.cost_pico_usd
    usage = json.loads(answer.body)["usage"]
    assert row.usage["output"] == usage["completion_tokens"] == 20
    assert row.usage["input"] + row.usage.get("cache_read", 0) == usage["prompt_tokens"]


def test_a_prefix_is_reused_for_its_own_tenant_alone(road: Road) -> None:
    first = call(road, "red", chat(STORY, max_tokens=1))
    again = call(road, "red", chat(STORY, max_tokens=1))
    other = call(road, "blue", chat(STORY, max_tokens=1))
    other_again = call(road, "blue", chat(STORY, max_tokens=1))
    prompt_tokens = json.loads(first.body)["usage"]["prompt_tokens"]
    assert cached_tokens(first) == cached_tokens(other) == 0
    assert prompt_tokens // 2 < cached_tokens(again) < prompt_tokens
    assert cached_tokens(other_again) == cached_tokens(again)
    assert row_of(road, again).usage["cache_read"] == cached_tokens(again)
    # What is reused is not computed, and what is not computed is not charged.
    first_us, again_us = (row_of(road, one).usage["gpu_us"] for one in (first, again))
    assert again_us < first_us / 2


def test_no_tokens_wanted_is_an_answer_without_content(road: Road) -> None:
    answer = call(road, "red", chat("Say something.", max_tokens=0))
    assert answer.status == 200
    found = json.loads(answer.body)
    assert found["choices"][0]["message"]["content"] == ""
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 0
    assert row_of(road, answer).status == "ok"


def test_a_prompt_longer_than_the_context_is_refused_with_numbers(road: Road) -> None:
    answer = call(road, "red", chat("word " * (2 * CONTEXT_TOKENS)))
    error = json.loads(answer.body)["error"]
    assert answer.status == 400
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT_TOKENS) in error["message"]
    numbers = [int(word) for word in error["message"].replace(",", " ").split() if word.isdigit()]
    assert any(number > CONTEXT_TOKENS for number in numbers)


def test_private_data_stays_here_although_a_vendor_is_cheaper(road: Road) -> None:
    free = call(road, "red", chat("Hello", model="either", max_tokens=4))
    tagged = call(
        road,
        "red",
        chat("Hello", model="either", max_tokens=4, metadata={"fareway_tags": "private"}),
    )
    assert row_of(road, free).deployment == "vendor/cheap"
    row = row_of(road, tagged)
    assert (row.deployment, row.tags) == (LOCAL, ["private"])
    assert (row.cost_pico_usd or 0) > (row_of(road, free).cost_pico_usd or 0)
    assert len(road.upstream.requests()) == 1


def test_a_client_that_leaves_is_charged_what_was_computed_for_it(road: Road) -> None:
    body = chat("Tell me a very long story.", max_tokens=1500, stream=True, user="leaver")
    with RawClient(road.gateway, "blue", body) as client:
        client.read_until(b'"content"', count=3)
        client.close()
    [row] = wait_for_rows(road.gateway.database, 1, where=lambda row: row.status == "client_left")
    assert row.quality == "exact"  # the engine itself counts what it computed
    assert 3 <= row.usage["output"] < 1500
    assert row.cost_pico_usd == gpu_pico_usd(row.usage["gpu_us"])


def test_a_full_queue_is_a_503_with_a_wait(road: Road) -> None:
    body = chat("Count to a thousand.", max_tokens=1500, stream=False)
    with contextlib.ExitStack() as crowd:
        for _ in range(150):
            crowd.enter_context(RawClient(road.gateway, "red", body))
        deadline = time.monotonic() + 20
        while (answer := call(road, "red", chat("And me?", max_tokens=1500))).status == 200:
            assert time.monotonic() < deadline
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "no_healthy_deployment"
    assert 1 <= int(answer.headers["retry-after"]) <= 3600
    row = row_of(road, answer)
    assert (row.status, row.quality, row.cost_pico_usd) == ("rejected", "exact", 0)


def test_an_engine_killed_in_mid_stream_is_an_error_event_and_comes_back(road: Road) -> None:
    body = chat("Tell me a very long story.", max_tokens=1500, stream=True)
    with RawClient(road.gateway, "red", body) as client:
        client.read_until(b'"content"', count=3)
        assert len(road.gateway.kill_role("engine")) == 1
        client.read_to_end()
    events = events_of(client.text.encode())
    assert "error" in json.loads(events[-1])
    assert "[DONE]" not in events
    status, shown = readyz(road.gateway)
    assert status == 200
    assert LOCAL in shown["engines"]
    [row] = wait_for_rows(road.gateway.database, 1, where=lambda row: row.status == "interrupted")
    assert (row.quality, row.cost_pico_usd) == ("unknown", 0)
    assert row.exposure_pico_usd
    meanwhile = call(road, "red", chat("Are you there?"))
    assert meanwhile.status in {200, 503}
    wait_for_engine(road)
    assert call(road, "red", chat("And now?")).status == 200


def test_the_books_hold_after_all_of_them(road: Road) -> None:
    road.gateway.run("ledger", "verify")


def test_the_machine_that_computed_is_paid_for_and_shared_after_the_gateway_stopped(
    road: Road,
) -> None:
    running = json.loads(road.gateway.run("spend", "machines", "--json"))
    assert [one["machine"] for one in running["machines"]] == ["local"]
    assert road.gateway.stop() == 0
    found = json.loads(road.gateway.run("spend", "machines", "--json"))
    [machine] = found["machines"]
    assert machine["cost_pico_usd"] == found["cost_pico_usd"] > 0
    assert 0 < machine["busy_us"] < machine["up_us"]
    assert machine["idle_us"] == machine["up_us"] - machine["busy_us"]
    assert not machine["is_nominal"]
    exact = Fraction(USD_PER_HOUR) * 10**12 * machine["up_us"] / 3_600_000_000
    assert machine["cost_pico_usd"] == round(exact)
    shares = found["shares"]
    assert {"red", "blue"} <= {share["team"] for share in shares} <= {
        "red", "blue", "unallocated-idle",
    }  # fmt: skip
    assert sum(share["cost_pico_usd"] for share in shares) == found["cost_pico_usd"]
