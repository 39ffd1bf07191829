"""The load generator and the mock upstream, against each other: what one sends the other counts."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gateway.compiled import COMPILERS, program
from bench.gateway.faults import BenchFault
from bench.gateway.load import LoadPlan, LoadReport, run_load
from bench.gateway.mock import Mock

pytestmark = pytest.mark.skipif(
    all(shutil.which(name) is None for name in COMPILERS), reason="there is no C compiler"
)


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    running = Mock.start(core=None, folder=tmp_path)
    yield running
    running.stop()


def load(mock: Mock, folder: Path, model: str, **more: object) -> LoadReport:
    body = folder / "body.json"
    fields = {"model": model, "messages": [], "stream": bool(more.get("is_stream"))}
    body.write_text(json.dumps({**fields, "pad": "x" * int(str(more.pop("pad", 0)))}))
    plan = {"connections": 4, "requests": 40, "url": f"{mock.url}/v1/chat/completions", **more}
    return run_load(LoadPlan(body=body, **plan), core=None)[0]


def test_every_request_is_answered_and_counted_once(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock", requests=500)
    stats = mock.stats()
    assert (report.ok, report.failed, stats.chats, stats.left) == (500, 0, 500, 0)
    assert (stats.billed_input_tokens, stats.billed_cached_tokens, stats.billed_output_tokens) == (
        500 * 8,
        500 * 16,
        500 * 28,
    )


def test_a_stream_ends_whole_and_every_chunk_arrives(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock-stream-5-0ms", is_stream=True)
    stats = mock.stats()
    assert (report.ok, report.failed, report.chunks) == (40, 0, 200)
    assert (stats.streams, stats.chunks, stats.billed_output_tokens) == (40, 200, 200)


def test_a_load_that_ends_in_time_leaves_no_torn_request(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock-slow-50ms", requests=None, duration_s=0.2, warmup_s=0.0)
    stats = mock.stats()
    assert report.undrained == 0
    assert stats.left == 0
    assert stats.chats >= report.ok > 0


def test_a_constant_rate_is_kept(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock", requests=None, rate=400.0, duration_s=0.3, warmup_s=0.1)
    assert report.unissued == 0
    assert 114 <= report.ok <= 126


def test_what_is_due_and_finds_no_connection_is_told(mock: Mock, tmp_path: Path) -> None:
    report = load(
        mock,
        tmp_path,
        "mock-slow-100ms",
        requests=None,
        rate=200.0,
        duration_s=0.3,
        warmup_s=0.0,
        connections=2,
    )
    assert report.unissued > 30


def test_clients_that_leave_are_counted_on_both_sides(mock: Mock, tmp_path: Path) -> None:
    report = load(
        mock,
        tmp_path,
        "mock-stream-8-1ms",
        is_stream=True,
        requests=200,
        hangup_percent=30,
        hangup_events=4,
        seed=7,
    )
    stats = mock.stats()
    assert report.ok + report.hung_up == 200
    assert 30 < report.hung_up < 90
    assert (report.failed, stats.chats) == (0, 200)
    # One that left after the last chunk was on its way may have had its whole answer.
    assert 0 < stats.left <= report.hung_up


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_told_apart_from_a_failure(mock: Mock, tmp_path: Path, status: int) -> None:
    report = load(mock, tmp_path, f"mock-{status}")
    assert (report.ok, report.refused, report.failed) == (0, 40, 0)
    assert report.refused_us is not None
    assert report.refused_us.n == 40


def test_other_errors_are_failures_with_a_sample(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock-500")
    assert (report.ok, report.non2xx, report.last_bad_status) == (0, 40, 500)
    assert "mock error 500" in report.error_sample


def test_a_stream_that_breaks_is_no_success(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock-cut-2", is_stream=True, requests=10)
    assert report.ok == 0
    assert report.failed == 10
    assert mock.stats().left == 0, "it was the upstream that left"


def test_a_body_of_megabytes_arrives_whole(mock: Mock, tmp_path: Path) -> None:
    report = load(mock, tmp_path, "mock", requests=3, pad=3_000_000)
    assert report.ok == 3
    assert mock.stats().chat_bytes > 9_000_000


def test_looking_at_the_counters_does_not_count(mock: Mock) -> None:
    urllib.request.urlopen(f"{mock.url}/__stats", timeout=5).close()
    with urllib.request.urlopen(f"{mock.url}/__stats", timeout=5) as answer:
        assert json.load(answer)["requests"] == 0


def test_only_loopback_addresses_are_loaded(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text("{}")
    with pytest.raises(BenchFault, match="only loopback"):
        run_load(LoadPlan(url="http://192.0.2.1:80/", body=body, connections=1), core=None)


@pytest.mark.slow
def test_a_program_is_compiled_once(tmp_path: Path) -> None:
    made = program("loadgen", cache=tmp_path)
    changed_at = made.stat().st_mtime_ns
    assert program("loadgen", cache=tmp_path, path="") == made
    assert made.stat().st_mtime_ns == changed_at


def test_without_a_compiler_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BenchFault, match="no C compiler here; install one"):
        program("loadgen", cache=tmp_path, path=str(tmp_path))
