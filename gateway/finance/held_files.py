"""Uploaded files that wait for a decision, in the memory of the ledger process.

Nothing is written to disk for a file that nobody has decided to take. Files are held for half an
hour, and the oldest ones go first where room is needed; whoever comes later uploads again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.finance.errors import NotFound
from gateway.finance.form_messages import FILE_BYTES_MAX

HELD_US = 30 * 60 * 10**6
HELD_BYTES_MAX = 2 * FILE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    actor: str
    content: bytes
    at_us: int


class HeldFiles:
    """Files by token; each is its sender's alone."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _Held] = OrderedDict()

    def hold(self, token: str, content: bytes, *, actor: str, now_us: int) -> None:
        """Hold a file; old ones make room."""
        self._drop_old(now_us)
        self._files.pop(token, None)
        room = HELD_BYTES_MAX - len(content)
        while self._files and sum(len(one.content) for one in self._files.values()) > room:
            self._files.popitem(last=False)
        self._files[token] = _Held(actor=actor, content=content, at_us=now_us)

    def content(self, token: str, *, actor: str, now_us: int) -> bytes:
        """A file that is held.

        Raises:
            NotFound: It is not held any more, or is somebody else's.
        """
        self._drop_old(now_us)
        held = self._files.get(token)
        if held is None or held.actor != actor:
            raise NotFound("the file is not held any more; choose it once more")
        return held.content

    def drop(self, token: str) -> None:
        """Let go of a file that was taken."""
        self._files.pop(token, None)

    def _drop_old(self, now_us: int) -> None:
        for token in [name for name, one in self._files.items() if one.at_us < now_us - HELD_US]:
            del self._files[token]
