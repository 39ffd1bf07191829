"""What the head of every answer says of its request; filled while the request is served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_LINES: Final = b"%bx-fareway-tags: %b\r\nx-fareway-overhead-ms: %.2f\r\n%b%b"
"""Lines of the id, tags, overhead in milliseconds, lines of the attempt, further lines."""


@dataclass(slots=True, kw_only=True)
class RequestHead:
    """Header lines that do not depend on the attempt.

    Attributes:
        id_lines: Lines with the request's id.
        ready_s: Monotonic instant at which the request was here whole, or known never to be: a
            client's slow upload is no overhead of ours.
        tags: Closed tags, as a header's value.
        limits: Lines that tell where the request's rate limits stand; empty where it has none.
        overhead_s: From `ready_s` to the hand-over of the first attempt to its provider, the
            journal's write (with `strict`, its sync) included, or to the refusal; None until then,
            and fixed from then on.
    """

    id_lines: bytes
    ready_s: float
    tags: bytes = b""
    limits: bytes = b""
    overhead_s: float | None = None

    def note_ready(self, now_s: float) -> None:
        """The request's last byte is here, or no further one is read."""
        self.ready_s = now_s

    def note_dispatch(self, now_s: float) -> None:
        """An attempt is handed over, or the request is refused; only the first time counts."""
        if self.overhead_s is None:
            self.overhead_s = now_s - self.ready_s

    def lines(self, attempt: bytes, more: bytes) -> bytes:
        """All header lines of an answer that are ours, each with its line end.

        Args:
            attempt: `attempt_lines` of the attempt that it is about.
            more: Lines that follow.
        """
        overhead_ms = (self.overhead_s or 0.0) * 1000
        if self.limits:
            more = self.limits + more
        return _LINES % (self.id_lines, self.tags, overhead_ms, attempt, more)


@lru_cache(maxsize=1024)  # the same few for every request
def attempt_lines(deployment: str, attempts: int) -> bytes:
    """Header lines that name an attempt: its deployment and its number."""
    return b"x-fareway-deployment: %b\r\nx-fareway-attempts: %d\r\n" % (
        header_text(deployment),
        attempts,
    )


def header_text(text: str) -> bytes:
    """A header value for any text: ASCII as it is, everything else percent-encoded as UTF-8."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return text.encode()
    return b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "surrogatepass")
    )
