"""A port of loopback that counts who comes, by TCP or by datagram."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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


class PackageIndex:
    """An index of packages on loopback with one wheel, which another place may hold.

    Attributes:
        port: Where.
        files_url: Where the page says that the wheel is; the index itself unless told otherwise.
        seen: How many requests came.
    """

    def __init__(self, wheel: Path | None) -> None:
        self.seen = 0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.seen += 1
                if self.path.endswith(".whl"):
                    data, kind = (b"" if wheel is None else wheel.read_bytes()), "application/zip"
                else:
                    name = "tiny_model-1.0-py3-none-any.whl"
                    data, kind = (
                        f'<a href="{index.files_url}/{name}">{name}</a>'.encode(),
                        "text/html",
                    )
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.files_url = self.url
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
