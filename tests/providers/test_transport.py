"""The one class that knows HTTP: whom it may call, what it refuses, what it keeps."""

from __future__ import annotations

import asyncio
import os
import ssl

import pytest
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import BadWire, NotSent, TotalTimeout
from providers.transport import Transport, TransportOptions
from tests.providers.permits import bound_for
from tests.providers.transport_harness import (
    BACKENDS,
    LIMITS,
    RawServer,
    answer,
    fetch,
    serve_forever,
)
from tests.support.scripted_upstream import Answer, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


async def test_only_configured_origins_are_called() -> None:
    # G1: the client below the adapters refuses every other host.
    async with (
        ScriptedUpstream({"m": [Answer()]}) as ours,
        ScriptedUpstream({"m": [Answer()]}) as other,
    ):
        transport = Transport([ours.base_url])
        facts = AttemptFacts()
        with pytest.raises(NotSent, match="not configured"):
            await fetch(transport, other.base_url, facts=facts)
        assert (await fetch(transport, ours.base_url))[0] == 200
        await transport.close()
        assert (other.requests, facts.was_sent) == ([], False)


ELSEWHERE = {
    "another port": "http://127.0.0.1:1/v1",
    "another scheme": "https://127.0.0.1:{port}/v1",
    "another name for the same machine": "http://localhost:{port}/v1",
}


@pytest.mark.parametrize("url", ELSEWHERE.values(), ids=ELSEWHERE.keys())
async def test_an_origin_is_scheme_host_and_port(url: str) -> None:
    async with ScriptedUpstream({"m": [Answer()]}) as upstream:
        transport = Transport([upstream.base_url])
        with pytest.raises(NotSent, match="not configured"):
            await fetch(transport, url.format(port=upstream.port))
        await transport.close()


async def test_redirects_are_not_followed() -> None:
    async with ScriptedUpstream({"m": [Answer()]}) as other:
        redirect = Answer(status=307, headers={"location": f"{other.base_url}/chat/completions"})
        async with ScriptedUpstream({"m": [redirect]}) as upstream:
            # Even where both are configured: the answer is the redirect.
            transport = Transport([upstream.base_url, other.base_url])
            status, _, _ = await fetch(transport, upstream.base_url)
            await transport.close()
        assert status == 307
        assert other.requests == []


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with ScriptedUpstream({"m": [Answer()]}) as upstream:
        transport = Transport([upstream.base_url])
        assert (await fetch(transport, upstream.base_url))[0] == 200
        await transport.close()


async def test_a_configured_proxy_is_used() -> None:
    async with ScriptedUpstream({"m": [Answer()]}) as proxy:
        options = TransportOptions(proxy=f"http://127.0.0.1:{proxy.port}")
        transport = Transport(["http://upstream.invalid/v1"], options)
        assert (await fetch(transport, "http://upstream.invalid/v1/x"))[0] == 200
        await transport.close()
        assert proxy.requests[0].path == "http://upstream.invalid/v1/x"


async def test_cookies_are_not_kept() -> None:
    async with ScriptedUpstream({"m": [Answer(headers={"set-cookie": "a=b; Path=/"})]}) as upstream:
        transport = Transport([upstream.base_url])
        await fetch(transport, upstream.base_url)
        await fetch(transport, upstream.base_url)
        await transport.close()
        assert "cookie" not in upstream.requests[1].headers


async def test_header_names_are_lower_case_and_the_first_of_several_counts() -> None:
    head = "HTTP/1.1 200 OK\r\nX-Request-ID: one\r\nx-request-id: two\r\ncontent-length: 0\r\n\r\n"
    async with ScriptedUpstream({"m": [Wire(steps=(Step(text=head),))]}) as upstream:
        transport = Transport([upstream.base_url])
        _, _, headers = await fetch(transport, upstream.base_url)
        await transport.close()
    assert headers["x-request-id"] == "one"


LEFTOVERS = {
    "a second answer": "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nothers",
    "the start of a second answer": "HTTP/1.1 200 OK\r\n",
    "a farewell": "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("text", LEFTOVERS.values(), ids=LEFTOVERS.keys())
async def test_what_comes_on_an_idle_socket_is_nobody_s_answer(text: str) -> None:
    # G6: a double answer to one tenant must not be the next tenant's.
    own = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nown"
    twice = Wire(steps=(Step(text=own), Step(delay_s=0.02, text=text)))
    async with ScriptedUpstream({"m": [twice]}) as upstream:
        transport = Transport([upstream.base_url])
        for _ in range(3):
            assert (await fetch(transport, upstream.base_url))[1] == b"own"
            await asyncio.sleep(0.05)
        await transport.close()


@pytest.mark.parametrize("is_waited_for", [False, True], ids=["at rest", "with one who waits"])
async def test_what_came_while_the_loop_was_busy_is_nobody_s_answer(is_waited_for: bool) -> None:
    # G6: it is in the kernel, and the parser has not seen it.
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(connections_max=1))
        exchange = await transport.send(
            URL(server.url),
            **bound_for(server.url),
            headers={},
            body=b"a",
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        following = fetch(transport, server.url, body=b"abc")
        if is_waited_for:
            following = asyncio.create_task(following)
            await asyncio.sleep(0.01)
        async with exchange:
            assert await exchange.read_all(max_bytes=10) == b"1"
        # Past the server's loop, so that ours has no turn before the next request goes out.
        os.write(server.accepted[0].get_extra_info("socket").fileno(), answer(b"others"))
        assert (await following)[1] == b"3"
        assert len(server.accepted) == 2
        await transport.close()


async def test_a_body_beyond_the_limit_is_refused_and_its_socket_closed() -> None:
    async with ScriptedUpstream({"m": [Answer(filler_bytes=200_000)]}) as upstream:
        transport = Transport([upstream.base_url])
        with pytest.raises(BadWire, match="exceeds 10000 bytes"):
            await fetch(transport, upstream.base_url)
        for _ in range(100):
            if upstream.open_connections == 0:
                break
            await asyncio.sleep(0.01)
        assert upstream.open_connections == 0
        await transport.close()


async def test_a_request_that_the_upstream_does_not_read_is_bounded_and_may_have_been_seen() -> (
    None
):
    async with asyncio.timeout(5):
        accepted: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(
            lambda _, writer: accepted.append(writer), "127.0.0.1", 0, limit=1024
        )
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        transport = Transport([url])
        facts = AttemptFacts()
        limits = Deadlines(connect_s=1, first_token_s=9, between_tokens_s=9, total_s=0.2)
        with pytest.raises(TotalTimeout):
            await fetch(transport, url, body=b"x" * 20_000_000, facts=facts, limits=limits)
        assert facts.was_sent
        await transport.close()
        for writer in accepted:
            writer.transport.abort()
        server.close()


async def test_a_large_request_arrives_whole() -> None:
    body = b'{"model":"m","x":"' + b"y" * 3_000_000 + b'"}'
    async with ScriptedUpstream({"m": [Answer()]}) as upstream:
        transport = Transport([upstream.base_url])
        await fetch(transport, upstream.base_url, body=body)
        await transport.close()
        assert upstream.requests[0].body == body
        assert upstream.requests[0].headers["content-length"] == str(len(body))


async def test_a_handshake_that_does_not_complete_sends_nothing() -> None:
    async with ScriptedUpstream({"m": [Answer()]}) as plain:
        # Plain HTTP where TLS is expected: nobody answers the handshake.
        url = f"https://127.0.0.1:{plain.port}/v1"
        transport = Transport([url], TransportOptions(ssl_context=ssl.create_default_context()))
        facts = AttemptFacts()
        limits = Deadlines(connect_s=0.2, first_token_s=5, between_tokens_s=5, total_s=10)
        with pytest.raises(NotSent):
            await fetch(transport, url, facts=facts, limits=limits)
        await transport.close()
        assert not facts.was_sent


async def test_closing_twice_and_before_use_is_harmless() -> None:
    transport = Transport(["http://127.0.0.1:1/v1"])
    await transport.close()
    await transport.close()
