"""One request to an upstream and the reading of its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType

import msgspec

from providers.codecs.enforced import enforce
from providers.codecs.openai_chat import (
    build_body,
    call_id_prefix,
    choice_count,
    chunk_from_answer,
    decode_answer,
    token_limit,
)
from providers.codecs.openai_reads import ChatReads
from providers.codecs.openai_stream import ChatStream
from providers.codecs.upstream_errors import error_from_body, error_from_reply
from providers.compatible.upstream import Upstream
from providers.contract import (
    AttemptFacts,
    Batch,
    ChatRequest,
    Deadlines,
    EgressPermit,
    Event,
)
from providers.errors import BadWire, ProviderError
from providers.sse import Frame
from providers.transport import ANSWER_MAX_BYTES, ERROR_BODY_MAX_BYTES, Exchange, header_text

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TOO_LONG = f"The answer exceeds {ANSWER_MAX_BYTES} bytes."


class _Call(AsyncIterator[Batch]):
    """One request and the batches of its answer; both in one, as each object costs every request.

    A generator as a context would cost several times as much.
    """

    __slots__ = (
        "_awaits_end", "_deadlines", "_deployment", "_exchange", "_facts", "_faults", "_is_over",
        "_model_id", "_parts", "_permit", "_request", "_size_bytes", "_upstream",
    )  # fmt: skip

    def __init__(
        self,
        upstream: Upstream,
        model_id: str,
        request: ChatRequest,
        permit: EgressPermit,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> None:
        self._upstream = upstream
        self._model_id = model_id
        self._deployment = f"{upstream.account.name}/{model_id}"
        self._request = request
        self._permit = permit
        self._deadlines = deadlines
        self._facts = facts
        self._exchange: Exchange
        self._faults: Mapping[str, int] | None = None
        self._is_over = False
        self._awaits_end = False
        # Of a whole body that comes in several; a wait for it that was cancelled loses nothing.
        self._parts: list[bytes] | None = None
        self._size_bytes = 0

    async def __aenter__(self) -> AsyncIterator[Batch]:
        upstream, request, facts = self._upstream, self._request, self._facts
        row = upstream.row
        if upstream.account.enforced:
            request, changes = enforce(request, upstream.account.enforced)
            facts.adapted += changes
        body = build_body(
            self._model_id,
            request,
            stream=request.is_stream,
            asks_for_usage=row.asks_for_usage,
            renames=row.renames,
        )
        if row.renames:
            facts.adapted += [
                f"{name}->{row.renames[name]}" for name in request.fields if name in row.renames
            ]
        exchange = await upstream.transport.send(
            upstream.url,
            permit=self._permit,
            deployment=self._deployment,
            headers=upstream.header_lines(facts, is_stream=request.is_stream),
            body=body,
            deadlines=self._deadlines,
            facts=facts,
        )
        self._exchange = exchange
        for name in upstream.id_headers:
            if (value := exchange.fields.get(name)) is not None:
                facts.upstream_request_id = header_text(value)
                break
        if not 200 <= exchange.status < 300:
            async with exchange:
                refusal = await exchange.read_all(max_bytes=ERROR_BODY_MAX_BYTES, cuts=True)
            context = upstream.error_context(self._deployment, exchange.headers, facts)
            raise error_from_reply(exchange.status, refusal, context=context)
        if request.is_stream:
            self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._request.is_stream:
            self._end_reading()
        if self._faults:
            self._upstream.count_faults(self._faults)
        exchange = self._exchange
        try:
            if self._awaits_end and fault is None:
                await exchange.settle()
        finally:
            exchange.leave()
        if isinstance(fault, _UNREADABLE):
            # Whatever looked into a part of the answer and could not read it, here or behind us:
            # nested too deeply, or no UTF-8 where text was due.
            raise BadWire(f"The answer of {self._deployment} cannot be read.") from fault

    def _begin(self) -> None:
        """The head of a stream has come."""

    def _end_reading(self) -> None:
        """Nobody reads a stream on."""

    def _error_of(self, body: bytes) -> ProviderError:
        """What an error object means that came in the place of an answer."""
        headers = self._exchange.headers
        context = self._upstream.error_context(self._deployment, headers, self._facts)
        return error_from_body(body, context=context)

    async def _gather(self) -> bytes:
        """Read to the end and return everything, `_parts` of it first."""
        if self._parts is None:
            self._parts = []
        while part := await self._exchange.read():
            self._parts.append(part)
            self._size_bytes += len(part)
            if self._size_bytes > ANSWER_MAX_BYTES:
                raise BadWire(_TOO_LONG)
        return b"".join(self._parts)


class WholeCall(_Call):
    """A request for a whole answer, which is one batch."""

    __slots__ = ()

    async def __anext__(self) -> Batch:
        """Wait for the answer.

        Raises:
            ProviderError: It broke, or is none.
        """
        if self._is_over:
            raise StopAsyncIteration
        body = self._exchange.take_rest() if self._parts is None else None
        if body is None:
            body = await self._gather()
        elif len(body) > ANSWER_MAX_BYTES:
            raise BadWire(_TOO_LONG)
        self._is_over = True
        answer = decode_answer(
            body, self._request, deployment=self._deployment, on_error=self._error_of
        )
        self._facts.upstream_model = answer.upstream_model
        self._faults = answer.faults
        return (answer.event,)


class StreamCall(_Call):
    """A request for a stream: its batches, one per read of the socket."""

    __slots__ = ("_codec", "_failure", "_has_begun", "_has_content", "_is_events", "_reads")

    async def __anext__(self) -> Batch:
        """Wait for the next read that completes an event.

        Raises:
            ProviderError: The stream failed; what came before the failure has been handed on.
        """
        exchange, codec, reads = self._exchange, self._codec, self._reads
        while not self._is_over:
            if self._failure is not None:
                raise self._failure
            if not self._is_events:
                return await self._whole()
            if reads.rest:
                await asyncio.sleep(0)  # others wait for the loop
            chunk = reads.rest or await exchange.read()
            if not self._has_begun and self._turns_out_whole(chunk):
                continue
            events = reads.feed(chunk) if chunk else reads.end()
            if codec.has_content:
                if not self._has_content:
                    self._has_content = True
                    exchange.note_content()
                if codec.is_finished:
                    exchange.note_finish()
            if codec.failure is not None:
                self._failure = codec.failure
            elif codec.is_done or not chunk:
                self._end(events)
            if self._facts.upstream_model is None:
                self._facts.upstream_model = codec.upstream_model
            if events:
                return events
        raise StopAsyncIteration

    def _begin(self) -> None:
        request = self._request
        self._codec = ChatStream(
            deployment=self._deployment,
            call_id_prefix=call_id_prefix(request),
            on_error=self._error_of,
            choices=choice_count(request),
            token_limit=token_limit(request),
        )
        self._reads = ChatReads(stream=self._codec)
        self._failure: ProviderError | None = None
        self._has_content = False
        self._has_begun = b"json" in self._exchange.fields.get(b"content-type", b"")
        self._is_events = not self._has_begun

    def _end_reading(self) -> None:
        self._faults = self._codec.faults
        # It asks us for the meaning of errors: a cycle, which would keep the whole answer.
        del self._codec, self._reads

    def _turns_out_whole(self, chunk: bytes) -> bool:
        """Whether the body is JSON where a stream was asked for, as its first bytes tell."""
        start = chunk.lstrip()
        self._has_begun = bool(start)
        if not start.startswith(b"{"):
            return False
        self._is_events = False
        self._parts = [chunk]
        self._size_bytes = len(chunk)
        return True

    async def _whole(self) -> Batch:
        """The upstream sent JSON where a stream was asked for: an error, or a whole answer."""
        codec = self._codec
        body = await self._gather()
        try:
            events = codec.decode([Frame(chunk_from_answer(body))])
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            what = "is not a chat completion" if body.strip() else "is empty"
            raise BadWire(f"The answer of {codec.deployment} {what}.") from fault
        codec.is_done = True
        self._failure = codec.failure
        if self._failure is None:
            self._end(events)
        self._facts.upstream_model = codec.upstream_model
        return events

    def _end(self, events: list[Event]) -> None:
        """The stream is over: hand on what was held back, or remember why it is no answer."""
        try:
            events += self._codec.close()
        except ProviderError as failure:
            self._failure = failure
        else:
            self._is_over = self._awaits_end = True
