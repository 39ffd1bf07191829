"""An upstream that breaks: before the answer, in the middle, in every way a wire can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.roads import CHEAP, Road, deployments, events_of, running_road
from tests.faults.traffic import ask
from tests.support.gateway_process import free_port
from tests.support.ledger_rows import LedgerRow
from tests.support.scripted_upstream import Chat, Step, Wire

pytestmark = pytest.mark.slow

SSE = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
WHOLE = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n"
DELTA = '{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]%s}'
CONTENT = f"data: {DELTA % ''}\n\n"
COUNTED = "data: {}\n\n".format(
    DELTA % ',"usage":{"prompt_tokens":50,"completion_tokens":1,"total_tokens":51}'
)
INTERNALS = "db-7.internal: connection pool exhausted"
FAULT = json.dumps({"error": {"message": INTERNALS, "type": "server_error", "code": "e7"}})


def wire(*steps: Step) -> Wire:
    return Wire(steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One way to break, and what follows from it.

    Attributes:
        script: What the upstream does.
        code: `error.code` of the error event, or of the error body when nothing was streamed.
        status: HTTP status of the client's answer.
        booked: Status, quality and usage of the ledger's row.
    """

    script: Chat | Wire
    code: str
    booked: tuple[str, str, dict[str, int]]
    status: int = 200


STREAMS = {
    "a reset after content (GW-031)": Break(
        script=wire(Step(text=SSE + CONTENT), Step(delay_s=0.1, ending="reset")),
        code="upstream_error",
        booked=("interrupted", "unknown", {}),
    ),
    "a reset after content with counts so far (GW-084)": Break(
        script=wire(Step(text=SSE + COUNTED), Step(delay_s=0.1, ending="reset")),
        code="upstream_error",
        booked=("interrupted", "estimated", {"input": 50, "output": 1}),
    ),
    "silence in mid-stream (GW-032)": Break(
        script=wire(Step(text=SSE + CONTENT), Step(delay_s=3600)),
        code="upstream_timeout",
        booked=("interrupted", "unknown", {}),
    ),
    "garbage in mid-stream": Break(
        script=wire(Step(text=SSE + CONTENT + "data: {not json}\n\n", ending="close")),
        code="upstream_error",
        booked=("interrupted", "unknown", {}),
    ),
    "half a frame and the end": Break(
        script=wire(Step(text=SSE + CONTENT + CONTENT[:60], ending="close")),
        code="upstream_error",
        booked=("interrupted", "unknown", {}),
    ),
    "an end without a finish": Break(
        script=wire(Step(text=SSE + CONTENT, ending="close")),
        code="upstream_error",
        booked=("interrupted", "unknown", {}),
    ),
    "an error event after content": Break(
        script=wire(Step(text=f"{SSE}{CONTENT}data: {FAULT}\n\n", ending="close")),
        code="upstream_error",
        booked=("interrupted", "unknown", {}),
    ),
    "silence before the first token": Break(
        script=Chat(think_s=3600),
        code="upstream_timeout",
        booked=("unknown_billing", "unknown", {}),
        status=504,
    ),
    "a reset before the first byte": Break(
        script=wire(Step(delay_s=0.1, ending="reset")),
        code="upstream_error",
        booked=("unknown_billing", "unknown", {}),
        status=502,
    ),
}
WHOLES = {
    "a body that ends early": Break(
        script=wire(Step(text=WHOLE + '{"choices":[{"index":0', ending="close")),
        code="upstream_error",
        booked=("unknown_billing", "unknown", {}),
        status=502,
    ),
    "a body that is no answer": Break(
        script=wire(Step(text=WHOLE + "<html>" + "x" * 34)),
        code="upstream_error",
        booked=("unknown_billing", "unknown", {}),
        status=502,
    ),
    "silence": Break(
        script=Chat(think_s=3600),
        code="upstream_timeout",
        booked=("unknown_billing", "unknown", {}),
        status=504,
    ),
    "no HTTP at all": Break(
        script=wire(Step(text="SSH-2.0-OpenSSH_9.2\r\n", ending="close")),
        code="upstream_error",
        booked=("unknown_billing", "unknown", {}),
        status=502,
    ),
}


def model_of(kind: str, sentence: str) -> str:
    """A model's name from the sentence that describes it."""
    return f"{kind}-{''.join(c if c.isalnum() else '-' for c in sentence)}".strip("-").lower()


CASES = {
    model_of(kind, sentence): case
    for kind, cases in (("stream", STREAMS), ("whole", WHOLES))
    for sentence, case in cases.items()
}
CONFIG = {
    "server": {"timeouts": {"connect_s": 2, "first_token_s": 1.5, "between_tokens_s": 1, "total_s": 9}},
    "routing": {"retries": {"attempts": 1}},
    "providers": {
        "up": {"kind": "openai_compatible"},
        "nobody": {"kind": "openai_compatible", "base_url": f"http://127.0.0.1:{free_port()}/v1"},
    },
    "models": {
        **{name: deployments((f"up/{name}", CHEAP)) for name in CASES},
        "nobody": deployments(("nobody/m", CHEAP)),
    },
    "teams": {"red": {}},
}  # fmt: skip


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    scripts = {name: [case.script] for name, case in CASES.items()}
    folder = tmp_path_factory.mktemp("broken")
    with running_road(folder, scripts=scripts, config=CONFIG) as road:
        yield road


def call(
    road: Road, model: str, *, is_stream: bool, words: int = 3
) -> tuple[int, bytes, LedgerRow]:
    """Status and body of the answer, and the ledger's row."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "word " * words}],
        "max_tokens": 10,
        "stream": is_stream,
    }
    answer = ask(road.gateway.port, road.gateway.key("red"), body)
    [row] = road.rows(answer.request_id, 1)
    return answer.status, answer.body, row


def check_row(row: LedgerRow, case: Break) -> None:
    assert (row.status, row.quality, row.usage) == case.booked
    assert bool(row.cost_pico_usd) == bool(row.usage)
    # Where nothing could be counted, what it may still cost is kept.
    assert bool(row.exposure_pico_usd) == (row.quality == "unknown")
    assert row.error_code


@pytest.mark.parametrize(("sentence", "case"), STREAMS.items(), ids=STREAMS.keys())
def test_a_stream_that_breaks_says_so_and_is_settled(
    road: Road, sentence: str, case: Break
) -> None:
    status, body, row = call(road, model_of("stream", sentence), is_stream=True)
    assert status == case.status
    check_row(row, case)
    assert INTERNALS not in body.decode()
    if status != 200:
        assert json.loads(body)["error"]["code"] == case.code
        return
    events = events_of(body)
    assert json.loads(events[0])["choices"][0]["delta"]["content"] == "a"
    assert json.loads(events[-1])["error"]["code"] == case.code
    assert body.count(b"[DONE]") == 0
    assert sum('"error"' in event for event in events) == 1


@pytest.mark.parametrize(("sentence", "case"), WHOLES.items(), ids=WHOLES.keys())
def test_an_answer_that_breaks_is_an_error_and_is_settled(
    road: Road, sentence: str, case: Break
) -> None:
    status, body, row = call(road, model_of("whole", sentence), is_stream=False)
    assert status == case.status
    assert json.loads(body)["error"]["code"] == case.code
    check_row(row, case)


def test_a_huge_prompt_that_broke_is_not_billed_from_a_guess(road: Road) -> None:
    """GW-065: elsewhere a guess from the prompt's length billed 23 USD."""
    model = model_of("stream", "a reset after content (GW-031)")
    _, body, row = call(road, model, is_stream=True, words=400_000)
    assert b"[DONE]" not in body
    assert (row.status, row.cost_pico_usd, row.quality) == ("interrupted", 0, "unknown")
    assert row.exposure_pico_usd
    # At least a tenth of a token per byte at 0.10 USD per million.
    assert row.exposure_pico_usd >= 200_000 * 100_000


def test_nobody_there_costs_nothing_exactly(road: Road) -> None:
    status, body, row = call(road, "nobody", is_stream=True)
    assert status in {502, 503}
    assert "nobody/m" in json.loads(body)["error"]["message"]
    assert (row.status, row.quality, row.cost_pico_usd) == ("not_sent", "exact", 0)
    assert row.exposure_pico_usd is None


def test_the_books_hold_after_all_of_them(road: Road) -> None:
    road.gateway.run("ledger", "verify")
