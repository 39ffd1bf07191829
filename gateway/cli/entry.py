"""Where the `fareway` script begins: so early that a Ctrl-C during the imports is no traceback.

`serve` gets a head start: its first worker is a copy of this process from before it imports what
reads its command line and its configuration, and the collector of garbage sleeps until it serves.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence

from gateway.process.launch import HeadStart

INTERRUPTED = 128 + signal.SIGINT
_HELP = frozenset({"-h", "--help"})


def main() -> None:
    """Run the command line; a Ctrl-C that no command takes ends it with the shell's status for it.

    Raises:
        SystemExit: Always.
    """
    started = HeadStart()
    try:
        if will_serve(sys.argv[1:]):
            gc.disable()  # `serve` lets it work again
            from gateway.process.fork import head_start  # no other command needs it

            started = head_start()
        # Behind the head start: the copy of this process has a guard of its own.
        from gateway.egress.installed import begin

        begin(may_spawn=True)
        from gateway.cli.main import main as run  # most of the time until a command runs

        run(head_start=started)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise SystemExit(INTERRUPTED) from None
    finally:
        started.close()


def will_serve(arguments: Sequence[str]) -> bool:
    """Whether a command line starts the gateway, as far as can be told at a glance.

    Args:
        arguments: Without the program's name.
    """
    return arguments[:1] == ["serve"] and _HELP.isdisjoint(arguments)
