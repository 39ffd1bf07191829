"""A server that ends with the tests that use it, however they end.

`python server_keeper.py SIGNAL USER COMMAND...` runs a command until standard input is closed, as a
killed process closes it too, and then ends it: by the signal, or by force after some seconds.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

END_TIMEOUT_S = 10.0


def keep(command: Sequence[str], *, log: Path, end_signal: int, user: str = "") -> Kept:
    """Start a server whose output goes to `log`, as another user when one is named."""
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(int(end_signal)), user, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    return Kept(keeper)


class Kept:
    """A server under a keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper

    def is_running(self) -> bool:
        """Whether the server has not ended."""
        return self._keeper.poll() is None

    def end(self) -> None:
        """End the server, unless it has ended by itself, and wait for that."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper.wait(timeout=END_TIMEOUT_S + 5)


def main() -> int:
    end_signal, user, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, user=user or None)

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        child.send_signal(int(end_signal))
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_TIMEOUT_S)
        child.kill()

    threading.Thread(target=end_with_input, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
