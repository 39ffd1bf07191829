"""A client that goes away: the upstream is dropped, the attempt is settled, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.roads import CHEAP, Road, deployments, running_road
from tests.faults.raw_client import RawClient
from tests.support.ledger_rows import LedgerRow, billed_pico_usd, wait_for_rows
from tests.support.scripted_upstream import Chat, Step, Wire

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 5.0
HALF_AN_ANSWER = (
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    '{"choices":[{"index":0,"message":{"content":"half of it'
)
SCRIPTS = {
    "thinks": [Chat(think_s=3600)],
    "thinks-whole": [Chat(think_s=3600)],
    "dribbles": [Chat(text="word " * 1000, prompt_tokens=50, frame_delay_s=0.05)],
    "dribbles-reset": [Chat(text="word " * 1000, prompt_tokens=50, frame_delay_s=0.05)],
    "half": [Wire(steps=(Step(text=HALF_AN_ANSWER), Step(delay_s=3600)))],
    "quick": [Chat(text="All of it.", prompt_tokens=11)],
    "after": [Chat(text="After all.")],
}
CONFIG = {
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {name: deployments((f"up/{name}", CHEAP)) for name in SCRIPTS},
    "teams": {"red": {}},
}


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("leavers")
    with running_road(folder, scripts=SCRIPTS, config=CONFIG) as road:
        yield road


def chat(model: str, *, is_stream: bool) -> dict:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "one two three four"}],
        "max_tokens": 2000,
        "stream": is_stream,
    }


def wait_for_calls(road: Road, count: int) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while road.upstream.calls_in_play() != count:
        assert time.monotonic() < deadline, f"{road.upstream.calls_in_play()} calls, not {count}"
        time.sleep(0.02)


def row_of(road: Road, model: str) -> LedgerRow:
    [row] = wait_for_rows(road.gateway.database, 1, where=lambda row: row.model == model)
    return row


@pytest.mark.parametrize(
    ("model", "is_stream"), [("thinks", True), ("thinks-whole", False)], ids=["stream", "whole"]
)
def test_a_client_gone_before_the_answer_drops_the_upstream_and_keeps_the_exposure(
    road: Road, model: str, is_stream: bool
) -> None:
    with RawClient(road.gateway, "red", chat(model, is_stream=is_stream)) as client:
        wait_for_calls(road, 1)
        client.close()
    wait_for_calls(road, 0)
    row = row_of(road, model)
    assert (row.status, row.http_status, row.error_code) == ("client_left", 499, "client_left")
    assert (row.quality, row.cost_pico_usd, row.usage) == ("unknown", 0, {})
    assert row.exposure_pico_usd


def test_a_client_gone_amid_a_whole_answer_keeps_the_exposure(road: Road) -> None:
    with RawClient(road.gateway, "red", chat("half", is_stream=False)) as client:
        wait_for_calls(road, 1)
        client.close()
    wait_for_calls(road, 0)
    row = row_of(road, "half")
    assert (row.status, row.quality, row.cost_pico_usd) == ("client_left", "unknown", 0)
    assert row.exposure_pico_usd


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_client_gone_in_mid_stream_is_charged_what_passed_as_an_estimate(
    road: Road, leave: str
) -> None:
    model = "dribbles" if leave == "close" else "dribbles-reset"
    with RawClient(road.gateway, "red", chat(model, is_stream=True)) as client:
        client.read_until(b"word", count=3)
        getattr(client, leave)()
    wait_for_calls(road, 0)
    row = row_of(road, model)
    line = road.bill_line(row)
    assert (row.status, row.quality, row.http_status) == ("client_left", "estimated", 499)
    assert line.outcome == "client_left"
    # What the upstream had generated when it noticed, give or take what was on the way.
    assert 3 <= row.usage["output"] <= line.completion_tokens <= row.usage["output"] + 5
    assert row.cost_pico_usd
    assert row.exposure_pico_usd is None
    assert row.ttft_us is not None


def test_a_client_gone_after_the_end_changes_nothing(road: Road) -> None:
    with RawClient(road.gateway, "red", chat("quick", is_stream=True)) as client:
        client.read_until(b"data: [DONE]")
        client.reset()
    row = row_of(road, "quick")
    assert (row.status, row.quality) == ("ok", "exact")
    assert row.cost_pico_usd == billed_pico_usd(road.bill_line(row), CHEAP)


def test_a_client_gone_within_its_own_request_causes_no_attempt(road: Road) -> None:
    before = len(road.upstream.requests())
    with RawClient(road.gateway, "red", chat("after", is_stream=True), sends=0.5) as client:
        client.close()
    with RawClient(road.gateway, "red", chat("after", is_stream=False)) as client:
        client.read_until(b'"cost_usd"')
    row = row_of(road, "after")
    assert row.status == "ok"
    assert len(road.upstream.requests()) == before + 1


def test_the_books_hold_after_all_of_them(road: Road) -> None:
    road.gateway.run("ledger", "verify")
