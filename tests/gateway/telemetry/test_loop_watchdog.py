"""The watchdog sees a held loop, and tells our own computing from waiting."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from gateway.telemetry.families import STALL_BUCKETS_S
from gateway.telemetry.loop_watchdog import (
    IDLE_INTERVAL_S,
    INTERVAL_S,
    TURN_INTERVAL_S,
    LoopWatchdog,
)
from gateway.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio


class HandLoop:
    """A loop whose one timer fires when the test says so."""

    def __init__(self) -> None:
        self.armed = []

    def call_later(self, delay_s, callback, *arguments):
        self.delay_s = delay_s
        self.armed.append((callback, arguments))
        return asyncio.TimerHandle(0, callback, arguments, asyncio.get_running_loop())

    def fire(self) -> None:
        callback, arguments = self.armed.pop()
        callback(*arguments)


CASES = {
    "a timer in time": (INTERVAL_S, 0.001, (0.0, 0.0, INTERVAL_S, 0.001)),
    "a timer that fires early": (INTERVAL_S - 0.001, 0.0, (0.0, 0.0, INTERVAL_S, 0.0)),
    "a loop held by our computing": (INTERVAL_S + 0.03, 0.045, (0.03, 0.03, 0.05, 0.045)),
    "a loop held while we waited": (INTERVAL_S + 0.03, 0.001, (0.03, 0.001, 0.05, 0.001)),
}


@pytest.mark.parametrize(("passed_s", "computed_s", "told"), CASES.values(), ids=CASES.keys())
async def test_lateness_and_the_computing_in_it(passed_s, computed_s, told):
    now, loop, found = [50.0, 2.0], HandLoop(), []
    watchdog = LoopWatchdog(
        lambda look: found.append(
            (look.late_s, look.late_computed_s, look.turn_s, look.turn_computed_s)
        ),
        is_busy=lambda: True,
        is_close=lambda: False,
        monotonic_s=lambda: now[0],
        thread_s=lambda: now[1],
    )
    watchdog.start(loop)
    for _ in range(2):
        now[0] += passed_s
        now[1] += computed_s
        loop.fire()
    assert found == [pytest.approx(told, abs=1e-9)] * 2
    watchdog.stop()


async def test_an_idle_process_is_looked_at_less_often():
    now, loop, found, busy = [50.0], HandLoop(), [], [False]
    watchdog = LoopWatchdog(
        lambda look: found.append((look.late_s, look.turn_s)),
        is_busy=lambda: busy[0],
        is_close=lambda: False,
        monotonic_s=lambda: now[0],
        thread_s=lambda: 0.0,
    )
    watchdog.start(loop)
    assert loop.delay_s == IDLE_INTERVAL_S
    busy[0] = True
    now[0] += IDLE_INTERVAL_S + 0.01
    loop.fire()
    assert loop.delay_s == INTERVAL_S
    assert found == [pytest.approx((0.01, INTERVAL_S + 0.01))]  # no turn is as long as an idle wait
    watchdog.stop()


async def test_each_turn_is_looked_at_where_that_is_wished():
    now, loop, found, close = [50.0], HandLoop(), [], [False]
    watchdog = LoopWatchdog(
        lambda look: found.append(look.turn_s),
        is_busy=lambda: True,
        is_close=lambda: close[0],
        monotonic_s=lambda: now[0],
        thread_s=lambda: 0.0,
    )
    watchdog.start(loop)
    close[0] = True
    for passed_s in (INTERVAL_S, 0.012, 0.004):
        now[0] += passed_s
        loop.fire()
        assert loop.delay_s == TURN_INTERVAL_S
    assert found == pytest.approx([INTERVAL_S, 0.012, 0.004])
    watchdog.stop()


async def test_a_look_that_fails_is_not_the_last():
    loop = HandLoop()

    def fail(_look):
        raise RuntimeError("as a fault of ours would")

    watchdog = LoopWatchdog(
        fail,
        is_busy=lambda: True,
        is_close=lambda: False,
        monotonic_s=lambda: 0.0,
        thread_s=lambda: 0.0,
    )
    watchdog.start(loop)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            loop.fire()
    watchdog.stop()


async def test_a_held_loop_is_seen_and_a_stopped_watchdog_looks_no_more():
    metrics = Metrics()
    watchdog = LoopWatchdog(
        lambda look: metrics.note_stall(look.late_s, look.late_computed_s),
        is_busy=lambda: True,
        is_close=lambda: False,
        monotonic_s=time.monotonic,
        thread_s=time.thread_time,
    )
    watchdog.start(asyncio.get_running_loop())
    await anyio.sleep(INTERVAL_S / 2)
    until_s = time.thread_time() + 0.08
    while time.thread_time() < until_s:
        pass
    await anyio.sleep(INTERVAL_S * 2)
    watchdog.stop()

    def figures():
        return {one.family: one.values for one in metrics.snapshot().series}

    seen = figures()
    assert seen["fareway_loop_stall_max_seconds"][0] > 0.05
    beyond_50_ms = STALL_BUCKETS_S.index(0.05) + 1
    assert sum(seen["fareway_loop_stall_cpu_seconds"][beyond_50_ms:-1]) == 1
    await anyio.sleep(INTERVAL_S * 3)
    assert figures() == seen
