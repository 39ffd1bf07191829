"""Clients that never forgive: whatever is not a whole 200 is remembered as a failure."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from typing import Any, Self

TIMEOUT_S = 60.0


class SteadyLoad:
    """Threads that ask without pause; a context manager.

    Args:
        port: The gateway's.
        key: Whose requests these are.
        model: A model that answers quickly.
        stream_model: A model whose streams take a while.
        kept: Clients that keep their connection.
        streams: Clients that keep their connection and stream.
        fresh: Clients that connect anew for each request.
        idle: Clients that keep their connection and use it every three seconds.
    """

    def __init__(
        self,
        port: int,
        key: str,
        *,
        model: str,
        stream_model: str,
        kept: int = 16,
        streams: int = 4,
        fresh: int = 1,
        idle: int = 2,
    ) -> None:
        self.failures: list[str] = []
        self.answered: Counter[str] = Counter()
        self._port = port
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._stopping = threading.Event()
        plain = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        stream = {**plain, "model": stream_model, "stream": True}
        kinds = (
            ("kept", kept, plain, 0.0),
            ("stream", streams, stream, 0.0),
            ("fresh", fresh, plain, 0.0),
            ("idle", idle, plain, 3.0),
        )
        self._threads = [
            threading.Thread(target=self._run, args=(kind, json.dumps(body).encode(), pause_s))
            for kind, count, body, pause_s in kinds
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def total(self) -> int:
        """Requests that were answered in full."""
        return sum(self.answered.values())

    def _run(self, kind: str, body: bytes, pause_s: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                problem = self._ask(connection, body)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
                connection.close()
            if problem:
                self.failures.append(f"{kind} after {time.monotonic() - began:.3f} s: {problem}")
            else:
                self.answered[kind] += 1
            if kind == "fresh":
                connection.close()
            self._stopping.wait(pause_s or 0.005)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> str:
        """What was wrong with the answer, empty when nothing was."""
        connection.request("POST", "/v1/chat/completions", body, self._headers)
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            return f"{answer.status} {data[:300]!r}"
        if b'"stream": true' in body:
            return "" if data.endswith(b"data: [DONE]\n\n") else f"cut: {data[-200:]!r}"
        found: Any = json.loads(data)
        return "" if found["choices"] else "no choices"
