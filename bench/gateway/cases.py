"""The cases: what load each one is, and the request bodies."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

STREAM_FAST = "mock-stream-64-0ms"
STREAM_PACED = "mock-stream-32-20ms"
STREAM_SOAK = "mock-stream-8-1ms"
PLAIN = "mock"
STREAM_WARMUP_S = 1.0
MODELS: tuple[str, ...] = (PLAIN, STREAM_FAST, STREAM_PACED, STREAM_SOAK)
"""Every model name that a case asks for; the mock reads its orders from the name."""

FIRST_CHUNK_DELAY_MS: Mapping[str, float] = {STREAM_FAST: 0.0, STREAM_PACED: 20.0}

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of load.

    Attributes:
        name: What the user names it.
        about: For the documents and the table's legend.
        model: Which answers the mock gives.
        connections: The most requests in flight.
        messages: Makes the messages of the body.
        is_stream: Whether answers are streamed.
        rate_share: A constant rate in shares of the target's own maximum; None for a closed loop.
        stagger_s: Time over which the first requests are spread.
        warmup_s: Time before the measured one.
        is_quick: Whether `--quick` keeps it.
        is_for_limits: Whether the upstream alone and a plain proxy take it too.
    """

    name: str
    about: str
    connections: int
    messages: Callable[[], list[Message]]
    model: str = PLAIN
    is_stream: bool = False
    rate_share: float | None = None
    stagger_s: float = 0.0
    warmup_s: float = 0.5
    is_quick: bool = True
    is_for_limits: bool = True

    def body(self, model: str) -> bytes:
        """The request's body.

        Args:
            model: The name that the target knows the case's model by.
        """
        fields: dict[str, object] = {
            "model": model,
            "messages": self.messages(),
            "temperature": 0.2,
            "max_tokens": 64,
        }
        if self.is_stream:
            fields["stream"] = True
        return json.dumps(fields, separators=(",", ":")).encode()


def _short() -> list[Message]:
    return [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Say something calm about roads."},
    ]


def _conversation(size_bytes: int, *, turn_bytes: int) -> list[Message]:
    """A conversation of about a size in turns of words, the same on every run."""
    rng = random.Random(size_bytes)
    words = ["road", "lorem", "ipsum", "bridge", "toll", "dolor", "gateway", "über", "“quoted”"]
    messages, total = _short()[:1], 0
    while total < size_bytes:
        wanted = min(turn_bytes, size_bytes - total)
        text = " ".join(rng.choices(words, k=max(1, wanted // 7)))
        role = "assistant" if len(messages) % 2 == 0 else "user"
        messages.append({"role": role, "content": text})
        total += len(text.encode()) + 40
    if messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": "Go on."})
    return messages


def _one_kib() -> list[Message]:
    return _conversation(900, turn_bytes=900)


def _four_kib() -> list[Message]:
    return _conversation(4_000, turn_bytes=2_000)


def _two_hundred_kb() -> list[Message]:
    return _conversation(200_000, turn_bytes=1_500)


def _image() -> list[Message]:
    """One user message with an image whose base64 text is 3 MiB."""
    raw = random.Random(3).randbytes(3 * 1024 * 1024 // 4 * 3)
    url = "data:image/png;base64," + base64.b64encode(raw).decode()
    parts = [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    return [{"role": "user", "content": parts}]


CASES: tuple[Case, ...] = (
    Case(
        name="c1",
        about="one connection, one request after the other: added latency",
        connections=1,
        messages=_short,
    ),
    Case(
        name="max",
        about="64 connections, closed loop: requests per second of one core",
        connections=64,
        messages=_short,
    ),
    Case(
        name="half",
        about="half of the target's own maximum at a constant rate: latency in daily use",
        connections=128,
        messages=_short,
        rate_share=0.5,
    ),
    Case(
        name="overload",
        about="twice the target's own maximum at a constant rate: goodput, refusals, their latency",
        connections=1024,
        messages=_short,
        rate_share=2.0,
        # An overload is one that lasts. What gathers until a gateway can tell it from a burst is
        # neither what it refuses nor what it serves from then on.
        warmup_s=1.5,
        is_for_limits=False,
    ),
    Case(
        name="stream_fast_64",
        about="64 streams of 64 chunks without delay: chunks per second of one core",
        connections=64,
        messages=_short,
        model=STREAM_FAST,
        is_stream=True,
        warmup_s=STREAM_WARMUP_S,
    ),
    Case(
        name="stream_paced_64",
        about="64 streams of 32 chunks, one each 20 ms: added time to the first token, held chunks",
        connections=64,
        messages=_short,
        model=STREAM_PACED,
        is_stream=True,
        stagger_s=0.66,
        warmup_s=STREAM_WARMUP_S,
    ),
    Case(
        name="chat_4kb",
        about="64 connections, a conversation of 4 KB",
        connections=64,
        messages=_four_kib,
        is_quick=False,
    ),
    Case(
        name="chat_200kb",
        about="8 connections, a conversation of 200 KB",
        connections=8,
        messages=_two_hundred_kb,
    ),
    Case(
        name="body_3mib",
        about="one connection, an image of 3 MiB in base64: time beside a plain proxy's",
        connections=1,
        messages=_image,
    ),
)

CASE_NAMES = tuple(case.name for case in CASES)
ONE_KIB = _one_kib
FOUR_KIB = _four_kib
