"""SIGTERM: what is in flight is finished, new requests are refused, the books are complete."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.roads import CHEAP, deployments, events_of, running_road
from tests.faults.raw_client import RawClient
from tests.faults.traffic import ask
from tests.support.ledger_rows import billed_pico_usd, ledger_rows, open_intents, wait_for_rows
from tests.support.scripted_upstream import Chat

pytestmark = pytest.mark.slow

QUICK = 100
SCRIPTS = {
    "quick": [Chat(text="Yes.", prompt_tokens=9)],
    "slow": [Chat(text="word " * 30, prompt_tokens=21, frame_delay_s=0.1)],
    "endless": [Chat(text="word " * 3000, prompt_tokens=21, frame_delay_s=0.1)],
    "silent": [Chat(think_s=3600)],
}
CONFIG = {
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {name: deployments((f"up/{name}", CHEAP)) for name in SCRIPTS},
    "teams": {"red": {}},
}


def chat(model: str, *, is_stream: bool) -> dict:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": is_stream}


def test_a_drain_finishes_streams_refuses_newcomers_and_loads_every_row(tmp_path: Path) -> None:
    """GW-088."""
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        with (
            RawClient(gateway, "red", chat("slow", is_stream=True)) as stream,
            RawClient(gateway, "red", chat("slow", is_stream=False)) as whole,
        ):
            stream.read_until(b"word")
            for _ in range(QUICK):
                assert (
                    ask(gateway.port, gateway.key("red"), chat("quick", is_stream=False)).status
                    == 200
                )
            stopping = threading.Thread(target=gateway.stop)
            stopping.start()
            refused = _first_refusal(road.gateway.port, gateway.key("red"))
            assert refused.status == 503
            assert b'"draining"' in refused.body
            assert stream.read_to_end()
            assert "data: [DONE]\n\n" in stream.text
            assert stream.text.count("word") == 30
            whole.read_until(b'"cost_usd"')
            assert whole.status == 200
            stopping.join(timeout=30)
        # No restart: the drain itself has loaded what the spool held.
        rows = ledger_rows(gateway.database)
        assert open_intents(gateway.database) == 0
        bill = {line.attempt_id: line for line in road.upstream.bill()}
        gateway.run("ledger", "verify")
    assert len(rows) == len(bill) == QUICK + 2
    assert {row.status for row in rows} == {"ok"}
    assert sum(row.cost_pico_usd or 0 for row in rows) == sum(
        billed_pico_usd(line, CHEAP) for line in bill.values()
    )


def _first_refusal(port: int, key: str):
    """The first answer after the drain began that is not 200."""
    deadline = time.monotonic() + 10
    while (answer := ask(port, key, chat("nothing", is_stream=False))).status == 404:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def test_two_sigterms_end_it_at_once_and_the_attempt_is_kept(tmp_path: Path) -> None:
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        with RawClient(gateway, "red", chat("slow", is_stream=True)) as stream:
            stream.read_until(b"word")
            started_s = time.monotonic()
            gateway.signal(signal.SIGTERM)
            time.sleep(0.3)
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0
            assert time.monotonic() - started_s < 10
            assert b"[DONE]" not in stream.read_to_end()
        gateway.start()
        assert gateway.stop() == 0
        [row] = ledger_rows(gateway.database)
    assert (row.status, row.cost_pico_usd) == ("unknown_billing", 0)


def test_what_outlives_a_drain_is_told_so_and_settled(tmp_path: Path) -> None:
    """Here an orphaned worker's drain, which is the shorter one."""
    with running_road(tmp_path, scripts=SCRIPTS, config=CONFIG) as road:
        gateway = road.gateway
        endless = {**chat("endless", is_stream=True), "max_tokens": 3000}
        silent = {**chat("silent", is_stream=False), "max_tokens": 3000}
        with (
            RawClient(gateway, "red", endless) as stream,
            RawClient(gateway, "red", silent) as whole,
        ):
            stream.read_until(b"word")
            gateway.kill_supervisor()
            assert stream.read_to_end()
            assert json.loads(events_of(stream.text.encode())[-1])["error"]["code"] == "draining"
            assert "[DONE]" not in stream.text
            whole.read_until(b'"draining"')
            assert whole.status == 503
        gateway.start()
        rows = {row.model: row for row in wait_for_rows(gateway.database, 2)}
        assert road.upstream.calls_in_play() == 0
        assert gateway.stop() == 0
        gateway.run("ledger", "verify")
    assert rows["endless"].status == "interrupted"
    assert rows["silent"].status == "unknown_billing"
    for row in rows.values():
        assert (row.error_code, row.cost_pico_usd, row.quality) == ("draining", 0, "unknown")
        assert row.exposure_pico_usd
