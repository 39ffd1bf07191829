"""Long reads in pieces, so that no client holds the loop with one of them.

A read brings up to 256 KiB, and up to 32 of them come in one turn of the loop. Full of tiny parts
(chunks of one byte, headers without a value, requests sent in advance) one of them holds the loop
for 20 ms. What the parser calls back is bounded by the line ends that it passes over, so a read is
divided behind them: the body of a usual client holds none, and stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

PIECE_BYTES: Final = 8 * 1024
"""About how long a piece is; as chunks of one byte it takes about 1 ms."""

EVENTS_MAX: Final = 1000
"""Parts of bodies and headers in one turn of the loop behind which others get theirs."""

EVENTS_FEW: Final = EVENTS_MAX // 32
"""While a read holds no more, the next one may come in the same turn."""

FULL_READ_BYTES: Final = 256_000
"""What a read brings at the most: uvloop's buffer."""

FULL_READS_MAX: Final = 8
"""Of a connection in one turn: 32 of them would be 8 MiB, which take as many milliseconds."""


def divides(data: bytes) -> bool:
    """Whether a read that is longer than a piece is more than one."""
    return data.find(b"\n", PIECE_BYTES, -1) >= 0


def pieces_of(data: bytes) -> Iterator[bytes]:
    """A read in pieces: each ends with the first line end behind its first `PIECE_BYTES`."""
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\n", start + PIECE_BYTES) + 1 or size
        yield data[start:end]
        start = end


class HeldFlow(FlowControl):
    """Whether either side waits for the other, or a client for its own pieces.

    Whoever takes a body pauses and resumes reading as ever; while pieces are held nothing is read
    all the same, so that what comes behind them cannot overtake them.
    """

    is_held = False

    def pause_reading(self) -> None:
        """Read no further until `resume_reading`."""
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, behind what is held."""
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()

    def hold(self) -> None:
        """Read no further until `let_go`."""
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def let_go(self) -> None:
        """Nothing is held any more."""
        if self.is_held:
            self.is_held = False
            if not self.read_paused:
                self._transport.resume_reading()
