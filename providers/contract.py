"""What the gateway and every provider agree on: a request in, batches of events out.

One provider speaks to one account or server. It knows nothing of clients, budgets or routes. The
gateway calls `Provider.stream` inside `async with`, so that the upstream connection closes at a
known line, and iterates over
batches: one batch per socket read, so that a busy stream costs one wake-up for many events.

An event can carry the raw frame that it came from. On equal wires (OpenAI client, OpenAI-compatible
upstream) the relay forwards raw frames and only usage, finish, error and tool-call frames are
decoded; a run of plain content frames is one event that holds them as they came. The local engine
has no frames and its events are encoded by the client's dialect. A frame that means several things
yields several events, and only the first of them carries `raw`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from pricing.usage import Usage
from providers.errors import NotPermitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long an attempt may wait, in seconds; the provider arms one loop timer and re-arms it.

    Attributes:
        connect_s: Until the connection stands (name, TCP, TLS).
        first_token_s: From sending the request to the first content event; non-stream answers as a
            whole.
        between_tokens_s: Between two reads once content flows.
        total_s: For the whole attempt.
    """

    connect_s: float
    first_token_s: float
    between_tokens_s: float
    total_s: float


ENGINE = "engine:"
"""What a permit calls the embedded engine, which no network leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPermit:
    """Where one request may be sent, or one errand of the operator's; whoever sends demands it.

    Only `gateway.privacy.permit` makes one, by its own reading of the policy. A provider shows it
    with the name of the deployment that it is, never with one that somebody told it.

    Attributes:
        origins: By deployment, the one place where it is: scheme, host and port, all written out
            (`https://api.example.com:443`), or `ENGINE`.
        purpose: What for, `request` or the operator's errand.
    """

    origins: Mapping[str, str]
    purpose: str = "request"

    def require(self, deployment: str, origin: str) -> None:
        """Go on where the permit has the deployment at this place.

        Raises:
            NotPermitted: It does not.
        """
        if self.origins.get(deployment) != origin:
            raise NotPermitted(
                f"{deployment} is not where this {self.purpose} may be sent.",
                code="egress_refused",
            )


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request on its way to one deployment.

    Attributes:
        fields: Top-level members of the body in the client's order, each as the client's own bytes;
            `model`, `stream`, `stream_options` and every `fareway_*` metadata key are already taken
            out.
        is_stream: Whether the client wants a stream.
        wants_usage: Whether the client asked for usage in the stream.
        namespace: 16 bytes that separate tenants in every cache that Fareway owns.
        request_id: Fareway's id of the request.
    """

    fields: Mapping[str, msgspec.Raw]
    is_stream: bool
    wants_usage: bool
    namespace: bytes
    request_id: str


class Preamble(msgspec.Struct, frozen=True, kw_only=True):
    """A frame without content (role chunk, metadata, filters); held until the first content."""

    raw: bytes | None = None


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded text of choice `index`."""

    text: str
    index: int = 0
    raw: bytes | None = None


class OpaqueDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A content frame that nobody needs to decode: text, reasoning, refusal, audio.

    A busy stream makes a hundred thousand of these a second, and a frozen dataclass takes four
    times as long to make; so all events are structs.
    """

    raw: bytes


class OpaqueRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive content frames that nobody needs to decode, framed as server-sent events.

    Attributes:
        raw: `data: `, the frame's JSON on one line and a blank line, once per frame.
        count: How many frames, at least 1.
    """

    raw: bytes
    count: int


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that carries tool-call parts, already repaired where the upstream was faulty."""

    raw: bytes


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """Choice `index` ended.

    Attributes:
        reason: OpenAI's word: stop, length, tool_calls, content_filter; an upstream's own word is
            kept.
        index: The choice.
        raw: The frame, None when an earlier event of the same frame carries it.
    """

    reason: str
    index: int = 0
    raw: bytes | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Counts as the upstream reports them; the last report of an attempt is charged.

    Attributes:
        usage: Disjoint meters.
        provider_cost_usd: The upstream's own cost as a decimal string, None when it gave none.
        is_consistent: False when the upstream's counts contradict each other.
        is_alone: True when the frame holds nothing else (the usage chunk at the end of a stream).
        raw: The frame, None when an earlier event of the same frame carries it.
        reported: The upstream's own usage object as JSON, None where it had none; reports that
            mean the same are equal however that was written.
    """

    usage: Usage
    provider_cost_usd: str | None = None
    is_consistent: bool = True
    is_alone: bool = True
    raw: bytes | None = None
    reported: bytes | None = None

    def __eq__(self, other: object) -> bool:
        """Whether both mean the same."""
        if not isinstance(other, UsageReport):
            return NotImplemented
        return (
            self.usage == other.usage
            and self.provider_cost_usd == other.provider_cost_usd
            and self.is_consistent == other.is_consistent
            and self.is_alone == other.is_alone
            and self.raw == other.raw
        )

    def __hash__(self) -> int:
        """As equality has it."""
        return hash((self.usage, self.provider_cost_usd, self.raw))


class WholeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The one event of a non-stream answer on an OpenAI-compatible wire.

    Attributes:
        raw: The answer's JSON as the upstream sent it.
        usage: Its counts, None when it gave none.
        finish_reasons: One per choice.
        has_content: Whether any choice holds text, reasoning, refusal, audio or a tool call.
    """

    raw: bytes
    usage: UsageReport | None
    finish_reasons: Sequence[str]
    has_content: bool


Event = (
    Preamble
    | TextDelta
    | OpaqueDelta
    | OpaqueRun
    | ToolCallDelta
    | Finished
    | UsageReport
    | WholeAnswer
)
Batch = Sequence[Event]

CONTENT_EVENTS = (TextDelta, OpaqueDelta, OpaqueRun, ToolCallDelta, Finished, WholeAnswer)
"""Events that commit an attempt: after one of them was sent to the client there is no fallback."""


class AttemptFacts(msgspec.Struct, kw_only=True):
    """What a provider learns about an attempt beside its events; filled while the stream runs.

    Attributes:
        attempt_id: The attempt's id in the ledger, 32 hex digits; a fact that is given. It
            goes upstream, so that an upstream's own records can be matched with the ledger's.
        traceparent: The header by which the upstream's spans hang below ours, None when nothing is
            traced; the other fact that is given.
        was_sent: Whether any byte of the request reached the upstream.
        status: The upstream's HTTP status.
        upstream_request_id: The upstream's own id.
        upstream_model: The model name in the answer.
        adapted: Changes made to the request, for `x-fareway-adapted`.
        gpu_busy_us: Busy microseconds metered by an engine of ours, None elsewhere.
        closing_usage: Usage learnt after the consumer left (an aborted engine request), None when
            unknown.
    """

    attempt_id: str = ""
    traceparent: str | None = None
    was_sent: bool = False
    status: int | None = None
    upstream_request_id: str | None = None
    upstream_model: str | None = None
    adapted: list[str] = []
    gpu_busy_us: int | None = None
    closing_usage: UsageReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a deployment can do; routing excludes it from requests that need more.

    Attributes:
        context_window_tokens: Prompt plus output, None when unknown.
        unsupported: Top-level request fields that it cannot honour, with the reason.
        is_open: True when fields that are not named in `unsupported` pass through untouched.
        supported: The fields it honours when not `is_open`.
        multimodal: Whether message parts other than text are understood.
    """

    context_window_tokens: int | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict[str, str])
    is_open: bool = True
    supported: frozenset[str] = frozenset()
    multimodal: bool = True


class OnDisconnect(StrEnum):
    """What to do with an upstream whose client has left; follows how the vendor bills."""

    CANCEL = "cancel"
    """Close at once: the vendor stops generating, and stops the bill."""
    DRAIN = "drain"
    """Read on within limits: the vendor bills to the end anyway, and says how much only there."""


class Provider(Protocol):
    """One account at a vendor, a server, or the embedded engine."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def on_disconnect(self) -> OnDisconnect:
        """What to do once the client has left."""
        ...

    @property
    def sends_usage_unasked(self) -> bool:
        """Whether the vendor reports usage to every client, so that clients of it expect it."""
        ...

    def capabilities(self, model_id: str) -> Capabilities:
        """What the deployment `name/model_id` can do; asked again whenever it came or went."""
        ...

    def stream(
        self,
        model_id: str,
        request: ChatRequest,
        *,
        permit: EgressPermit,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        """Send the request and iterate over batches; leaving the context cancels the upstream.

        The iterator outlives the cancellation of a wait for it: whoever drains an answer goes on
        iterating and misses nothing.

        Args:
            model_id: The upstream's own model name.
            request: What to send.
            permit: Where it may be sent.
            deadlines: The attempt's timeouts.
            facts: Filled in as the attempt goes.

        Raises:
            NotPermitted: The permit does not name the deployment, or not where this provider is.
            ProviderError: The attempt failed; on entry, or while iterating.
        """
        ...

    async def close(self) -> None:
        """Close pooled connections."""
        ...
