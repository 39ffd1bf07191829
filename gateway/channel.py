"""Calls between the processes of one machine: framed msgpack over a socket pair.

A frame is a u32 length (little endian) and one msgpack-encoded `_Frame`. Both ends may call the
other; every call has an id, one reply and a deadline. File descriptors travel with the frame that
names how many there are (`SCM_RIGHTS`). The peer is a process that we started, or, on the admin
socket, one that the file mode let in; still every payload is decoded into a type, and a frame over
the cap ends the channel.

ChannelError
  ChannelClosed    the peer is gone; calls in flight fail with it
  RemoteError      the peer's handler refused or failed: `code` and a sentence
  FrameTooLarge    a call or an answer over the cap, never sent
  CallTimeout      no reply within the deadline; the call may have been carried out
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Forget = Callable[[socket.socket], object]

_HEADER = struct.Struct("<I")
FRAME_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024
_FDS_PER_READ_MAX = 16
_HANDLERS_MAX = 256
_OUTGOING_FRAMES_MAX = 1024
_JSON = 1
"""Type of the msgpack extension whose data are a JSON document."""
_EXTENSIONS = frozenset(bytes((head,)) for head in (*range(0xC7, 0xCA), *range(0xD4, 0xD9)))
"""What an extension begins with."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Everything that decoding a peer's bytes can raise; nesting has no bound of its own."""


class ChannelError(Exception):
    """A call between processes failed."""


class ChannelClosed(ChannelError):
    """The peer closed the channel or died."""


class CallTimeout(ChannelError):
    """No reply came within the deadline."""


class FrameTooLarge(ChannelError):
    """What was to be sent is over the cap; nothing was sent."""


class RemoteError(ChannelError):
    """The peer refused the call.

    Attributes:
        code: Machine-readable reason.
        message: One sentence for a person.
    """

    def __init__(self, code: str, message: str) -> None:
        """Keep the peer's words."""
        super().__init__(message)
        self.code = code
        self.message = message


class _Frame(msgspec.Struct, array_like=True):
    kind: str  # "call", "reply" or "error"
    id: int
    method: str
    n_fds: int
    payload: msgspec.Raw


class _Failure(msgspec.Struct):
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One callable method of a channel's end.

    Attributes:
        params_type: The type that the payload is decoded into; `type(None)` for none.
        run: Gets the decoded parameters and the descriptors that came along, which it then owns.
    """

    params_type: object
    run: Callable[[object, Sequence[int]], Awaitable[object]]


def method(params_type: type[T], run: Callable[[T, Sequence[int]], Awaitable[object]]) -> Method:
    """Bind a handler to the type of its parameters."""

    async def checked(params: object, fds: Sequence[int]) -> object:
        try:
            converted = msgspec.convert(params, params_type)
        except msgspec.ValidationError:
            for fd in fds:
                _close_fd(fd)  # nobody else will: the handler never saw them
            raise
        return await run(converted, fds)

    return Method(params_type=params_type, run=checked)


class Channel:
    """One end of a socket pair; `run` must be running for calls to be answered."""

    def __init__(self, sock: socket.socket, methods: Mapping[str, Method], *, name: str) -> None:
        """Take the socket over.

        Args:
            sock: A connected stream socket; the channel owns it from here on.
            methods: What the peer may call.
            name: For log lines.
        """
        sock.setblocking(False)
        self._sock = sock
        self._methods = methods
        self._name = name
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._next_id = 0
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._outgoing: asyncio.Queue[tuple[bytes, Sequence[int]]] = asyncio.Queue(
            _OUTGOING_FRAMES_MAX
        )
        self._is_closed = False
        self._waits: dict[asyncio.Future[None], _Forget] = {}

    @property
    def is_closed(self) -> bool:
        """Whether the peer is gone or `close` was called."""
        return self._is_closed

    async def run(self) -> None:
        """Read and answer until the peer closes; returns then, with every call in flight failed."""
        limiter = asyncio.Semaphore(_HANDLERS_MAX)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_frames)
                try:
                    await self._read_frames(tasks, limiter)
                except (ChannelError, *_UNREADABLE) as error:
                    logger.error("%s: %s", self._name, error)  # noqa: TRY400 - no bug of ours
                tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def _read_frames(self, tasks: TaskGroup, limiter: asyncio.Semaphore) -> None:
        while (frame := await self._read_frame()) is not None:
            if frame.kind == "call":
                await limiter.acquire()
                tasks.start_soon(self._answer, frame, self._take_fds(frame.n_fds), limiter)
            else:
                self._resolve(frame)

    async def call(
        self,
        name: str,
        params: object = None,
        *,
        result_type: type[T],
        timeout_s: float,
        fds: Sequence[int] = (),
    ) -> T:
        """Call the peer's method and wait for its answer.

        Args:
            name: The method.
            params: Anything that msgspec encodes.
            result_type: What the answer is decoded into.
            timeout_s: Deadline of the whole call.
            fds: Descriptors to hand over; the caller keeps and closes its own copies.

        Raises:
            ChannelClosed: The peer is gone.
            CallTimeout: The deadline passed.
            RemoteError: The peer refused.
            FrameTooLarge: The parameters are over the cap.
            ChannelError: The answer has another type.
        """
        if self._is_closed:
            raise ChannelClosed(f"{self._name} is closed")
        self._next_id += 1
        call_id = self._next_id
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self._send("call", call_id, name, params, fds)
                raw = await future
        except TimeoutError as error:
            raise CallTimeout(f"{self._name} did not answer {name} in {timeout_s:g} s") from error
        finally:
            self._waiting.pop(call_id, None)
        try:
            return _decode(raw, result_type)
        except _UNREADABLE as error:
            raise ChannelError(f"{self._name} answered {name} wrongly: {error}") from error

    def close(self) -> None:
        """Close the socket and fail every call in flight; safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        # The loop must forget the descriptor before its number can be another socket's, and whoever
        # waits for the socket must see its end.
        for ready, forget in self._waits.items():
            forget(self._sock)
            _wake(ready)
        self._waits.clear()
        self._sock.close()
        for fd in self._fds:
            _close_fd(fd)
        while not self._outgoing.empty():
            for fd in self._outgoing.get_nowait()[1]:
                _close_fd(fd)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosed(f"{self._name} is closed"))

    async def _send(
        self, kind: str, call_id: int, name: str, payload: object, fds: Sequence[int]
    ) -> None:
        raw = _encode(payload)
        frame = _Frame(kind=kind, id=call_id, method=name, n_fds=len(fds), payload=raw)
        body = msgspec.msgpack.encode(frame)
        if len(body) > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a frame of {len(body)} bytes is over the cap")
        # The writer owns these copies, so that a caller that gives up may close its own.
        copies = [os.dup(fd) for fd in fds]
        try:
            await self._outgoing.put((_HEADER.pack(len(body)) + body, copies))
        except asyncio.CancelledError:
            for fd in copies:
                os.close(fd)
            raise

    async def _write_frames(self) -> None:
        while True:
            frame, fds = await self._outgoing.get()
            data = memoryview(frame)
            try:
                if fds:
                    data = data[await self._send_with_fds(data, fds) :]
                await self._send_all(data)
            except OSError:
                self.close()  # the reader wakes and ends `run`
                return
            finally:
                for fd in fds:
                    os.close(fd)

    async def _send_with_fds(self, data: memoryview, fds: Sequence[int]) -> int:
        while True:
            try:
                return socket.send_fds(self._sock, [data], list(fds))
            except BlockingIOError:
                await self._writable()

    async def _send_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                await self._writable()

    async def _read_frame(self) -> _Frame | None:
        while True:
            if len(self._buffer) >= _HEADER.size:
                size = int.from_bytes(self._buffer[: _HEADER.size], "little")
                if size > FRAME_BYTES_MAX:
                    raise ChannelError(f"{self._name}: a frame of {size} bytes is over the cap")
                end = _HEADER.size + size
                if len(self._buffer) >= end:
                    body = bytes(memoryview(self._buffer)[_HEADER.size : end])
                    del self._buffer[:end]
                    return msgspec.msgpack.decode(body, type=_Frame)
            if not await self._read_some():
                return None

    async def _read_some(self) -> bool:
        while True:
            try:
                received = socket.recv_fds(self._sock, _READ_BYTES, _FDS_PER_READ_MAX)
                break
            except BlockingIOError:
                await self._readable()
            except OSError:
                return False
        self._fds.extend(received[1])
        self._buffer += received[0]
        return bool(received[0])

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._sock, _wake, ready)
        await self._until(ready, loop.remove_reader)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._sock, _wake, ready)
        await self._until(ready, loop.remove_writer)

    async def _until(self, ready: asyncio.Future[None], forget: _Forget) -> None:
        self._waits[ready] = forget
        try:
            await ready
        finally:
            if self._waits.pop(ready, None) is not None:
                forget(self._sock)

    def _take_fds(self, count: int) -> list[int]:
        if count > len(self._fds):
            raise ChannelError(f"{self._name}: a frame names {count} descriptors that did not come")
        return [self._fds.popleft() for _ in range(count)]

    def _resolve(self, frame: _Frame) -> None:
        future = self._waiting.get(frame.id)
        if future is None or future.done():
            return  # the caller gave up
        if frame.kind == "reply":
            future.set_result(frame.payload)
        else:
            failure = msgspec.msgpack.decode(frame.payload, type=_Failure)
            future.set_exception(RemoteError(failure.code, failure.message))

    async def _answer(self, frame: _Frame, fds: Sequence[int], limiter: asyncio.Semaphore) -> None:
        try:
            handler = self._methods.get(frame.method)
            if handler is None:
                for fd in fds:
                    _close_fd(fd)
                await self._refuse(frame.id, "unknown_method", f"no method {frame.method!r}")
                return
            try:
                result = await handler.run(_decode(frame.payload, object), fds)
            except RemoteError as error:
                await self._refuse(frame.id, error.code, error.message)
            except _UNREADABLE as error:
                await self._refuse(frame.id, "invalid_params", str(error))
            except (
                Exception
            ) as error:  # the process boundary: the peer gets a sentence, we the rest
                logger.exception("%s: %s failed", self._name, frame.method)
                await self._refuse(frame.id, "internal_error", f"{type(error).__name__}: {error}")
            else:
                await self._reply(frame, result)
        except ChannelClosed:
            return  # nobody is left to answer
        finally:
            limiter.release()

    async def _reply(self, frame: _Frame, result: object) -> None:
        try:
            await self._send("reply", frame.id, frame.method, result, ())
        except FrameTooLarge as error:
            await self._refuse(frame.id, "answer_too_large", str(error))

    async def _refuse(self, call_id: int, code: str, message: str) -> None:
        await self._send("error", call_id, "", _Failure(code=code, message=message), ())


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of Unix stream sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def _close_fd(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def _encode(payload: object) -> msgspec.Raw:
    """As msgpack; as JSON within it where a number, such as a sum of money, is beyond 64 bits."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(payload))
    except OverflowError:
        document = msgspec.msgpack.Ext(_JSON, msgspec.json.encode(payload))
        return msgspec.Raw(msgspec.msgpack.encode(document))


def _decode(payload: msgspec.Raw, wanted: type[T]) -> T:
    if bytes(memoryview(payload)[:1]) not in _EXTENSIONS:
        return msgspec.msgpack.decode(payload, type=wanted)
    document = msgspec.msgpack.decode(payload, type=msgspec.msgpack.Ext)
    return msgspec.json.decode(document.data, type=wanted)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
