"""Takes in the connections that wait at a listening socket, many in one turn of the loop.

The loop's own server takes one connection a turn (libuv since 1.45). While turns are long, as they
are under load, clients that connect would wait longer for that than for their answers: at turns of
60 ms, the last of 1,024 for a minute. To take one in here costs 8 microseconds more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

TAKEN_MAX: Final = 64
"""Connections a turn. One takes 16 microseconds, so these make others wait a millisecond."""

PAUSE_S: Final = 1.0
"""Time to wait where the process may open nothing more; what waits would ring without pause."""

logger = logging.getLogger(__name__)


class Door:
    """Accepts from one listening socket until it is closed; on the running loop's thread."""

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """Begin to accept.

        Args:
            listener: Listens already; owned from here on.
            make_protocol: Makes the protocol of a connection.
        """
        listener.setblocking(False)
        self._listener = listener
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._open()

    def close(self) -> None:
        """Accept no more; what was accepted stays."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _open(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._take)

    def _take(self) -> None:
        for _ in range(TAKEN_MAX):
            try:
                connection = self._listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                logger.exception("no connection can be accepted; trying again in %g s", PAUSE_S)
                self._loop.remove_reader(self._listener.fileno())
                self._pause = self._loop.call_later(PAUSE_S, self._open)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()  # its client has left already
