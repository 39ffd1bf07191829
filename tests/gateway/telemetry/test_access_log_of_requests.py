"""Lines of real requests: who, where to, how long, what it cost, and no content."""

from __future__ import annotations

import json

import pytest

from tests.gateway.gateway_harness import KEY, body, running_gateway
from tests.gateway.telemetry.test_access_log import lines, trails
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

__all__ = ["lines"]

pytestmark = pytest.mark.anyio

CANARY = "canary-prompt-7f3a"


async def test_requests_over_real_sockets_leave_lines_without_content(tmp_path, lines):
    scripts = {"m": [Answer(status=500, body={"error": {"message": CANARY}}), Chat(text=CANARY)]}
    async with (
        ScriptedUpstream(scripts) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        messages = [{"role": "user", "content": CANARY}]
        await gateway.post(body(messages=messages))
        await gateway.wait_idle()
        assert lines == [], "it is off"
        gateway.service.trails = trails()
        answer = await gateway.post(body(messages=messages, stream=True))
        await gateway.post(body(), key="wrong")
        await gateway.wait_idle()
    assert len(lines) == 2
    told = {line["status"]: line for line in lines}
    assert told[200]["request_id"] == answer.headers["x-fareway-request-id"]
    assert (told[200]["team"], told[200]["model"], told[200]["is_stream"]) == ("apps", "chat", True)
    assert told[200]["deployment"] == "a/m"
    assert told[200]["output_tokens"] > 0
    assert float(told[200]["cost_usd"]) > 0
    assert told[200]["overhead_ms"] == pytest.approx(
        float(answer.headers["x-fareway-overhead-ms"]), abs=0.01
    )
    assert told[401]["team"] is None
    for secret in (CANARY, KEY, "wrong"):
        assert secret not in json.dumps(lines)
