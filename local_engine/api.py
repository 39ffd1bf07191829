"""The engine's only public door: what a gateway worker and its supervisor use.

A worker holds one `EngineClient` per engine over a socket pair that the supervisor made; the
supervisor starts processes with `spawn_engine`. Importing this loads neither torch nor a tokenizer.

    async with client.generate(request) as generation:
        async for batch in generation:  # one list of events per socket read
            ...
    generation.done  # exact usage, also after leaving early
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, assert_never, cast

import anyio
import msgspec

from local_engine.engine_process import EngineControl, EngineProcess, spawn_engine
from local_engine.errors import (
    EngineBusy,
    EngineError,
    EngineGone,
    ModelFileError,
    ProtocolError,
    RequestRejected,
    TemplateError,
)
from local_engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    Done,
    EngineConfig,
    EngineEvent,
    EngineMessage,
    EngineStats,
    FinishReason,
    GenerateRequest,
    GenerationUsage,
    Hello,
    MessageReader,
    ModelCard,
    Refused,
    Submit,
    TextDelta,
    Welcome,
    encode_frame,
)

__all__ = [
    "Accepted",
    "Done",
    "EngineBusy",
    "EngineClient",
    "EngineConfig",
    "EngineControl",
    "EngineError",
    "EngineEvent",
    "EngineGone",
    "EngineProcess",
    "EngineStats",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "GenerationUsage",
    "ModelCard",
    "ModelFileError",
    "ProtocolError",
    "RequestRejected",
    "TemplateError",
    "TextDelta",
    "spawn_engine",
]

_SEND_BUFFER_BYTES_MAX = 64 * 1024 * 1024
_UNREAD_EVENTS_MAX = 32
_LOST = "the engine process or the link to it died"

ABORT_WAIT_S = 3.0
"""On a machine that is busy with a dozen other programs an engine's step takes over a second."""


class Generation:
    """One generation: an async context manager that gives an async iterator of event batches.

    A batch holds what one or more socket reads brought since the last one; while the reader is
    behind, text is put together, so that little is kept. The iterator ends after `Done`.

    Attributes:
        done: The last event, with exact usage; set as soon as it has come, None before.
    """

    def __init__(
        self, client: EngineClient, request: GenerateRequest, *, abort_wait_s: float
    ) -> None:
        self.done: Done | None = None
        self._client = client
        self._request = request
        self._abort_wait_s = abort_wait_s
        self._unread: list[EngineEvent] = []
        self._fault: EngineError | None = None
        self._has_news = anyio.Event()

    async def __aenter__(self) -> Self:
        """Submit the request.

        Raises:
            EngineGone: the link is dead.
            EngineBusy: the engine does not keep up with what was sent.
        """
        self._client.submit(self._request, self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Abort unless it has ended, and wait a bounded time for exact usage."""
        try:
            if self.done is None and self._fault is None:
                self._client.send(Abort(id=self._request.id))
                # Cancelled or not, the usage is wanted; bounded, so that nothing can hang here.
                with anyio.move_on_after(self._abort_wait_s, shield=True):
                    while self.done is None and self._fault is None:
                        self._unread.clear()
                        await self._wait()
        finally:
            self._client.forget(self._request.id)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        """The next batch.

        Raises:
            RequestRejected: the request can never succeed.
            EngineBusy: there is no room now.
            EngineGone: the engine died; what was sent so far may have been computed.
        """
        while not self._unread:
            if self._fault is not None:
                raise self._fault
            if self.done is not None:
                raise StopAsyncIteration
            await self._wait()
        batch, self._unread = self._unread, []
        return batch

    def receive(self, messages: list[Accepted | TextDelta | Done | Refused]) -> None:
        """Take what came; called by the client."""
        for message in messages:
            match message:
                case Refused():
                    self._fault = _fault_of(message)
                case Done():
                    self.done = message
                    self._unread.append(message)
                case Accepted() | TextDelta():
                    self._unread.append(message)
                case _:
                    assert_never(message)
        if len(self._unread) > _UNREAD_EVENTS_MAX:
            self._unread = _coalesced(self._unread)
        self._has_news.set()

    def lose(self, fault: EngineError) -> None:
        """Note that nothing more will come; called by the client."""
        if self.done is None and self._fault is None:
            self._fault = fault
        self._has_news.set()

    async def _wait(self) -> None:
        await self._has_news.wait()
        self._has_news = anyio.Event()


class EngineClient(asyncio.Protocol):
    """A worker's end of a link to one engine; belongs to one event loop.

    Args:
        sock: A connected stream socket whose other end the engine was given; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        # A union is a type to msgspec, which the stubs cannot say.
        self._reader = MessageReader(cast("type[EngineMessage]", EngineMessage))
        self._transport: asyncio.Transport | None = None
        self._generations: dict[str, Generation] = {}
        self._card: ModelCard | None = None
        self._fault: EngineError | None = None
        self._has_greeting = anyio.Event()
        self._is_lost = anyio.Event()

    @property
    def card(self) -> ModelCard:
        """What the engine offers.

        Raises:
            EngineGone: not connected yet.
        """
        if self._card is None:
            raise EngineGone("the link to the engine is not connected")
        return self._card

    @property
    def is_alive(self) -> bool:
        """Whether requests can be sent."""
        return self._card is not None and self._fault is None

    @property
    def in_flight(self) -> int:
        """Generations that have not been left."""
        return len(self._generations)

    async def connect(self, *, timeout_s: float = 30.0) -> ModelCard:
        """Greet the engine and wait for its answer, which comes once the model is loaded.

        Raises:
            EngineGone: the engine died or did not answer in time.
            ProtocolError: it speaks another version.
        """
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=self._socket)
        self.send(Hello(version=PROTOCOL_VERSION))
        with anyio.move_on_after(timeout_s):
            await self._has_greeting.wait()
        if self._fault is not None:
            raise self._fault
        if self._card is None:
            self._end(EngineGone(f"the engine did not answer within {timeout_s:g} s"))
            raise EngineGone(f"the engine did not answer within {timeout_s:g} s")
        return self._card

    async def close(self) -> None:
        """Close the link, which aborts what is in flight; harmless when closed."""
        self._end(EngineGone("the link to the engine was closed"))
        if self._transport is not None:
            with anyio.move_on_after(1.0, shield=True):
                await self._is_lost.wait()
        else:
            self._socket.close()

    def generate(
        self, request: GenerateRequest, *, abort_wait_s: float = ABORT_WAIT_S
    ) -> AbstractAsyncContextManager[Generation]:
        """Run a generation; it starts when the context is entered.

        Args:
            request: Its id is unique among this client's generations.
            abort_wait_s: How long leaving early waits for exact usage.
        """
        return Generation(self, request, abort_wait_s=abort_wait_s)

    def submit(self, request: GenerateRequest, generation: Generation) -> None:
        """Send a request; called by its generation.

        Raises:
            EngineGone: the link is dead.
            EngineBusy: the engine does not keep up with what was sent.
            ProtocolError: the request is larger than a frame.
        """
        if request.id in self._generations:
            raise RequestRejected("invalid_request_error", "id: is in flight already", "id")
        if self._fault is None and self._card is None:
            raise EngineGone("the link to the engine is not connected")
        transport = self._transport
        if transport and transport.get_write_buffer_size() > _SEND_BUFFER_BYTES_MAX:
            raise EngineBusy("the engine does not keep up with what was sent", retry_after_s=1.0)
        self.send(Submit(request=request))
        self._generations[request.id] = generation

    def send(self, message: msgspec.Struct) -> None:
        """Write a message.

        Raises:
            EngineGone: the link is dead.
        """
        if self._fault is not None:
            raise EngineGone(str(self._fault))
        assert self._transport is not None
        self._transport.write(encode_frame(message))

    def forget(self, request_id: str) -> None:
        """Ignore what may still come for a generation; called by it."""
        self._generations.pop(request_id, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        by_id: defaultdict[str, list[Accepted | TextDelta | Done | Refused]] = defaultdict(list)
        try:
            for message in self._reader.feed(data):
                if isinstance(message, Welcome):
                    self._card = message.card
                    self._has_greeting.set()
                elif isinstance(message, Refused) and not message.id:
                    raise ProtocolError(message.message)
                else:
                    by_id[message.id].append(message)
        except ProtocolError as fault:
            self._end(fault)
            return
        for request_id, messages in by_id.items():
            generation = self._generations.get(request_id)
            if generation is not None:
                generation.receive(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(EngineGone(_LOST))
        self._is_lost.set()

    def _end(self, fault: EngineError) -> None:
        if self._fault is None:
            self._fault = fault
            for generation in list(self._generations.values()):
                generation.lose(EngineGone(str(fault)))
        self._has_greeting.set()
        if self._transport is not None:
            self._transport.close()


def _fault_of(refused: Refused) -> EngineError:
    if refused.retry_after_s is not None:
        return EngineBusy(refused.message, retry_after_s=refused.retry_after_s)
    return RequestRejected(refused.code, refused.message, refused.param)


def _coalesced(events: list[EngineEvent]) -> list[EngineEvent]:
    """The same events with neighbouring texts put together."""
    merged: list[EngineEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = msgspec.structs.replace(event, text=last.text + event.text)
        else:
            merged.append(event)
    return merged
