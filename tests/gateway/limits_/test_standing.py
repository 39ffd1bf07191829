"""What clients are told of limits."""

from __future__ import annotations

import pytest

from gateway.limits.rules import LimitKind
from gateway.limits.standing import Meter, Shortage, Standing, duration, header_lines
from tests.gateway.limits_.books import team_rules

DURATIONS = {
    "nothing": (0, b"0ms"),
    "less than a millisecond": (1, b"1ms"),
    "milliseconds": (12_000, b"12ms"),
    "a second": (1_000_000, b"1s"),
    "a second and a half": (1_500_000, b"1.5s"),
    "a second and a bit": (1_000_001, b"1.001s"),
    "minutes": (360_000_000, b"6m0s"),
    "minutes and seconds": (83_120_000, b"1m23.12s"),
    "hours": (7_322_000_000, b"2h2m2s"),
}


@pytest.mark.parametrize(("microseconds", "text"), DURATIONS.values(), ids=DURATIONS.keys())
def test_durations_are_written_as_openai_writes_them(microseconds, text):
    assert duration(microseconds) == text


def test_the_narrowest_limit_of_each_kind_is_told():
    standing = (
        Standing()
        .and_also(Meter(100, 7, 5_000_000), None)
        .and_also(Meter(60, 7, 9_000_000), Meter(1000, 900, 0))
        .and_also(None, Meter(5000, 20, 1_000_000))
        .and_also(Meter(60, 50, 1_000), None)
    )
    assert header_lines(standing) == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 7\r\n"
        b"x-ratelimit-reset-requests: 9s\r\n"
        b"x-ratelimit-limit-tokens: 5000\r\nx-ratelimit-remaining-tokens: 20\r\n"
        b"x-ratelimit-reset-tokens: 1s\r\n"
    )


def test_without_limits_per_minute_nothing_is_told():
    assert header_lines(Standing()) == b""


MESSAGES = {
    LimitKind.RPM: "too many requests: team 'red' may use 6 requests per minute; try again in 2s",
    LimitKind.TPM: "too many tokens: team 'red' may use 50 tokens per minute; try again in 2s",
    LimitKind.CONCURRENCY: (
        "too many requests in flight: team 'red' may have 3 at once; try again in 2s"
    ),
}


@pytest.mark.parametrize("kind", LimitKind)
def test_a_refusal_names_its_limit_and_when_to_come_back(kind):
    (rule,) = team_rules(rpm=6, tpm=50, concurrency=3)
    shortage = Shortage(rule, kind, 2_000_000)
    assert shortage.message == MESSAGES[kind]
    assert shortage.label == f"team_{kind.value}"
