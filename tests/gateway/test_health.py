"""How long a deployment is avoided for want of capacity, and who is avoided with it."""

from __future__ import annotations

import pytest

from gateway.health import (
    FORGET_S,
    OWN_LOAD_PAUSE_S_MAX,
    OWN_PAUSE_S,
    OWN_QUOTA_PAUSE_S_MAX,
    PAUSE_S_MAX,
    HealthBoard,
)


class Ticker:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def ticker():
    return Ticker()


@pytest.fixture
def board(ticker):
    return HealthBoard(monotonic_s=ticker, quota_groups={"p": "one", "q": "one"})


def lack(board, deployment="a/m", asked_s=None, is_quota=True):
    return board.note_lack(deployment, asked_s=asked_s, is_quota=is_quota)


@pytest.mark.parametrize(
    ("is_quota", "longest_s"), [(True, OWN_QUOTA_PAUSE_S_MAX), (False, OWN_LOAD_PAUSE_S_MAX)]
)
def test_without_a_wait_asked_for_pauses_double_up_to_a_limit(board, ticker, is_quota, longest_s):
    expected = OWN_PAUSE_S
    for _ in range(10):
        assert lack(board, is_quota=is_quota) == expected
        assert board.is_paused("a/m")
        ticker.now_s += expected
        assert not board.is_paused("a/m")
        expected = min(2 * expected, longest_s)


def test_failures_of_requests_that_were_under_way_do_not_count(board, ticker):
    for _ in range(50):
        assert lack(board) == OWN_PAUSE_S
    ticker.now_s += OWN_PAUSE_S
    assert lack(board) == 2 * OWN_PAUSE_S


def test_a_success_makes_the_next_pause_a_short_one_and_ends_none(board, ticker):
    lack(board)
    ticker.now_s += OWN_PAUSE_S
    lack(board)
    board.note_success("a/m")
    assert board.is_paused("a/m")
    ticker.now_s += 10.0
    assert lack(board) == OWN_PAUSE_S
    board.note_lack("b/m", asked_s=30.0, is_quota=False)
    board.note_success("b/m")
    assert board.is_paused("b/m")


def test_failures_of_long_ago_are_forgotten(board, ticker):
    lack(board)
    ticker.now_s += OWN_PAUSE_S
    lack(board)
    ticker.now_s += FORGET_S + 60.0
    assert lack(board) == OWN_PAUSE_S


def test_what_the_upstream_asks_for_is_kept_and_a_later_end_wins(board, ticker):
    # GW-051.
    assert lack(board, asked_s=30.0) == 30.0
    assert lack(board) == OWN_PAUSE_S
    ticker.now_s += 29.0
    assert board.is_paused("a/m")
    assert lack(board, asked_s=10**9) == PAUSE_S_MAX


def test_a_quota_pauses_its_whole_group_and_an_overload_only_its_deployment(board):
    # GW-057.
    lack(board, "p/m", asked_s=5.0)
    assert [board.is_paused(name) for name in ("p/m", "p/n", "q/m", "r/m")] == [
        True, True, True, False,
    ]  # fmt: skip
    lack(board, "r/m", asked_s=5.0)
    assert [board.is_paused(name) for name in ("r/m", "r/n")] == [True, False]
    alone = HealthBoard(monotonic_s=board.monotonic_s, quota_groups={"p": "one"})
    lack(alone, "p/m", asked_s=5.0, is_quota=False)
    assert [alone.is_paused(name) for name in ("p/m", "p/n")] == [True, False]
    assert board.domain_of("p/m") == board.domain_of("q/n") != board.domain_of("r/m") == "r/m"


def test_the_board_knows_whether_anything_may_be_paused(board, ticker):
    assert not board.has_pauses
    lack(board, "a/m", asked_s=5.0)
    lack(board, "b/m", asked_s=50.0)
    ticker.now_s += 5.0
    assert not board.is_paused("a/m")
    assert board.has_pauses
    assert board.is_paused("b/m")
    ticker.now_s += 45.0
    assert not board.is_paused("b/m")
    assert not board.has_pauses


def test_the_epoch_counts_what_may_change_a_decision(board):
    seen = []
    for change in (
        lambda: board.set_fault("a/m", "gone"),
        lambda: board.set_fault("a/m", None),
        lambda: board.set_fault("a/m", None),  # what it can do may have changed
        lambda: board.note_speed("a/m", prefill_tps=1000.0, decode_tps=None),
        lambda: board.note_speed("a/m", prefill_tps=None, decode_tps=50.0),
        lambda: board.note_speed("a/m", prefill_tps=900.0, decode_tps=40.0),
        lambda: lack(board, "a/m"),
        lambda: board.note_success("a/m"),
    ):
        before = board.epoch
        change()
        seen.append(board.epoch != before)
    assert seen == [True, True, True, False, True, False, False, False]
