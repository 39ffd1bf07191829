"""A worker's door: who decides, and what holds when neither memory nor Redis can."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import pytest

from gateway.limits import limiter as limiter_module
from gateway.limits.limiter import Limiter, Permit
from gateway.limits.memory import LimitMemory
from gateway.limits.rules import LimitBook, LimitKind
from gateway.limits.shared import SharedLimits
from tests.gateway.limits_.books import team_rules
from tests.gateway.limits_.redis_members import member, until
from tests.gateway.limits_.test_local import Held

pytestmark = pytest.mark.anyio
BOOK = LimitBook(teams={}, models={}, names={})


def make(
    memory: LimitMemory | None = None, *, workers: int = 1, shared: SharedLimits | None = None
) -> Limiter:
    return Limiter(
        BOOK, memory=memory or LimitMemory(), seat=0, workers=workers,
        monotonic_s=time.monotonic, shared=shared,
    )  # fmt: skip


async def ask(limiter: Limiter, rules: Sequence, prompt: int = 1, **changes: int | None):
    permit, shortage, _ = await limiter.admit(
        rules,
        team="red",
        **{
            "prompt_tokens": prompt,
            "prompt_tokens_low": prompt,
            "output_tokens": 0,
            "choices": 1,
            **changes,
        },
    )
    assert (permit is None) != (shortage is None)
    return permit or shortage


async def admitted(limiter: Limiter, rules: Sequence, count: int) -> int:
    """How many of so many requests are admitted; they stay in flight."""
    found = [await ask(limiter, rules) for _ in range(count)]
    return sum(isinstance(one, Permit) for one in found)


async def test_a_holder_of_the_lock_that_does_not_go_on_leaves_each_worker_a_share(caplog):
    memory, rules = Held(), team_rules(rpm=8, concurrency=100)
    limiter = make(memory, workers=4)
    first = await ask(limiter, rules)
    memory.is_held = True
    began_s = time.monotonic()
    assert await admitted(limiter, rules, 1) == 1
    assert time.monotonic() - began_s >= limiter_module.LOCK_WAIT_S
    assert limiter.is_alone
    assert "1 of 4 equal shares" in limiter.fault
    assert await admitted(limiter, rules, 9) == 1, "two of eight are its share"
    first.note({"output": 3}, is_final=True)
    first.close()
    memory.is_held = False
    assert await admitted(limiter, rules, 9) == 7, "all but the first of the eight"
    assert not limiter.is_alone
    assert limiter.fault == ""
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_lock_that_is_free_soon_is_waited_for():
    memory, rules = Held(), team_rules(rpm=8)
    limiter = make(memory, workers=4)
    memory.is_held = True
    async with anyio.create_task_group() as tasks:

        async def free() -> None:
            await anyio.sleep(0.003)
            memory.is_held = False

        tasks.start_soon(free)
        assert await admitted(limiter, rules, 8) == 8
    assert not limiter.is_alone


async def test_corrections_that_met_a_lock_are_made_soon_after():
    memory, rules = Held(), team_rules(tpm=100)
    limiter = make(memory)
    first, second = await ask(limiter, rules, 40), await ask(limiter, rules, 40)
    memory.is_held = True
    for permit in (first, second):
        permit.note({"input": 5, "requests": 1, "gpu_us": 10**9}, is_final=True)
        permit.close()
    assert limiter._local.has_waiting
    await anyio.sleep(limiter_module.FLUSH_S * 3)
    assert limiter._local.has_waiting
    memory.is_held = False
    await until(lambda: not limiter._local.has_waiting)
    third = await ask(limiter, rules, 90)
    assert isinstance(third, Permit)


async def test_what_no_client_bounded_is_taken_as_a_guess_per_choice():
    limiter, rules = make(), team_rules(tpm=10_000)
    for output, choices, left in ((None, 1, 9_388), (None, 3, 7_752), (100, 2, 7_452)):
        found = await ask(limiter, rules, 100, output_tokens=output, choices=choices)
        assert left <= found.standing.tokens.left <= left + 100


async def test_each_refusal_is_counted_by_its_limit():
    limiter = make()
    for rules, count in ((team_rules(rpm=1), 3), (team_rules(team="b", concurrency=1), 2)):
        await admitted(limiter, rules, count)
    assert limiter.limited == {("team_rpm", "red"): 2, ("team_concurrency", "red"): 1}


async def test_without_redis_each_machine_has_its_share_and_joins_again(redis_server):
    rules = team_rules(rpm=8, concurrency=20)
    async with (
        member(redis_server.url, beat_s=0.1) as shared,
        member(redis_server.url, machine="m2", beat_s=0.1) as other,
    ):
        limiter, second = make(shared=shared), make(shared=other)
        await until(lambda: shared.machines == 2 and other.machines == 2)
        permits = [await ask(limiter, rules) for _ in range(3)]
        assert limiter.fault == second.fault == ""
        redis_server.kill()
        await until(lambda: not shared.is_up and not other.is_up)
        assert await admitted(limiter, rules, 9) == 4
        assert await admitted(second, rules, 9) == 4
        assert "1 of 2 equal shares" in limiter.fault
        redis_server.start()
        await until(lambda: shared.is_up and other.is_up)
        assert limiter.fault == ""
        for permit in permits:
            permit.note({}, is_final=True)
            permit.close()
        found = await ask(second, rules)
        assert isinstance(found, Permit)


async def test_what_redis_admitted_counts_in_this_machines_share(redis_server):
    rules = team_rules(concurrency=4)
    async with member(redis_server.url, beat_s=0.1) as shared:
        limiter = make(shared=shared)
        permits = [await ask(limiter, rules) for _ in range(3)]
        redis_server.kill()
        await until(lambda: not shared.is_up)
        late = await ask(limiter, rules)
        assert isinstance(late, Permit)
        assert (await ask(limiter, rules)).kind is LimitKind.CONCURRENCY
        for permit in (*permits, late):
            permit.close()
        assert await admitted(limiter, rules, 9) == 4


async def test_redis_refuses_in_the_same_words(redis_url):
    rules = team_rules(rpm=2, concurrency=1)
    async with member(redis_url) as shared:
        limiter = make(shared=shared)
        permit = await ask(limiter, rules)
        short = await ask(limiter, rules)
        assert short.kind is LimitKind.CONCURRENCY
        permit.note({}, is_final=True)
        permit.close()
        assert isinstance(await ask(limiter, rules), Permit)


def test_shares_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(limiter_module, "SHARES_MAX", 1)
    limiter = make(workers=2)
    for team in "abab":
        rules = team_rules(team=team, rpm=8)
        assert limiter._share(rules, 1) is rules
        assert limiter._share(rules, 2)[0].requests.rate == 4
        assert limiter._share(rules, 2) is limiter._share(rules, 2)
        assert len(limiter._shares) == 1
