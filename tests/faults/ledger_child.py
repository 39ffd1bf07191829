"""A process that writes a spool, or loads spools, until it is killed.

    python -m tests.faults.ledger_child write DIRECTORY ACCOUNT FIRST [LIMIT]
    python -m tests.faults.ledger_child load DATABASE_URL ROOT
    python -m tests.faults.ledger_child hold DATABASE_FILE SECONDS

The account is what an upstream would keep: a line `+ n tokens` before each settlement is written,
`= n` after. What was written must be in the ledger, what was not begun must not.
"""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import sys
import time
from pathlib import Path

import anyio

from gateway.clock import system_clock
from gateway.ledger.errors import SpoolFull
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.service import LedgerService
from gateway.ledger.spool import Durability, SpoolLimits, SpoolWriter
from tests.gateway.ledger_samples import intent, settlement

LIMITED_ATTEMPTS = 100
"""What a writer with a limit on its files does before it ends."""


async def write(directory: str, account_path: str, first: str, limit: str = "0") -> None:
    account = os.open(account_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    clock = system_clock()
    writer = SpoolWriter(
        Path(directory),
        durability=Durability.GROUP,
        clock=clock,
        session=os.urandom(16),
        limits=SpoolLimits(segment_bytes=20_000),
    )
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    rng = random.Random(first)
    n = int(first)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        print("ready", flush=True)
        while True:
            tokens = rng.randrange(1, 1_000)
            try:
                writer.append(intent(n, at_us=clock.wall_us(), team=f"team-{n % 3}"))
                os.write(account, b"+ %d %d\n" % (n, tokens))
                writer.append(settlement(n, tokens=tokens))
            except SpoolFull:
                await writer.close()
                print("full", flush=True)
                tasks.cancel_scope.cancel()
                return
            os.write(account, b"= %d\n" % n)
            n += 1
            if int(limit) and n == int(first) + LIMITED_ATTEMPTS:  # the account has a limit, too
                await writer.close()
                print("whole", flush=True)
                tasks.cancel_scope.cancel()
                return
            if n % 10 == 0:
                await anyio.sleep(0.001)


async def load(database_url: str, root: str) -> None:
    service = LedgerService(
        database_url, Path(root), clock=system_clock(), limits=LoaderLimits(poll_s=0.01)
    )
    await service.start()
    print("ready", flush=True)
    await service.run()


async def hold(database_file: str, seconds: str) -> None:
    connection = sqlite3.connect(database_file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("ready", flush=True)
    time.sleep(float(seconds))
    connection.execute("ROLLBACK")


if __name__ == "__main__":
    role = {"write": write, "load": load, "hold": hold}[sys.argv[1]]
    anyio.run(role, *sys.argv[2:])
