"""A machine whose workers ask for slabs as fast as they can: `python -m tests.gateway.budget_machines`.

A ledger service of its own on a database and a Redis that others use, too. Prints how many slabs its
workers got, and how many of them came out of Redis.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from gateway.budgets.messages import LeaseRequest, LeaseWant
from gateway.clock import system_clock
from gateway.ledger.pool_desk import SCRIPTS
from gateway.ledger.service import LedgerService
from gateway.limits.redis_link import RedisLink
from gateway.limits.shared import Connection

START_US = 0
"""Of the only window of a budget without end."""


async def admitted(
    url: str, redis_url: str, folder: Path, workers: int, amount: int, tries: int
) -> tuple[int, int]:
    """Ask so often with each worker; how many slabs they got, and how many from Redis."""
    got = 0

    async def connect() -> Connection:
        return await RedisLink.connect(redis_url, None, SCRIPTS)

    service = LedgerService(url, folder, clock=system_clock(), redis=connect)
    want = LeaseWant(
        budget_id=1, window_start_us=START_US, at_least_pico_usd=amount, wanted_pico_usd=amount
    )

    async def work(number: int) -> None:
        nonlocal got
        session = secrets.token_bytes(16)
        for turn in range(tries):
            request = LeaseRequest(
                directory=f"worker-{number}", session=session, wants=(want,), number=turn
            )
            reply = await service.lease_budgets(request)
            got += sum(lease.amount_pico_usd for lease in reply.leases) // amount

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        await anyio.sleep(0.5)
        async with anyio.create_task_group() as working:
            for number in range(workers):
                working.start_soon(work, number)
        grants = service.stats().pool_grants
        await service.stop(drain=False)
    return got, grants


def main() -> int:
    """Run the workers of one machine."""
    url, redis_url, workers, amount, tries = *sys.argv[1:3], *map(int, sys.argv[3:])
    with TemporaryDirectory() as folder:
        got, grants = anyio.run(admitted, url, redis_url, Path(folder), workers, amount, tries)
    sys.stdout.write(f"{got} {grants}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
