"""Clients that reserve on one bucket as fast as they can: `python -m tests.gateway.budget_clients`.

Each thread has a connection of its own. Prints how many reservations were admitted.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from gateway.ledger import budget_buckets
from gateway.ledger.database import blocking_writer

BUCKET = (1, 0)
BUSY_S = 60.0


def admitted(url: str, amount: int, tries: int) -> int:
    """Reserve so often; how many reservations were admitted."""
    database = blocking_writer(url, busy_s=BUSY_S)

    def reserve() -> bool:
        with database.engine.begin() as connection:
            return budget_buckets.reserve(connection, BUCKET, amount)

    try:
        return sum(database.run(reserve) for _ in range(tries))
    finally:
        database.dispose()


def make_bucket(url: str, limit: int) -> None:
    """The bucket that all of them reserve on."""
    database = blocking_writer(url)

    def make() -> None:
        table = budget_buckets.budget_schema.budget_bucket
        values = {"budget_id": 1, "window_start_us": 0, "window_end_us": 10**15}
        amounts = {"spent_pico_usd": 0, "reserved_pico_usd": 0, "exposed_pico_usd": 0}
        with database.engine.begin() as connection:
            connection.execute(sa.insert(table).values(**values, **amounts, limit_pico_usd=limit))

    database.run(make)
    database.dispose()


def main() -> int:
    """Run the threads of one process."""
    url, threads, amount, tries = sys.argv[1], *map(int, sys.argv[2:])
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(admitted, url, amount, tries) for _ in range(threads)]
        sys.stdout.write(str(sum(job.result() for job in jobs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
