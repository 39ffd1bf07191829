"""The benchmark of detectors looks at requests of the length that it says, with patterns that match."""

from __future__ import annotations

import random

import msgspec
import pytest

from bench.bench_detect import KINDS, body, loop_of, measure, prose
from tests.gateway.detect_ import planted


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_has_the_length_that_is_named(kind: str) -> None:
    messages = msgspec.json.decode(body(KINDS[kind], random.Random(1), 4096)["messages"])
    size = sum(len(one["content"].encode()) for one in messages[1:])
    assert 4096 <= size < 5400


def test_the_plain_loop_finds_what_the_detectors_look_for() -> None:
    loop, rng = loop_of(), random.Random(1)
    assert loop(b"plain words") == 0
    assert loop(planted.card(rng).encode()) >= 1
    assert loop(planted.pem(rng).encode()) >= 1


def test_the_figures_go_together() -> None:
    found = measure(prose, 400, rounds=10)
    assert found["us_per_4_kib"] == pytest.approx(found["median_us"] * 4096 / 400, rel=0.01)
    assert found["p90_us"] >= found["median_us"]
    assert found["re_loop_ratio"] > 1
