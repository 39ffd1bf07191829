"""Children that end, refuse, hang or never start; and the pauses between their starts."""

from __future__ import annotations

import os
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.process.backoff import CALM_AFTER_S, FIRST_S, MAX_S, Backoff
from gateway.process.child import Child, spawn
from gateway.process.keeper import Keeper

pytestmark = pytest.mark.anyio

CHILD = "tests.gateway.keeper_child"


def test_pauses_double_up_to_their_end_and_begin_anew_after_a_calm_time():
    now = [0.0]
    backoff = Backoff(monotonic_s=lambda: now[0])
    pauses = [backoff.next_s() for _ in range(12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == MAX_S
    now[0] += CALM_AFTER_S
    assert backoff.next_s() == MAX_S
    now[0] += CALM_AFTER_S + 1
    assert backoff.next_s() == FIRST_S


@given(lives_s=st.lists(st.floats(0, 200), min_size=1, max_size=30))
def test_pauses_stay_within_their_bounds(lives_s):
    now = [0.0]
    backoff = Backoff(monotonic_s=lambda: now[0])
    before = 0.0
    for life_s in lives_s:
        now[0] += life_s
        pause_s = backoff.next_s()
        assert FIRST_S <= pause_s <= MAX_S
        assert pause_s in (FIRST_S, min(max(FIRST_S, before * 2), MAX_S))
        before = pause_s
        now[0] += pause_s


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def keeper(set_up, **changes) -> Keeper:
    facts = {"module": CHILD, "name": "child", "methods": {}}
    return Keeper(
        **{**facts, "set_up": set_up, "backoff": Backoff(monotonic_s=time.monotonic), **changes}
    )


async def hello(child: Child, name: str = "hello") -> int:
    return await child.channel.call(name, result_type=int, timeout_s=20)


async def test_a_child_that_ends_is_started_again_and_one_that_shall_end_is_not():
    pids: list[int] = []
    levels: list[int] = []

    async def set_up(child: Child) -> None:
        pids.append(await hello(child))
        levels.append(os.getpriority(os.PRIO_PROCESS, child.process.pid))

    kept = keeper(set_up, niceness=2)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.run)
        with anyio.fail_after(30):
            await kept.ready.wait()
            first = kept.child
            assert first is not None
            assert levels == [mine], "it stands back when it is set up, and not before"
            assert os.getpriority(os.PRIO_PROCESS, first.process.pid) == min(19, mine + 2)
            first.process.kill()
            while kept.child is first or kept.child is None:
                await anyio.sleep(0.01)
            assert len(pids) == 2
            assert not is_alive(pids[0])
            kept.is_ending = True
            kept.child.process.terminate()
            while is_alive(pids[1]):
                await anyio.sleep(0.01)
    # Leaving the group shows that `run` returned.
    assert (kept.child, kept.ready.is_set(), len(pids)) == (None, False, 2)


FAILED_SET_UPS = {
    "it refuses": "refuse",
    "it answers with another type": "odd",
    "it dies": "leave",
}


@pytest.mark.parametrize("name", FAILED_SET_UPS.values(), ids=FAILED_SET_UPS.keys())
async def test_a_child_that_cannot_be_set_up_is_replaced(name):
    pids: list[int] = []

    async def set_up(child: Child) -> None:
        pids.append(child.process.pid)
        await hello(child, name if len(pids) == 1 else "hello")

    kept = keeper(set_up)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.run)
        with anyio.fail_after(30):
            await kept.ready.wait()
        assert len(pids) == 2
        assert not is_alive(pids[0])
        tasks.cancel_scope.cancel()
    assert not is_alive(pids[1]), "a cancelled keeper leaves no child"


async def test_a_child_that_cannot_be_started_is_tried_again(monkeypatch, caplog):
    async def set_up(child: Child) -> None:
        await hello(child)

    monkeypatch.setattr("sys.executable", "/nothing/here")
    kept = keeper(set_up)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.run)
        with anyio.fail_after(30):
            while caplog.text.count("cannot be started") < 2:
                await anyio.sleep(0.01)
            monkeypatch.undo()
            await kept.ready.wait()
        tasks.cancel_scope.cancel()


async def test_a_child_that_does_not_want_to_end_is_killed():
    child = spawn(CHILD, name="child", methods={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.channel.run)
        pid = await hello(child)
        await child.channel.call("stay", result_type=type(None), timeout_s=20)
        with anyio.fail_after(20):
            await child.stop(grace_s=0.2)
        tasks.cancel_scope.cancel()
    assert child.process.returncode == -9
    assert not is_alive(pid)
    await child.stop(grace_s=0.2)


async def test_a_child_whose_channel_ends_goes_by_itself():
    child = spawn(CHILD, name="child", methods={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.channel.run)
        await hello(child)
        child.channel.close()
        with anyio.fail_after(20):
            assert await child.process.wait() == 0
        tasks.cancel_scope.cancel()
