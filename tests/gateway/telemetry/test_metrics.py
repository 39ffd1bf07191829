"""What `/metrics` shows: right numbers, few labels, no key and no content."""

from __future__ import annotations

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.families import DURATION_BUCKETS_S, FAMILIES
from gateway.telemetry.metrics import OTHER, SERIES_MAX, SERIES_PER_TURN, Metrics
from gateway.telemetry.snapshot import Series
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    KEY,
    NOWHERE,
    body,
    config_text,
    running_gateway,
)
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


def observed(*, decode_s: float | None = None, **changes):
    metrics = Metrics()
    metrics.note_attempt("up/m", "apps", settlement(1, tokens=100, **changes), decode_s)
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
    first.note_request("chat.completions", 200, 0.1, None)
    name = "fareway_requests_total"
    assert (
        value(samples(second.render().decode()), name, route="chat.completions", status="200")
        is None
    )


BOUNDS = {
    "a duration on a bound counts in its bucket": (0.001, "0.001"),
    "one just above it counts in the next": (0.0010001, "0.0025"),
    "one of zero counts in the first": (0.0, "0.001"),
    "one beyond every bound counts in infinity alone": (901.0, "+Inf"),
}


@pytest.mark.parametrize(("duration_s", "bucket"), BOUNDS.values(), ids=BOUNDS.keys())
def test_buckets_include_their_upper_bound(duration_s, bucket):
    metrics = Metrics()
    metrics.note_request("r", 200, duration_s, None)
    found = samples(metrics.render().decode())
    name = "fareway_request_duration_seconds_bucket"
    counted = {
        bound
        for bound in (*map(str, DURATION_BUCKETS_S), "+Inf")
        if value(found, name, route="r", status="200", le=bound)
    }
    assert min(counted, key=float) == bucket
    assert (
        value(found, "fareway_request_duration_seconds_sum", route="r", status="200") == duration_s
    )
    assert value(found, "fareway_request_duration_seconds_count", route="r", status="200") == 1


def test_overhead_that_is_unknown_is_not_observed():
    metrics = Metrics()
    metrics.note_request("r", 200, 0.1, 0.0002)
    metrics.note_request("r", 499, 0.1, None)
    found = samples(metrics.render().decode())
    assert value(found, "fareway_gateway_overhead_seconds_count") == 1
    assert value(found, "fareway_gateway_overhead_seconds_bucket", le="0.00015") == 0
    assert value(found, "fareway_gateway_overhead_seconds_bucket", le="0.0002") == 1


def test_a_stream_tells_its_first_token_and_its_speed():
    usage = {"input": 9, "output": 30, "reasoning": 11}
    found = observed(decode_s=2.0, usage=usage, ttft_us=250_000, duration_us=2_300_000)
    deployment = {"deployment": "up/m"}
    assert value(found, "fareway_time_to_first_token_seconds_sum", **deployment) == 0.25
    assert value(found, "fareway_decode_tokens_per_second_sum", **deployment) == 20.0
    assert value(found, "fareway_attempt_duration_seconds_sum", **deployment) == 2.3


SPEEDLESS = {
    "a whole answer": ({"decode_s": None}, 0),
    "a stream of one token": ({"decode_s": 0.5, "usage": {"output": 1}}, 1),
    "a stream that ended with its first event": ({"decode_s": 0.0}, 1),
}


@pytest.mark.parametrize(("changes", "first_tokens"), SPEEDLESS.values(), ids=SPEEDLESS.keys())
def test_what_has_no_speed(changes, first_tokens):
    found = observed(**{"usage": {"output": 40}, "ttft_us": 9_000, **changes})
    ttft = value(found, "fareway_time_to_first_token_seconds_count", deployment="up/m")
    assert (ttft or 0) == first_tokens
    assert value(found, "fareway_decode_tokens_per_second_count", deployment="up/m") is None


def test_retries_fallbacks_refusals_and_denials_are_told_apart():
    metrics = Metrics()
    metrics.note_retry("Overloaded", False)
    metrics.note_retry("Overloaded", True)
    metrics.note_retry("RateLimited", True)
    metrics.note_retry_refused("groq")
    metrics.note_denial("privacy_denied")
    found = samples(metrics.render().decode())
    assert value(found, "fareway_retries_total", reason="Overloaded") == 1
    assert value(found, "fareway_fallbacks_total", reason="Overloaded") == 1
    assert value(found, "fareway_fallbacks_total", reason="RateLimited") == 1
    assert value(found, "fareway_retries_refused_total", provider="groq") == 1
    assert value(found, "fareway_policy_denials_total", rule="privacy_denied") == 1


def test_label_sets_beyond_the_bound_are_counted_together():
    metrics = Metrics()
    many = SERIES_MAX + 50
    for number in range(many):
        metrics.note_request(f"r{number}", 200, 0.1, None)
        metrics.note_attempt(f"up/{number}", "apps", settlement(1), 1.0)
        metrics.note_retry(f"Reason{number}", False)
    series = metrics.snapshot().series
    for family, labels in (
        ("fareway_requests_total", (OTHER, OTHER)),
        ("fareway_attempts_total", (OTHER, OTHER, "ok")),
        ("fareway_retries_total", (OTHER,)),
    ):
        found = [one for one in series if one.family == family]
        assert len(found) == SERIES_MAX + 1
        assert sum(one.values[0] for one in found) == many
        (rest,) = [one for one in found if one.labels == labels]
        assert rest.values == [50]


async def test_the_loop_goes_on_while_thousands_of_series_are_told():
    metrics = Metrics()
    for number in range(SERIES_PER_TURN * 3):
        metrics.note_retry(f"Reason{number}", False)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            # What is counted meanwhile does no harm.
            metrics.note_retry(f"Later{turns}", False)
            metrics.note_attempt(f"up/{turns}", "apps", settlement(1), None)
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        told = await metrics.tell()
        tasks.cancel_scope.cancel()
    assert turns >= 3
    before = [one for one in told.series if one.labels and one.labels[0].startswith("Reason")]
    assert len(before) == SERIES_PER_TURN * 3


def test_every_series_is_described():
    metrics = Metrics()
    metrics.note_request("r", 200, 0.1, 0.001)
    usage = {"input": 1, "output": 9}
    metrics.note_attempt("up/m", "apps", settlement(1, usage=usage, ttft_us=1), 1.0)
    metrics.note_attempt("up/m", "apps", settlement(2, cost_pico_usd=None, lines=()), None)
    metrics.note_retry("Overloaded", True)
    metrics.note_stall(0.003, 0.001)
    for one in metrics._series():
        family = FAMILIES[one.family]
        assert (len(one.labels), len(one.values)) == (len(family.labels), family.width), one.family


def test_sources_are_read_with_each_snapshot():
    metrics, level = Metrics(), [3]
    metrics.add_source(lambda: [Series("fareway_requests_in_flight", (), [level[0]])])
    for in_flight in (3, 7):
        level[0] = in_flight
        found = samples(metrics.render().decode())
        assert value(found, "fareway_requests_in_flight") == in_flight


def test_a_label_cannot_break_out_of_its_quotes():
    metrics = Metrics()
    name = 'a"} 1\nfareway_spend_usd_total{team="x'
    metrics.note_attempt("up/m", name, settlement(1), None)
    found = samples(metrics.render().decode())
    assert value(found, "fareway_attempts_total", team=name, deployment="up/m", status="ok") == 1
    assert {dict(labels).get("team", name) for _, labels in found} == {name}


def test_a_thousand_series_are_written_within_the_scrape_interval():
    metrics = Metrics()
    for number in range(1_000):
        metrics.note_attempt(f"up/{number % 100}", f"team-{number // 100}", settlement(1), 1.0)
    assert len(samples(metrics.render().decode())) > 1_000


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
        # The only deployment is tried again: a retry, no fallback.
        assert sum(v for (n, _), v in found.items() if n == "fareway_retries_total") == 1
        assert not [n for n, _ in found if n == "fareway_fallbacks_total"]
        assert value(found, "fareway_time_to_first_token_seconds_count", deployment="a/m") == 1
        assert value(found, "fareway_gateway_overhead_seconds_count") == 3
        assert value(found, "fareway_requests_in_flight") == 0
        for secret in (canary, KEY, "nothing"):
            assert secret not in text


async def test_a_request_that_the_privacy_policy_refuses_is_counted(tmp_path):
    text = config_text({"a": NOWHERE}, more="privacy: {tags: {inside: {require: [self_hosted]}}}")
    async with running_gateway(tmp_path, {"a": NOWHERE}, text=text) as gateway:
        assert (await gateway.post(body(), x_fareway_tags="inside")).status_code == 403
        await gateway.wait_idle()
        found = samples(gateway.service.metrics.render().decode())
    assert value(found, "fareway_policy_denials_total", rule="privacy_denied") == 1


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
