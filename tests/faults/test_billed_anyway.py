"""Clients that leave vendors who bill to the end anyway, and vendors who stop (GW-061, GW-063)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from providers.contract import OnDisconnect
from providers.registry import CompatibleDescription, build_providers
from tests.gateway.gateway_harness import body, running_gateway
from tests.gateway.stream_reading import first_bytes
from tests.support.scripted_upstream import Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

WHOLE = json.dumps(
    {
        "id": "c1",
        "model": "m1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 400},
    }
).encode()  # fmt: skip
HEAD = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(WHOLE)}\r\n\r\n"
STREAM = Chat(
    text="word " * 51,
    frame_delay_s=0.006,
    prompt_tokens=100,
    completion_tokens=511,
    runs_on=True,
)
SCRIPTS = {
    "a stream": (STREAM, True, {"input": 100, "output": 511}),
    "a whole answer, before its head": (
        Wire(steps=(Step(delay_s=0.3, text=HEAD, data=WHOLE),)), False, {"input": 900, "output": 400},
    ),
    "a whole answer, within its body": (
        Wire(steps=(Step(text=HEAD, data=WHOLE[:50]), Step(delay_s=0.3, data=WHOLE[50:]))), False,
        {"input": 900, "output": 400},
    ),
}  # fmt: skip


async def left_alone(
    folder: Path, script: Chat | Wire, *, stream: bool, rule: OnDisconnect, drain_s: float = 30.0
):
    """The ledger's row of a request whose client leaves, and the upstream's bill."""
    async with ScriptedUpstream({"m": [script]}) as up:
        urls = {"a": up.base_url}
        described = CompatibleDescription(name="a", base_url=up.base_url, on_disconnect=rule)
        made = build_providers([described], clock=lambda: datetime.now(UTC))
        async with running_gateway(folder, urls, providers=made) as gateway:
            gateway.set_limits(drain_s=drain_s)
            if stream:
                async with gateway.stream(body(stream=True)) as got:
                    await first_bytes(got)
            else:
                with anyio.move_on_after(0.15):
                    await gateway.post(body())
            [(_, settled)] = await gateway.settled()
            with anyio.fail_after(5):
                while up.calls_in_play:
                    await anyio.sleep(0.005)
        return settled, up.bill


@pytest.mark.parametrize(("script", "stream", "usage"), SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_where_it_is_billed_anyway_the_exact_counts_are_booked(
    tmp_path: Path, script: Chat | Wire, stream: bool, usage: dict[str, int]
) -> None:
    settled, _ = await left_alone(tmp_path, script, stream=stream, rule=OnDisconnect.DRAIN)
    assert (settled.status, settled.quality, settled.usage) == ("client_left", "exact", usage)
    assert settled.cost_pico_usd


async def test_reading_on_ends_at_its_limit_with_an_estimate(tmp_path: Path) -> None:
    settled, _ = await left_alone(
        tmp_path, STREAM, stream=True, rule=OnDisconnect.DRAIN, drain_s=0.1
    )
    assert (settled.status, settled.quality) == ("client_left", "estimated")
    assert 1 <= settled.usage["output"] < 51


async def test_where_leaving_stops_the_bill_the_upstream_is_dropped(tmp_path: Path) -> None:
    stops = Chat(text="word " * 300, frame_delay_s=0.01, prompt_tokens=100)
    settled, [line] = await left_alone(tmp_path, stops, stream=True, rule=OnDisconnect.CANCEL)
    assert (settled.status, settled.quality) == ("client_left", "estimated")
    assert line.outcome == "client_left"
    assert line.completion_tokens < 100


async def test_a_whole_answer_nobody_waits_for_is_dropped_and_its_exposure_kept(
    tmp_path: Path,
) -> None:
    script, _, _ = SCRIPTS["a whole answer, before its head"]
    settled, _ = await left_alone(tmp_path, script, stream=False, rule=OnDisconnect.CANCEL)
    assert (settled.status, settled.quality, settled.usage) == ("client_left", "unknown", {})
