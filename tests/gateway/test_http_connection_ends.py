"""What a connection leaves behind when it has ended: nothing, without the collector."""

from __future__ import annotations

import asyncio
import gc
import json

import anyio
import pytest

from gateway.http.protocol import BoundedProtocol
from tests.gateway.gateway_harness import body, request_bytes, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """The loop of the workers."""
    return ("asyncio", {"use_uvloop": True})


CHAT = request_bytes(json.dumps(body()).encode(), is_last=False)
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
ENDS = {
    "after a request": [CHAT],
    "after requests of a page's route": [HEALTH, HEALTH],
    "after several": [CHAT, HEALTH, CHAT],
    "while the answer is on its way": [CHAT, b"leave", CHAT],
    "in the middle of a head": [b"POST /v1/chat/completions HTTP/1.1\r\n"],
}


@pytest.mark.parametrize("sent", ENDS.values(), ids=ENDS.keys())
async def test_a_connection_that_ended_leaves_nothing_to_the_collector(tmp_path, sent):
    async with serving(tmp_path) as gateway:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                for request in sent:
                    writer.write(request.removeprefix(b"leave"))
                    if request.startswith((b"POST /v1", b"GET")) and b"leave" not in sent:
                        await anyio.sleep(0.02)
                writer.transport.abort()
                del reader, writer
            with anyio.fail_after(10):
                while left := [o for o in gc.get_objects() if isinstance(o, BoundedProtocol)]:
                    left.clear()
                    await anyio.sleep(0.01)
        finally:
            gc.enable()
