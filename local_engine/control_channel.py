"""A framed, non-blocking channel between a supervisor and its engine that passes descriptors.

Transports of the event loop cannot carry descriptors, so this reads and writes the socket itself
when the loop says that it is ready. Messages are handled as they come, in order, without a task.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from local_engine.errors import EngineError, EngineGone, ProtocolError
from local_engine.protocol import MessageReader, encode_frame

_READ_BYTES = 64 * 1024
_DESCRIPTORS_PER_READ_MAX = 16
_OUTBOX_FRAMES_MAX = 256

_Received = TypeVar("_Received")


class ControlChannel(Generic[_Received]):
    """One end of a control socket.

    Args:
        sock: A connected stream socket of the Unix family; owned by the channel from now on.
        union: Type of the messages that this end accepts.
        on_message: Called with each message.
        on_end: Called once when the other end is gone or broke the protocol, with the reason.
    """

    def __init__(
        self,
        sock: socket.socket,
        union: type[_Received],
        *,
        on_message: Callable[[_Received], None],
        on_end: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = MessageReader(union)
        self._on_message = on_message
        self._on_end = on_end
        self._descriptors: deque[int] = deque()
        self._outbox: deque[tuple[memoryview, int | None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        """Whether the other end is gone, or this end is closed."""
        return self._is_ended

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to read on this loop; the other methods are called on it alone."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._read)
        self._write()

    def send(self, message: msgspec.Struct, *, descriptor: int | None = None) -> None:
        """Queue a message.

        Args:
            message: One that the other end accepts.
            descriptor: Travels with it; duplicated here, so that the caller keeps its own.

        Raises:
            EngineGone: the channel has ended, or the other end no longer reads.
        """
        if self._is_ended:
            raise EngineGone("the engine's control channel is closed")
        if len(self._outbox) >= _OUTBOX_FRAMES_MAX:
            raise EngineGone("the other end of the control channel no longer reads")
        copied = None if descriptor is None else os.dup(descriptor)
        self._outbox.append((memoryview(encode_frame(message)), copied))
        self._write()

    def take_descriptor(self) -> int:
        """The next descriptor that came; the caller owns it.

        Raises:
            ProtocolError: none came with the message.
        """
        if not self._descriptors:
            raise ProtocolError("a message came without its descriptor")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Stop at once and close the socket; harmless when closed."""
        self._is_ended = True
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for descriptor in [*self._descriptors, *(fd for _, fd in self._outbox if fd is not None)]:
            os.close(descriptor)
        self._descriptors.clear()
        self._outbox.clear()

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, _READ_BYTES, _DESCRIPTORS_PER_READ_MAX, socket.MSG_CMSG_CLOEXEC
            )
            self._descriptors.extend(descriptors)
            if not data:
                self._end("the other end closed the control channel")
                return
            for message in self._reader.feed(data):
                if self._is_ended:
                    return
                self._on_message(message)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, EngineError) as fault:
            self._end(f"the control channel failed: {fault}")

    def _write(self) -> None:
        if self._loop is None or self._is_ended:
            return
        try:
            while self._outbox:
                frame, descriptor = self._outbox[0]
                if descriptor is None:
                    n_sent = self._socket.send(frame)
                else:
                    n_sent = socket.send_fds(self._socket, [frame], [descriptor])
                    # The kernel has its own reference once the first byte is under way.
                    os.close(descriptor)
                if n_sent < len(frame):
                    self._outbox[0] = (frame[n_sent:], None)
                else:
                    self._outbox.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError as fault:
            self._end(f"the control channel failed: {fault}")
            return
        self._loop.remove_writer(self._socket.fileno())

    def _end(self, reason: str) -> None:
        if not self._is_ended:
            self.close()
            self._on_end(reason)
