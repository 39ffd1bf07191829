"""The books against the mock's counters: every way in which they can differ is a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.gateway.ledger_proof import Books, problems
from bench.gateway.mock import MockStats

MOCK = MockStats(
    accepted=4,
    chats=10,
    chat_bytes=2_000,
    streams=0,
    chunks=0,
    billed_input_tokens=80,
    billed_cached_tokens=160,
    billed_output_tokens=280,
    left=0,
)
REPORT = {
    "attempts": 10,
    "input_tokens": 80,
    "cached_input_tokens": 160,
    "output_tokens": 280,
    # 80 at 50,000, 160 at 10,000 and 280 at 80,000 picodollars.
    "cost_pico_usd": 28_000_000,
}
BOOKS = Books(attempts=10, not_sent=0, open_attempts=0, backlog_records=0, faults=(), report=REPORT)


def report(**changes: int) -> dict[str, object]:
    return {**REPORT, **changes}


DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "an attempt lost": ({"attempts": 9, "report": report(attempts=9)}, "holds 9 attempts"),
    "an attempt booked twice": ({"attempts": 11, "report": report(attempts=11)}, "holds 11"),
    "an attempt still open": ({"open_attempts": 1}, "1 attempts are open"),
    "a record that waits": ({"backlog_records": 2}, "2 records wait"),
    "a fault of the ledger's own": ({"faults": ("a sum is wrong",)}, "a sum is wrong"),
    "a report that sums up other attempts": ({"report": report(attempts=8)}, "says 8 attempts"),
    "tokens that differ": ({"report": report(output_tokens=279)}, "output_tokens"),
    "a picodollar that differs": ({"report": report(cost_pico_usd=27_999_999)}, "cost_pico_usd"),
}


def test_equal_books_have_no_problem() -> None:
    assert problems(BOOKS, MOCK) == []


@pytest.mark.parametrize(("change", "words"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_a_difference_is_a_problem(change: dict[str, Any], words: str) -> None:
    found = problems(replace(BOOKS, **change), MOCK)
    assert len(found) == 1
    assert words in found[0]


def test_attempts_that_never_reached_the_upstream_are_not_expected_there() -> None:
    books = replace(BOOKS, attempts=12, not_sent=2, report=report(attempts=12))
    assert problems(books, MOCK) == []


def test_answers_that_the_client_left_are_counted_and_not_summed() -> None:
    left = msgspec.structs.replace(MOCK, left=1, billed_output_tokens=300)
    assert problems(BOOKS, left) == []
    assert problems(replace(BOOKS, attempts=9, report=report(attempts=9)), left) != []
