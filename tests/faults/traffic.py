"""Clients that ask a gateway again and again while it is killed, and remember what they got."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

RETRY_S = 0.05
CLIENT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client saw of one request that was answered at least with a head.

    Attributes:
        request_id: Fareway's id.
        status: HTTP status.
        is_complete: Whether the answer arrived to its end; a stream's end is `[DONE]`.
        cost_usd: As the answer said, None when it did not get that far.
        body: What arrived.
        headers: Response headers, names in lower case.
    """

    request_id: str
    status: int
    is_complete: bool
    cost_usd: str | None
    body: bytes
    headers: dict[str, str]


class Traffic:
    """Threads that ask in turn for streams and whole answers; a context manager.

    Args:
        port: The gateway's.
        keys: Tenants' keys, one per thread in turn.
        models: Models to ask for, drawn at random.
        seed: Of everything random here.
        clients: Threads.
    """

    def __init__(
        self, port: int, *, keys: Sequence[str], models: Sequence[str], seed: int, clients: int = 6
    ) -> None:
        self.answers: list[Answer] = []
        self.broken = 0
        self._port = port
        self._models = models
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(keys[index % len(keys)], random.Random(f"{seed}:{index}"))
            )
            for index in range(clients)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, key: str, rng: random.Random) -> None:
        while not self._stopping.is_set():
            body = {
                "model": rng.choice(self._models),
                "messages": [{"role": "user", "content": "word " * rng.randint(1, 30)}],
                "max_tokens": 64,
            }
            if rng.random() < 0.6:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            try:
                self.answers.append(ask(self._port, key, body))
            except (OSError, http.client.HTTPException):
                # No head came: the gateway was dead, or died before it had anything to say.
                self.broken += 1
                self._stopping.wait(RETRY_S)


def ask(port: int, key: str, body: dict[str, Any]) -> Answer:
    """Send one chat request and read what comes, as far as it comes.

    Raises:
        OSError: There was no answer.
        http.client.HTTPException: The same.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {key}", "content-type": "application/json"},
        )
        answer = connection.getresponse()
        data, is_whole = _read(answer)
    is_stream = body.get("stream", False) and answer.status == 200
    return Answer(
        request_id=answer.headers["x-fareway-request-id"],
        status=answer.status,
        is_complete=data.endswith(b"data: [DONE]\n\n") if is_stream else is_whole,
        cost_usd=_cost(data, is_stream) if is_whole and answer.status == 200 else None,
        body=data,
        headers={name.lower(): value for name, value in answer.headers.items()},
    )


def _read(answer: http.client.HTTPResponse) -> tuple[bytes, bool]:
    data = b""
    try:
        while piece := answer.read1(65536):
            data += piece
    except (OSError, http.client.HTTPException):
        return data, False
    return data, answer.length in (None, 0)


def _cost(data: bytes, is_stream: bool) -> str | None:
    if not is_stream:
        return json.loads(data)["usage"].get("cost_usd")
    costs = [
        (json.loads(event.removeprefix(b"data: ")).get("usage") or {}).get("cost_usd")
        for event in data.split(b"\n\n")
        if event.startswith(b"data: {")
    ]
    return next((cost for cost in reversed(costs) if cost), None)
