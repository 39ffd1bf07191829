"""Comments in a stream whose upstream is silent, so that nobody in between gives it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.relay.client_stream import ClientStream


class Heartbeat:
    """One loop timer per stream; it costs nothing while the stream flows.

    Everything that is written to a client is whole events, so a comment between two writes stands
    at an event boundary.
    """

    __slots__ = ("_client", "_handle", "_headers", "_loop", "_monotonic_s", "_period_s")

    def __init__(
        self,
        client: ClientStream,
        *,
        period_s: float,
        monotonic_s: Callable[[], float],
        headers: Callable[[], bytes],
    ) -> None:
        """Start to watch a stream; needs a running loop.

        Args:
            client: The stream.
            period_s: Silence after which it gets a comment.
            monotonic_s: The clock of `client.last_sent_s`.
            headers: The head of the answer as it is now, should it not be out yet.
        """
        self._client = client
        self._period_s = period_s
        self._monotonic_s = monotonic_s
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(period_s, self._look)
        client.last_sent_s = monotonic_s()

    def stop(self) -> None:
        """Say nothing more."""
        self._handle.cancel()

    def _look(self) -> None:
        silent_s = self._monotonic_s() - self._client.last_sent_s
        wait_s = self._period_s - silent_s
        if wait_s <= 0:
            self._client.beat(self._headers)
            wait_s = self._period_s
        self._handle = self._loop.call_later(wait_s, self._look)
