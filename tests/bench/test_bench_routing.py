"""The routing benchmark decides with the real parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bench_routing import COUNTS, measure, parts
from bench.gateway.cases import ONE_KIB, PLAIN, Case
from gateway.dialects import openai_chat
from gateway.dialects.controls import read_controls


@pytest.mark.parametrize("count", COUNTS)
def test_every_candidate_is_ranked_and_the_cheapest_is_first(tmp_path: Path, count: int) -> None:
    admission, principal, clock = parts(tmp_path, count)
    body = Case(name="routing", about="", connections=1, messages=ONE_KIB).body(PLAIN)
    parsed = openai_chat.parse(body)
    admitted = admission.admit(
        principal, parsed, read_controls([], parsed.metadata), wall_us=clock.wall_us()
    )
    assert admitted.decision.refusal is None
    assert len(admitted.decision.candidates) == count
    assert admitted.decision.candidates[0].deployment == "p0/m0"


def test_the_figures_are_those_of_the_count(tmp_path: Path) -> None:
    found = measure(tmp_path, 3, rounds=20)
    assert found["admit_us"] == pytest.approx(3 * found["admit_us_per_candidate"], rel=0.01)
    assert found["ratio"] > 1
