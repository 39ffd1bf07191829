"""TLS and forward proxies: whom we trust, who we are, what a tunnel may lead to."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from dataclasses import replace

import pytest

from providers.contract import AttemptFacts
from providers.errors import ConnectionLost, NotSent
from providers.transport import Transport, TransportOptions, client_context, tls
from tests.providers.transport_harness import (
    BACKENDS,
    TLS_FOLDER,
    ForwardProxy,
    Names,
    RawServer,
    answer,
    fetch,
    read_request,
    serve_forever,
    server_context,
)

pytestmark = pytest.mark.anyio

AUTHORITY = TLS_FOLDER / "authority.pem"


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return request.param


def trusting(**files: str) -> TransportOptions:
    """Options that trust the tests' authority."""
    paths = {name: TLS_FOLDER / file for name, file in files.items()}
    return TransportOptions(ssl_context=client_context(ca_file=AUTHORITY, **paths))


async def test_a_private_authority_is_trusted_where_it_is_named() -> None:
    async with RawServer(serve_forever, tls=server_context()) as server:
        transport = Transport([server.url], trusting())
        for _ in range(3):
            assert (await fetch(transport, server.url))[:2] == (200, b"13")
        assert len(server.accepted) == 1
        await transport.close()


async def test_a_large_body_goes_through_tls_whole() -> None:
    async with RawServer(serve_forever, tls=server_context()) as server:
        transport = Transport([server.url], trusting())
        pieces = [b'{"image":"', b"A" * 3_000_000, b'"}']
        for _ in range(2):
            assert (await fetch(transport, server.url, body=pieces))[1] == b"3000012"
        assert len(server.accepted) == 1
        await transport.close()


STRANGERS = {
    "the platform's authorities": TransportOptions(),
    "the platform's authorities, with sessions": TransportOptions(ssl_context=client_context()),
    "another authority": TransportOptions(
        ssl_context=client_context(ca_file=TLS_FOLDER / "stranger.pem")
    ),
}


@pytest.mark.parametrize("options", STRANGERS.values(), ids=STRANGERS.keys())
async def test_who_trusts_only_others_sends_nothing(options: TransportOptions) -> None:
    async with RawServer(serve_forever, tls=server_context()) as server:
        transport = Transport([server.url], options)
        facts = AttemptFacts()
        with pytest.raises(NotSent, match="Cert"):
            await fetch(transport, server.url, facts=facts)
        assert not facts.was_sent
        await transport.close()


async def test_a_certificate_for_another_name_is_refused() -> None:
    async with RawServer(serve_forever, tls=server_context()) as server:
        options = replace(trusting(), resolve=Names(("127.0.0.1", server.port)).resolve)
        transport = Transport(["https://other.test/v1"], options)
        with pytest.raises(NotSent, match="Cert"):
            await fetch(transport, "https://other.test/v1")
        await transport.close()


async def test_an_upstream_that_asks_for_our_certificate_gets_it() -> None:
    async with RawServer(serve_forever, tls=server_context(asks_for_client=True)) as server:
        transport = Transport(
            [server.url], trusting(client_cert_file="client.pem", client_key_file="client.key")
        )
        assert (await fetch(transport, server.url))[0] == 200
        peer = server.accepted[0].get_extra_info("peercert")
        assert dict(pair[0] for pair in peer["subject"]) == {"commonName": "client"}
        await transport.close()


async def test_without_our_certificate_such_an_upstream_answers_nothing() -> None:
    async with RawServer(serve_forever, tls=server_context(asks_for_client=True)) as server:
        transport = Transport([server.url], trusting())
        # In TLS 1.3 the refusal comes after our handshake is done.
        with pytest.raises((NotSent, ConnectionLost)):
            await fetch(transport, server.url)
        assert server.accepted == []
        await transport.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_second_connection_resumes_the_session_of_the_first(
    version: ssl.TLSVersion,
) -> None:
    async def close_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"ok", "connection: close"))
        await writer.drain()

    context = server_context()
    context.minimum_version = context.maximum_version = version
    async with RawServer(close_after_one, tls=context) as server:
        transport = Transport([server.url], trusting())
        for _ in range(3):
            assert (await fetch(transport, server.url))[0] == 200
        reused = [one.get_extra_info("ssl_object").session_reused for one in server.accepted]
        assert reused == [False, True, True]
        await transport.close()


async def test_a_host_is_asked_for_its_session_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Looked(ssl.SSLObject):
        looks = 0

        @property
        def session(self) -> ssl.SSLSession | None:
            Looked.looks += 1  # CPython leaks a copy at each
            return super().session

        @session.setter
        def session(self, session: ssl.SSLSession) -> None:
            ssl.SSLObject.session.__set__(self, session)

    async def close_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"ok", "connection: close"))
        await writer.drain()

    options = trusting()
    options.ssl_context.sslobject_class = Looked
    async with RawServer(close_after_one, tls=server_context()) as server:
        transport = Transport([server.url], options)
        for _ in range(5):
            await fetch(transport, server.url)
        assert Looked.looks == 1
        monkeypatch.setattr(tls, "_SESSION_KEPT_S", 0)
        await fetch(transport, server.url)
        assert Looked.looks == 2
        reused = [one.get_extra_info("ssl_object").session_reused for one in server.accepted]
        assert reused == [False] + [True] * 5
        await transport.close()


UNUSABLE = {
    "a file that is not there": {"ca_file": "nothing.pem"},
    "a file without a certificate": {"ca_file": "make.sh"},
    "a certificate without its key": {"client_cert_file": "client.pem"},
    "a key of another certificate": {
        "client_cert_file": "client.pem",
        "client_key_file": "upstream.key",
    },
    "a key that is encrypted": {
        "client_cert_file": "client.pem",
        "client_key_file": "client_encrypted.key",
    },
}


@pytest.mark.parametrize("files", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_files_that_are_of_no_use_are_an_error_before_anything_is_sent(
    files: dict[str, str],
) -> None:
    with pytest.raises(OSError):
        client_context(**{name: TLS_FOLDER / file for name, file in files.items()})


async def test_a_proxy_tunnels_to_the_upstream_and_sees_no_request() -> None:
    async with (
        RawServer(serve_forever, tls=server_context()) as server,
        ForwardProxy(to_port=server.port) as proxy,
    ):
        options = TransportOptions(
            proxy=f"http://127.0.0.1:{proxy.port}",
            ssl_context=client_context(ca_file=AUTHORITY),
        )
        # A name that only the proxy can look up.
        transport = Transport(["https://upstream.test/v1"], options)
        headers = {"authorization": "Bearer secret"}
        for _ in range(2):
            status, _, _ = await fetch(transport, "https://upstream.test/v1/x", headers=headers)
            assert status == 200
        await transport.close()
        assert [head.split("\r\n")[0] for head in proxy.heads] == [
            "CONNECT upstream.test:443 HTTP/1.1"
        ]
        assert "secret" not in proxy.heads[0]
        assert len(server.accepted) == 1


async def test_a_proxy_is_shown_its_credentials_and_the_upstream_is_not() -> None:
    seen: list[str] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append((await read_request(reader))[0])
            writer.write(answer(b"ok"))

    shown = "Basic " + b64encode("user:pässword".encode()).decode()
    async with (
        RawServer(keep, tls=server_context()) as server,
        ForwardProxy(to_port=server.port, credentials=shown) as proxy,
    ):
        options = TransportOptions(
            proxy=f"http://127.0.0.1:{proxy.port}",
            proxy_credentials="user:pässword",
            ssl_context=client_context(ca_file=AUTHORITY),
        )
        transport = Transport(["https://upstream.test/v1"], options)
        assert (await fetch(transport, "https://upstream.test/v1"))[0] == 200
        await transport.close()
    assert shown in proxy.heads[0]
    assert "proxy-authorization" not in seen[0].lower()


async def test_a_proxy_reads_plain_requests_with_its_credentials() -> None:
    shown = "Basic " + b64encode(b"user:password").decode()
    async with (
        RawServer(serve_forever) as server,
        ForwardProxy(to_port=server.port, credentials=shown) as proxy,
    ):
        options = TransportOptions(
            proxy=f"http://127.0.0.1:{proxy.port}", proxy_credentials="user:password"
        )
        transport = Transport(["http://upstream.test/v1"], options)
        assert (await fetch(transport, "http://upstream.test/v1/x?y=1"))[0] == 200
        await transport.close()
        assert proxy.heads[0].startswith("POST http://upstream.test/v1/x?y=1 HTTP/1.1\r\n")
        assert "\r\nhost: upstream.test\r\n" in proxy.heads[0]


REFUSED = {"no credentials": None, "wrong credentials": "user:wrong"}


@pytest.mark.parametrize("credentials", REFUSED.values(), ids=REFUSED.keys())
async def test_a_proxy_that_refuses_is_said_and_nothing_was_sent(credentials: str | None) -> None:
    async with (
        RawServer(serve_forever, tls=server_context()) as server,
        ForwardProxy(to_port=server.port, credentials="Basic right") as proxy,
    ):
        options = TransportOptions(
            proxy=f"http://127.0.0.1:{proxy.port}",
            proxy_credentials=credentials,
            ssl_context=client_context(ca_file=AUTHORITY),
        )
        transport = Transport(["https://upstream.test/v1"], options)
        facts = AttemptFacts()
        with pytest.raises(NotSent, match="proxy refused to connect .status 407."):
            await fetch(transport, "https://upstream.test/v1", facts=facts)
        assert (facts.was_sent, server.accepted) == (False, [])
        await transport.close()


async def test_behind_a_proxy_other_origins_are_refused_before_it_is_asked() -> None:
    # G1: the client below the adapters refuses any host that is not configured.
    async with (
        RawServer(serve_forever, tls=server_context()) as server,
        ForwardProxy(to_port=server.port) as proxy,
    ):
        options = TransportOptions(
            proxy=f"http://127.0.0.1:{proxy.port}",
            ssl_context=client_context(ca_file=AUTHORITY),
        )
        transport = Transport(["https://upstream.test/v1"], options)
        for url in (
            "https://other.test/v1",
            "http://upstream.test/v1",
            "https://upstream.test:8443/v1",
            f"http://127.0.0.1:{proxy.port}/v1",
        ):
            with pytest.raises(NotSent, match="not configured"):
                await fetch(transport, url)
        assert (proxy.heads, proxy.accepted) == ([], [])
        await transport.close()


async def test_a_proxy_may_itself_speak_tls() -> None:
    async with (
        RawServer(serve_forever, tls=server_context()) as server,
        ForwardProxy(to_port=server.port, tls=server_context()) as proxy,
    ):
        options = TransportOptions(
            proxy=f"https://127.0.0.1:{proxy.port}",
            ssl_context=client_context(ca_file=AUTHORITY),
        )
        transport = Transport(["https://upstream.test/v1"], options)
        assert (await fetch(transport, "https://upstream.test/v1"))[:2] == (200, b"13")
        await transport.close()
