"""Bytes that no client library sends: hostile heads, bodies that do not come, many in one."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

import anyio
import pytest

from gateway.errors import BodyTooLarge, BodyTooSlow, InvalidRequest
from gateway.http import errors as http_errors
from gateway.http.asgi import Application
from gateway.http.messages import read_body
from gateway.http.protocol import HEAD_BYTES_MAX, PIPELINED_MAX, BoundedProtocol
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    NOWHERE,
    body,
    error_of,
    request_bytes,
    running_gateway,
    serving,
)
from tests.gateway.stream_reading import assemble

pytestmark = pytest.mark.anyio


async def test_requests_of_one_connection_follow_each_other(tmp_path):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        one = request_bytes(json.dumps(body(stream=True)).encode()).replace(
            b"connection: close\r\n", b""
        )
        writer.write(one + one)
        got = b""
        with anyio.fail_after(10):
            while got.count(b"data: [DONE]") < 2:
                got += await reader.read(65536)
        assert got.count(b"HTTP/1.1 200 ") == 2
        writer.close()
        await writer.wait_closed()
        assert len(await gateway.settled()) == 2


HOSTILE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "two lengths": request_bytes(b"{}", headers=["content-length: 2", "content-length: 3"]),
    "a length that is no number": request_bytes(b"{}", headers=["content-length: two"]),
    "a negative length": request_bytes(b"{}", headers=["content-length: -1"]),
    "a length beyond 64 bits": request_bytes(b"{}", headers=["content-length: " + "9" * 30]),
    "a length of thousands of digits": request_bytes(
        b"{}", headers=["content-length: " + "9" * 5_000]
    ),
    "a length beside chunks": request_bytes(
        b"2\r\n{}\r\n0\r\n\r\n", headers=["content-length: 2", "transfer-encoding: chunked"]
    ),
    "a chunk size that is no number": request_bytes(
        b"zz\r\n{}\r\n0\r\n\r\n", headers=["transfer-encoding: chunked"]
    ),
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "a header with a zero byte": request_bytes(b"{}", headers=["x-odd: a\x00b"]),
    "an upgrade": request_bytes(b"{}", headers=["connection: upgrade", "upgrade: websocket"]),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_requests_get_a_4xx_or_nothing_and_the_next_one_is_served(tmp_path, data):
    async with serving(tmp_path) as gateway:
        got = await gateway.raw(data, timeout_s=1.0)
        assert got == b"" or got.startswith(b"HTTP/1.1 4"), got[:200]
        assert b"Traceback" not in got
        assert (await gateway.post(body())).status_code == 200


ENDLESS_HEADS = {
    "many headers": b"x-a: " + b"b" * 1000 + b"\r\n",
    "one endless header": b"b" * 1007,
}


@pytest.mark.parametrize("piece", ENDLESS_HEADS.values(), ids=ENDLESS_HEADS.keys())
async def test_an_endless_head_is_refused(tmp_path, piece):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nx-first: ")
        sent = 0
        try:
            while sent < 20 * HEAD_BYTES_MAX:
                writer.write(piece * 8)
                sent += len(piece) * 8
                await writer.drain()
                await asyncio.sleep(0)
            raise AssertionError("nobody stopped the headers")
        except ConnectionError:
            pass
        finally:
            writer.close()
        with pytest.raises(ConnectionError):
            await writer.wait_closed()
        del reader
        assert (await gateway.post(body())).status_code == 200


CHUNKED = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "many trailers": (CHUNKED + "0\r\n", "x-a: b\r\n" * 1000),
    "one endless trailer": (CHUNKED + "0\r\nx-a: ", "b" * 8000),
    "an endless chunk extension": (CHUNKED + "5;x=", "b" * 8000),
    "endless requests in advance": ("", "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 200),
}


@pytest.mark.parametrize(("start", "piece"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_a_client_without_a_key_cannot_send_without_end(tmp_path, start, piece):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(start.encode())
        with pytest.raises(ConnectionError):
            for _ in range(20 * HEAD_BYTES_MAX // len(piece)):
                writer.write(piece.encode())
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        with pytest.raises(ConnectionError):
            await writer.wait_closed()
        del reader
        assert (await gateway.post(body())).status_code == 200


async def test_requests_sent_in_advance_within_the_bound_are_all_answered(tmp_path):
    async with serving(tmp_path) as gateway:
        one = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        last = one.replace(b"host", b"connection: close\r\nhost")
        assert (await gateway.raw(one * (PIPELINED_MAX - 1) + last)).count(b"HTTP/1.1 200 ") == 64


async def test_trailers_are_no_headers(tmp_path):
    async with serving(tmp_path) as gateway:
        content = json.dumps(body()).encode()
        trailers = b"authorization: Bearer other\r\nx-fareway-tags: nothing\r\n"
        chunks = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(content), content, trailers)
        got = await gateway.raw(request_bytes(chunks, headers=["transfer-encoding: chunked"]))
        assert got.startswith(b"HTTP/1.1 200 ")


UPGRADE = ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk"]


@pytest.mark.parametrize("is_split", [False, True])
async def test_a_wish_to_upgrade_is_ignored_and_the_body_is_read(tmp_path, is_split):
    async with serving(tmp_path) as gateway:
        content = json.dumps(body()).encode()
        whole = request_bytes(content, headers=UPGRADE)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(whole[: -len(content)])
        if is_split:
            await asyncio.sleep(0.05)
        writer.write(whole[-len(content) :])
        with anyio.fail_after(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_body_behind_a_wish_to_upgrade_is_no_request(tmp_path):
    async with serving(tmp_path) as gateway:
        inner = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        got = await gateway.raw(request_bytes(inner, headers=UPGRADE))
        assert got.count(b"HTTP/1.1 ") == 1
        assert got.startswith(b"HTTP/1.1 400 ")


async def test_an_endless_head_is_told_why(tmp_path):
    async with serving(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nx-a: " + b"b")
        for _ in range(4):
            await asyncio.sleep(0.02)  # what one read brings at once is let pass
            writer.write(b"b" * (HEAD_BYTES_MAX // 2))
        with anyio.fail_after(5):
            got = await reader.read(65536)
        assert got.startswith(b"HTTP/1.1 431 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("spare", [-200, 200], ids=["within the bound", "over it"])
async def test_a_head_that_comes_in_one_piece_has_the_same_bound(tmp_path, spare):
    async with serving(tmp_path) as gateway:
        got = await gateway.post(body(), x_large="h" * (HEAD_BYTES_MAX - 400 + 2 * spare))
        assert (got.status_code == 431) == (spare > 0)


UNREAD = {
    "no HTTP": b"HELO there\r\n\r\n",
    "a length that is no number": request_bytes(b"{}", headers=["content-length: two"]),
    "a body's chunk without a size": request_bytes(
        b"zz\r\n{}\r\n0\r\n\r\n", headers=["transfer-encoding: chunked"]
    ),
}


@pytest.mark.parametrize("data", UNREAD.values(), ids=UNREAD.keys())
async def test_what_is_no_http_is_told_so_in_the_shape_of_every_error(tmp_path, data):
    async with serving(tmp_path) as gateway:
        head, _, told = (await gateway.raw(data)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(told)["error"]["code"] == "invalid_request_error"


@pytest.mark.parametrize("target", ["http://x", "http://x?a=b", "http://x:80", "https://x/"])
async def test_an_absolute_target_without_a_path_is_the_root(tmp_path, target):
    async with serving(tmp_path) as gateway:
        root = await gateway.raw(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        asked = f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        got = await gateway.raw(asked.encode())
        assert got.startswith(root.partition(b"\r\n")[0])
        assert got.partition(b"\r\n\r\n")[2] == root.partition(b"\r\n\r\n")[2]


BEHIND_ANOTHER = {
    "no HTTP": b"HELO there\r\n\r\n",
    "a target that is none": b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
    "a host to connect to": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("data", BEHIND_ANOTHER.values(), ids=BEHIND_ANOTHER.keys())
async def test_nothing_is_said_into_the_answer_of_another_request(tmp_path, data):
    async with serving(tmp_path) as gateway:
        one = request_bytes(json.dumps(body()).encode(), is_last=False)
        assert await gateway.raw(one + data) == b""


async def test_what_follows_a_request_to_connect_is_dropped(tmp_path):
    provider = FakeProvider(name="a", scripts=[[0.2, *answer("late")]])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        one = request_bytes(json.dumps(body()).encode(), is_last=False)
        writer.write(one + b"CONNECT /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        await anyio.sleep(0.05)
        writer.write(b"\x16\x03\x01")  # in a read of its own, before an answer
        with anyio.fail_after(5):
            got = await reader.read()
        assert got.count(b"HTTP/1.1 200 ") == got.count(b"HTTP/1.1 405 ") == 1
        writer.close()
        await writer.wait_closed()


async def test_large_heads_within_the_bound_and_bodies_of_any_size_pass(tmp_path):
    async with serving(tmp_path) as gateway:
        got = await gateway.post(body(user="u" * 3_000_000), x_large="h" * 30_000)
        assert got.status_code == 200


class Impatient(BoundedProtocol):
    head_s_max = 0.1
    rest_s_max = 0.1
    unread_s_max = 0.1


async def test_a_head_that_does_not_come_closes_the_connection(tmp_path):
    async with serving(tmp_path, http=Impatient) as gateway:
        for start in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(start)
            with anyio.fail_after(5):
                assert await _rest(reader) == b""
            writer.close()
        slow = FakeProvider(name="a", scripts=[[0.3, *answer("late")]])
        gateway.service.relay.providers["a"] = slow
        got = await gateway.post(body(stream=True))
        assert assemble(got.content).texts == {0: "late"}, "an answer has all the time it needs"


async def test_a_body_that_nobody_waits_for_does_not_hold_the_connection(tmp_path):
    async with serving(tmp_path, http=Impatient) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"z")  # uvicorn's own timer of idle connections ends with this
        with anyio.fail_after(3):
            assert await _rest(reader) == b""
        writer.close()


async def test_an_answer_that_nobody_reads_does_not_hold_the_connection(tmp_path):
    async with serving(tmp_path, "x" * 20_000_000, http=Impatient) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            client.sendall(request_bytes(json.dumps(body()).encode()))
            await anyio.sleep(0.7)
            got = 0
            with suppress(ConnectionError):
                while part := client.recv(1_000_000):
                    got += len(part)
                    await anyio.sleep(0)
        assert 0 < got < 20_000_000


async def _rest(reader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_a_body_that_does_not_come_is_given_up():
    async def silent():
        await anyio.sleep_forever()

    with pytest.raises(BodyTooSlow) as caught:
        await read_body(silent, [], max_bytes=100, stall_s=0.02)
    assert http_errors.row_of(caught.value).status == 408


async def test_a_client_that_leaves_while_it_sends_is_forgotten(tmp_path):
    async with serving(tmp_path) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request_bytes(b'{"model":', headers=["content-length: 500"]))
        await writer.drain()
        with anyio.fail_after(5):
            while not gateway.service.in_flight:
                await anyio.sleep(0.005)
        writer.close()
        await gateway.wait_idle()
        assert await gateway.settled() == []
        counted = gateway.service.metrics.render().decode()
        assert 'fareway_requests_total{route="chat.completions",status="499"} 1.0' in counted


DECLARED = {
    "no number": (b"two", InvalidRequest),
    "a sign": (b"-1", InvalidRequest),
    "one byte too many": (b"101", BodyTooLarge),
    "thousands of digits": (b"9" * 5_000, BodyTooLarge),
}


@pytest.mark.parametrize(("length", "kind"), DECLARED.values(), ids=DECLARED.keys())
async def test_a_declared_length_is_looked_at_before_the_body(length, kind):
    async def unread():
        raise AssertionError("the body was read")

    with pytest.raises(kind):
        await read_body(unread, [(b"content-length", length)], max_bytes=100)


async def test_a_websocket_is_not_accepted(tmp_path):
    async with serving(tmp_path) as gateway:
        app = Application(gateway.service, lambda service: None)

        async def nothing(*_):
            raise AssertionError("a websocket was answered")

        await app({"type": "websocket", "path": "/v1/chat/completions"}, nothing, nothing)


@pytest.mark.parametrize("count", [60_000, 4_500])
async def test_a_body_of_many_messages_is_read_while_others_are_served(tmp_path, count):
    async with serving(tmp_path) as gateway:
        messages = [{"role": "user", "content": f"word {n}"} for n in range(count)]
        large: list[int] = []

        async def send_large():
            got = await gateway.post(body(messages=messages))
            large.append(got.status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_large)
            for _ in range(5):
                assert (await gateway.post(body())).status_code == 200
        assert large == [200]
        broken = await gateway.post(body(messages=[*messages, {"role": "nobody"}]))
        assert broken.status_code == 400
        assert f"messages[{count}].role" in error_of(broken)["message"]
