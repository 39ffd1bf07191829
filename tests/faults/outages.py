"""Servers that go away and come back, by themselves, beside whatever else a test does."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

REST_S = (0.2, 1.5)
"""Between two outages of a server."""
LASTS_S = (0.1, 1.5)

Break = Callable[[], Callable[[], None]]
"""Takes a server away; what it returns brings it back."""


class Stoppable(Protocol):
    """`tests.support.postgres.PostgresServer` and `tests.support.redis.RedisServer`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


def of_server(server: Stoppable, name: str) -> dict[str, Break]:
    """The ways in which a server of ours goes away: stopped, killed, or only silent."""

    def stop() -> Callable[[], None]:
        server.stop()
        return server.start

    def kill() -> Callable[[], None]:
        server.kill()
        return server.start

    def freeze() -> Callable[[], None]:
        server.freeze()
        return server.thaw

    return {f"{name} stopped": stop, f"{name} killed": kill, f"{name} frozen": freeze}


def of_file(database: Path) -> dict[str, Break]:
    """A SQLite file knows one: somebody else has it locked."""

    def lock() -> Callable[[], None]:
        if not database.exists():  # nobody may make it but the gateway
            return lambda: None
        holder = sqlite3.connect(
            f"file:{database}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=5,
            check_same_thread=False,
        )
        with contextlib.suppress(sqlite3.OperationalError):
            holder.execute("BEGIN IMMEDIATE")
        return holder.close

    return {"database locked": lock}


class Outages:
    """Takes one server after another away for a moment; a context manager, after which all are back.

    Args:
        ways: What can happen, by name; each server's in turn of their own.
        seed: Of everything random here.
    """

    def __init__(self, *ways: Mapping[str, Break], seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(mine, random.Random(f"{seed}:outage:{n}")))
            for n, mine in enumerate(ways)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, ways: Mapping[str, Break], rng: random.Random) -> None:
        try:
            while not self._stopping.wait(rng.uniform(*REST_S)):
                name = rng.choice(sorted(ways))
                bring_back = ways[name]()
                self.seen[name] += 1
                self._stopping.wait(rng.uniform(*LASTS_S))
                bring_back()
        except BaseException as error:
            self._failures.append(error)
