"""The official OpenAI SDK against a gateway: answers, streams, errors, fallback, controls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import openai
import pytest

from tests.e2e.roads import CHEAP, DEAR, Road, deployments, running_road
from tests.support.ledger_rows import LedgerRow, billed_pico_usd
from tests.support.scripted_upstream import Answer, Chat, Step, Wire

pytestmark = pytest.mark.slow

ASK: list[Any] = [{"role": "user", "content": "one two three"}]
FAULT = {"error": {"message": "it broke", "type": "server_error"}}
QUOTA = {"error": {"message": "slow down", "type": "rate_limit_error"}}
OVERLOADED = 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
SSE = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

SCRIPTS = {
    "plain": [Chat(text="Hello there, how are you?", prompt_tokens=9, cached_tokens=4)],
    "broken": [
        Answer(
            status=500,
            body=FAULT,
            headers={"x-request-id": "P-1", "x-ratelimit-remaining-tokens": "0"},
        )
    ],
    "overloaded": [Wire(steps=(Step(text=SSE + OVERLOADED, ending="close"),))],
    "good": [Chat(text="from the second", prompt_tokens=10)],
    "cheap": [Chat(text="for anybody")],
    "trusted": [Chat(text="in confidence")],
    "recovers": [
        Answer(status=429, body=QUOTA, headers={"retry-after": "1"}),
        Chat(text="at last", prompt_tokens=3),
    ],
    "out-of-quota": [Answer(status=429, body=QUOTA, headers={"retry-after": "3"})],
    "picky": [
        Answer(
            status=400,
            body={
                "error": {
                    "message": "logit_bias: no such token",
                    "type": "invalid_request_error",
                    "param": "logit_bias",
                    "code": "invalid_value",
                }
            },
        )
    ],
}
CONFIG = {
    "providers": {
        "p": {"kind": "openai_compatible", "trust": ["no_train"]},
        "b": {"kind": "openai_compatible"},
    },
    "models": {
        "chat-small": {**deployments(("p/plain", CHEAP)), "aliases": ["small"]},
        "falls-back": deployments(("p/broken", CHEAP), ("b/good", DEAR)),
        "overloaded": deployments(("p/overloaded", CHEAP), ("b/good", DEAR)),
        "recovers": deployments(("p/recovers", CHEAP)),
        "out-of-quota": deployments(("p/out-of-quota", CHEAP)),
        "broken": deployments(("p/broken", CHEAP)),
        "picky": deployments(("p/picky", CHEAP), ("b/good", DEAR)),
        "choice": deployments(("b/cheap", CHEAP), ("p/trusted", DEAR)),
    },
    "privacy": {"tags": {"internal": {"require": ["no_train"]}}},
    "teams": {
        "red": {"projects": {"search": {}}},
        "narrow": {"models": ["chat-small"]},
    },
}


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("sdk")
    with running_road(folder, scripts=SCRIPTS, config=CONFIG) as road:
        yield road


@pytest.fixture
def client(road: Road) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{road.gateway.url}/v1", api_key=road.gateway.key("red"), max_retries=0
    ) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **fields: Any) -> tuple[Any, Any]:
    """An answer and its headers."""
    raw = client.chat.completions.with_raw_response.create(model=model, messages=ASK, **fields)
    return raw.parse(), raw.headers


def ask_stream(client: openai.OpenAI, model: str, **fields: Any) -> tuple[list[Any], Any]:
    """All chunks of a stream, and its headers."""
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK, stream=True, **fields
    )
    with raw.parse() as stream:
        return list(stream), raw.headers


def text_of(chunks: list[Any]) -> str:
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.delta
    )


def check_cost(road: Road, row: LedgerRow, price: dict[str, str], told_usd: str) -> None:
    """The upstream's bill, the ledger and the client agree."""
    billed = billed_pico_usd(road.bill_line(row), price)
    assert row.cost_pico_usd == billed
    assert Decimal(told_usd) * 10**12 == billed


def test_a_chat_answer_carries_text_usage_cost_and_headers(
    road: Road, client: openai.OpenAI
) -> None:
    answer, headers = ask(client, "chat-small")
    assert answer.choices[0].message.content == "Hello there, how are you?"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 5, 14)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert headers["x-fareway-deployment"] == "p/plain"
    assert headers["x-fareway-attempts"] == "1"
    assert headers["x-request-id"] == headers["x-fareway-request-id"]
    assert float(headers["x-fareway-overhead-ms"]) > 0
    assert headers["x-fareway-cost-usd"] == usage.cost_usd
    [row] = road.rows(headers["x-fareway-request-id"], 1)
    check_cost(road, row, CHEAP, usage.cost_usd)
    assert (row.team, row.model, row.status, row.quality) == ("red", "chat-small", "ok", "exact")
    assert row.finish_reason == "stop"


def test_a_stream_ends_with_usage_cost_and_its_way_when_usage_was_asked_for(
    road: Road, client: openai.OpenAI
) -> None:
    chunks, headers = ask_stream(client, "small", stream_options={"include_usage": True})
    assert text_of(chunks) == "Hello there, how are you?"
    last = chunks[-1]
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (9, 5)
    assert last.fareway["deployment"] == "p/plain"
    assert last.fareway["attempts"] == 1
    assert last.fareway["request_id"] == headers["x-fareway-request-id"]
    [row] = road.rows(headers["x-fareway-request-id"], 1)
    assert row.is_stream
    assert row.ttft_us is not None
    check_cost(road, row, CHEAP, last.usage.cost_usd)


def test_a_stream_shows_no_usage_to_a_client_that_did_not_ask(
    road: Road, client: openai.OpenAI
) -> None:
    chunks, headers = ask_stream(client, "chat-small")
    assert text_of(chunks) == "Hello there, how are you?"
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    [row] = road.rows(headers["x-fareway-request-id"], 1)
    assert row.quality == "exact"


@pytest.mark.anyio
async def test_the_async_client_chats_and_streams(road: Road) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{road.gateway.url}/v1", api_key=road.gateway.key("red"), max_retries=0
    ) as client:
        answer = await client.chat.completions.create(model="chat-small", messages=ASK)
        stream = await client.chat.completions.create(model="chat-small", messages=ASK, stream=True)
        chunks = [chunk async for chunk in stream]
    assert answer.choices[0].message.content == text_of(chunks) == "Hello there, how are you?"


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert {"chat-small", "small", "p/plain", "b/good"} <= names
    assert client.models.retrieve("chat-small").id == "chat-small"


def test_a_wrong_key_is_an_authentication_error(road: Road) -> None:
    with (
        openai.OpenAI(
            base_url=f"{road.gateway.url}/v1", api_key="fw_test_wrong", max_retries=0
        ) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        ask(client, "chat-small")
    assert caught.value.code == "invalid_api_key"
    assert caught.value.type == "authentication_error"


def test_an_unknown_model_is_not_found_and_near_names_are_shown(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "chat-smal")
    assert caught.value.code == "model_not_found"
    assert "chat-small" in caught.value.message


def test_a_model_of_others_is_a_permission_error(road: Road) -> None:
    with (
        openai.OpenAI(
            base_url=f"{road.gateway.url}/v1", api_key=road.gateway.key("narrow"), max_retries=0
        ) as client,
        pytest.raises(openai.PermissionDeniedError) as caught,
    ):
        ask(client, "broken")
    assert caught.value.code == "model_not_allowed"


BAD_FIELDS = {
    "a temperature out of range": ({"temperature": 3}, "temperature"),
    "a limit that is no number": ({"max_tokens": "many"}, "max_tokens"),
    "an unknown control": ({"metadata": {"fareway_tag": "internal"}}, "metadata.fareway_tag"),
    "a tag that does not exist": ({"metadata": {"fareway_tags": "secret"}}, "x-fareway-tags"),
}


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_request_names_its_parameter(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "chat-small", **fields)
    assert caught.value.param == param


def test_what_the_upstream_refuses_is_shown_and_goes_nowhere_else(
    road: Road, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "picky", logit_bias={"1": 5})
    assert (caught.value.param, caught.value.code) == ("logit_bias", "invalid_value")
    [row] = road.rows(caught.value.response.headers["x-fareway-request-id"], 1)
    assert (row.status, row.cost_pico_usd, row.quality) == ("rejected", 0, "exact")


def test_a_quota_that_stays_is_a_rate_limit_error_with_the_wait(
    road: Road, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        ask(client, "out-of-quota")
    headers = caught.value.response.headers
    assert caught.value.code == "upstream_rate_limited"
    assert headers["x-fareway-limited-by"] == "provider"
    assert int(headers["retry-after"]) == 3
    rows = road.rows(headers["x-fareway-request-id"], int(headers["x-fareway-attempts"]))
    assert {(row.status, row.cost_pico_usd) for row in rows} == {("rejected", 0)}


def test_a_fault_of_every_attempt_is_an_internal_server_error_that_sdks_do_not_repeat(
    road: Road,
) -> None:
    with (
        openai.OpenAI(
            base_url=f"{road.gateway.url}/v1", api_key=road.gateway.key("red"), max_retries=2
        ) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        ask(client, "broken", max_tokens=20)
    headers = caught.value.response.headers
    assert caught.value.status_code == 502
    assert caught.value.code == "upstream_error"
    assert "p/broken" in caught.value.message
    assert headers["x-should-retry"] == "false"
    assert headers["x-fareway-attempts"] == "3"
    rows = road.rows(headers["x-fareway-request-id"], 3)
    # A 5xx after the body was sent may have been billed: nothing is booked, the exposure is kept.
    assert {row.status for row in rows} == {"unknown_billing"}
    assert all(row.cost_pico_usd == 0 and row.exposure_pico_usd for row in rows)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", ["falls-back", "overloaded"])
def test_a_failure_before_content_goes_to_the_next_deployment(
    road: Road, client: openai.OpenAI, model: str, is_stream: bool
) -> None:
    """GW-037, GW-043, GW-045."""
    if is_stream:
        chunks, headers = ask_stream(client, model, stream_options={"include_usage": True})
        text, cost_usd = text_of(chunks), chunks[-1].usage.cost_usd
        assert chunks[-1].fareway["attempts"] == 2
    else:
        answer, headers = ask(client, model)
        text, cost_usd = answer.choices[0].message.content, answer.usage.cost_usd
    assert text == "from the second"
    assert headers["x-fareway-deployment"] == "b/good"
    assert headers["x-fareway-attempts"] == "2"
    assert headers["x-request-id"] != "P-1"
    assert not [name for name in headers if name.startswith("x-ratelimit")]
    first, second = road.rows(headers["x-fareway-request-id"], 2)
    assert first.deployment.startswith("p/")
    assert first.status in {"unknown_billing", "rejected"}
    assert first.cost_pico_usd == 0
    if model == "falls-back":
        assert first.upstream_request_id == "P-1"
    assert (second.deployment, second.status) == ("b/good", "ok")
    check_cost(road, second, DEAR, cost_usd)


def test_a_quota_that_passes_is_waited_for(road: Road, client: openai.OpenAI) -> None:
    answer, headers = ask(client, "recovers")
    assert answer.choices[0].message.content == "at last"
    assert headers["x-fareway-attempts"] == "2"
    first, second = road.rows(headers["x-fareway-request-id"], 2)
    assert (first.status, first.cost_pico_usd) == ("rejected", 0)
    assert second.status == "ok"


def test_tags_narrow_and_are_named_in_the_answer(road: Road, client: openai.OpenAI) -> None:
    _, free = ask(client, "choice")
    _, tagged = ask(client, "choice", extra_headers={"x-fareway-tags": "internal"})
    assert (free["x-fareway-deployment"], free["x-fareway-tags"]) == ("b/cheap", "")
    assert (tagged["x-fareway-deployment"], tagged["x-fareway-tags"]) == ("p/trusted", "internal")
    [row] = road.rows(tagged["x-fareway-request-id"], 1)
    assert row.tags == ["internal"]


def test_metadata_controls_are_obeyed_booked_and_taken_out(
    road: Road, client: openai.OpenAI
) -> None:
    metadata = {
        "fareway_tags": "internal",
        "fareway_cost_tags": "feature=search,env=prod",
        "fareway_project": "search",
        "trace": "t-1",
    }
    answer, headers = ask(client, "choice", metadata=metadata)
    assert answer.choices[0].message.content == "in confidence"
    [row] = road.rows(headers["x-fareway-request-id"], 1)
    assert (row.project, row.tags) == ("search", ["internal"])
    assert dict(row.cost_tags) == {"feature": "search", "env": "prod"}
    assert road.received(row).json()["metadata"] == {"trace": "t-1"}
    assert b"fareway" not in road.received(row).body
    assert not [name for name in road.received(row).headers if name.startswith("x-fareway")]


def test_a_ceiling_below_every_price_is_refused_and_sends_nothing(
    road: Road, client: openai.OpenAI
) -> None:
    before = len(road.upstream.requests())
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "chat-small", extra_headers={"x-fareway-max-usd": "0.000000000001"})
    assert caught.value.code == "max_usd_exceeded"
    assert len(road.upstream.requests()) == before


def test_an_error_too_carries_the_headers_of_the_contract(
    road: Road, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "nothing-of-that-name")
    headers = caught.value.response.headers
    names = ("request-id", "deployment", "attempts", "tags", "overhead-ms")
    assert [name for name in names if f"x-fareway-{name}" not in headers] == []
    assert headers["x-fareway-attempts"] == "0"
    assert json.loads(caught.value.response.text)["error"]["type"] == "invalid_request_error"
