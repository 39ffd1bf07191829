"""A worker that is asked for more than it has time for refuses some, fast, and serves the others."""

from __future__ import annotations

import math

import pytest

from gateway.http.overload import (
    BURST_S,
    FAIR_S,
    HOLD_S,
    LONG_S,
    LONG_TURNS,
    TRIED_EVERY_S,
    Overload,
)
from tests.gateway.gateway_harness import body, error_of, serving

REQUEST_S = 155e-6
REFUSAL_S = 15e-6
SUSTAINED_RPS = 1 / REQUEST_S
IDLE_TURN_S = 0.001


class Worker:
    """A loop that spends half of a request's time on it in one turn, half in the next."""

    def __init__(self, *, other_s: float = 0.0, foreign_s: float = 0.0) -> None:
        self.overload = Overload()
        self.other_s = other_s  # of each turn, for streams
        self.foreign_s = foreign_s  # of each turn, that other processes took
        self.answers = 0
        self.turn_s = IDLE_TURN_S
        self.now_s = 0.0
        self.refusal_waits_s = []
        self.taken = self.refused = 0

    def take_turn(self, asked: int) -> None:
        overload = self.overload
        refused = sum(overload.is_on and overload.refuses() for _ in range(asked))
        taken = asked - refused
        work_s = (taken + self.answers) * REQUEST_S / 2 + refused * REFUSAL_S + self.other_s
        if refused:
            self.refusal_waits_s.append(self.turn_s + work_s)
        self.answers = taken
        self.taken += taken
        self.refused += refused
        self.turn_s = max(IDLE_TURN_S, work_s) + self.foreign_s
        self.now_s += self.turn_s
        overload.note(self.turn_s, work_s)

    def at_rate(self, rps: float, for_s: float, *, connections: int = 1024) -> None:
        end_s, owed = self.now_s + for_s, 0.0
        while self.now_s < end_s:
            owed += rps * self.turn_s
            asked = min(int(owed), connections - self.answers)
            owed -= asked
            self.take_turn(asked)

    def without_pause(self, clients: int, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.take_turn(clients - self.answers)

    def forget(self) -> None:
        self.taken = self.refused = 0
        self.refusal_waits_s.clear()


def looked(*turns: float) -> Overload:
    overload = Overload()
    for turn_s in turns:
        overload.note(turn_s, turn_s)
    return overload


LONG = LONG_S * 1.01
LONG_ENOUGH = max(LONG_TURNS, math.ceil(BURST_S / LONG))
LOOKS = {
    "long turns for a while": ([LONG] * LONG_ENOUGH, True),
    "one long turn fewer": ([LONG] * (LONG_ENOUGH - 1), False),
    "long turns and others that show nothing": ([LONG, FAIR_S * 1.01] * LONG_ENOUGH, True),
    "long turns between which there was time": ([LONG, FAIR_S * 0.99] * 20, False),
    "two pieces of long work": ([0.4, 0.4], False),
    "turns that are just not too long": ([LONG_S] * 100, False),
}


@pytest.mark.parametrize(("turns", "is_on"), LOOKS.values(), ids=LOOKS.keys())
def test_what_is_an_overload(turns, is_on):
    assert looked(*turns).is_on == is_on


def test_what_others_took_of_the_processor_is_no_overload():
    overload = Overload()
    for _ in range(100):
        overload.note(LONG * 2, LONG_S * 0.9)
    assert not overload.is_on


@pytest.mark.parametrize("clients", [64, 256, 512])
def test_clients_that_wait_for_their_answers_are_all_served(clients):
    worker = Worker()
    worker.without_pause(clients, 5)
    assert worker.refused == 0


def test_a_thousand_requests_at_once_are_all_served():
    worker = Worker()
    for _ in range(3):
        worker.take_turn(1000)
        worker.at_rate(SUSTAINED_RPS / 2, 1)
    assert worker.refused == 0


@pytest.mark.parametrize("times", [1.3, 2, 3])
def test_an_overload_is_held_at_short_turns_and_all_time_is_used(times):
    worker = Worker()
    worker.at_rate(times * SUSTAINED_RPS, 1)
    worker.forget()
    worker.at_rate(times * SUSTAINED_RPS, 2)
    assert worker.taken * REQUEST_S + worker.refused * REFUSAL_S > 0.97 * 2
    assert max(worker.refusal_waits_s) < 6 * HOLD_S
    assert max(worker.refusal_waits_s) < 0.05


def test_it_ends_within_a_second():
    worker = Worker()
    worker.at_rate(2 * SUSTAINED_RPS, 2)
    assert worker.overload.is_on
    worker.at_rate(0.8 * SUSTAINED_RPS, 1)
    assert not worker.overload.is_on
    worker.forget()
    worker.at_rate(0.9 * SUSTAINED_RPS, 3)
    assert worker.refused == 0


def test_a_thousand_clients_that_come_back_at_once_leave_room_for_some():
    worker = Worker()
    worker.without_pause(1024, 2)
    worker.forget()
    worker.without_pause(1024, 2)
    assert worker.taken * REQUEST_S > 0.25 * 2
    assert max(worker.refusal_waits_s) < 0.06


def test_streams_that_fill_each_turn_leave_room_for_some():
    worker = Worker(other_s=0.1)
    worker.at_rate(200, 20)
    assert 0 < worker.taken < worker.refused


@pytest.mark.parametrize("foreign_s", [0.004, 0.008, 0.016])
def test_what_others_take_of_each_turn_leaves_room_for_most_of_what_there_is_time_for(foreign_s):
    worker = Worker(foreign_s=foreign_s)
    worker.at_rate(2 * SUSTAINED_RPS, 3)
    assert worker.overload.is_on
    possible = HOLD_S / (HOLD_S + foreign_s)
    worker.at_rate(possible / 2 * SUSTAINED_RPS, 2)
    worker.forget()
    worker.at_rate(possible / 2 * SUSTAINED_RPS, 4)
    assert worker.refused < 0.02 * worker.taken


def test_few_clients_that_come_back_at_once_are_served_again_after_a_while():
    worker = Worker()
    worker.without_pause(1024, 2)
    worker.without_pause(256, TRIED_EVERY_S)
    assert not worker.overload.is_on
    worker.forget()
    worker.without_pause(256, 1)
    assert worker.refused == 0


def test_an_overload_outlasts_the_try_to_serve_everybody():
    worker = Worker()
    worker.at_rate(2 * SUSTAINED_RPS, TRIED_EVERY_S - 1)
    worker.forget()
    worker.at_rate(2 * SUSTAINED_RPS, 2)
    assert worker.overload.is_on
    assert max(worker.refusal_waits_s) < 0.4


@pytest.mark.anyio
async def test_a_refusal_says_when_to_come_back_and_costs_nothing(tmp_path):
    async with serving(tmp_path) as gateway:
        gateway.service.overload = looked(*[LONG] * LONG_ENOUGH)
        while not gateway.service.overload.refuses():
            pass  # those that are taken in at first
        answer = await gateway.post(body())
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "overloaded"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-fareway-deployment"] == "none"
        assert answer.headers["x-fareway-attempts"] == "0"
        assert len(answer.headers["x-fareway-request-id"]) == 32
        assert gateway.attempts() == []
        gateway.service.overload = Overload()
        assert (await gateway.post(body())).status_code == 200
        counted = gateway.service.metrics.render().decode()
        assert 'fareway_requests_total{route="chat.completions",status="503"} 1' in counted
