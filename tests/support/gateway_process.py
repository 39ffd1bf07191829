"""A real gateway in processes of its own, for tests that kill it, drain it or look at its ledger.

with GatewayProcess(tmp_path, config) as gateway:
    gateway.url, gateway.key("team")      # base URL without /v1, a fixed key per team
    gateway.run("spend", "report")        # a command of the same configuration
    gateway.kill()                        # SIGKILL of the whole tree
    gateway.start()                       # again, on the same files
    gateway.kill_role("worker")           # SIGKILL of one process; the supervisor starts another
    gateway.kill_supervisor()             # SIGKILL of the supervisor alone
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
ROLES = {
    "gateway.process.worker": "worker",
    "gateway.process.ledger_process": "ledger",
    "local_engine.server": "engine",
}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class GatewayProcess:
    """`fareway serve` with a configuration file in a folder; a context manager.

    Args:
        folder: Holds fareway.yaml, the database, the spool, the state directory and the log.
        config: The configuration; `server.host` and `server.port` are filled in, and each team gets
            a fixed key unless it declares some.
        environ: More variables for the process.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = json.loads(json.dumps(config))
        self.config.setdefault("server", {}).update(host="127.0.0.1", port=self.port)
        self._keys: dict[str, str] = {}
        for team, rules in self.config.get("teams", {}).items():
            if "keys" not in rules:
                variable = f"KEY_{team.upper().replace('-', '_')}"
                self._keys[team] = f"test-key-of-{team}-0123456789"
                rules["keys"] = [{"name": "fixed", "value_env": variable}]
        self.environ = {
            **os.environ,
            "FAREWAY_STATE_DIR": str(folder / "state"),
            "FAREWAY_ADMIN_KEY": "admin-key-for-tests-0123456789",
            **{
                rules["keys"][0]["value_env"]: self._keys[team]
                for team, rules in self.config.get("teams", {}).items()
                if team in self._keys
            },
            **(environ or {}),
        }
        self.log_path = folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._orphans: list[int] = []

    @property
    def url(self) -> str:
        """Base URL without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """The ledger's file."""
        return self.folder / "fareway.db"

    @property
    def spool(self) -> Path:
        """The spool's root."""
        return self.folder / "spool"

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None
        return self._process.pid

    def key(self, team: str) -> str:
        """The fixed key of a team."""
        return self._keys[team]

    def __enter__(self) -> Self:
        self.write_config()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def write_config(self) -> None:
        """Write `config` to fareway.yaml."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
        (self.folder / "fareway.yaml").write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; with its log.
        """
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start, and do not wait."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("serve"),
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; with its log.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/readyz", timeout=2),
            ):
                return
            time.sleep(0.05)
        raise RuntimeError(f"the gateway did not start:\n{self.log()}")

    def log(self) -> str:
        """Everything that it wrote."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def run(self, *arguments: str, check: bool = True) -> str:
        """Run another command of the same configuration and return its standard output."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{arguments} exited {done.returncode}: {done.stderr}")
        return done.stdout

    def pids(self) -> dict[str, int]:
        """Process ids by role, as the gateway itself tells."""
        request = urllib.request.Request(
            f"{self.url}/admin/v1/status",
            headers={"authorization": f"Bearer {self.environ['FAREWAY_ADMIN_KEY']}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)["pids"]

    def tree(self) -> list[int]:
        """The supervisor and every process below it."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(stat[1]), []).append(int(entry.name))
        found, waiting = [], [self.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += children.get(pid, [])
        return found

    def pids_of(self, role: str) -> list[int]:
        """Processes of a role (`worker`, `ledger`, `engine`), as the kernel tells."""
        return [pid for pid in self.tree() if _role(pid) == role]

    def kill_role(self, role: str) -> list[int]:
        """SIGKILL every process of a role and return when they are gone; their ids."""
        pids = self.pids_of(role)
        _kill(pids)
        return pids

    def kill_pids(self, pids: list[int]) -> None:
        """SIGKILL these processes and return when they are gone."""
        _kill(pids)

    def kill_supervisor(self) -> None:
        """SIGKILL the supervisor alone, and return when nobody listens on the port any more.

        Raises:
            RuntimeError: Its orphans kept the port; with the log.
        """
        assert self._process is not None
        self._orphans += self.tree()[1:]
        self._process.kill()
        self._process.wait(timeout=10)
        self._process = None
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                return
            time.sleep(0.02)
        raise RuntimeError(f"orphans keep the port:\n{self.log()}")

    def kill(self) -> None:
        """SIGKILL every process of the tree at once, as the end of a machine would."""
        tree = [pid for pid in self._orphans if _role(pid)]
        self._orphans.clear()
        if self._process is not None and self._process.poll() is None:
            tree += self.tree()
        _kill(tree)
        if self._process is not None:
            self._process.wait(timeout=10)
            self._process = None

    def stop(self) -> int:
        """SIGTERM and wait for the drain; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: int) -> None:
        """Send the supervisor a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; the exit status."""
        assert self._process is not None
        status = self._process.wait(timeout=90)
        self._process = None
        return status

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _RUN, *arguments]


_RUN = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gateway.cli.main import main
main(sys.argv[1:])
"""


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _role(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((role for module, role in ROLES.items() if module in words), "")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
