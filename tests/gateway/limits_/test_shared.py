"""Limits in a real Redis: exact across machines, and what holds while it is not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import anyio
import pytest
import redis

from gateway.limits import shared as shared_module
from gateway.limits.amounts import LimitAmounts
from gateway.limits.local import UNDONE, Use
from gateway.limits.redis_link import RedisLink
from gateway.limits.rules import LimitBook, LimitKind, TeamLimits
from gateway.limits.shared import (
    ScriptCall,
    SharedLimits,
    SharedRefused,
    SharedTaken,
    Unreachable,
    limit_key,
)
from tests.gateway.limits_.books import SECOND_US, team_rules, used
from tests.gateway.limits_.redis_members import PATIENT_S, member, now_us, refuse, take, until
from tests.support.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_machines_together_admit_a_limit_and_not_one_more(redis_url):
    rules = team_rules(rpm=40, concurrency=1000)
    async with member(redis_url) as one, member(redis_url, machine="m2") as two:
        found = await _ask_all([one, two] * 50, rules)
        admitted = [each for each in found if isinstance(each, SharedTaken)]
        # A request flows in every second and a half, and the machine may be busy.
        assert 40 <= len(admitted) <= 44
        refused = next(each for each in found if isinstance(each, SharedRefused))
        assert refused.shortage.kind is LimitKind.RPM
        assert 0 < refused.shortage.wait_us <= 1.5 * SECOND_US
        assert refused.standing.requests.left == 0


async def _ask_all(members: Sequence[SharedLimits], rules: Sequence) -> list:
    found: list = []

    async def ask(limits: SharedLimits) -> None:
        found.append(await limits.take(rules, 0))

    async with anyio.create_task_group() as tasks:
        for limits in members:
            tasks.start_soon(ask, limits)
    return found


async def test_a_refused_request_takes_nothing_of_any_limit(redis_url):
    book = LimitBook(
        teams={
            "red": TeamLimits(
                own=LimitAmounts(rpm=100, tpm=60_000, concurrency=5),
                projects={"p": LimitAmounts(rpm=1)},
            )
        },
        models={"m": LimitAmounts(concurrency=9)},
        names={},
    )
    within, apart = (
        book.rules(team="red", project=project, key_id="k", key=None, model="m")
        for project in ("p", "")
    )
    async with member(redis_url) as limits:
        await take(limits, within, 1000)
        for _ in range(10):
            short = (await refuse(limits, within, 1000)).shortage
            assert short.rule.name == "project 'p' of team 'red'"
        found = [await take(limits, apart, 1000) for _ in range(4)]
        standing = found[-1].standing
        assert 95 <= standing.requests.left <= 97
        assert 55_000 <= standing.tokens.left <= 58_000
        short = (await refuse(limits, apart, 1000)).shortage
        assert short.kind is LimitKind.CONCURRENCY


async def test_tokens_are_corrected_and_what_came_to_nothing_comes_back(redis_url):
    rules = team_rules(rpm=2, tpm=600, concurrency=2)
    async with member(redis_url) as limits:
        for _ in range(6):
            limits.settle((await take(limits, rules, 500)).charges, UNDONE)
        few = await take(limits, rules, 500)
        limits.settle(few.charges, used(50))
        left = (await take(limits, rules, 100)).standing.tokens.left
        assert 450 <= left <= 500
    rules = team_rules(team="blue", tpm=600)
    async with member(redis_url) as limits:
        found = await take(limits, rules, 100)
        limits.settle(found.charges, Use(10, False, True))  # who knows how many more
        more = await take(limits, rules, 100)
        assert 400 <= more.standing.tokens.left <= 410
        limits.settle(more.charges, used(1300))
        wait_us = (await refuse(limits, rules, 100)).shortage.wait_us
        assert 80 * SECOND_US < wait_us <= 90 * SECOND_US


@pytest.mark.slow
async def test_places_are_freed_by_whoever_leaves_and_by_a_worker_that_is_gone(
    redis_url, monkeypatch
):
    rules = team_rules(concurrency=2)
    monkeypatch.setattr(shared_module, "LEASE_US", 400_000)
    async with member(redis_url, beat_s=0.1) as one:
        async with member(redis_url, machine="m2", beat_s=0.1) as two:
            first = await take(one, rules)
            await take(two, rules)
            await anyio.sleep(0.8)  # both live, and say so
            await refuse(one, rules)
            one.settle(first.charges, used(0))
            await take(one, rules)
            await refuse(two, rules)
        # The second worker ended without a word about what it had in flight.
        await until(lambda: one.is_up)
        with anyio.fail_after(10):
            while not isinstance(await one.take(rules, 0), SharedTaken):
                await anyio.sleep(0.05)


async def test_machines_learn_of_each_other(redis_url):
    async with member(redis_url, beat_s=0.05) as one:
        assert one.machines == 1
        async with member(redis_url, machine="m2", beat_s=0.05) as two:
            await until(lambda: one.machines == 2 and two.machines == 2)


async def test_redis_is_told_no_name(redis_url):
    rules = team_rules(team="secret-team", rpm=5, concurrency=2)
    async with member(redis_url) as limits:
        found = await take(limits, rules)
        with redis.Redis.from_url(redis_url) as client:
            keys = client.keys()
            assert limit_key(rules[0]).encode() in keys
            assert b"{" + rules[0].tenant.hex().encode() + b"}" in limit_key(rules[0]).encode()
            assert not any(b"secret" in key for key in keys)
            assert 0 < client.pttl(limit_key(rules[0])) <= 22_000
        limits.settle(found.charges, used(0))


async def test_a_forgotten_script_is_handed_over_again(redis_url):
    rules = team_rules(rpm=100)
    async with member(redis_url) as limits:
        await take(limits, rules)
        with redis.Redis.from_url(redis_url) as client:
            client.script_flush()
        found = await _ask_all([limits] * 5, rules)
        assert all(isinstance(one, SharedTaken) for one in found)
        assert limits.is_up


async def test_what_redis_forgot_begins_anew_but_for_requests_in_flight(redis_url):
    rules = team_rules(rpm=2, concurrency=3)
    async with member(redis_url) as limits:
        for _ in range(2):
            await take(limits, rules)
        assert (await refuse(limits, rules)).shortage.kind is LimitKind.RPM
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
        await take(limits, rules)
        assert (await refuse(limits, rules)).shortage.kind is LimitKind.CONCURRENCY


# GW-155
async def test_a_frozen_redis_holds_nobody_up_and_is_used_again_when_it_answers(
    redis_server: RedisServer, caplog
):
    rules = team_rules(rpm=1000)
    async with member(redis_server.url, budget_s=0.1, beat_s=0.2) as limits:
        await until(lambda: limits.is_up)
        redis_server.freeze()
        waited_s = []
        for _ in range(50):
            began_s = time.monotonic()
            while isinstance(await limits.take(rules, 0), SharedTaken):
                pytest.fail("a frozen server answers nothing")
            waited_s.append(time.monotonic() - began_s)
        assert sum(one > 0.05 for one in waited_s) <= 8, "soon nobody waits at all"
        assert "no answer within 500 ms" in limits.fault
        assert "1 of 1 equal shares" in limits.fault
        redis_server.thaw()
        await until(lambda: limits.is_up)
        assert limits.fault == ""
        await until(lambda: limits.is_up)
    told = [record.levelname for record in caplog.records if "Redis" in record.message]
    assert told.count("WARNING") <= 3, "once for each time that it went away"


async def test_a_redis_that_is_killed_and_started_again_is_used_again(redis_server: RedisServer):
    rules = team_rules(rpm=1000, concurrency=2)
    async with member(redis_server.url, beat_s=0.2) as limits:
        await take(limits, rules)
        redis_server.kill()
        await until(lambda: not limits.is_up)
        assert await limits.take(rules, 0) is None
        limits.count(rules, 1)  # somebody was admitted without it meanwhile
        redis_server.start()
        await until(lambda: limits.is_up)
        # The new one knows nothing but what it was told: both are in flight.
        assert (await refuse(limits, rules)).shortage.kind is LimitKind.CONCURRENCY
        limits.count(rules, -1)
        await until(lambda: not limits._is_due)
        with anyio.fail_after(10):
            while not isinstance(await limits.take(rules, 0), SharedTaken):
                await anyio.sleep(0.01)


async def test_a_wrong_password_is_told_and_the_right_one_is_not(redis_server: RedisServer):
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("requirepass", "right-canary")
    async with member(redis_server.url, password="wrong-canary") as limits:
        assert not limits.is_up
        assert "AuthenticationError" in limits.fault
        assert "canary" not in limits.fault
    async with member(redis_server.url) as limits:
        assert "Authentication required" in limits.fault
    async with member(redis_server.url, password="right-canary") as limits:
        assert limits.is_up


async def test_a_redis_that_is_not_there_lets_workers_start_and_is_told_once(unused_port, caplog):
    async with member(f"redis://127.0.0.1:{unused_port}/0") as limits:
        await anyio.sleep(0.6)  # it is tried again meanwhile
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert not limits.is_up
        assert await limits.take(team_rules(rpm=1), 0) is None
        assert "ConnectionError" in limits.fault


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def test_a_full_redis_that_takes_no_writes_counts_as_not_there(redis_server: RedisServer):
    async with member(redis_server.url) as limits:
        await take(limits, team_rules(rpm=5))
        with redis.Redis.from_url(redis_server.url) as client:
            client.config_set("maxmemory", "1")
        assert await limits.take(team_rules(rpm=5), 0) is None
        await until(lambda: not limits.is_up)
        assert "maxmemory" in limits.fault


async def test_who_stops_waiting_takes_nothing(redis_url):
    """Cancelled while asked for, before it is, or just when the answer is there."""
    rules = team_rules(rpm=10, concurrency=1)

    async def ask(limits: SharedLimits) -> None:
        found = await limits.take(rules, 0)
        if isinstance(found, SharedTaken):
            limits.settle(found.charges, UNDONE)

    async with member(redis_url) as limits:
        for pauses in range(40):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, limits)
                for _ in range(pauses):
                    await asyncio.sleep(0)
                tasks.cancel_scope.cancel()
        for pause_us in range(0, 2000, 100):
            with anyio.move_on_after(pause_us / 1_000_000):
                await ask(limits)
        with anyio.fail_after(10):
            while isinstance(found := await limits.take(rules, 0), SharedRefused):
                assert found.shortage.kind is LimitKind.CONCURRENCY
        assert found.standing.requests.left == 9


class Scripted:
    """A connection that answers as it is told, when it is told."""

    def __init__(self) -> None:
        self.asked: list[Sequence[ScriptCall]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.fault = ""

    async def run(self, calls: Sequence[ScriptCall]) -> Sequence[Sequence[int] | int]:
        self.asked.append(calls)
        await self.go.wait()
        if self.fault:
            raise Unreachable(self.fault)
        return [[1, 0, 0, 0, 5, 5] if len(call.arguments) > 5 else 3 for call in calls]

    async def close(self) -> None:
        return


async def test_an_answer_that_comes_too_late_is_given_back(monkeypatch):
    rules, wire = team_rules(rpm=10, concurrency=1), Scripted()

    async def connect() -> Scripted:
        return wire

    async with member("", connect=connect, budget_s=0.2) as limits:
        # The one that asks waits less long than the connection does.
        wire.go.clear()
        monkeypatch.setattr(limits, "_budget_s", 0.05)
        real = limits._within_budget

        async def patient(connection, calls):
            monkeypatch.setattr(limits, "_budget_s", 30.0)
            return await real(connection, calls)

        monkeypatch.setattr(limits, "_within_budget", patient)
        assert await limits.take(rules, 0) is None
        wire.go.set()
        await until(lambda: len(wire.asked) >= 3)
        (given,) = wire.asked[-1]
        assert given.arguments[-1] == "less"
        assert limits._own == {limit_key(rules[0]): 0}


async def test_requests_in_flight_are_told_with_what_is_about_to_leave():
    rules, wire = team_rules(concurrency=5), Scripted()

    async def connect() -> Scripted:
        return wire

    async with member("", connect=connect, beat_s=0.05) as limits:
        found = await take(limits, rules)
        await take(limits, rules)
        wire.go.clear()
        seen = len(wire.asked)
        limits.settle(found.charges, used(0))
        limits._waiting.append(limits._waiting.pop())
        await limits._beat(Scripted())  # while that has not been sent
        assert len(wire.asked) == seen
        wire.go.set()
    beat = Scripted()
    limits.count(rules, 1)
    limits.is_up = True
    limits.settle(found.charges, used(0))
    await limits._beat(beat)
    told = [call.arguments[-1] for call in beat.asked[0][1:]]
    assert told == [2], "one in flight, and one whose leaving is told after this"


async def test_more_than_can_wait_is_not_asked_for(monkeypatch):
    wire, rules = Scripted(), team_rules(concurrency=5)

    async def connect() -> Scripted:
        return wire

    async with member("", connect=connect) as limits:
        wire.go.clear()
        monkeypatch.setattr(shared_module, "WAITING_MAX", 2)
        async with anyio.create_task_group() as tasks:
            sent = len(wire.asked)
            tasks.start_soon(limits.take, rules, 0)
            await until(lambda: len(wire.asked) > sent)
            for _ in range(2):
                tasks.start_soon(limits.take, rules, 0)
            await until(lambda: len(limits._waiting) == 2)
            assert await limits.take(rules, 0) is None
            limits._call(limits._give("k", 0, 0, "less"))
            assert len(limits._waiting) == 2
            wire.go.set()


async def test_a_connection_that_fails_refuses_whoever_waits():
    wire, rules = Scripted(), team_rules(rpm=5)

    async def connect() -> Scripted:
        return wire

    async with member("", connect=connect) as limits:
        wire.fault = "gone"
        found = await _ask_all([limits] * 4, rules)
        assert found == [None] * 4
        assert "gone" in limits.fault
        wire.fault = ""
        await until(lambda: limits.is_up)
        await take(limits, rules)
        wire.go.clear()
        async with anyio.create_task_group() as tasks:
            results: list = []

            async def ask() -> None:
                results.append(await limits.take(rules, 0))

            sent = len(wire.asked)
            tasks.start_soon(ask)
            await until(lambda: len(wire.asked) > sent)
            tasks.start_soon(ask)  # this one is not even sent
            await until(lambda: len(limits._waiting) == 1)
            wire.fault = "gone again"
            wire.go.set()
        assert results == [None, None]


def unconnected(*, budget_s: float = PATIENT_S) -> SharedLimits:
    """A worker's limits whose answers a test gives itself."""

    async def never() -> Scripted:
        raise Unreachable("it is not asked")

    limits = SharedLimits(never, worker="w", machine="m", now_us=now_us, budget_s=budget_s)
    limits.is_up = True
    return limits


async def test_an_answer_in_the_turn_in_which_its_client_leaves_is_given_back():
    limits, rules = unconnected(), team_rules(rpm=10, concurrency=1)
    task = asyncio.Task(limits.take(rules, 0))
    await asyncio.sleep(0)
    limits._answer(limits._waiting.popleft(), [1, 0, 0, 0, 6 * SECOND_US, 0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (given,) = limits._waiting
    assert given.arguments[-1] == "less"
    assert given.arguments[2] < 0


async def test_an_answer_in_the_turn_in_which_time_is_up_counts():
    limits, rules = unconnected(budget_s=0.0), team_rules(rpm=10, concurrency=1)
    found: list = []

    async def ask() -> None:
        found.append(await limits.take(rules, 0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await asyncio.sleep(0)
        limits._answer(limits._waiting.popleft(), [1, 0, 0, 0, 6 * SECOND_US, 0])
    assert isinstance(found[0], SharedTaken)


async def test_what_was_to_be_told_is_dropped_when_redis_goes_and_told_anew_as_a_whole():
    limits, rules, wire = unconnected(), team_rules(rpm=10, concurrency=5), Scripted()
    limits.count(rules, 1)
    limits.settle([shared_module.SharedCharge(rules[0], 0, 5, now_us())], used(0))
    limits._note_down("gone")
    assert not limits._waiting
    for told in ([0], []):  # a zero is told once
        await limits._beat(wire)
        assert [call.arguments[-1] for call in wire.asked[-1][1:]] == told


async def test_a_connection_is_given_up_cleanly_while_it_is_made(redis_server: RedisServer):
    redis_server.freeze()
    with anyio.move_on_after(0.1) as scope:
        await RedisLink.connect(redis_server.url, None)
    assert scope.cancelled_caught
    with pytest.raises(Unreachable, match="TimeoutError"):
        await RedisLink.connect(redis_server.url, None)


@pytest.mark.parametrize("query", ["socket_timeout=soon", "nonsense=1"])
async def test_a_parameter_that_the_library_does_not_take_is_an_outage(query: str):
    with pytest.raises(Unreachable, match=query.partition("=")[0]):
        await RedisLink.connect(f"redis://127.0.0.1:9/0?{query}", None)
