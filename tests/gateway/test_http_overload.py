"""A worker that is asked for more than it has time for refuses some, fast, and serves the others."""

from __future__ import annotations

import math
import random

import pytest

from gateway.http.overload import BURST_S, LATE_S, SHARE_MAX, Overload
from tests.gateway.gateway_harness import body, error_of, serving

LATE, ON_TIME = LATE_S * 1.01, LATE_S
LOOKS = math.ceil(BURST_S / LATE)


def looked(*looks: float) -> Overload:
    overload = Overload(random.Random(1))
    for computed_s in looks:
        overload.note(computed_s)
    return overload


def test_a_burst_is_no_overload():
    assert looked(*[LATE] * (LOOKS - 1)).share == 0.0
    assert not looked(*[LATE] * (LOOKS - 1), ON_TIME, *[LATE] * (LOOKS - 1)).refuses()


def test_the_share_grows_while_it_lasts_and_never_takes_everything():
    shares = [looked(*[LATE] * looks).share for looks in range(LOOKS, LOOKS + 40)]
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == SHARE_MAX < 1
    overload = looked(*[LATE] * 100)
    refused = sum(overload.refuses() for _ in range(10_000))
    assert 9_300 < refused < 9_700


def test_a_loop_that_is_very_late_refuses_at_its_second_look():
    overload = looked(0.3, 0.3)
    assert overload.share == 0.3


def test_it_ends_when_the_loop_has_time_again():
    overload = looked(*[LATE] * 100, *[ON_TIME] * 100)
    assert overload.share == 0.0
    assert not any(overload.refuses() for _ in range(100))


@pytest.mark.anyio
async def test_a_refusal_says_when_to_come_back_and_costs_nothing(tmp_path):
    async with serving(tmp_path) as gateway:
        gateway.service.overload.share = 1.0
        answer = await gateway.post(body())
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "overloaded"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-fareway-deployment"] == "none"
        assert answer.headers["x-fareway-attempts"] == "0"
        assert len(answer.headers["x-fareway-request-id"]) == 32
        assert gateway.attempts() == []
        gateway.service.overload.share = 0.0
        assert (await gateway.post(body())).status_code == 200
        counted = gateway.service.metrics.render().decode()
        assert 'fareway_requests_total{route="chat.completions",status="503"} 1' in counted
