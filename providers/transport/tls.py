"""TLS towards upstreams: whom we trust, who we are, and handshakes cut short by resumption."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from math import inf
from pathlib import Path
from typing import Self

_SESSIONS_MAX = 256

_SESSION_KEPT_S = 60
"""So long a host's session is offered again. Each look at a connection's session leaks a copy of
it, 6 KB and more (measured on CPython 3.11), so not every connection is asked for its own."""


class ResumingContext(ssl.SSLContext):
    """A client's context that offers each host the session that it gave last.

    asyncio and uvloop have no parameter for a session, but both wrap their buffers here.
    """

    _sessions: OrderedDict[str, tuple[ssl.SSLSession | None, float]]

    def __new__(cls) -> Self:
        """Make a context that verifies, and trusts nobody yet."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self._sessions = OrderedDict()
        return self

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a handshake, with the host's last session where there is one."""
        if session is None and isinstance(server_hostname, str):
            session, _ = self._sessions.get(server_hostname, (None, 0.0))
        return super().wrap_bio(
            incoming,
            outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
            session=session,
        )

    def remember(self, connection: ssl.SSLObject, now: float) -> None:
        """Keep a connection's session for the next; in TLS 1.3 it comes after the handshake.

        Args:
            connection: One that an answer came on.
            now: By a clock that only goes forward.
        """
        name = connection.server_hostname
        if name is None:
            return
        _, kept_at = self._sessions.get(name, (None, -inf))
        if now - kept_at < _SESSION_KEPT_S:
            return
        self._sessions[name] = connection.session, now
        self._sessions.move_to_end(name)
        if len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)


def client_context(
    *,
    ca_file: Path | None = None,
    client_cert_file: Path | None = None,
    client_key_file: Path | None = None,
) -> ResumingContext:
    """Make a context; reads files, so not on a running loop.

    Args:
        ca_file: Certificates (PEM) to trust instead of the platform's.
        client_cert_file: Our certificate (PEM), for upstreams that ask for one.
        client_key_file: Its key (PEM) where that is not in the same file.

    Raises:
        OSError: A file cannot be read, or (as `ssl.SSLError`) holds no certificate or key, or they
            do not belong together.
    """
    context = ResumingContext()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=ca_file)
    if client_cert_file is not None:
        # An encrypted key would be asked for on the terminal.
        context.load_cert_chain(client_cert_file, client_key_file, password=_no_password)
    return context


def _no_password() -> str:
    raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the key is encrypted; give one that is not")
