"""Starting and ending the programs of a benchmark, by their ids and no others."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from bench.gateway import proc
from bench.gateway.faults import BenchFault
from gateway.egress.lists import also

LOG_TAIL_BYTES = 800
POLL_S = 0.01
LOCALHOST = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class Running:
    """A program that was started here.

    Attributes:
        name: For messages.
        process: The process.
        log: Where its output goes.
        started_s: Monotonic instant of its start.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def check(self) -> None:
        """Nothing, unless it ended.

        Raises:
            BenchFault: With the end of its log.
        """
        if self.process.poll() is not None:
            raise BenchFault(
                f"{self.name} ended with status {self.process.returncode}: {self.tail()}"
            )

    def stop(self, *, grace_s: float = 40.0) -> None:
        """Ask it to end; after the grace, kill it and all its descendants."""
        pids = proc.tree(self.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)


def start(
    command: Sequence[str],
    *,
    name: str,
    core: int | None,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Running:
    """Start a program on a core, with its output in `<folder>/<name>.log`."""
    log = folder / f"{name}.log"
    with log.open("ab") as output, proc.on_core(core):
        started_s = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # So that a Ctrl-C reaches the benchmark alone, which ends what it started.
                start_new_session=True,
            )
        except OSError as error:
            raise BenchFault(f"{name} cannot be started: {error}") from error
    return Running(name=name, process=process, log=log, started_s=started_s)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.create_server((LOCALHOST, 0)) as probe:
        _, port = cast("tuple[str, int]", probe.getsockname())
        return port


def ask(port: int, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """One POST on a connection of its own: status and answer.

    Raises:
        OSError: Nobody answers.
    """
    also(LOCALHOST, port)  # no configuration names what a benchmark starts
    connection = http.client.HTTPConnection(LOCALHOST, port, timeout=30)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def get(url: str) -> bytes:
    """The answer's body.

    Raises:
        OSError: Nobody answers, or with another status than 2xx.
    """
    also(LOCALHOST, urlsplit(url).port or 80)
    with cast("BinaryIO", urllib.request.urlopen(url, timeout=10)) as answer:
        return answer.read()


def wait_for_200(
    running: Running,
    port: int,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    within_s: float,
) -> tuple[float, int]:
    """Ask again and again until the first 200.

    Returns:
        Seconds since the program's start, and how many requests had an answer of another status.

    Raises:
        BenchFault: The program ended, or there was no 200 in time.
    """
    last, others = "nobody listened", 0
    while time.monotonic() - running.started_s < within_s:
        running.check()
        try:
            status, answer = ask(port, path, body, headers)
        except OSError as error:
            last = str(error)
        else:
            if status == 200:
                return time.monotonic() - running.started_s, others
            others += 1
            last = f"{status} {answer[:200]!r}"
        time.sleep(POLL_S)
    raise BenchFault(f"{running.name} gave no 200 within {within_s:g} s ({last}): {running.tail()}")
