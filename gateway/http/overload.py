"""Refuses a share of new requests while this worker computes more than it has time for.

Without it a queue grows inside the event loop until every client waits for its own timeout, and
nobody is served. A refusal costs a tenth of a request, so what is left of the core serves nearly as
many as before.
"""

from __future__ import annotations

import random
from typing import Final

from gateway.errors import Overloaded
from gateway.http.errors import error_headers, openai_body
from gateway.http.messages import header_lines
from gateway.relay.client_stream import JSON_HEADER
from gateway.relay.request_head import RequestHead, attempt_lines

LATE_S: Final = 0.05
"""Processor time in which the loop got to nothing new. Sixty requests at once take half of it."""

BURST_S: Final = 0.5
"""So much lateness without one look in time between is no burst any more."""

STEP_UP: Final = 0.05
"""Added for a late look, at least: it is the lateness itself where that is more, in seconds."""

STEP_DOWN: Final = 0.02
SHARE_MAX: Final = 0.95
"""Some requests always get through: they are how the end of an overload is found."""

RETRY_S: Final = 1.0


class Overload:
    """How much of what comes is refused; told by the loop's watchdog.

    Attributes:
        share: Of new requests, between 0 and `SHARE_MAX`.
        head: Header lines of a refusal, without the request's id.
        body: Its body.
    """

    __slots__ = ("_late_s", "_rng", "body", "head", "share")

    def __init__(self, rng: random.Random) -> None:
        """Begin without an overload.

        Args:
            rng: Chooses whom to refuse.
        """
        self._rng = rng
        self._late_s = 0.0
        self.share = 0.0
        error = Overloaded(
            "this worker has more requests than it has time for; try again, or give the server"
            " more workers (server.workers)",
            retry_after_s=RETRY_S,
        )
        self.body = openai_body(error)
        # The id alone is each request's own, and goes before these.
        self.head = RequestHead(id_lines=b"", ready_s=0.0).lines(
            attempt_lines("none", 0), header_lines(error_headers(error)) + JSON_HEADER
        )

    def note(self, computed_s: float) -> None:
        """Take a look of the watchdog.

        Args:
            computed_s: How late it was, as far as this loop's own computing made it late: what
                other processes took is no overload of ours.
        """
        if computed_s > LATE_S:
            self._late_s += computed_s
            if self._late_s >= BURST_S:
                self.share = min(SHARE_MAX, self.share + max(STEP_UP, computed_s))
        else:
            self._late_s = 0.0
            self.share = max(0.0, self.share - STEP_DOWN)

    def refuses(self) -> bool:
        """Whether the request that is here now is one of those that are refused."""
        return self.share > 0.0 and self._rng.random() < self.share
