"""Killed writers, killed loaders, full disks and locked databases: the books stay equal."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from gateway.clock import system_clock
from gateway.ledger import schema
from gateway.ledger.database import sqlite_path
from gateway.ledger.errors import SpoolFull
from gateway.ledger.loader import Loader
from gateway.ledger.reading import read_ledger
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.spool import Health
from gateway.ledger.verify import verify
from tests.faults.ledger_child import LIMITED_ATTEMPTS
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
    totals,
)

REPOSITORY = Path(__file__).resolve().parents[2]
SPAN = 1_000_000


@contextmanager
def child(*arguments):
    """A child that has said that it is ready; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.ledger_child", *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def accounts(folder: Path) -> tuple[dict[int, int], set[int]]:
    """What was begun, with its tokens, and what was surely written."""
    begun, written = {}, set()
    for path in folder.glob("account-*"):
        for line in path.read_text().splitlines():
            sign, n, *tokens = line.split()
            if sign == "+":
                begun[int(n)] = int(tokens[0])
            else:
                written.add(int(n))
    return begun, written


async def load_everything(url: str, root: Path) -> None:
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=system_clock()).flush()


def check_books(url: str, root: Path, folder: Path) -> int:
    """The ledger holds what was written, at its price, once; returns how much that is."""
    anyio.run(load_everything, url, root)
    begun, written = accounts(folder)

    def booked(connection: sa.Connection) -> dict[int, int]:
        table = schema.spend_event
        rows = connection.execute(
            sa.select(table.c.event_id, table.c.cost_pico_usd).where(~table.c.is_lost)
        ).all()
        found = {int.from_bytes(row.event_id, "big"): row.cost_pico_usd for row in rows}
        assert len(found) == len(rows)
        return found

    ledger = read_ledger(url, booked)
    assert written <= ledger.keys() <= begun.keys()
    assert ledger == {n: begun[n] * PRICE_PICO for n in ledger}
    found = read_ledger(url, verify, root)
    assert found.faults == ()
    assert found.cost_pico_usd == sum(ledger.values())
    assert found.open_intents == 0
    return len(written)


def kill_writers(tmp_path, rng: random.Random, *, rounds: int) -> None:
    """Kill a writer at a random moment, again and again, while a loader works, or dies too."""
    url, root = make_database(tmp_path), tmp_path / "spool"
    for turn in range(rounds):
        account = tmp_path / f"account-{turn}"
        with (
            child("load", url, root) as loader,
            child("write", root / f"w{turn % 2}", account, turn * SPAN) as writer,
        ):
            time.sleep(rng.uniform(0, 0.25))
            first, second = rng.sample([loader, writer], 2)
            first.kill()
            time.sleep(rng.uniform(0, 0.1))
            second.kill()
    assert check_books(url, root, tmp_path) > 0


@pytest.mark.slow
def test_killed_writers_and_loaders_lose_and_double_nothing(tmp_path, rng):
    kill_writers(tmp_path, rng, rounds=3)


@pytest.mark.ci
@pytest.mark.slow
def test_many_killed_writers_and_loaders_lose_and_double_nothing(tmp_path, rng):
    kill_writers(tmp_path, rng, rounds=12)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_very_many_killed_writers_and_loaders_lose_and_double_nothing(tmp_path, rng):
    kill_writers(tmp_path, rng, rounds=200)


@pytest.mark.slow
def test_a_database_locked_by_another_process_only_delays(tmp_path):
    """GW-091."""
    url, root = make_database(tmp_path), tmp_path / "spool"

    async def outage() -> None:
        writer = open_spool(root / "w", clock=system_clock())
        limits = LoaderLimits(poll_s=0.01, retry_s=0.02, retry_s_max=0.1)
        async with open_engine(url, busy_s=0.05) as engine, anyio.create_task_group() as tasks:
            loader = Loader(engine, root, clock=system_clock(), limits=limits)
            tasks.start_soon(loader.run)
            n = 0
            with child("hold", sqlite_path(url), 0.5) as holder:
                while holder.poll() is None:
                    writer.append(intent(n))
                    writer.append(settlement(n))
                    n += 1
                    await anyio.sleep(0.005)
            assert loader.stats.failed_rounds > 0
            with anyio.fail_after(20):
                while loader.stats.events < n:
                    await anyio.sleep(0.01)
            assert await totals(engine) == (n, n * 100 * PRICE_PICO, 0)
            tasks.cancel_scope.cancel()
        await writer.close()

    anyio.run(outage)


@pytest.mark.slow
def test_a_file_size_limit_cuts_a_write_short_and_the_next_segment_takes_it(tmp_path):
    """A real short write: the kernel takes what fits under RLIMIT_FSIZE, then says EFBIG."""
    url, root = make_database(tmp_path), tmp_path / "spool"
    with child("write", root / "w", tmp_path / "account-0", 0, 10_001) as writer:
        assert writer.stdout.readline() == "whole\n"
    sizes = [path.stat().st_size for path in root.glob("w/*.seg")]
    assert len(sizes) > 3
    assert max(sizes) <= 10_001
    assert check_books(url, root, tmp_path) == LIMITED_ATTEMPTS


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB of its own; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"mounting is not allowed here: {made.stderr.decode()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_really_full_disk_settles_what_was_dispatched(tmp_path, small_disk):
    url, time_ = make_database(tmp_path), FakeClock()

    async def fill() -> int:
        writer = open_spool(small_disk / "w", clock=time_.clock, segment_bytes=30_000)
        (small_disk / "others").write_bytes(bytes(60_000))
        n = 0
        with pytest.raises(SpoolFull):
            while True:
                writer.append(intent(n))
                n += 1
                if n % 3 == 0:
                    writer.append(settlement(n - 1))
        assert writer.health is Health.FULL
        for m in range(n):
            if (m + 1) % 3:
                writer.append(settlement(m))
        (small_disk / "others").unlink()
        await load_everything(url, small_disk)
        time_.pass_s(2)
        writer.append(intent(n))
        writer.append(settlement(n))
        assert writer.health is Health.OK
        await load_everything(url, small_disk)
        await writer.close()
        return n + 1

    count = anyio.run(fill)
    found = read_ledger(url, verify, small_disk)
    assert found.faults == ()
    assert found.events == count > 50
    assert found.cost_pico_usd == count * 100 * PRICE_PICO
