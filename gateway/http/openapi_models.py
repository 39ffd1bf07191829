"""The `/v1` wire as Pydantic models, for the OpenAPI document and for checks of answers against it.

The hot path itself never builds them: it decodes with msgspec (`gateway.dialects`). Requests and
answers may carry members that are not listed here, because vendors' own members pass through.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class _Open(BaseModel):
    """Vendors' own members are allowed and kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class _Closed(BaseModel):
    """Every member is ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ContentPart(_Open):
    """One part of a message: text, an image, audio or a file."""

    type: str


class ChatMessage(_Open):
    """One message of the conversation."""

    role: Role
    content: str | list[ContentPart] | None = None


class StreamOptions(_Open):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None


class ChatRequestBody(_Open):
    """A chat completion to be made.

    A member that no deployment of the model can honour is refused, never dropped.
    """

    model: str = Field(
        min_length=1,
        max_length=512,
        description="A model, an alias, or a deployment `provider/model-id`.",
    )
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    n: int | None = Field(default=None, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    logit_bias: dict[str, float] | None = None
    tools: list[dict[str, object]] | None = None
    metadata: dict[str, object] | None = Field(
        default=None, description="Keys `fareway_*` are for the gateway and are not sent on."
    )
    user: str | None = None


class PromptTokensDetails(_Open):
    """Parts of the prompt tokens."""

    cached_tokens: int | None = None


class UsageBody(_Open):
    """What an answer used and cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    cost_usd: str | None = Field(
        default=None,
        pattern=r"^\d+(\.\d+)?$",
        description="Exact, as a decimal string; absent when the price is unknown.",
    )


class AnswerMessage(_Open):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None = None
    refusal: str | None = None


class AnswerChoice(_Open):
    """One of the answers that were asked for."""

    index: int
    message: AnswerMessage
    finish_reason: str | None
    logprobs: dict[str, object] | None = None


class ChatAnswer(_Open):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str = Field(description="The upstream's own name of the model.")
    choices: list[AnswerChoice]
    usage: UsageBody | None = None


class ChunkDelta(_Open):
    """What a chunk adds to a choice."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(_Open):
    """A choice that grows with this chunk."""

    index: int
    delta: ChunkDelta
    finish_reason: str | None = None
    logprobs: dict[str, object] | None = None


class FinalFactsBody(_Closed):
    """What response headers could not name yet."""

    deployment: str
    attempts: int = Field(ge=1)
    request_id: str


class ChatChunk(_Open):
    """One event of a stream; `data: [DONE]` ends it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice] = Field(
        default=[], description="Empty, and with some vendors absent, beside the usage."
    )
    usage: UsageBody | None = None
    fareway: FinalFactsBody | None = Field(default=None, description="In the last usage chunk.")


class ErrorBody(_Closed):
    """What went wrong; switch on `code`, never on `message`."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(_Closed):
    """Every refusal, also as the last event of a broken stream."""

    error: ErrorBody


class ModelEntry(_Closed):
    """A model, alias or deployment that the key may ask for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelListBody(_Closed):
    """Everything that the key may ask for."""

    object: Literal["list"]
    data: list[ModelEntry]


class HealthBody(_Closed):
    """The process is alive."""

    status: Literal["ok"]


class ReadinessBody(_Closed):
    """Whether requests are taken, and why not."""

    status: Literal["ready", "not ready"]
    reasons: list[str]
    engines: dict[str, str]
    limits: str = Field(
        description="`shared`, or why each worker or machine holds a part of its own."
    )
