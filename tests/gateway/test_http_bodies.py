"""Bodies that come in pieces: slowly, never, too long, announced first, or behind another request."""

from __future__ import annotations

import asyncio
import json
import re

import anyio
import pytest

from gateway.auth.directory import KeyDirectory, KeySnapshot
from gateway.http import chat
from tests.gateway.gateway_harness import KEY, body, serving

pytestmark = pytest.mark.anyio

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
    f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
)


def chunked(*parts: bytes) -> list[bytes]:
    return [*(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


async def talk(port: int, pieces: list[bytes], *, pause_s: float = 0.0, waits_for: bytes = b"") -> bytes:  # fmt: skip
    """Send pieces one by one; return what comes until an answer's end or the connection's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(10):
            for number, piece in enumerate(pieces):
                writer.write(piece)
                await writer.drain()
                if not number and waits_for:
                    assert await reader.readuntil(b"\r\n\r\n") == waits_for
                await asyncio.sleep(pause_s)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            return head + await reader.readexactly(length)
    finally:
        writer.close()


def request(text: str = "hi") -> bytes:
    return json.dumps(body(messages=[{"role": "user", "content": text}])).encode()


async def test_a_body_in_many_pieces_is_put_together(tmp_path):
    content = request("x" * 300_000)
    pieces = [content[start : start + 7_001] for start in range(0, len(content), 7_001)]
    async with serving(tmp_path) as gateway:
        head = f"{HEAD}content-length: {len(content)}\r\n\r\n".encode()
        got = await talk(gateway.port, [head, *pieces])
        assert got.startswith(b"HTTP/1.1 200 "), got
        got = await talk(
            gateway.port,
            [f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode(), *chunked(*pieces)],
        )
        assert got.startswith(b"HTTP/1.1 200 "), got
        assert len(gateway.attempts()) == 2


async def test_a_body_that_trickles_without_falling_silent_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "BODY_STALL_S", 0.2)
    content = request()
    third = len(content) // 3
    pieces = [content[:third], content[third : 2 * third], content[2 * third :]]
    async with serving(tmp_path) as gateway:
        head = f"{HEAD}content-length: {len(content)}\r\n\r\n".encode()
        got = await talk(gateway.port, [head, *pieces], pause_s=0.08)
    assert got.startswith(b"HTTP/1.1 200 "), got


async def test_a_key_that_is_revoked_while_the_body_comes_is_void(tmp_path):
    content = request()
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"{HEAD}content-length: {len(content)}\r\n\r\n".encode()
        writer.write(head + content[:20])
        while not gateway.service.in_flight:
            await asyncio.sleep(0.01)
        none = KeySnapshot(revision=2, records=())
        gateway.service.directory = KeyDirectory(none, peppers=[b"p"], namespace_key=b"n")
        writer.write(content[20:])
        async with asyncio.timeout(10):
            got = await reader.readline()
        writer.close()
        assert got == b"HTTP/1.1 401 Unauthorized\r\n"
        assert not gateway.attempts()


async def test_a_body_that_stops_coming_is_a_408(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "BODY_STALL_S", 0.05)
    async with serving(tmp_path) as gateway:
        got = await talk(gateway.port, [f"{HEAD}content-length: 100\r\n\r\n".encode(), b'{"mod'])
        assert got.startswith(b"HTTP/1.1 408 "), got
        assert b"nothing of the body came for 0.05 s" in got
        assert gateway.attempts() == []


async def test_waiting_for_a_body_that_is_refused_is_no_overhead_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "BODY_STALL_S", 0.5)
    async with serving(tmp_path) as gateway:
        got = await talk(gateway.port, [f"{HEAD}content-length: 100\r\n\r\n".encode(), b'{"mod'])
    overhead = re.search(rb"x-fareway-overhead-ms: ([0-9.]+)", got)
    assert overhead is not None, got
    assert float(overhead[1]) < 250, "the client let us wait for 500 ms"


async def test_a_body_that_turns_out_too_long_is_a_413_before_it_is_all_there(tmp_path):
    async with serving(tmp_path) as gateway:
        gateway.service.max_body_bytes = 100_000
        parts = chunked(*[b"x" * 40_000] * 3)[:-1]  # no end
        got = await talk(
            gateway.port, [f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode(), *parts]
        )
        assert got.startswith(b"HTTP/1.1 413 "), got
        assert gateway.attempts() == []


async def test_a_body_that_says_it_is_too_long_is_a_413_unread(tmp_path):
    async with serving(tmp_path) as gateway:
        gateway.service.max_body_bytes = 100
        for length in ("101", "9" * 40):
            got = await talk(gateway.port, [f"{HEAD}content-length: {length}\r\n\r\n".encode()])
            assert got.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), got
        whole = request("x" * 200)
        head = f"{HEAD}content-length: {len(whole)}\r\n\r\n".encode()
        assert (await talk(gateway.port, [head + whole])).startswith(b"HTTP/1.1 413 ")


async def test_a_client_that_asks_first_is_told_to_go_on(tmp_path):
    content = request()
    head = f"{HEAD}content-length: {len(content)}\r\nexpect: 100-continue\r\n\r\n".encode()
    async with serving(tmp_path) as gateway:
        got = await talk(gateway.port, [head, content], waits_for=b"HTTP/1.1 100 Continue\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 "), got


ANSWERED_UNREAD = {
    "a chat without a key": ("POST /v1/chat/completions", 401),
    "a chat without a key, by ASGI": ("POST /v1/chat/completions?a=b", 401),
    "a route that reads nothing": ("GET /healthz", 200),
}


@pytest.mark.parametrize(("line", "status"), ANSWERED_UNREAD.values(), ids=ANSWERED_UNREAD.keys())
@pytest.mark.parametrize("asks_first", [True, False], ids=["asks first", "sends"])
async def test_nothing_is_taken_for_a_body_that_may_not_come(tmp_path, line, status, asks_first):
    following = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    head = (
        f"{line} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(following)}\r\n{'expect: 100-continue' if asks_first else 'x: y'}"
        "\r\n\r\n"
    )
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        async with asyncio.timeout(10):
            writer.write(head.encode())
            got = await reader.readuntil(b"\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 %d " % status), got
            assert (b"connection: close" in got) is asks_first
            # It is the body to one who says it would come, and a request to one who asked whether.
            writer.write(following)
            if not asks_first:
                writer.write(following.replace(b"host", b"connection: close\r\nhost"))
            rest = await reader.read()
        writer.close()
    assert rest.count(b"HTTP/1.1 200 ") == (not asks_first)


@pytest.mark.parametrize("query", ["", "?a=b"])
async def test_a_client_of_http_1_0_gets_its_answer_and_nothing_before(tmp_path, query):
    async with serving(tmp_path) as gateway:
        content = request()
        old = HEAD.replace(" HTTP/1.1", f"{query} HTTP/1.0")
        head = f"{old}expect: 100-continue\r\ncontent-length: {len(content)}\r\n\r\n"
        got = await talk(gateway.port, [head.encode(), content], pause_s=0.05)
        assert got.startswith(b"HTTP/1.1 200 "), got


async def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(tmp_path, caplog):
    async with serving(tmp_path) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"{HEAD}content-length: 100\r\n\r\n".encode() + b'{"mod')
        await writer.drain()
        with anyio.fail_after(5):
            while not gateway.service.in_flight:
                await anyio.sleep(0.001)
        writer.close()
        await gateway.wait_idle()
        assert gateway.attempts() == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_request_behind_another_one_keeps_its_own_body(tmp_path):
    content, other = request("a" * 70_000), request("b" * 90_000)
    heads = [f"{HEAD}content-length: {len(one)}\r\n\r\n".encode() + one for one in (content, other)]
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"".join(heads))
        async with asyncio.timeout(10):
            for _ in heads:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
        writer.close()
        await gateway.wait_idle()
        assert len(gateway.attempts()) == 2
