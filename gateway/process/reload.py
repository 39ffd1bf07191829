"""Take a new configuration while serving: on SIGHUP, and when the file or one it includes changes.

The new configuration is read and checked first. Then a whole new set of workers is started; when
every one of them is ready, they get the listening sockets, and the old set is wound down: it goes
on answering what comes on its standing connections. Whatever fails before that leaves the old
configuration in service and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.clock import Clock, from_microseconds
from gateway.policy_proof import PolicyUnproved
from gateway.process.preflight import ServeError, check, require_same_ground
from gateway.process.worker_set import SetFailed
from gateway.settings.errors import SettingsError
from gateway.settings.loader import LoadedConfig, load

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

Look = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of each file; equal looks mean equal files."""


@dataclass(slots=True, kw_only=True)
class Reloader:
    """Reloads the configuration.

    Attributes:
        config_path: The file, None for the built-in defaults.
        environ: The environment, that of the start.
        clock: For claims that expire.
        served: What is served now.
        replace: Serves another configuration; raises `SetFailed` and leaves things as they are when
            that cannot be.
        fault: Why the files are not what is served, empty when they are.
    """

    config_path: Path | None
    environ: Mapping[str, str]
    clock: Clock
    served: Callable[[], LoadedConfig]
    replace: Callable[[LoadedConfig], Awaitable[None]]
    fault: str = ""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Reload even when no file changed: keys in files may have."""
        self._asked.set()
        self._wanted.set()

    async def run(self) -> None:
        """Reload whenever there is a reason to, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                is_asked = self._asked.is_set()
                self._asked.clear()
                await self._reload(is_asked=is_asked)

    async def _reload(self, *, is_asked: bool) -> None:
        try:
            loaded = await anyio.to_thread.run_sync(self._read)
            if loaded.digest == self.served().digest and not is_asked:
                self._note("the files changed and say the same; nothing to do")
                return
            await self.replace(loaded)
        except (SettingsError, ServeError, PolicyUnproved, SetFailed) as error:
            self.fault = str(error)
            logger.error(  # noqa: TRY400 - the sentence says it all, nothing is broken here
                "the configuration was not reloaded, the old one stays in service:\n%s", error
            )
        except Exception as error:  # a supervisor's boundary: what is in service must stay there
            logger.exception("the configuration was not reloaded, the old one stays in service")
            self.fault = f"an internal error ({type(error).__name__}); the log says more"
        else:
            for warning in loaded.warnings:
                logger.warning("%s", warning)
            self._note(f"reloaded the configuration; serving {loaded.digest[:12]}")

    def _note(self, sentence: str) -> None:
        self.fault = ""
        logger.info("%s", sentence)

    def _read(self) -> LoadedConfig:
        """Read and check the files; on a thread, for both take a while where there is much."""
        today = from_microseconds(self.clock.wall_us()).date()
        path = self.config_path
        # The built-in defaults stay what they are.
        loaded = load(path, environ=self.environ, today=today) if path else self.served()
        require_same_ground(self.served(), loaded)
        check(loaded, environ=self.environ, clock=self.clock)
        return loaded

    async def _watch(self) -> None:
        """Look at the files each second; what has changed is read once it stands still."""
        if self.config_path is None:
            return
        seen = known = self._look()
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            now = self._look()
            if now != known and now == seen:  # an editor or a copy may still be writing
                known = now
                self._wanted.set()
            seen = now

    def _look(self) -> Look:
        assert self.config_path is not None
        folder = self.config_path.absolute().parent
        paths = {self.config_path}
        for pattern in self.served().settings.include:
            paths.update(folder.glob(pattern))
        return tuple(filter(None, map(_facts, sorted(paths))))


def _facts(path: Path) -> tuple[str, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # gone, perhaps for the moment in which it is replaced
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns
