"""The one OpenAPI document: FastAPI's routes and the hot routes, which FastAPI never sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

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

_SCHEMA = "#/components/schemas/{model}"
_JSON = "application/json"
_EVENTS = "text/event-stream"
_KEY_SCHEMES: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_CONTROLS: Mapping[str, str] = {
    "x-fareway-tags": "Privacy tags to add, separated by commas.",
    "x-fareway-cost-tags": "Cost tags, `name=value`, separated by commas.",
    "x-fareway-sla": "Latency targets, for example `ttft_ms=500,tps=50`.",
    "x-fareway-strategy": "How to choose among the allowed deployments.",
    "x-fareway-max-usd": "The most that this request may cost.",
    "x-fareway-project": "The project to book on.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HotOperation:
    """A hot route as the document tells it.

    Attributes:
        method: In lower case.
        path: With `{...}` for parameters.
        summary: One line.
        answers: Model per content type of the 200 answer, None for plain text.
        body: Model of the request body.
        parameters: Names of path parameters.
        controls: Header controls that it takes.
        needs_key: Whether it asks for a key.
        statuses: Those that carry an answer, not a refusal.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[str, type[BaseModel] | None]
    body: type[BaseModel] | None = None
    parameters: Sequence[str] = ()
    controls: Mapping[str, str] = field(default_factory=dict[str, str])
    needs_key: bool = True
    statuses: Sequence[str] = ("200",)


HOT_OPERATIONS: Sequence[HotOperation] = (
    HotOperation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a conversation, whole or as a stream",
        answers={_JSON: ChatAnswer, _EVENTS: ChatChunk},
        body=ChatRequestBody,
        controls=_CONTROLS,
    ),
    HotOperation(
        method="get",
        path="/v1/models",
        summary="List what the key may ask for",
        answers={_JSON: ModelListBody},
    ),
    HotOperation(
        method="get",
        path="/v1/models/{id}",
        summary="Tell about one model, alias or deployment",
        answers={_JSON: ModelEntry},
        parameters=("id",),
    ),
    HotOperation(
        method="get",
        path="/healthz",
        summary="Whether the process is alive",
        answers={_JSON: HealthBody},
        needs_key=False,
    ),
    HotOperation(
        method="get",
        path="/readyz",
        summary="Whether requests are taken",
        answers={_JSON: ReadinessBody},
        statuses=("200", "503"),
        needs_key=False,
    ),
    HotOperation(
        method="get",
        path="/metrics",
        summary="Metrics for Prometheus",
        answers={"text/plain": None},
        needs_key=False,
    ),
)


class Document:
    """`/openapi.json`; made when it is first asked for, off the event loop, and kept.

    Args:
        app: Whose routes it tells beside the hot ones.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._made: bytes | None = None

    def router(self) -> APIRouter:
        """The route as FastAPI wants it."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/openapi.json", self.answer, methods=["GET"], response_model=None)
        return router

    async def answer(self) -> Response:
        """Tell every route, its parameters and its answers."""
        if self._made is None:
            self._made = await anyio.to_thread.run_sync(self._make)
        return Response(self._made, media_type=_JSON)

    def _make(self) -> bytes:
        return json.dumps(document(self._app), ensure_ascii=False).encode()


def document(app: FastAPI) -> dict[str, Any]:
    """The document of everything that this process answers, pages for people apart."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    paths = cast("dict[str, dict[str, object]]", made.setdefault("paths", {}))
    for operation in HOT_OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    components = cast("dict[str, dict[str, object]]", made.setdefault("components", {}))
    components.setdefault("schemas", {}).update(_schemas())
    components["securitySchemes"] = {name: dict(value) for name, value in _KEY_SCHEMES.items()}
    made["security"] = [{name: []} for name in _KEY_SCHEMES]
    return made


def _schemas() -> dict[str, object]:
    models = [
        model
        for operation in HOT_OPERATIONS
        for model in (*operation.answers.values(), operation.body)
        if model is not None
    ]
    _, definitions = models_json_schema(
        [(model, "serialization") for model in (*models, ErrorAnswer)], ref_template=_SCHEMA
    )
    return cast("dict[str, object]", definitions["$defs"])


def _operation(operation: HotOperation) -> dict[str, object]:
    answer = {
        "description": "The answer",
        "content": {
            content_type: {"schema": _reference(model)}
            for content_type, model in operation.answers.items()
        },
    }
    told: dict[str, object] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{operation.path.strip('/')}".translate(_ID),
        "tags": ["inference" if operation.needs_key else "operations"],
        "parameters": [
            *(_parameter(name, "path", "") for name in operation.parameters),
            *(_parameter(name, "header", text) for name, text in operation.controls.items()),
        ],
        "responses": {
            **dict.fromkeys(operation.statuses, answer),
            "default": {
                "description": "A refusal",
                "content": {_JSON: {"schema": _reference(ErrorAnswer)}},
            },
        },
    }
    if operation.body is not None:
        told["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _reference(operation.body)}},
        }
    if not operation.needs_key:
        told["security"] = []
    return told


_ID = str.maketrans(dict.fromkeys("/.{}", "_"))


def _parameter(name: str, place: str, text: str) -> dict[str, object]:
    told: dict[str, object] = {
        "name": name,
        "in": place,
        "required": place == "path",
        "schema": {"type": "string"},
    }
    return {**told, "description": text} if text else told


def _reference(model: type[BaseModel] | None) -> dict[str, object]:
    if model is None:
        return {"type": "string"}
    return {"$ref": _SCHEMA.format(model=model.__name__)}
