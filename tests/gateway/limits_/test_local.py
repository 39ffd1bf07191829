"""Limits of one machine: all or nothing, corrected, exact across processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import local as local_module
from gateway.limits.amounts import LimitAmounts
from gateway.limits.local import UNDONE, LocalLimits, Refused, Taken, Use
from gateway.limits.memory import LimitMemory
from gateway.limits.rules import LimitBook, LimitKind, TeamLimits
from gateway.limits.standing import CONCURRENCY_WAIT_US, Meter
from tests.gateway.limits_.books import (
    MINUTE_US,
    SECOND_US,
    alone,
    refused,
    taken,
    team_rules,
    used,
)

NOW_US = 10**12
FORK = multiprocessing.get_context("fork")


def test_a_minutes_worth_may_come_at_once_and_then_one_by_one():
    limits, rules = alone(), team_rules(rpm=6)
    found = [limits.take(rules, 0, NOW_US) for _ in range(7)]
    assert [type(one) for one in found] == [Taken] * 6 + [Refused]
    assert refused(found[6]).shortage.wait_us == 10 * SECOND_US
    assert found[0].standing.requests == Meter(6, 5, 10 * SECOND_US)
    assert found[6].standing.requests == Meter(6, 0, MINUTE_US)
    assert isinstance(limits.take(rules, 0, NOW_US + 10 * SECOND_US - 1), Refused)
    taken(limits.take(rules, 0, NOW_US + 10 * SECOND_US))


def test_a_burst_may_be_smaller_than_a_minutes_worth():
    limits, rules = alone(), team_rules(rpm=60, rpm_burst=2)
    found = [limits.take(rules, 0, NOW_US) for _ in range(3)]
    assert [type(one) for one in found] == [Taken, Taken, Refused]
    assert refused(found[2]).shortage.wait_us == SECOND_US


def test_a_refused_request_takes_nothing_of_any_limit():
    book = LimitBook(
        teams={
            "red": TeamLimits(
                own=LimitAmounts(rpm=100, tpm=1000, concurrency=5),
                projects={"p": LimitAmounts(rpm=1)},
            )
        },
        models={"m": LimitAmounts(rpm=50, concurrency=9)},
        names={},
    )

    def ask(project: str):
        rules = book.rules(team="red", project=project, key_id="k", key=None, model="m")
        return limits.take(rules, 100, NOW_US)

    limits = alone()
    taken(ask("p"))
    before = refused(ask("p")).standing
    assert before.requests == Meter(1, 0, MINUTE_US)
    for _ in range(50):
        short = refused(ask("p"))
        assert (short.shortage.rule.name, short.shortage.kind) == (
            "project 'p' of team 'red'",
            LimitKind.RPM,
        )
    for _ in range(4):  # four more at once are all that the team may have, and tokens are left
        found = taken(ask(""))
    assert found.standing.tokens == Meter(1000, 500, 30 * SECOND_US)
    assert found.standing.requests.left == 45
    assert refused(ask("")).shortage.kind is LimitKind.CONCURRENCY


def test_the_limit_that_takes_longest_is_the_one_that_is_named():
    limits, rules = alone(), team_rules(rpm=2, tpm=100, concurrency=1)
    taken(limits.take(rules, 100, NOW_US))
    for tokens, kind, wait_us in (
        (50, LimitKind.TPM, 30 * SECOND_US),
        (1, LimitKind.CONCURRENCY, CONCURRENCY_WAIT_US),
    ):
        short = refused(limits.take(rules, tokens, NOW_US)).shortage
        assert (short.kind, short.wait_us) == (kind, wait_us)
    taken(limits.take(team_rules(rpm=2, team="b"), 0, NOW_US))


def test_tokens_are_corrected_by_what_was_used_both_ways():
    limits, rules = alone(), team_rules(tpm=1000)
    few, many, open_end, more_than_open = (taken(limits.take(rules, 200, NOW_US)) for _ in range(4))
    limits.settle(few.charges, used(50), NOW_US)  # 150 come back
    limits.settle(many.charges, used(300), NOW_US)  # 100 more
    limits.settle(open_end.charges, Use(20, False, True), NOW_US)  # who knows
    limits.settle(more_than_open.charges, Use(210, False, True), NOW_US)
    assert taken(limits.take(rules, 0, NOW_US)).standing.tokens.left == 1000 - 50 - 300 - 200 - 210


def test_more_than_the_burst_is_taken_as_the_burst_and_waited_for_afterwards():
    limits, rules = alone(), team_rules(tpm=1000)
    found = taken(limits.take(rules, 5000, NOW_US))
    assert found.standing.tokens.left == 0
    limits.settle(found.charges, used(2000), NOW_US)
    short = refused(limits.take(rules, 1000, NOW_US)).shortage
    assert short.wait_us == 2 * MINUTE_US


def test_a_request_that_came_to_nothing_gives_everything_back():
    limits, rules = alone(), team_rules(rpm=1, tpm=10, concurrency=1)
    for each in (rules, team_rules(team="blue", rpm=1)):
        for _ in range(5):
            limits.settle(taken(limits.take(each, 10, NOW_US)).charges, UNDONE, NOW_US)
    limits.settle(taken(limits.take(rules, 10, NOW_US)).charges, used(10), NOW_US)
    refused(limits.take(rules, 10, NOW_US))


def test_limits_per_minute_alone_count_nobody_in_flight():
    limits, rules = alone(), team_rules(rpm=5)
    found = taken(limits.take(rules, 0, NOW_US))
    limits.settle(found.charges, used(0), NOW_US)
    assert not limits.has_waiting
    assert limits.hold(rules, NOW_US) == []


def test_a_request_that_was_admitted_elsewhere_counts_as_in_flight():
    limits, rules = alone(), team_rules(concurrency=1)
    held = limits.hold(rules, NOW_US)
    refused(limits.take(rules, 0, NOW_US))
    limits.leave(held)
    taken(limits.take(rules, 0, NOW_US))


class Held(LimitMemory):
    """Memory whose lock another process has, for as long as a test says."""

    is_held = False

    def try_lock(self) -> bool:
        return not self.is_held


def test_what_cannot_be_corrected_now_is_corrected_later():
    memory, rules = Held(), team_rules(tpm=100, concurrency=3)
    memory.take_seat(0)
    limits = LocalLimits(memory, 0)
    first, second = (taken(limits.take(rules, 50, NOW_US)) for _ in range(2))
    memory.is_held = True
    assert limits.take(rules, 0, NOW_US) is None
    assert limits.hold(rules, NOW_US) is None
    limits.settle(first.charges, used(0), NOW_US)
    assert limits.has_waiting
    limits.flush(NOW_US)
    assert limits.has_waiting
    memory.is_held = False
    limits.flush(NOW_US)
    assert not limits.has_waiting
    assert taken(limits.take(rules, 0, NOW_US)).standing.tokens.left == 50
    memory.is_held = True
    limits.settle(second.charges, used(0), NOW_US)
    memory.is_held = False
    assert taken(limits.take(rules, 0, NOW_US)).standing.tokens.left == 100


def test_more_limits_than_there_is_room_for_let_requests_pass(monkeypatch):
    monkeypatch.setattr("gateway.limits.memory.WAYS", 1)
    limits = alone()
    book = LimitBook(teams={}, models={}, names={})
    found = []
    for number in range(20_000):
        key = LimitAmounts(rpm=1)
        rules = book.rules(team="", project="", key_id=str(number), key=key, model="m")
        found.append(taken(limits.take(rules, 0, NOW_US)))
    without = [one for one in found if not one.charges]
    assert len(without) > 5_000
    limits.settle(without[0].charges, UNDONE, NOW_US)
    # A limit whose record went to another one meanwhile has no place for its correction.
    lost = next(one for one in found if one.charges)
    limits._waiting.append(local_module._Correction(lost.charges[0], 1, 0))
    monkeypatch.setattr(LimitMemory, "place", lambda *_: None)
    limits.flush(NOW_US)
    assert not limits.has_waiting


@given(seed=st.integers(), rpm=st.integers(1, 30), tpm=st.integers(1, 500), most=st.integers(1, 4))
def test_workers_that_share_a_memory_decide_as_one_would(seed, rpm, tpm, most):
    """The same requests, given to one of three workers each time, or all to one."""
    rules = team_rules(rpm=rpm, tpm=tpm, concurrency=most)
    rng, now_us = random.Random(seed), NOW_US
    memory = LimitMemory.make()
    workers = []
    for seat in range(3):
        own = LimitMemory(os.dup(memory.fd))
        own.take_seat(seat)
        workers.append(LocalLimits(own, seat))
    one = alone()
    flying: list[tuple[LocalLimits, Taken, Taken]] = []
    for _ in range(60):
        now_us += rng.randrange(0, 3 * SECOND_US)
        if flying and rng.random() < 0.4:
            worker, shared, lone = flying.pop(rng.randrange(len(flying)))
            use = rng.choice(
                [UNDONE, used(rng.randrange(200)), Use(rng.randrange(50), False, True)]
            )
            worker.settle(shared.charges, use, now_us)
            one.settle(lone.charges, use, now_us)
            continue
        worker, tokens = rng.choice(workers), rng.randrange(200)
        shared, lone = worker.take(rules, tokens, now_us), one.take(rules, tokens, now_us)
        assert type(shared) is type(lone)
        assert shared.standing == lone.standing
        if isinstance(shared, Taken) and isinstance(lone, Taken):
            flying.append((worker, shared, lone))
    os.close(memory.fd)


def hammer(fd: int, seat: int, counts: object) -> None:
    """Ask until so many requests were decided, holding each for a moment."""
    memory = LimitMemory(fd)
    memory.take_seat(seat)
    limits, rules = LocalLimits(memory, seat), team_rules(rpm=60, rpm_burst=300, concurrency=7)
    admitted = decided = 0
    while decided < 400:
        found = limits.take(rules, 0, int(time.monotonic() * 1e6))
        decided += found is not None
        if isinstance(found, Taken):
            admitted += 1
            limits.settle(found.charges, used(0), int(time.monotonic() * 1e6))
    counts.put(admitted)


def test_processes_together_admit_what_one_would_and_never_more():
    memory = LimitMemory.make()
    counts = FORK.Queue()
    began_s = time.monotonic()
    workers = [FORK.Process(target=hammer, args=(memory.fd, seat, counts)) for seat in range(4)]
    for worker in workers:
        worker.start()
    admitted = [counts.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(20)
    took_s = time.monotonic() - began_s
    assert 300 <= sum(admitted) <= 300 + took_s
    place = memory.place(team_rules(rpm=1)[0].digest, int(time.monotonic() * 1e6))
    assert memory.in_flight(place) == 0
