"""What a scripted upstream can be told to do, and what it remembers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec


class Chat(msgspec.Struct, frozen=True, kw_only=True, tag="chat", tag_field="kind"):
    """A correct chat completion, with the accidents that the other members describe.

    Attributes:
        text: The answer; each word with its leading space is one token and one frame.
        frames: Payloads of the content frames instead of `text`, JSON texts sent as they are.
        prompt_tokens: What the prompt counts as; None counts its words.
        cached_tokens: The part of the prompt that is reported as cached.
        completion_tokens: What the whole answer counts as; None counts its frames.
        usage: The reported usage object instead of the true one (for upstreams that lie).
        sends_usage: In streams: when asked, always, or never.
        finish_reason: As reported.
        think_s: Silence before the first byte of the answer.
        frame_delay_s: Silence before every content frame but the first.
        cut_bytes: Write the answer in pieces of these sizes (the last one repeats), `gap_s` apart;
            one size for a stream cuts HTTP chunk frames as readily as events. Empty: no cuts.
        gap_s: Pause between pieces.
        stall_after: Silence for `stall_s` after that many content frames.
        stall_s: Length of the stall.
        end_after: Stop after that many content frames, in the way of `ending`.
        ending: `close` ends the connection, `reset` sends RST, `error` sends an error event.
        framing: How the stream is delimited.
        runs_on: Keep generating, and billing, when the client has gone.
        headers: Additional response headers.
    """

    text: str = "Hello there, how are you?"
    frames: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int | None = None
    usage: dict[str, Any] | None = None
    sends_usage: Literal["asked", "always", "never"] = "asked"
    finish_reason: str = "stop"
    think_s: float = 0.0
    frame_delay_s: float = 0.0
    cut_bytes: tuple[int, ...] = ()
    gap_s: float = 0.001
    stall_after: int | None = None
    stall_s: float = 3600.0
    end_after: int | None = None
    ending: Literal["close", "reset", "error"] = "close"
    framing: Literal["chunked", "close"] = "chunked"
    runs_on: bool = False
    headers: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="kind"):
    """One fixed HTTP answer; nothing is billed.

    Attributes:
        status: HTTP status.
        headers: Additional headers.
        body: Sent as JSON.
        filler_bytes: Send that many spaces before the body: still JSON, and as huge as wanted.
        delay_s: Silence before the answer.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None
    filler_bytes: int = 0
    delay_s: float = 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing on the wire: wait, then write `text` (latin-1) or `data`, then perhaps end.

    Attributes:
        delay_s: Silence before the bytes.
        text: Bytes as latin-1 text.
        data: Bytes, base64 in JSON.
        ending: Close the connection or send RST afterwards.
    """

    delay_s: float = 0.0
    text: str = ""
    data: bytes = b""
    ending: Literal["", "close", "reset"] = ""


class Wire(msgspec.Struct, frozen=True, kw_only=True, tag="wire", tag_field="kind"):
    """Raw steps from the status line on.

    Attributes:
        steps: What happens on the wire.
        billed_tokens: Bill that many output tokens as soon as the request was read; None: none.
    """

    steps: tuple[Step, ...]
    billed_tokens: int | None = None


Script = Chat | Answer | Wire
Scripts = Mapping[str, Sequence[Script]]


class BillLine(msgspec.Struct, kw_only=True):
    """What this upstream would charge for one call.

    Attributes:
        id: The upstream's id of the call, also its `x-request-id` header and the answer's `id`.
        model: The model as asked for.
        prompt_tokens: All prompt tokens, cached ones included.
        cached_tokens: Of them, read from a cache.
        completion_tokens: Generated so far; grows while a stream runs.
        is_stream: Whether the client asked for a stream.
        outcome: running, finished, client_left, or the script's own ending.
        attempt_id: The caller's own id of the call, its `x-client-request-id` header.
    """

    id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    is_stream: bool
    outcome: str = "running"
    attempt_id: str = ""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived: header names in lower case, the body as bytes (base64 in JSON)."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)
