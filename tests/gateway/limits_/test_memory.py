"""The memory that a machine's workers share."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal

import pytest

from gateway.limits import memory as memory_module
from gateway.limits.memory import RECORDS, REQUESTS, SEATS, TOKENS, WAYS, LimitMemory

SPAWN = multiprocessing.get_context("fork")
NOW_US = 1_000_000


def digest(number: int, home: int = 0) -> bytes:
    """A limit whose place of its own is `home`."""
    return number.to_bytes(8, "little") + home.to_bytes(8, "little")


def test_state_is_kept_exactly_for_every_rate():
    memory = LimitMemory()
    memory.take_seat(0)
    place = memory.place(digest(1), NOW_US)
    for rate in (1, 7, 10**12):
        for bucket in (REQUESTS, TOKENS):
            arrival = NOW_US * rate + 12_345_678_901 % rate
            memory.set_arrival(place, bucket, rate, arrival)
            assert memory.arrival(place, bucket, rate) == arrival


def test_a_limit_that_was_changed_keeps_what_it_was_busy_with():
    memory = LimitMemory()
    place = memory.place(digest(1), NOW_US)
    memory.set_arrival(place, REQUESTS, 1000, 5_000_000 * 1000 + 999)
    assert memory.arrival(place, REQUESTS, 10) == 5_000_000 * 10 + 9


def test_a_busy_limit_keeps_its_place_and_one_at_rest_gives_it_away():
    memory = LimitMemory()
    memory.take_seat(0)
    busy = [memory.place(digest(number), NOW_US) for number in range(1, WAYS + 1)]
    assert len(set(busy)) == WAYS
    for number, place in enumerate(busy):
        if number % 3:
            memory.set_arrival(place, (REQUESTS, TOKENS)[number % 2], 1, NOW_US + 5)
        else:
            memory.count(place, 0, 1)
    assert memory.place(digest(99), NOW_US + 4) is None
    assert memory.place(digest(5), NOW_US + 4) == busy[4], "by whoever knows it"
    memory.count(busy[0], 0, -1)
    assert memory.place(digest(99), NOW_US + 4) == busy[0]
    assert memory.arrival(busy[0], REQUESTS, 1) == NOW_US + 4
    # Its former owner finds that it is not there any more, and another place.
    memory.set_arrival(busy[0], REQUESTS, 1, NOW_US + 90)
    assert memory.place(digest(1), NOW_US + 6) not in (busy[0], None)


def test_two_limits_that_are_at_rest_do_not_get_one_place_at_one_instant():
    memory = LimitMemory()
    first = memory.place(digest(1), NOW_US)
    assert memory.place(digest(2), NOW_US) != first
    again = memory.place(digest(1), NOW_US + 10)
    assert memory.place(digest(3), NOW_US + 10) not in (again, None)


def test_another_process_sees_the_same_limits_in_the_same_places():
    made = LimitMemory.make()
    other = LimitMemory(os.dup(made.fd))
    for one in (made, other):
        one.take_seat(3)
    place = made.place(digest(1), NOW_US)
    made.count(place, 3, 2)
    assert other.place(digest(1), NOW_US + 1) == place
    assert other.in_flight(place) == 2
    assert other.machine_id == made.machine_id
    assert LimitMemory().machine_id != made.machine_id


def test_what_a_worker_that_is_gone_had_in_flight_is_given_back_and_nothing_else():
    memory = LimitMemory()
    for seat in (0, 2):
        memory.take_seat(seat)
    place = memory.place(digest(1), NOW_US)
    memory.set_arrival(place, REQUESTS, 1, NOW_US + 77)
    memory.count(place, 0, 3)
    memory.count(place, 2, 4)
    memory.clear_seat(2)
    memory.clear_seat(5)  # nobody has sat there
    assert memory.in_flight(place) == 3
    assert memory.arrival(place, REQUESTS, 1) == NOW_US + 77


@pytest.mark.parametrize("seat", [-1, SEATS])
def test_a_seat_that_does_not_exist_is_refused(seat):
    with pytest.raises(ValueError, match="seats 0 to"):
        LimitMemory().take_seat(seat)


def hold_lock(fd: int, ready: object) -> None:
    """Take the lock in another process and never give it back."""
    fcntl.lockf(fd, fcntl.LOCK_EX, 1)
    ready.set()
    signal.pause()


def test_one_process_has_the_lock_and_its_death_frees_it():
    memory = LimitMemory.make()
    ready = SPAWN.Event()
    process = SPAWN.Process(target=hold_lock, args=(memory.fd, ready))
    process.start()
    try:
        assert ready.wait(10)
        assert not memory.try_lock()
        process.kill()
        process.join(10)
        assert memory.try_lock()
        memory.unlock()
    finally:
        process.kill()
        process.join(10)


def test_the_table_takes_little_of_a_machine_that_uses_few_limits():
    assert RECORDS % WAYS == 0
    made = LimitMemory.make()
    made.take_seat(0)
    made.place(digest(1), NOW_US)
    assert os.fstat(made.fd).st_blocks * 512 < 64 * 1024
    assert os.fstat(made.fd).st_size == memory_module._BYTES
