"""A client that is a bare socket, so that a test decides when and how it leaves."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Self

from tests.support.gateway_process import GatewayProcess

TIMEOUT_S = 20.0


class RawClient:
    """One chat request on a connection of its own; a context manager.

    Args:
        gateway: Whom to ask.
        team: Whose key to use.
        body: The request.
        sends: Part of the body that is really sent, 1 for all of it.
    """

    def __init__(
        self, gateway: GatewayProcess, team: str, body: dict[str, Any], *, sends: float = 1.0
    ) -> None:
        self.received = b""
        payload = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
            f"authorization: Bearer {gateway.key(team)}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        )
        self._sock = socket.create_connection(("127.0.0.1", gateway.port), timeout=TIMEOUT_S)
        self._sock.sendall(head.encode() + payload[: round(len(payload) * sends)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def read_until(self, mark: bytes, *, count: int = 1) -> bytes:
        """Read until `mark` was received `count` times; everything so far.

        Raises:
            AssertionError: The gateway ended the connection before.
        """
        while self.received.count(mark) < count:
            piece = self._sock.recv(65536)
            assert piece, self.received
            self.received += piece
        return self.received

    def read_to_end(self) -> bytes:
        """Read until the end of the chunked body, or of the connection; everything so far."""
        while not self.received.endswith(b"\r\n0\r\n\r\n"):
            piece = self._sock.recv(65536)
            if not piece:
                break
            self.received += piece
        return self.received

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self.received.split(b" ", 2)[1])

    @property
    def text(self) -> str:
        """The body without its chunk frames, as far as it came."""
        head, _, body = self.received.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return body.decode()
        whole = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            whole += rest[: int(size, 16)]
            body = rest[int(size, 16) + 2 :]
        return whole.decode()

    def close(self) -> None:
        """Leave with a FIN."""
        self._sock.close()

    def reset(self) -> None:
        """Leave with an RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
