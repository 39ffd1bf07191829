"""What `/metrics` shows: right numbers, few labels, no key and no content."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics import Metrics
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import KEY, NOWHERE, body, running_gateway
from tests.gateway.ledger_samples import settlement
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio


def samples(text: str) -> dict[tuple[str, frozenset], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def observed(**changes):
    metrics = Metrics()
    metrics.observe_attempt(
        deployment="up/m", team="apps", settlement=settlement(1, tokens=100, **changes)
    )
    return samples(metrics.render().decode())


COUNTS = {
    "fresh input": ({"input": 9}, ("input", "none"), 9),
    "read from a cache": ({"cache_read": 8}, ("input", "read"), 8),
    "written to a cache": ({"cache_write": 7}, ("input", "write"), 7),
    "output": ({"output": 6}, ("output", "none"), 6),
    "reasoning is output": ({"output": 6, "reasoning": 5}, ("output", "none"), 11),
}


@pytest.mark.parametrize(("usage", "labels", "count"), COUNTS.values(), ids=COUNTS.keys())
def test_tokens_by_direction_and_cache(usage, labels, count):
    found = observed(usage=usage)
    direction, cache = labels
    assert value(
        found, "fareway_tokens_total", team="apps", deployment="up/m", direction=direction, cache=cache
    ) == count  # fmt: skip


def test_machine_time_is_no_token():
    found = observed(usage={"gpu_us": 10**6})
    assert not [name for name, _ in found if name == "fareway_tokens_total"]


def test_spend_and_unpriced_attempts():
    priced = observed(cost_pico_usd=2_500_000_000_000)
    assert value(priced, "fareway_spend_usd_total", team="apps", deployment="up/m") == 2.5
    assert value(priced, "fareway_unpriced_events_total", deployment="up/m") is None
    unpriced = observed(cost_pico_usd=None, lines=())
    assert value(unpriced, "fareway_unpriced_events_total", deployment="up/m") == 1
    assert value(unpriced, "fareway_spend_usd_total", team="apps", deployment="up/m") is None


def test_two_workers_in_one_process_share_no_numbers():
    first, second = Metrics(), Metrics()
    first.in_flight.set(3)
    assert value(samples(second.render().decode()), "fareway_requests_in_flight") == 0


async def test_what_a_scrape_shows_after_a_few_requests(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=503, body={}), Chat(text="a b c")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
        gateway.client() as client,
    ):
        canary = "canary-prompt-7f3a"
        messages = [{"role": "user", "content": canary}]
        await gateway.post(body(stream=True, messages=messages))
        await gateway.post(body(model="nothing", messages=messages))
        await gateway.post(body(), key="wrong")
        await gateway.wait_idle()
        text = (await client.get("/metrics")).text
        found = samples(text)
        for status, count in (("200", 1), ("404", 1), ("401", 1)):
            name = "fareway_requests_total"
            assert value(found, name, route="chat.completions", status=status) == count
        attempts = "fareway_attempts_total"
        assert value(found, attempts, team="apps", deployment="a/m", status="rejected") == 1
        assert value(found, attempts, team="apps", deployment="a/m", status="ok") == 1
        assert value(found, "fareway_fallbacks_total", reason="Overloaded") in (1, None)
        assert sum(v for (n, _), v in found.items() if n == "fareway_fallbacks_total") == 1
        assert value(found, "fareway_time_to_first_token_seconds_count", deployment="a/m") == 1
        assert value(found, "fareway_gateway_overhead_seconds_count") == 1
        assert value(found, "fareway_requests_in_flight") == 0
        for secret in (canary, KEY, "nothing"):
            assert secret not in text


async def test_labels_do_not_grow_with_what_clients_send(tmp_path):
    engine = FakeProvider(name="a", scripts=[answer("x")])
    async with (
        running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway,
        gateway.client() as client,
    ):

        async def series() -> int:
            return len(samples((await client.get("/metrics")).text))

        await gateway.post(body())
        await gateway.post(body(model="other-0"))
        before = await series()
        for number in range(1, 6):
            await gateway.post(body(user=f"user-{number}"))
            await gateway.post(body(model=f"other-{number}"))
            await client.get(f"/v1/nothing-{number}")
        assert await series() == before
