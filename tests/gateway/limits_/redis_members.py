"""Workers that share limits through a Redis of the tests."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from gateway.limits.redis_link import RedisLink
from gateway.limits.shared import SharedLimits, SharedRefused, SharedTaken

PATIENT_S = 5.0
"""On a machine that others use, too, 50 ms say nothing."""


def now_us() -> int:
    return int(time.monotonic() * 1_000_000)


@asynccontextmanager
async def member(
    url: str,
    *,
    machine: str = "m1",
    password: str | None = None,
    budget_s: float = PATIENT_S,
    beat_s: float = 5.0,
    connect: Callable | None = None,
) -> AsyncIterator[SharedLimits]:
    """One worker that shares limits through Redis, once it was tried."""
    limits = SharedLimits(
        connect or (lambda: RedisLink.connect(url, password)),
        worker=random.randbytes(8).hex(),
        machine=machine,
        now_us=now_us,
        budget_s=budget_s,
        beat_s=beat_s,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limits.run)
        with anyio.fail_after(20):
            await limits.wait_tried()
        try:
            yield limits
        finally:
            with anyio.move_on_after(5):
                await limits.wait_told()
            tasks.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not holds():
            await anyio.sleep(0.01)


async def take(limits: SharedLimits, rules: Sequence, tokens: int = 0) -> SharedTaken:
    found = await limits.take(rules, tokens)
    assert isinstance(found, SharedTaken), found
    return found


async def refuse(limits: SharedLimits, rules: Sequence, tokens: int = 0) -> SharedRefused:
    found = await limits.take(rules, tokens)
    assert isinstance(found, SharedRefused), found
    return found
