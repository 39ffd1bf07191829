"""The OpenAPI document and the routes tell of each other, and answers are what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from gateway.http.asgi import MODELS_PREFIX
from gateway.http.openapi_models import (
    ChatAnswer,
    ChatChunk,
    ChatRequestBody,
    ErrorAnswer,
    HealthBody,
    ModelEntry,
    ModelListBody,
    ReadinessBody,
)
from tests.gateway.pages_harness import PAYMENTS_KEY, running_pages
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio

WIRE = Path(__file__).resolve().parents[1] / "wire" / "openai_compatible"
KEY = {"authorization": f"Bearer {PAYMENTS_KEY}"}
ASK = {"model": "small", "messages": [{"role": "user", "content": "Good morning to you"}]}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module."""
    return "asyncio"


@pytest.fixture(scope="module")
async def upstream():
    """Answers, refuses, breaks off."""
    scripts = {"m": [Chat(text="And to you as well", cached_tokens=2)]}
    async with ScriptedUpstream(scripts) as running:
        yield running


@pytest.fixture(scope="module")
async def pages(tmp_path_factory, upstream):
    """A gateway in front of it."""
    folder = tmp_path_factory.mktemp("pages")
    async with running_pages(folder, upstream=upstream.base_url) as running:
        yield running


@pytest.fixture(scope="module")
async def document(pages):
    """The document as a client gets it, without a key."""
    async with pages.browser() as client:
        answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def test_every_hot_route_is_in_the_document_and_no_other(pages, document) -> None:
    routes = {
        (path, method.lower())
        for path, handlers in pages.app._routes.items()
        for method in handlers
    } | {(MODELS_PREFIX + "{id}", "get")}
    told = {
        (path, method)
        for path, operations in document["paths"].items()
        if not path.startswith("/admin/")
        for method in operations
    }
    assert told == routes


async def test_every_administration_route_is_in_the_document_and_no_other(pages, document) -> None:
    routes = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in pages.app._pages._app.state.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    told = {
        (path, method)
        for path, operations in document["paths"].items()
        if path.startswith("/admin/")
        for method in operations
    }
    assert told == routes
    assert len(told) >= 13


async def test_every_reference_leads_to_a_schema(document) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references - set(document["components"]["schemas"]) == set()
    assert {"ChatRequestBody", "ChatChunk", "ErrorAnswer", "NewKeyBody"} <= references


async def test_every_refusal_has_the_one_shape_and_doors_without_a_key_say_so(document) -> None:
    shape = {"$ref": "#/components/schemas/ErrorAnswer"}
    open_doors = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            refusal = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert refusal == shape, path
            if operation.get("security") == []:
                open_doors.add(path)
    assert open_doors == {"/healthz", "/readyz", "/metrics"}
    ids = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))


async def test_answers_of_the_running_gateway_are_what_the_document_says(pages) -> None:
    async with pages.browser(headers=KEY) as client:
        whole = await client.post("/v1/chat/completions", json=ASK)
        answer = ChatAnswer.model_validate_json(whole.content, strict=True)
        assert answer.choices[0].message.content == "And to you as well"
        assert answer.usage is not None
        assert answer.usage.cost_usd is not None
        models = ModelListBody.model_validate_json((await client.get("/v1/models")).content)
        assert {entry.id for entry in models.data} == {"chat-small", "small", "up/m"}
        one = ModelEntry.model_validate_json((await client.get("/v1/models/up/m")).content)
        assert one.owned_by == "up"
        HealthBody.model_validate_json((await client.get("/healthz")).content)
        assert (
            ReadinessBody.model_validate_json((await client.get("/readyz")).content).status
            == "ready"
        )
        for refused in (
            await client.get("/v1/models/none"),
            await client.get("/nothing"),
            await client.post("/v1/chat/completions", json={"model": "small"}),
            await client.post("/v1/chat/completions", json=ASK, headers={"x-api-key": "other"}),
        ):
            assert refused.status_code >= 400
            ErrorAnswer.model_validate_json(refused.content, strict=True)


async def test_chunks_of_a_stream_are_what_the_document_says(pages) -> None:
    body = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    async with pages.browser(headers=KEY) as client:
        text = (await client.post("/v1/chat/completions", json=body)).text
    payloads = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert payloads.pop() == "[DONE]"
    chunks = [ChatChunk.model_validate_json(payload, strict=True) for payload in payloads]
    spoken = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(spoken) == "And to you as well"
    assert chunks[-1].usage is not None
    assert chunks[-1].fareway is not None
    assert chunks[-1].fareway.deployment == "up/m"


async def test_a_failing_upstream_is_told_in_the_shape_of_the_document(pages, upstream) -> None:
    kept = upstream.scripts
    upstream.scripts = {"m": [Answer(status=400, body={"error": {"message": "no"}})]}
    try:
        async with pages.browser(headers=KEY) as client:
            refused = await client.post("/v1/chat/completions", json=ASK)
    finally:
        upstream.scripts = kept
    assert refused.status_code == 400
    ErrorAnswer.model_validate_json(refused.content, strict=True)


def recorded_chunks() -> list[tuple[str, str]]:
    """Chunks of recorded vendor streams that carry choices; errors and marks are other things."""
    found = []
    for path in sorted(WIRE.glob("*.sse")):
        for line in path.read_bytes().decode("utf-8", "replace").splitlines():
            payload = line.removeprefix("data:").strip()
            if payload.startswith("{") and '"chat.completion.chunk"' in payload:
                try:
                    json.loads(payload)
                except ValueError:
                    continue  # recorded garbage, kept to test the codec
                found.append((path.stem, payload))
    return found


def test_recorded_chunks_of_vendors_fit_the_model() -> None:
    chunks = recorded_chunks()
    assert len(chunks) > 20
    misfits = []
    for name, payload in chunks:
        try:
            ChatChunk.model_validate_json(payload)
        except ValidationError as error:
            misfits.append((name, str(error)))
    assert misfits == []


BODIES = {
    "a plain request": (ASK, True),
    "a vendor's own parameter": (ASK | {"top_k": 40}, True),
    "parts": (
        ASK | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        True,
    ),
    "an assistant turn without content": (
        ASK | {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        True,
    ),
    "no messages": ({"model": "small"}, False),
    "an empty list of messages": (ASK | {"messages": []}, False),
    "an unknown role": (ASK | {"messages": [{"role": "wizard", "content": "a"}]}, False),
    "a temperature out of range": (ASK | {"temperature": 2.5}, False),
    "a negative bound": (ASK | {"max_tokens": -1}, False),
    "a stream that is a word": (ASK | {"stream": "perhaps"}, False),
    "no answers asked for": (ASK | {"n": 0}, False),
}


@pytest.mark.parametrize(("body", "fits"), BODIES.values(), ids=BODIES.keys())
async def test_the_model_of_a_request_and_the_gateway_agree(pages, body, fits) -> None:
    try:
        ChatRequestBody.model_validate_json(json.dumps(body), strict=True)
        said = True
    except ValidationError:
        said = False
    assert said is fits
    async with pages.browser(headers=KEY) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    refused_as_malformed = (
        answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_request_error"
    )
    assert refused_as_malformed is not fits
