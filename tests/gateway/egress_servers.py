"""A port of loopback that counts who comes, by TCP or by datagram."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


class Listener:
    """Counts connections and datagrams; to TCP it answers HTTP and closes.

    Attributes:
        port: The same number for both.
        seen: How many came.
    """

    def __init__(self) -> None:
        while True:
            self._tcp = socket.create_server(("127.0.0.1", 0))
            self.port = self._tcp.getsockname()[1]
            self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with contextlib.suppress(OSError):
                self._udp.bind(("127.0.0.1", self.port))
                break
            self._tcp.close()
            self._udp.close()
        self.seen = 0
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._serve, self._hear)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tcp.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._udp.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        self._tcp.close()
        self._udp.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            self.seen += 1
            with connection, contextlib.suppress(OSError):
                connection.settimeout(0.3)
                connection.recv(65536)
                connection.sendall(ANSWER)

    def _hear(self) -> None:
        while True:
            try:
                data = self._udp.recv(65536)
            except OSError:
                return
            if not data:
                return
            self.seen += 1
