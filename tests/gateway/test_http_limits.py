"""Rate limits as a client meets them: refusals, headers, what frees and what is charged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import anyio
import httpx
import pytest

from gateway.dialects.openai_chat import parse
from gateway.limits.limiter import OUTPUT_TOKENS_UNSAID
from providers.errors import RateLimited, UpstreamFault
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    KEY,
    NOWHERE,
    OTHER_KEY,
    OTHER_MODEL,
    body,
    config_text,
    error_of,
    request_bytes,
    running_gateway,
)
from tests.gateway.telemetry.test_metrics import samples, value

pytestmark = pytest.mark.anyio

PROMPT = parse(json.dumps(body()).encode()).prompt_tokens_estimate


def limited(folder: Path, rules: str, *scripts, model: str = "", more: str = ""):
    """A gateway whose team `apps` has these rules, and whose model `chat` may have some."""
    text = config_text({"a": NOWHERE}, more=more).replace("apps: {", f"apps: {{{rules}, ")
    if model:
        text = text.replace('"chat": {', f'"chat": {{"limits": {model}, ')
    provider = FakeProvider(name="a", scripts=scripts or [answer("hello")])
    return running_gateway(folder, {"a": NOWHERE}, providers={"a": provider}, text=text)


def told(answer: httpx.Response) -> dict[str, str]:
    """The rate limit headers of an answer."""
    prefix = "x-ratelimit-"
    return {
        name.removeprefix(prefix): text
        for name, text in answer.headers.items()
        if name.startswith(prefix)
    }


# GW-055
async def test_a_refusal_says_which_limit_it_is_and_when_to_come_back(tmp_path):
    async with limited(tmp_path, "limits: {rpm: 2}") as gateway:
        assert [(await gateway.post(body())).status_code for _ in range(2)] == [200, 200]
        refused = await gateway.post(body())
        assert refused.status_code == 429
        assert refused.headers["x-fareway-limited-by"] == "gateway"
        assert refused.headers["x-fareway-attempts"] == "0"
        error = error_of(refused)
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert error["message"].startswith("too many requests: team 'apps' may use 2 requests per")
        assert 29_000 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert refused.headers["retry-after"] == "30"
        assert "x-should-retry" not in refused.headers
        assert told(refused)["limit-requests"] == "2"
        assert told(refused)["remaining-requests"] == "0"
        assert (await gateway.post(body(model=OTHER_MODEL), key=OTHER_KEY)).status_code == 200
        assert len(await gateway.settled()) == 3


async def test_answers_tell_the_narrowest_limit_streams_and_errors_too(tmp_path):
    rules = "limits: {rpm: 100, tpm: 50000}, model_limits: {chat: {rpm: 5}}"
    broken = [UpstreamFault("it broke")]
    async with limited(tmp_path, rules, answer("hi"), answer("hi"), broken) as gateway:
        whole = await gateway.post(body(max_tokens=10))
        assert told(whole)["limit-requests"] == "5"
        assert told(whole)["remaining-requests"] == "4"
        assert told(whole)["reset-requests"] == "12s"
        assert told(whole)["limit-tokens"] == "50000"
        assert 49_900 < int(told(whole)["remaining-tokens"]) < 50_000
        assert told(whole)["reset-tokens"].endswith("ms")
        async with gateway.stream(body(stream=True)) as stream:
            await stream.aread()
        assert told(stream)["remaining-requests"] == "3"
        gateway.hurry()
        failed = await gateway.post(body())
        assert failed.status_code == 502
        assert told(failed)["remaining-requests"] == "2"


async def test_a_request_without_limits_is_told_none(tmp_path):
    async with limited(tmp_path, "projects: {p: {limits: {rpm: 1}}}") as gateway:
        assert told(await gateway.post(body())) == {}
        first = await gateway.post(body(), x_fareway_project="p")
        assert told(first)["remaining-requests"] == "0"
        refused = await gateway.post(body(), x_fareway_project="p")
        assert "project 'p' of team 'apps'" in error_of(refused)["message"]
        assert (await gateway.post(body())).status_code == 200


async def test_a_models_limit_is_shared_by_everybody_and_by_its_deployments_own_name(tmp_path):
    async with limited(tmp_path, "tags: []", model='{"rpm": 3}') as gateway:
        assert (await gateway.post(body(model="small"))).status_code == 200  # its alias
        assert (await gateway.post(body(model="a/m"))).status_code == 200
        assert (await gateway.post(body())).status_code == 200
        refused = await gateway.post(body(model="a/m"))
        assert refused.status_code == 429
        assert "model 'chat' may use 3 requests" in error_of(refused)["message"]
        assert (await gateway.post(body(model=OTHER_MODEL))).status_code == 200


async def test_a_key_has_limits_of_its_own(tmp_path):
    text = config_text({"a": NOWHERE}).replace(
        "value_env: APP_KEY", "value_env: APP_KEY, limits: {rpm: 1}"
    )
    provider = FakeProvider(name="a", scripts=[answer("hello")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers={"a": provider}, text=text
    ) as gateway:
        assert (await gateway.post(body())).status_code == 200
        refused = await gateway.post(body())
        assert refused.status_code == 429
        assert "this key may use 1 requests" in error_of(refused)["message"]


async def test_tokens_are_taken_by_an_estimate_and_corrected_by_what_was_used(tmp_path):
    async with limited(tmp_path, "limits: {tpm: 10000}", answer("a", input_tokens=40)) as gateway:
        first = await gateway.post(body(max_tokens=3000, n=2))
        assert int(told(first)["remaining-tokens"]) == 10_000 - 2 * 3000 - PROMPT
        await gateway.wait_idle()
        second = await gateway.post(body())
        left = int(told(second)["remaining-tokens"])
        assert 0 <= left - (10_000 - 41 - OUTPUT_TOKENS_UNSAID - PROMPT) <= 41, "some flowed in"


async def test_a_refused_attempt_uses_no_tokens_and_one_that_broke_all_it_was_given(tmp_path):
    refused, lost = [RateLimited("out of quota")], [UpstreamFault("connection lost")]
    for number, (script, kept) in enumerate([(refused, 0), (lost, 5000 + PROMPT)]):
        folder = tmp_path / str(number)
        async with limited(folder, "limits: {tpm: 10000}", script, answer("b")) as gateway:
            gateway.hurry()
            gateway.set_limits(attempts_max=1)
            await gateway.post(body(max_tokens=5000))
            await gateway.wait_idle()
            after = await gateway.post(body(max_tokens=1))
            taken = 10_000 - int(told(after)["remaining-tokens"])
            assert kept - 900 <= taken <= kept + 1 + PROMPT


async def test_a_prompt_over_what_a_limit_ever_allows_is_refused_for_good(tmp_path):
    async with limited(tmp_path, "limits: {tpm: 100, rpm: 1}") as gateway:
        refused = await gateway.post(body(messages=[{"role": "user", "content": "word " * 1000}]))
        assert refused.status_code == 413
        assert refused.headers["x-fareway-limited-by"] == "gateway"
        assert "team 'apps' may use 100 at once" in error_of(refused)["message"]
        # An answer that is allowed to be longer waits for all there is; it took nothing so far.
        assert (await gateway.post(body(max_tokens=100_000))).status_code == 200


async def test_a_request_that_is_refused_behind_its_limits_gives_them_back(tmp_path):
    async with limited(tmp_path, "limits: {rpm: 2, tpm: 5000, concurrency: 1}") as gateway:
        relay = gateway.service.relay
        for _ in range(5):
            gateway.service.relay = None  # whatever fails between the limits and the first attempt
            assert (await gateway.post(body())).status_code == 500
        gateway.service.relay = relay
        served = await gateway.post(body())
        assert served.status_code == 200
        assert told(served)["remaining-requests"] == "1"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_place(tmp_path, stream):
    script = [*answer("first")[:1], 3600.0]
    async with limited(tmp_path, "limits: {concurrency: 2}", script) as gateway:
        content = json.dumps(body(stream=stream)).encode()
        writers = []
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request_bytes(content))
            writers.append(writer)
        with anyio.fail_after(5):
            while len(gateway.service.relays) < 2:
                await anyio.sleep(0.005)
        refused = await gateway.post(body())
        assert refused.status_code == 429
        assert "team 'apps' may have 2 at once" in error_of(refused)["message"]
        assert refused.headers["retry-after"] == "1"
        for writer in writers:
            writer.close()
        await gateway.wait_idle()
        # Both places are there again, one after the other and at once.
        async with gateway.stream(body(stream=True)), gateway.stream(body(stream=True)) as second:
            assert second.status_code == 200


async def test_what_is_refused_for_overload_counts_against_no_limit(tmp_path):
    async with limited(tmp_path, "limits: {rpm: 2, concurrency: 1}") as gateway:
        overload = gateway.service.overload
        overload.is_on, overload._left = True, 0.0
        for _ in range(5):
            assert (await gateway.post(body())).status_code == 503
        overload.is_on = False
        served = await gateway.post(body())
        assert told(served)["remaining-requests"] == "1"


async def test_refused_requests_are_counted_by_limit_and_team_and_no_key(tmp_path):
    async with limited(tmp_path, "limits: {rpm: 1}", model='{"concurrency": 5}') as gateway:
        for _ in range(4):
            await gateway.post(body())
        async with gateway.client() as client:
            found = samples((await client.get("/metrics")).text)
            ready = (await client.get("/readyz")).json()
        assert value(found, "fareway_limited_total", limit="team_rpm", team="apps") == 3
        assert value(found, "fareway_limits_divided_workers") == 0
        assert ready["limits"] == "shared"


@pytest.mark.slow
async def test_the_openai_sdk_waits_as_it_is_told_and_then_succeeds(tmp_path):
    import openai  # a third of a second that the unit part need not spend

    async with limited(tmp_path, "limits: {rpm: 60, rpm_burst: 1}") as gateway:
        client = openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=1, timeout=20
        )
        async with client:
            for _ in range(3):
                answered = await client.chat.completions.with_raw_response.create(
                    model="chat", messages=[{"role": "user", "content": "hi"}]
                )
                assert answered.headers["x-ratelimit-limit-requests"] == "60"
        assert len(await gateway.settled()) == 3


@pytest.mark.slow
async def test_the_anthropic_sdk_waits_as_it_is_told_and_then_succeeds(tmp_path):
    import anthropic  # a second that the unit part need not spend

    """Its own route is not there yet; it is made to ask ours, for the way it comes back."""
    async with limited(tmp_path, "limits: {rpm: 60, rpm_burst: 1}") as gateway:
        client = anthropic.AsyncAnthropic(
            base_url=gateway.url, api_key=KEY, max_retries=1, timeout=20
        )
        async with client:
            for _ in range(3):
                answered = await client.post(
                    "/v1/chat/completions", cast_to=dict[str, object], body=body()
                )
                assert answered["object"] == "chat.completion"
        assert len(await gateway.settled()) == 3
