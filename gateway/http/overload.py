"""Refuses what this worker has no time for, so that the rest is served as fast as ever.

Whatever comes is read, worked on and answered in turns of the event loop: a request that comes
while a turn lasts is read at the start of the next one, and its upstream's answer in a later one.
So the length of a turn is the delay that the queue in the sockets makes, and the only sign of it.
Without refusals that queue grows until every client waits for its own timeout.

A queue that is long for a moment is a burst and is served; one that stays long is an overload, as
in CoDel (RFC 8289). Then each turn takes in as many requests as make a short turn and refuses the
others, which costs a tenth each. How many are taken in follows the length of the turns in
proportion and by a damped step, as the share of PIE does (RFC 8033). Who came first in a turn is
taken in, so nobody needs luck. An overload ends with the first moments in which nothing waits.

Clients that ask again at once keep their turns full of refusals, however few they are: whether all
of them could be served is tried from time to time.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from gateway.errors import Overloaded
from gateway.http.errors import error_headers, openai_body
from gateway.http.messages import header_lines
from gateway.relay.client_stream import JSON_HEADER
from gateway.relay.request_head import RequestHead, attempt_lines

LONG_S: Final = 0.05
"""Processor time of a turn that is too long; 256 clients that ask without pause make half of it."""

FAIR_S: Final = 0.03
"""A turn below it shows that there is no overload; one in between shows nothing, for long and short
turns take turns where many requests came at once."""

BURST_S: Final = 0.15
LONG_TURNS: Final = 3
"""So much time in long turns, and so many of them, are no burst and no lone piece of work: a
thousand requests at once make two, one with the requests and one with the answers."""

HOLD_S: Final = 0.008
"""The turn that an overload is held at, time of others on the processor included, refusals not. A
request takes two to three turns; 64 clients that ask without pause make turns of 5 ms."""

OTHERS_MAX: Final = 0.5
"""Most time of others that counts, in proportion to what was computed here. To take in fewer
requests does not shorten it: with all of it, others that take 8 ms a turn would leave no room."""

CALM_S: Final = 0.0025
"""A turn below it leaves time unused: nothing waited."""

CALM_ENOUGH_S: Final = 0.1
"""So much more time in calm turns than in others is the end."""

UNREFUSED_S: Final = 0.5
"""So long without anybody to refuse is the end, too."""

TRIED_EVERY_S: Final = 60.0
TRIED_S: Final = 0.2
"""How often, and for how long, everybody is taken in. Where that makes a long turn it ends sooner;
a two-fold overload takes a tenth of a second to get there."""

REFUSAL_S: Final = 25e-6
"""What a refusal costs, rather too much (12 to 20 microseconds were measured)."""

REFUSALS_SHARE_MAX: Final = 2 / 3
"""Most of a turn that counts as refusals'. They are not held against the requests that are taken
in: those of a thousand clients that come back at once would leave no room for any."""

FIRST_ROOM: Final = 32.0
"""Requests of a turn at first; few, since what has gathered by then is refused with those."""

LEAST: Final = 1.0
"""Some requests always get through, even where streams in flight alone make long turns."""

GAIN: Final = 0.3
STEP_MIN: Final = 0.7
STEP_MAX: Final = 1.1
"""How the room of a turn follows its length: down faster than up."""

RETRY_S: Final = 1.0

logger = logging.getLogger(__name__)


class Overload:
    """Whether requests are refused, and which; told of turns by the loop's watchdog.

    Attributes:
        is_on: Whether there is an overload. Then every turn has to be told, otherwise a look at
            times is enough.
        head: Header lines of a refusal, without the request's id.
        body: Its body.
    """

    __slots__ = (
        "_calm_s", "_left", "_long_s", "_long_turns", "_refused", "_room", "_since_try_s",
        "_unrefused_s", "body", "head", "is_on",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin without an overload."""
        self.is_on = False
        self._begin()
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

    def refuses(self) -> bool:
        """Whether the request that is here now is refused; asked only while `is_on`."""
        if self._left < 1.0:
            self._refused += 1
            return True
        self._left -= 1.0
        return False

    def note(self, turn_s: float, computed_s: float) -> None:
        """Take a look at the turn that has just ended.

        Args:
            turn_s: How long it lasted.
            computed_s: How much of that this loop's thread computed. What other processes took is
                no overload of ours; but once there is one, clients wait for that as well.
        """
        if self.is_on:
            self._hold(turn_s, computed_s)
        elif computed_s > LONG_S:
            self._long_s += computed_s
            self._long_turns += 1
            if self._long_s >= BURST_S and self._long_turns >= LONG_TURNS:
                self.is_on = True
                logger.warning(
                    "more requests than there is time for, each waits %d ms for its turn;"
                    " from now on some are refused",
                    computed_s * 1000,
                )
        elif computed_s < FAIR_S:
            self._long_s, self._long_turns = 0.0, 0

    def _begin(self) -> None:
        self._long_s = 0.0
        self._long_turns = 0
        self._left = self._room = FIRST_ROOM
        self._refused = 0
        self._calm_s = self._unrefused_s = self._since_try_s = 0.0

    def _hold(self, turn_s: float, computed_s: float) -> None:
        refused, self._refused = self._refused, 0
        self._calm_s = max(0.0, self._calm_s + (turn_s if turn_s < CALM_S else -turn_s))
        self._unrefused_s = 0.0 if refused else self._unrefused_s + turn_s
        self._since_try_s += turn_s
        if (
            self._calm_s >= CALM_ENOUGH_S
            or self._unrefused_s >= UNREFUSED_S
            or self._since_try_s >= TRIED_EVERY_S + TRIED_S
        ):
            self.is_on = False
            self._begin()
            logger.warning("there is time for every request again")
            return
        if self._since_try_s >= TRIED_EVERY_S:
            if turn_s <= LONG_S:
                self._left = math.inf
                return
            self._since_try_s = 0.0  # and the room is what it was
        else:
            self._follow(min(turn_s, computed_s * (1 + OTHERS_MAX)), refused)
        self._left = self._room

    def _follow(self, turn_s: float, refused: int) -> None:
        """Make the room of the next turn so that its work takes `HOLD_S`."""
        refusals_s = min(refused * REFUSAL_S, turn_s * REFUSALS_SHARE_MAX)
        worked_s = max(CALM_S, turn_s - refusals_s)
        if refused or worked_s > HOLD_S:  # otherwise there was room for more than came
            step = math.pow(HOLD_S / worked_s, GAIN)
            self._room = max(LEAST, self._room * min(STEP_MAX, max(STEP_MIN, step)))
