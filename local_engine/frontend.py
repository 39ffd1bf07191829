"""From a request to a job: check numbers, render the chat, encode, hold it to the context window.

Runs beside the step thread, because templates and tokenizers may take long. Every refusal names the
field and says what would be right; none repeats the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from local_engine.content_guard import ContentGuard, StandIns
from local_engine.engine import Job
from local_engine.errors import RequestRejected, TemplateError
from local_engine.protocol import GenerateRequest
from local_engine.sampling import SamplingParameters
from local_engine.step import Tokenizer

NAMESPACE_BYTES_MAX = 256
STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1024
STOP_TOKEN_IDS_MAX = 256
LOGIT_BIAS_ENTRIES_MAX = 1024
PRIORITY_MAX = 100
PROMPT_BYTES_PER_TOKEN_MAX = 64
"""No text shorter than the window in tokens is longer than this per token in practice."""

RenderChat = Callable[[Sequence[Mapping[str, object]]], str]

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """Prepares requests for one model.

    Attributes:
        tokenizer: Of the model.
        guard: Of the tokenizer's control tokens.
        render_chat: The model's chat template, None when the file has none.
        context_window: Prompt and output together.
        random_seed: A new 64-bit seed for each request without one.
    """

    tokenizer: Tokenizer
    guard: ContentGuard
    render_chat: RenderChat | None
    context_window: int
    random_seed: Callable[[], int]

    def prepare(self, request: GenerateRequest, *, key: int, received_ns: int) -> Job:
        """Make a job.

        Raises:
            RequestRejected: the request can never succeed as it is.
        """
        _check_numbers(request)
        _check_strings(request)
        self._check_token_ids(request)
        prompt = self._encode(request)
        output_tokens_max = self._output_tokens_max(len(prompt), request.max_tokens)
        stop_ids = frozenset(request.stop_token_ids)
        model_ends = self.tokenizer.end_ids
        seed = self.random_seed() if request.seed is None else request.seed
        return Job(
            key=key,
            request_id=request.id,
            namespace=request.namespace,
            prompt=prompt,
            output_tokens_max=output_tokens_max,
            sampling=SamplingParameters(
                seed=seed,
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                min_p=request.min_p,
                presence_penalty=request.presence_penalty,
                frequency_penalty=request.frequency_penalty,
                repetition_penalty=request.repetition_penalty,
                logit_bias=request.logit_bias,
                min_tokens=min(request.min_tokens, output_tokens_max),
                end_ids=model_ends | stop_ids,
            ),
            # A caller's own stops come on top of the model's; they never replace these.
            end_ids=stop_ids if request.ignore_eos else model_ends | stop_ids,
            stops=tuple(request.stop),
            received_ns=received_ns,
            priority=request.priority,
        )

    def _check_token_ids(self, request: GenerateRequest) -> None:
        vocab_size = self.tokenizer.vocab_size
        for param, ids in (
            ("logit_bias", request.logit_bias),
            ("stop_token_ids", request.stop_token_ids),
        ):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise _invalid(
                        param, f"token id {token_id} is outside the vocabulary of {vocab_size}"
                    )

    def _encode(self, request: GenerateRequest) -> list[int]:
        text, stand_ins = self._text_of(request)
        bytes_max = PROMPT_BYTES_PER_TOKEN_MAX * self.context_window
        param = "prompt" if request.messages is None else "messages"
        # Far too long a text is not worth the encoder's time.
        if len(text) > bytes_max:
            raise RequestRejected(
                "context_length_exceeded",
                f"The prompt has {len(text)} characters, far more than the context window of "
                f"{self.context_window} tokens can hold.",
                param,
            )
        try:
            prompt = self.tokenizer.encode(text, stand_ins=stand_ins)
        except UnicodeEncodeError:
            raise _invalid(param, "the text holds lone surrogates") from None
        if not prompt:
            raise _invalid(param, "the prompt is empty; at least one token is needed")
        return prompt

    def _text_of(self, request: GenerateRequest) -> tuple[str, StandIns]:
        if (request.messages is None) == (request.prompt is None):
            raise _invalid("messages", "exactly one of messages and prompt is needed")
        if request.messages is None:
            assert request.prompt is not None
            return request.prompt, {}
        if not request.messages:
            raise _invalid("messages", "at least one message is needed")
        if self.render_chat is None:
            raise _invalid("messages", "this model has no chat template; send a prompt instead")
        plain = [_plain_message(message) for message in request.messages]
        messages, stand_ins = self.guard.mask(plain)
        try:
            return self.render_chat(messages), stand_ins
        except TemplateError as fault:
            raise _invalid("messages", f"the chat template refused them: {fault}") from None

    def _output_tokens_max(self, prompt_tokens: int, max_tokens: int | None) -> int:
        window = self.context_window
        # A prompt that fills the window leaves no room for the answer's first token.
        wanted = max(1, 1 if max_tokens is None else max_tokens)
        excess = prompt_tokens + wanted - window
        if excess > 0:
            asked = "" if max_tokens is None else f" and max_tokens is {max_tokens}"
            raise RequestRejected(
                "context_length_exceeded",
                f"This model's maximum context length is {window} tokens. The prompt has "
                f"{prompt_tokens} tokens{asked}, which is {excess} too many. Shorten the "
                f"messages or ask for fewer tokens.",
                "messages",
            )
        return window - prompt_tokens if max_tokens is None else max_tokens


def _invalid(param: str, message: str) -> RequestRejected:
    return RequestRejected("invalid_request_error", f"{param}: {message}", param)


def _check_numbers(request: GenerateRequest) -> None:
    for param, lowest, highest in _RANGES:
        value: float = getattr(request, param)
        if not lowest <= value <= highest:
            raise _invalid(param, f"must be between {lowest:g} and {highest:g}, got {value:g}")
    if not 0.0 < request.top_p <= 1.0:
        raise _invalid("top_p", f"must be above 0 and at most 1, got {request.top_p:g}")
    if not 0.0 < request.repetition_penalty <= 100.0:
        raise _invalid(
            "repetition_penalty",
            f"must be above 0 and at most 100, got {request.repetition_penalty:g}",
        )
    if request.top_k < 0:
        raise _invalid("top_k", f"must be at least 0, got {request.top_k}")
    if request.max_tokens is not None and request.max_tokens < 0:
        raise _invalid("max_tokens", f"must be at least 0, got {request.max_tokens}")
    if request.min_tokens < 0:
        raise _invalid("min_tokens", f"must be at least 0, got {request.min_tokens}")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise _invalid("min_tokens", f"exceeds max_tokens, which is {request.max_tokens}")
    if abs(request.priority) > PRIORITY_MAX:
        raise _invalid("priority", f"must be between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    if len(request.logit_bias) > LOGIT_BIAS_ENTRIES_MAX:
        raise _invalid("logit_bias", f"holds more than {LOGIT_BIAS_ENTRIES_MAX} entries")
    for token_id, bias in request.logit_bias.items():
        if not math.isfinite(bias) or abs(bias) > 100:
            raise _invalid("logit_bias", f"token id {token_id}: must be between -100 and 100")


def _check_strings(request: GenerateRequest) -> None:
    if not 0 < len(request.namespace) <= NAMESPACE_BYTES_MAX:
        raise _invalid("namespace", f"must have 1 to {NAMESPACE_BYTES_MAX} bytes")
    if len(request.stop) > STOPS_MAX:
        raise _invalid("stop", f"holds more than {STOPS_MAX} strings")
    for stop in request.stop:
        if not 0 < len(stop) <= STOP_CHARACTERS_MAX:
            raise _invalid("stop", f"each must have 1 to {STOP_CHARACTERS_MAX} characters")
    if len(request.stop_token_ids) > STOP_TOKEN_IDS_MAX:
        raise _invalid("stop_token_ids", f"holds more than {STOP_TOKEN_IDS_MAX} ids")


def _plain_message(message: Mapping[str, object]) -> Mapping[str, object]:
    """A message whose content is one text; templates of text models expect nothing else."""
    if not isinstance(message.get("role"), str):
        raise _invalid("messages", "every message needs a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    if not isinstance(content, list):
        raise _invalid("messages", "content must be text or a list of parts")
    texts: list[str] = []
    parts: list[object] = content
    for part in parts:
        text = _part_text(part)
        if text is None:
            raise _invalid("messages", "this model reads text parts only")
        texts.append(text)
    return {**message, "content": "".join(texts)}


def _part_text(part: object) -> str | None:
    """Text of a text part, None for any other."""
    if not isinstance(part, dict):
        return None
    fields: dict[object, object] = part
    text = fields.get("text")
    return text if fields.get("type") == "text" and isinstance(text, str) else None
