"""One line per request where it is asked for, nothing elsewhere, content nowhere."""

from __future__ import annotations

import json
import logging
import time

import pytest

from gateway.telemetry.logs import JsonLines
from gateway.telemetry.trail import Trails, access_logger
from tests.gateway.ledger_samples import settlement

REQUEST_ID = bytes(range(16))


@pytest.fixture
def lines():
    """Every line that the access log gets, as JSON."""
    found: list[dict] = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(json.loads(self.format(record)))

    handler = Keep()
    handler.setFormatter(JsonLines("worker-0", handles_content=True))
    access_logger.addHandler(handler)
    yield found
    access_logger.removeHandler(handler)
    access_logger.setLevel(logging.NOTSET)


def trails(**changes) -> Trails:
    options = {"traces": None, "has_access_log": True, "monotonic_s": time.monotonic}
    return Trails(**(options | changes))


def test_a_refused_request_has_a_line_without_an_attempt(lines):
    trails().start(REQUEST_ID, "chat.completions", []).end(401, None)
    (line,) = lines
    assert line["message"] == "request"
    assert line["request_id"] == REQUEST_ID.hex()
    assert line["status"] == 401
    assert line["attempts"] == 0
    unknown = ("team", "deployment", "attempt_status", "cost_usd", "overhead_ms", "trace_id")
    assert [line[name] for name in unknown] == [None] * len(unknown)


def test_attempts_add_up_and_the_last_one_tells_the_end(lines):
    trail = trails().start(REQUEST_ID, "chat.completions", [])
    first = settlement(1, status="rejected", usage={}, lines=(), cost_pico_usd=0, error_code="x")
    usage = {"input": 7, "cache_read": 2, "output": 3, "reasoning": 4, "gpu_us": 10**6}
    last = settlement(2, usage=usage, cost_pico_usd=2_500_000, ttft_us=40_000, error_code="")
    trail.start_attempt("up/a", 1).end(first)
    trail.start_attempt("up/b", 2).end(last)
    trail.end(200, 0.000187)
    (line,) = lines
    expected = {
        "deployment": "up/b", "attempts": 2, "attempt_status": "ok", "error_code": "",
        "input_tokens": 9, "output_tokens": 7, "cost_usd": "0.0000025", "ttft_ms": 40.0,
        "overhead_ms": 0.187,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["duration_ms"] >= 0


def test_a_cost_that_is_not_wholly_known_is_not_told(lines):
    trail = trails().start(REQUEST_ID, "chat.completions", [])
    trail.start_attempt("up/a", 1).end(settlement(1, cost_pico_usd=5))
    trail.start_attempt("up/b", 2).end(settlement(2, cost_pico_usd=None, lines=()))
    trail.end(200, None)
    assert lines[0]["cost_usd"] is None


def test_an_attempt_that_could_not_be_settled_counts_as_one(lines):
    trail = trails().start(REQUEST_ID, "chat.completions", [])
    trail.start_attempt("up/a", 1).end(None)
    trail.end(503, None)
    assert (lines[0]["attempts"], lines[0]["deployment"]) == (1, "up/a")
    assert lines[0]["attempt_status"] is None


def test_without_an_access_log_there_is_no_line(lines):
    trails(has_access_log=False).start(REQUEST_ID, "chat.completions", []).end(200, None)
    assert lines == []
