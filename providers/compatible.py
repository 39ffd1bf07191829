"""Any server with an OpenAI-compatible chat endpoint.

A vendor is a row of `catalog.toml`; nothing here knows a vendor's name.
"""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType

import msgspec
from yarl import URL

from providers.codecs.openai_chat import (
    build_body,
    choice_count,
    chunk_from_answer,
    decode_answer,
    token_limit,
)
from providers.codecs.openai_reads import ChatReads
from providers.codecs.openai_stream import ChatStream
from providers.codecs.upstream_errors import ErrorContext, error_from_body, error_from_reply
from providers.contract import (
    AttemptFacts,
    Batch,
    Capabilities,
    ChatRequest,
    Deadlines,
    Event,
    OnDisconnect,
)
from providers.errors import BadWire, ProviderError
from providers.sse import Frame
from providers.transport import (
    ANSWER_MAX_BYTES,
    ERROR_BODY_MAX_BYTES,
    Exchange,
    Transport,
    TransportOptions,
)

_NO_FAULTS: Mapping[str, int] = MappingProxyType({})


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sets one vendor's OpenAI-compatible wire apart.

    Attributes:
        base_url: The vendor's address, None where the operator names one.
        auth_header: The header that carries the key.
        auth_prefix: What stands before the key in it.
        default_path: Put in when a base URL has no path.
        chat_path: Below the base URL.
        request_id_headers: Where the upstream's id of a request may be, best first.
        asks_for_usage: Whether streams ask for usage.
        renames: Request fields that the vendor knows by another name.
        unsupported: Request fields that it cannot honour, with the reason.
        multimodal: Whether it understands message parts other than text.
        on_disconnect: What to do with it once the client has left, by how it bills: `cancel`, or
            `drain` where it bills to the end anyway and tells the counts only there.
        sends_usage_unasked: Whether it reports usage in every stream, so that clients expect it.
    """

    base_url: str | None = None
    auth_header: str
    auth_prefix: str
    default_path: str
    chat_path: str
    request_id_headers: tuple[str, ...]
    asks_for_usage: bool
    renames: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    unsupported: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    multimodal: bool = True
    on_disconnect: OnDisconnect
    sends_usage_unasked: bool


def load_catalog(path: Path | None = None) -> Mapping[str, Row]:
    """Load the rows, each completed from `openai_compatible`.

    Raises:
        msgspec.ValidationError: A row has a key that no row has, or a value of a wrong type.
    """
    text = (path or Path(__file__).with_name("catalog.toml")).read_text(encoding="utf-8")
    tables = msgspec.convert(tomllib.loads(text), dict[str, dict[str, object]])
    defaults = tables["openai_compatible"]
    return {name: msgspec.convert({**defaults, **table}, Row) for name, table in tables.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account or server that speaks the wire.

    Attributes:
        name: The provider's name in the configuration.
        base_url: Its address.
        api_key: Our key, None where none is needed; never shown.
        extra_headers: Sent with each request.
        model_capabilities: What single models can do, by the upstream's model name.
        on_disconnect: What the operator says about clients that leave, None for the row's rule.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    model_capabilities: Mapping[str, Capabilities] = field(default_factory=dict[str, Capabilities])
    on_disconnect: OnDisconnect | None = None


class OpenAiCompatibleProvider:
    """A provider for one account; implements `contract.Provider`.

    Attributes:
        wire_faults: Deviations from the wire that were put right since the start, by kind.
    """

    def __init__(
        self,
        account: Account,
        row: Row,
        *,
        clock: Callable[[], datetime],
        transport_options: TransportOptions | None = None,
    ) -> None:
        """Prepare addresses and headers; nothing is opened yet.

        Args:
            account: Whom to call.
            row: How its vendor differs.
            clock: The present instant in UTC, for dates in `Retry-After`.
            transport_options: How connections are made.

        Raises:
            ValueError: The base URL is not usable.
        """
        self.wire_faults: dict[str, int] = {}
        self._account = account
        self._row = row
        self._clock = clock
        self._url = chat_url(account.base_url, row)
        self._transport = Transport([str(self._url)], transport_options)
        self._secrets = [
            secret for secret in (account.api_key, *account.extra_headers.values()) if secret
        ]
        self._hosts = [self._url.host] if self._url.host else []
        headers = {
            "content-type": "application/json",
            "user-agent": "fareway",
            # A compressor may hold single events back, and to inflate an answer of 3 KB costs
            # half of what sending the request does.
            "accept-encoding": "identity",
            **account.extra_headers,
        }
        if account.api_key:
            headers[row.auth_header] = row.auth_prefix + account.api_key
        self._whole_headers = {**headers, "accept": "application/json"}
        self._stream_headers = {**headers, "accept": "text/event-stream"}
        self._capabilities = Capabilities(unsupported=row.unsupported, multimodal=row.multimodal)

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._account.name

    @property
    def on_disconnect(self) -> OnDisconnect:
        """What to do once the client has left: the operator's word, else the vendor's rule."""
        return self._account.on_disconnect or self._row.on_disconnect

    @property
    def sends_usage_unasked(self) -> bool:
        """Whether the vendor reports usage in every stream."""
        return self._row.sends_usage_unasked

    def capabilities(self, model_id: str) -> Capabilities:
        """What the model can do; what the wire offers, where nobody said otherwise."""
        return self._account.model_capabilities.get(model_id, self._capabilities)

    def stream(
        self, model_id: str, request: ChatRequest, *, deadlines: Deadlines, facts: AttemptFacts
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        """Send the request; leaving the context closes the socket of an unfinished answer.

        Raises:
            ProviderError: The attempt failed; on entry, or while iterating.
        """
        return _Call(self, model_id, request, deadlines, facts)

    async def send(
        self, model_id: str, request: ChatRequest, deadlines: Deadlines, facts: AttemptFacts
    ) -> Exchange:
        """Send a request and wait for the head of the answer; arguments as `stream`.

        Raises:
            ProviderError: There is none.
        """
        row = self._row
        body = build_body(
            model_id,
            request,
            stream=request.is_stream,
            asks_for_usage=row.asks_for_usage,
            renames=row.renames,
        )
        if row.renames:
            facts.adapted += [
                f"{name}->{row.renames[name]}" for name in request.fields if name in row.renames
            ]
        exchange = await self._transport.send(
            self._url,
            headers=self._headers(request, facts),
            body=body,
            deadlines=deadlines,
            facts=facts,
        )
        headers = exchange.headers
        for name in row.request_id_headers:
            if name in headers:
                facts.upstream_request_id = headers[name]
                break
        return exchange

    async def close(self) -> None:
        """Close pooled connections."""
        await self._transport.close()

    def _headers(self, request: ChatRequest, facts: AttemptFacts) -> Mapping[str, str]:
        headers = self._stream_headers if request.is_stream else self._whole_headers
        # Source: OpenAI, "Debugging requests" (2026-11): the caller's own id of a request. A number
        # that means nothing outside our ledger, so servers that do not know it lose nothing.
        if facts.attempt_id:
            headers = {**headers, "x-client-request-id": facts.attempt_id}
        if facts.traceparent is not None:
            headers = {**headers, "traceparent": facts.traceparent}
        return headers

    def error_context(
        self, deployment: str, headers: Mapping[str, str], facts: AttemptFacts
    ) -> ErrorContext:
        """What it takes to read an error of this account.

        Args:
            deployment: `provider/model-id`.
            headers: The answer's.
            facts: The attempt's.
        """
        return ErrorContext(
            deployment=deployment,
            secrets=self._secrets,
            hosts=self._hosts,
            now=self._clock(),
            headers=headers,
            request_id=facts.upstream_request_id,
        )

    def count_faults(self, faults: Mapping[str, int]) -> None:
        """Add up deviations that were put right, by kind."""
        for kind, count in faults.items():
            self.wire_faults[kind] = self.wire_faults.get(kind, 0) + count


class _Call:
    """One request and its answer; a generator as a context would cost several times as much."""

    __slots__ = (
        "_answer", "_deadlines", "_deployment", "_exchange", "_facts", "_model_id", "_provider",
        "_request",
    )  # fmt: skip

    def __init__(
        self,
        provider: OpenAiCompatibleProvider,
        model_id: str,
        request: ChatRequest,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> None:
        self._provider = provider
        self._model_id = model_id
        self._deployment = f"{provider.name}/{model_id}"
        self._request = request
        self._deadlines = deadlines
        self._facts = facts
        self._exchange: Exchange | None = None
        self._answer: _Reader | _WholeReader | None = None

    async def __aenter__(self) -> AsyncIterator[Batch]:
        provider, request, facts = self._provider, self._request, self._facts
        exchange = await provider.send(self._model_id, request, self._deadlines, facts)
        self._exchange = exchange
        if not 200 <= exchange.status < 300:
            async with exchange:
                refusal = await exchange.read_all(max_bytes=ERROR_BODY_MAX_BYTES, cuts=True)
            raise error_from_reply(exchange.status, refusal, context=self._context())
        reader = _Reader if request.is_stream else _WholeReader
        self._answer = reader(request, exchange, facts, self._deployment, self._context)
        return self._answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        exchange, answer = self._exchange, self._answer
        assert exchange is not None, "left after it was entered"
        assert answer is not None, "left after it was entered"
        # It asks us for the context of errors: a cycle, which would keep the whole answer.
        self._answer = None
        self._provider.count_faults(answer.faults)
        try:
            if fault is None and answer.is_over:
                await exchange.settle()
        finally:
            await exchange.__aexit__(kind, fault, trace)
        if isinstance(fault, msgspec.DecodeError | UnicodeDecodeError | RecursionError):
            # Whatever looked into a part of the answer and could not read it, here or behind us:
            # nested too deeply, or no UTF-8 where text was due.
            raise BadWire(f"The answer of {self._deployment} cannot be read.") from fault

    def _context(self) -> ErrorContext:
        assert self._exchange is not None, "an error comes with an answer"
        headers = self._exchange.headers
        return self._provider.error_context(self._deployment, headers, self._facts)


class _Body:
    """A whole body as it comes; a wait for it that was cancelled loses nothing."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes > ANSWER_MAX_BYTES:
            raise BadWire(f"The answer exceeds {ANSWER_MAX_BYTES} bytes.")

    async def rest(self) -> bytes:
        """Read to the end and return everything, from the first part added on."""
        while part := await self._exchange.read():
            self.add(part)
        return b"".join(self._parts)


class _Reader:
    """A stream's batches, one per read of the socket."""

    def __init__(
        self,
        request: ChatRequest,
        exchange: Exchange,
        facts: AttemptFacts,
        deployment: str,
        context: Callable[[], ErrorContext],
    ) -> None:
        self.is_over = False
        self._exchange = exchange
        self._facts = facts
        self._failure: ProviderError | None = None
        self._codec = ChatStream(
            deployment=deployment,
            call_id_prefix=f"call_{request.request_id}_",
            on_error=lambda body: error_from_body(body, context=context()),
            choices=choice_count(request),
            token_limit=token_limit(request),
        )
        self._reads = ChatReads(stream=self._codec)
        self._body = _Body(exchange)
        self._has_begun = "json" in exchange.headers.get("content-type", "")
        self._is_events = not self._has_begun

    @property
    def faults(self) -> Mapping[str, int]:
        """Deviations that were put right, by kind."""
        return self._codec.faults

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while not self.is_over:
            if self._failure is not None:
                raise self._failure
            batch = await self._next()
            self._facts.upstream_model = self._codec.upstream_model
            if batch:
                return batch
        raise StopAsyncIteration

    async def _next(self) -> Batch:
        codec, exchange = self._codec, self._exchange
        if not self._is_events:
            return await self._whole_body()
        chunk = await exchange.read()
        if not self._has_begun and (start := chunk.lstrip()):
            self._has_begun = True
            if start.startswith(b"{"):
                self._is_events = False
                self._body.add(chunk)
                return await self._whole_body()
        events = self._reads.feed(chunk) if chunk else self._reads.end()
        if codec.has_content:
            exchange.note_content()
            if codec.is_finished:
                exchange.note_finish()
        if codec.failure is not None:
            self._failure = codec.failure
        elif codec.is_done or not chunk:
            self._end(events)
        return events

    async def _whole_body(self) -> Batch:
        """The upstream sent JSON where a stream was asked for: an error, or a whole answer."""
        codec = self._codec
        body = await self._body.rest()
        try:
            events = codec.decode([Frame(chunk_from_answer(body))])
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            what = "is not a chat completion" if body.strip() else "is empty"
            raise BadWire(f"The answer of {codec.deployment} {what}.") from fault
        codec.is_done = True
        self._failure = codec.failure
        if self._failure is None:
            self._end(events)
        return events

    def _end(self, events: list[Event]) -> None:
        """The stream is over: hand on what was held back, or remember why it is no answer."""
        try:
            events += self._codec.close()
        except ProviderError as failure:
            self._failure = failure
        else:
            self.is_over = True


class _WholeReader:
    """The one batch of an answer that is not a stream."""

    def __init__(
        self,
        request: ChatRequest,
        exchange: Exchange,
        facts: AttemptFacts,
        deployment: str,
        context: Callable[[], ErrorContext],
    ) -> None:
        self.is_over = False
        self.faults: Mapping[str, int] = _NO_FAULTS
        self._request = request
        self._body = _Body(exchange)
        self._facts = facts
        self._deployment = deployment
        self._context = context

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self.is_over:
            raise StopAsyncIteration
        body = await self._body.rest()
        self.is_over = True
        answer = decode_answer(
            body,
            deployment=self._deployment,
            call_id_prefix=f"call_{self._request.request_id}_",
            on_error=lambda error: error_from_body(error, context=self._context()),
            token_limit=token_limit(self._request),
        )
        self._facts.upstream_model = answer.upstream_model
        self.faults = answer.faults
        return [answer.event]


def chat_url(base_url: str, row: Row) -> URL:
    """Where chat requests go.

    Args:
        base_url: As the operator wrote it: with or without a path, a last slash or the chat path.
        row: Its paths.

    Raises:
        ValueError: Not an address.
    """
    url = URL(base_url)
    path = url.path.rstrip("/").removesuffix(row.chat_path)
    return url.with_path((path or row.default_path) + row.chat_path, keep_query=True)
