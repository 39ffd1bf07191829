"""Servers that are looked at: what is up, down, busy and idle, and who is charged for what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.machines.hours import merged, overlap_us, without
from gateway.finance.machines.messages import EngineSample, Hours
from gateway.finance.machines.shown import as_table
from tests.gateway.finance_books import OCTOBER_US, write, writing
from tests.gateway.machine_books import (
    HOUR_US,
    MINUTE_US,
    NOVEMBER,
    SERVER_TERMS,
    VLLM,
    changed,
    machine,
    note,
    note_october,
)
from tests.gateway.test_finance_machine_books import check_sums, report, served

pytestmark = pytest.mark.anyio
SEEN = machine(terms=changed(SERVER_TERMS, hours=Hours.SEEN))
NOON = OCTOBER_US - OCTOBER_US % HOUR_US


def looked(number: int, from_us: int, up_us: int, busy_us: int = 0, *, is_down: bool = False):
    return [
        EngineSample(
            session=bytes([number]) * 16,
            machine="vllm",
            deployment="",
            started_us=from_us,
            up_us=up,
            busy_us=busy,
            is_down=is_down,
        )
        for up, busy in ((0, 0), (up_us, busy_us))
    ]


async def books(tmp_path, pool, *attempts, samples=()):
    tmp_path.mkdir(exist_ok=True)
    engine = writing(await write(tmp_path, list(attempts)))
    note_october(engine, pool, samples=[one for listed in samples for one in listed])
    return engine


async def test_an_idle_server_is_paid_for_and_a_dead_one_is_down(tmp_path):
    up, down = (
        looked(1, NOON, 6 * HOUR_US),
        looked(2, NOON + 6 * HOUR_US, 3 * HOUR_US, is_down=True),
    )
    found = report(await books(tmp_path, SEEN, samples=(up, down)))
    check_sums(found)
    [one] = found.machines
    assert (one.up_us, one.busy_us, one.down_us) == (6 * HOUR_US, 0, 3 * HOUR_US)
    assert one.idle_pico_usd == one.cost_pico_usd > 0
    assert "vllm: down 3:00:00" in as_table(found)


async def test_a_server_that_is_always_paid_for_says_when_it_was_down(tmp_path):
    down = looked(2, NOON, 3 * HOUR_US, is_down=True)
    found = report(await books(tmp_path, VLLM, samples=(down,)))
    check_sums(found)
    [one] = found.machines
    assert (one.up_us, one.down_us) == (31 * 24 * HOUR_US, 3 * HOUR_US)


async def test_nobody_looked_is_not_down(tmp_path):
    [one] = report(await books(tmp_path, SEEN, served(1))).machines
    assert one.down_us is None
    assert one.up_us == 30 * MINUTE_US


async def test_what_others_had_it_do_is_busy_time_that_no_team_is_charged_for(tmp_path):
    # Half an hour of ours, and by its metrics busy for 50 minutes of the hour.
    meter = looked(1, NOON, HOUR_US, 50 * MINUTE_US)
    found = report(await books(tmp_path, SEEN, served(1), samples=(meter,)))
    check_sums(found)
    [one] = found.machines
    assert (one.up_us, one.busy_us) == (HOUR_US, 50 * MINUTE_US)
    payments, rest = found.shares
    assert payments.used_us == 30 * MINUTE_US
    assert rest.borne_us == 30 * MINUTE_US


async def test_a_request_under_way_is_busy_time_whatever_looks_missed(tmp_path):
    meter = looked(1, NOON, HOUR_US, MINUTE_US)
    found = report(await books(tmp_path, SEEN, served(1), samples=(meter,)))
    [one] = found.machines
    assert one.busy_us == 30 * MINUTE_US


async def test_two_gateways_that_look_at_once_count_once(tmp_path):
    both = (
        looked(1, NOON, HOUR_US, 20 * MINUTE_US),
        looked(2, NOON, HOUR_US, 30 * MINUTE_US),
        looked(3, NOON + HOUR_US, HOUR_US, 10 * MINUTE_US),
        looked(4, NOON, 2 * HOUR_US, is_down=True),  # one that has no way to it
    )
    [one] = report(await books(tmp_path, SEEN, samples=both)).machines
    assert (one.up_us, one.busy_us) == (2 * HOUR_US, 35 * MINUTE_US)
    assert one.down_us == 0


async def test_a_break_in_which_it_was_found_down_is_not_bridged(tmp_path):
    attempts = [served(1), served(2, offset_us=80 * MINUTE_US)]
    # Half an hour each, 50 minutes apart; it was down for 20 of these.
    down = looked(1, NOON + 40 * MINUTE_US, 20 * MINUTE_US, is_down=True)
    [one] = report(await books(tmp_path, SEEN, *attempts, samples=(down,))).machines
    bridged = report(await books(tmp_path / "b", SEEN, *attempts)).machines[0]
    assert bridged.up_us - one.up_us == one.down_us == 20 * MINUTE_US


async def test_what_is_said_again_changes_nothing(tmp_path):
    meter = looked(1, NOON, 6 * HOUR_US, HOUR_US)
    down = looked(2, NOON + 6 * HOUR_US, HOUR_US, is_down=True)
    engine = await books(tmp_path, SEEN, samples=(meter, down))
    before = report(engine)
    note(engine, NOVEMBER, SEEN, samples=[*reversed(meter), *down])
    assert report(engine) == before


def test_what_is_taken_out_cuts_and_a_moment_takes_nothing():
    assert without([(0, 10), (20, 30)], [(5, 5), (8, 22), (29, 40)]) == [(0, 8), (22, 29)]
    assert without([(0, 10)], [(2, 4), (12, 13)]) == [(0, 2), (4, 10)]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6).map(
    lambda pairs: merged((start, start + length) for start, length in pairs)
)


@given(spans, spans, st.integers(0, 80), st.integers(0, 80))
def test_what_is_taken_out_is_covered_by_neither_more_nor_less(whole, taken, start, end):
    left = without(whole, taken)
    both = sum(
        overlap_us(whole, one, one + 1) and overlap_us(taken, one, one + 1)
        for one in range(start, end)
    )
    if start <= end:
        assert overlap_us(left, start, end) == overlap_us(whole, start, end) - both
    assert left == merged(left)
