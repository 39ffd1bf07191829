"""The keys of the database, and who must know them: every worker that answers clients.

A worker is configured with the keys of a moment and joins when it has those of now; from then on
every change reaches it before the command that made the change returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.auth.directory import KeyRecord
from gateway.process.child import Child
from gateway.process.messages import KeysUpdate
from gateway.process.telling import tell, tell_all

logger = logging.getLogger(__name__)

_UPDATE = "update_keys"


@dataclass(slots=True, kw_only=True)
class KeyBoard:
    """Knows the keys.

    Attributes:
        members: The workers that have joined and live.
        lock: Held around every change, from the ledger's write to the last acknowledgement.
        revision: Grows with every publication; 0 before the first.
        is_complete: Whether the database has told the keys.
        on_change: Called whenever there are other keys, before anybody else hears of them.
    """

    members: Callable[[], Sequence[Child]]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    revision: int = 0
    is_complete: bool = True
    on_change: Callable[[], None] = lambda: None
    _keys: list[KeyRecord] = field(default_factory=list[KeyRecord])
    _known: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def keys(self) -> list[KeyRecord]:
        """What every member has, or is told just now."""
        return self._keys

    async def current(self) -> tuple[list[KeyRecord], int]:
        """Every key and the revision, once the ledger has told them."""
        await self._known.wait()
        return self._keys, self.revision

    async def join(self, child: Child, *, revision: int, enter: Callable[[], None]) -> None:
        """Make a worker a member.

        Args:
            child: The worker.
            revision: Of the keys that it has.
            enter: Makes it one of `members`; called with the lock held.

        Raises:
            ChannelError: It did not take what changed meanwhile.
        """
        async with self.lock:
            if revision != self.revision:
                await tell(child, _UPDATE, self._update())
            enter()

    def has(self, keys: list[KeyRecord]) -> bool:
        """Whether these keys are what every member has."""
        return self._known.is_set() and self.is_complete and keys == self._keys

    async def refresh(self, load: Callable[[], Awaitable[list[KeyRecord]]]) -> None:
        """Give every member the keys of now; whoever changed them.

        Args:
            load: Reads them; called with the lock held, so that they are no older than what a
                command has published meanwhile.

        Raises:
            ChannelError: They were not told.
        """
        async with self.lock:
            keys = await load()
            if not self.has(keys):
                await self.publish(keys)

    async def publish(self, keys: list[KeyRecord], *, is_complete: bool = True) -> None:
        """Give every member the new keys; call with the lock held.

        Args:
            keys: What there is.
            is_complete: Whether the database has told them.
        """
        self._keys, self.is_complete = keys, is_complete
        self.revision += 1
        self._known.set()
        self.on_change()
        # A worker that cannot learn that a key was revoked must not go on serving.
        await tell_all(self.members(), _UPDATE, self._update(), what="keys")

    def _update(self) -> KeysUpdate:
        return KeysUpdate(keys=self._keys, revision=self.revision, is_complete=self.is_complete)
