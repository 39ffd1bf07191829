"""A child of a keeper: `python -m tests.gateway.keeper_child --control-fd N`.

It answers `hello` with its process id and `odd` with what nobody expects, refuses `refuse`, ends at
`leave`, and after `stay` ignores both the end of its channel and SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time

import anyio

from gateway.channel import Channel, RemoteError, method


async def hello(_params, _fds):
    return os.getpid()


async def refuse(_params, _fds):
    raise RemoteError("not_today", "come back tomorrow")


async def odd(_params, _fds):
    return ["odd"]


async def leave(_params, _fds):
    os._exit(3)


async def stay(_params, _fds):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    global STAYS  # noqa: PLW0603 - the one thing this process remembers
    STAYS = True


STAYS = False
METHODS = {
    name: method(type(None), run)
    for name, run in {
        "hello": hello, "refuse": refuse, "odd": odd, "leave": leave, "stay": stay,
    }.items()
}  # fmt: skip


def main(arguments) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--log-level", type=int, required=True)
    sock = socket.socket(fileno=parser.parse_args(arguments).control_fd)

    async def run() -> None:
        await Channel(sock, METHODS, name="keeper").run()

    anyio.run(run)
    while STAYS:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
