"""Messages between a gateway worker, the supervisor and an engine process, and their framing.

A frame is a 32-bit big-endian length and one msgpack map with a `type`. Unknown fields are
ignored, so that a newer end may say more; unknown types and wrong value types are errors and close
the link. The first message on a link is `Hello`, the answer `Welcome`; both carry the protocol
version. Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from typing import Generic, Literal, TypeVar

import msgspec

from local_engine.errors import ProtocolError

PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024

FinishReason = Literal["stop", "length", "abort"]
EngineState = Literal["starting", "ready", "draining"]

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_Message = TypeVar("_Message")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is told at its start.

    Attributes:
        model_id: Name under which the model is offered.
        path: Model file on this machine.
        namespace_key: Secret behind prefix digests, 16 to 64 bytes; a new one empties the cache.
        device: `auto`, `cpu` or `cuda`.
        dtype: Data type of weights and KV in the runner, `auto` leaves the choice to it.
        max_model_len: Upper bound of prompt and output together, None takes the model's own.
        max_num_seqs: Sequences that compute at a time.
        max_step_tokens: Tokens of one step.
        kv_memory_bytes: Memory of the KV pool.
        block_size: Token slots of a KV block.
        queued_requests_max: Requests that may wait.
        queued_tokens_max: Prompt tokens that may wait.
        itl_target_s: Prompt chunks beside streams are cut so that a step stays under this.
        is_caching: Whether prefixes are shared within a namespace.
        log_format: `json` or `text`, for the process's log lines.
    """

    model_id: str
    path: str
    namespace_key: bytes
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 8
    max_step_tokens: int = 512
    kv_memory_bytes: int = 512 * 1024 * 1024
    block_size: int = 32
    queued_requests_max: int = 256
    queued_tokens_max: int = 1_000_000
    itl_target_s: float = 0.2
    is_caching: bool = True
    log_format: str = "json"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine offers.

    Attributes:
        context_window: Prompt and output together never exceed this: the least of the model's own,
            the configured bound and the KV pool.
        file_digest: SHA-256 of the model file in hexadecimal.
        n_blocks: KV blocks that can be handed out.
        running_max: Sequences that compute at a time.
        has_chat_template: Whether messages are accepted besides plain prompts.
    """

    model_id: str
    file_digest: str
    context_window: int
    vocab_size: int
    device: str
    dtype: str
    block_size: int
    n_blocks: int
    running_max: int
    has_chat_template: bool


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; counts are totals since the start.

    Attributes:
        step_age_s: Age of the step in progress, 0 between steps; a large one means that the engine
            hangs.
        busy_s: Seconds inside steps; with `idle_s` it adds up to `wall_s`.
        computed_tokens: Tokens whose keys and values were computed, after preemptions again.
        cached_tokens: Prompt tokens taken from the prefix cache.
    """

    state: EngineState
    step_age_s: float = 0.0
    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    free_blocks: int = 0
    usable_blocks: int = 0
    published_blocks: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    wall_s: float = 0.0
    steps: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation; exactly one of `messages` and `prompt` is set.

    Attributes:
        id: Chosen by the caller, unique among its requests in flight on a link.
        namespace: The tenant; prefixes are shared within it and fairness is between such.
        messages: Chat messages as JSON objects: `role`, `content` as text or a list of text parts.
        prompt: Plain text, in which special tokens are recognised; nothing is added to it.
        max_tokens: None generates up to the context window; 0 computes the prompt alone.
        stop: Output ends before the first of these that is completed.
        stop_token_ids: End the output besides the model's own end tokens.
        min_tokens: Nothing but the limits ends the output earlier.
        ignore_eos: The model's own end tokens do not end the output.
        seed: None takes a random one.
        priority: Greater goes first.
    """

    id: str
    namespace: bytes
    messages: list[dict[str, object]] | None = None
    prompt: str | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: int = 0


class GenerationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact token counts, also of an aborted request.

    Attributes:
        prompt_tokens: All tokens of the prompt, cached ones included.
        cached_tokens: Those taken from the prefix cache.
        output_tokens: Sampled tokens, the end token included.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First message of a client on its link."""

    version: int


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Start a generation."""

    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End a generation before the next step; an unknown id has ended already and is ignored."""

    id: str


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Answer to `Hello` once the model is loaded."""

    version: int
    card: ModelCard


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The generation has started to compute."""

    id: str
    prompt_tokens: int
    cached_tokens: int


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """More text.

    Attributes:
        output_tokens: Tokens sampled up to here, counted from the start.
    """

    id: str
    text: str
    output_tokens: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The generation has ended; nothing follows.

    Attributes:
        finish_reason: `abort` when the caller, the engine's own fault or its shutdown ended it.
        busy_s: Seconds of the machine that this request used.
        queue_s: Arrival to the first step with it, or to the end when it never had one.
        prefill_s: That step to the first sampled token, None when none was sampled.
        ttft_s: Arrival to the first sampled token, None when none was sampled.
        e2e_s: Arrival to the end.
        preemptions: How often its blocks were taken away.
        error: What went wrong in the engine, None unless something did.
    """

    id: str
    finish_reason: FinishReason
    usage: GenerationUsage
    busy_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float = 0.0
    preemptions: int = 0
    error: str | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The generation did not start.

    Attributes:
        code: `engine_busy`, or what the caller did wrong.
        retry_after_s: Set with `engine_busy`.
    """

    id: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """First message of the supervisor."""

    config: EngineConfig


class AddLink(msgspec.Struct, frozen=True, kw_only=True, tag="add_link"):
    """Serve the socket whose descriptor travels with this frame."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """Ask for `Pong`."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Refuse new requests, finish those in flight, abort what is left at the deadline, exit."""

    deadline_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded."""

    card: ModelCard


class Fatal(msgspec.Struct, frozen=True, kw_only=True, tag="fatal"):
    """The process ends because of this.

    Attributes:
        is_permanent: The same configuration will fail again, so a restart is pointless.
    """

    message: str
    is_permanent: bool = False


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """Answer to `Ping`."""

    stats: EngineStats


ClientMessage = Hello | Submit | Abort
EngineEvent = Accepted | TextDelta | Done
EngineMessage = Welcome | Accepted | TextDelta | Done | Refused
SupervisorMessage = Configure | AddLink | Ping | Drain
ControlMessage = Ready | Fatal | Pong


def encode_frame(message: msgspec.Struct) -> bytes:
    """One message as a frame.

    Raises:
        ProtocolError: the message is larger than a frame may be, or cannot be put into one.
    """
    try:
        payload = _encoder.encode(message)
    except (OverflowError, RecursionError) as fault:
        # A number beyond 64 bits, or nesting without end.
        raise ProtocolError(f"a message cannot be sent: {type(fault).__name__}") from None
    if len(payload) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a message of {len(payload)} bytes exceeds {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(payload)) + payload


class MessageReader(Generic[_Message]):
    """Cuts a byte stream into messages, however the bytes arrive.

    Args:
        union: Type of the messages that this end accepts.
    """

    def __init__(self, union: type[_Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)
        self._buffer = bytearray()

    @property
    def missing_bytes(self) -> int:
        """Bytes that the next message surely needs; reading no more leaves what follows it."""
        have = len(self._buffer)
        if have < _LENGTH.size:
            return _LENGTH.size - have
        return _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0]) - have

    def feed(self, data: bytes) -> list[_Message]:
        """Messages that these bytes complete.

        Raises:
            ProtocolError: a frame is too long, or is no message that this end accepts.
        """
        self._buffer += data
        messages: list[_Message] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes exceeds {FRAME_BYTES_MAX}")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(self._decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return messages

    def _decode(self, payload: bytes) -> _Message:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            # The fault may quote what was sent, which is content; it is neither shown nor logged.
            raise ProtocolError(f"a frame holds no known message: {type(fault).__name__}") from None
