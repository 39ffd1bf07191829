"""Where the `fareway` script begins: so early that a Ctrl-C during the imports is no traceback."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line; a Ctrl-C that no command takes ends it with the shell's status for it.

    Raises:
        SystemExit: Always.
    """
    try:
        from gateway.cli.main import main as run  # most of the time until a command runs

        run()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise SystemExit(INTERRUPTED) from None
