"""The sockets that clients connect to: several on one port, so that the kernel spreads connections.

With one shared socket the worker that wakes first takes whatever waits: of 64 keep-alive
connections one worker of two got up to 64. With a socket each (`SO_REUSEPORT`) the busiest of two
got 1.1 times the mean, of four 1.4 times. The kernel drops what waits on a socket of the group that
is closed, so the supervisor keeps every socket open for as long as it serves; workers come and go
behind them, and a worker that is gone has its socket served by another meanwhile.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import cast

BACKLOG = 2048


class CannotListen(Exception):
    """The address cannot be had; the message says what to do."""


@dataclass(slots=True, kw_only=True)
class Listeners:
    """Listening sockets of one address; at least one until `close`.

    Attributes:
        sockets: Bound and listening.
    """

    sockets: list[socket.socket]

    @property
    def url(self) -> str:
        """The base URL that clients use."""
        host, port = self._address()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def grow(self, count: int) -> None:
        """Have at least `count` sockets; their number never falls, for none may be closed.

        Raises:
            CannotListen: The machine refuses.
        """
        host, port = self._address()
        while len(self.sockets) < count:
            self.sockets.append(_bound(host, port, joins=True))

    def close(self) -> None:
        """Close our own; a worker's copies stay open until it closes them."""
        for listener in self.sockets:
            listener.close()

    def _address(self) -> tuple[str, int]:
        return cast("tuple[str, int]", self.sockets[0].getsockname()[:2])


def bind(host: str, port: int, *, count: int = 1) -> Listeners:
    """Bind and listen.

    Args:
        host: An IPv4 or IPv6 address, or a name.
        port: 0 lets the system choose.
        count: Sockets to begin with.

    Raises:
        CannotListen: The address cannot be had.
    """
    listeners = Listeners(sockets=[_bound(host, port, joins=False)])
    try:
        listeners.grow(count)
    except CannotListen:
        listeners.close()
        raise
    return listeners


def _bound(host: str, port: int, *, joins: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        # Our first socket asks only now to share: binding with the wish would quietly join the
        # group of another gateway that has this port, and take half of its clients.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror};"
            " stop what uses it, or set server.port in fareway.yaml (`fareway init` writes one)"
        ) from error
    return listener
