"""Where an upstream's name leads is looked at before a socket is opened, at every look-up."""

from __future__ import annotations

import logging
import socket

import pytest
from yarl import URL

from providers.addresses import Reach
from providers.contract import AttemptFacts
from providers.errors import AddressRefused, NotSent
from providers.transport import Transport, TransportOptions, dial
from tests.providers.permits import bound_for
from tests.providers.transport_harness import LIMITS, Names, RawServer, answer, fetch, serve_forever

pytestmark = pytest.mark.anyio
METADATA = ("169.254.169.254", 80)


async def send(url: str, options: TransportOptions) -> AttemptFacts:
    facts = AttemptFacts()
    transport = Transport([url], options)
    try:
        await transport.send(
            URL(url), **bound_for(url), headers={}, body=b"{}", deadlines=LIMITS, facts=facts
        )
    finally:
        await transport.close()
    return facts


LITERALS = {
    "the metadata service": "http://169.254.169.254/v1",
    "the metadata service, mapped": "http://[::ffff:169.254.169.254]/v1",
    "the metadata service, translated": "http://[64:ff9b::a9fe:a9fe]/v1",
    "link-local": "http://[fe80::1]/v1",
    "unspecified": "http://0.0.0.0:9/v1",
    "multicast": "http://224.0.0.1/v1",
}


@pytest.mark.parametrize("url", LITERALS.values(), ids=LITERALS.keys())
async def test_no_connection_is_opened_to(url):
    with pytest.raises(AddressRefused):
        await send(url, TransportOptions())


async def test_a_vendor_s_name_that_leads_to_this_machine_is_refused(caplog):
    """GW-113: DNS rebinding."""
    async with RawServer(serve_forever) as server:
        names = Names(("127.0.0.1", server.port))
        options = TransportOptions(resolve=names.resolve, reach=Reach.PUBLIC)
        with caplog.at_level(logging.WARNING), pytest.raises(AddressRefused) as caught:
            await send(f"http://api.vendor.test:{server.port}/v1", options)
        assert server.accepted == []
    assert "127.0.0.1" in caplog.text
    assert "127.0.0.1" not in caught.value.message, "the client is not told of our network"


async def test_a_name_is_looked_at_by_each_look_up(monkeypatch):
    """GW-113: a public answer first, and this machine's own address by the second one."""
    monkeypatch.setattr(dial, "NAMES_TTL_S", 0.0)
    answers = [("93.184.216.34", 9), ("127.0.0.1", 9)]

    async def resolve(host, port):
        address = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]

    dialer = dial.Dialer(TransportOptions(resolve=resolve, reach=Reach.PUBLIC))
    assert await dialer._addresses("api.vendor.test", 9)
    with pytest.raises(AddressRefused):
        await dialer._addresses("api.vendor.test", 9)


async def test_of_several_addresses_those_that_may_be_are_used():
    async with RawServer(serve_forever) as server:
        names = Names(METADATA, ("127.0.0.1", server.port))
        url = f"http://gpu.internal:{server.port}/v1"
        transport = Transport([url], TransportOptions(resolve=names.resolve, reach=Reach.PRIVATE))
        assert (await fetch(transport, url))[0] == 200
        await transport.close()


async def test_a_server_of_one_s_own_is_not_looked_for_on_the_internet():
    names = Names(("93.184.216.34", 8000))
    options = TransportOptions(resolve=names.resolve, reach=Reach.PRIVATE)
    with pytest.raises(AddressRefused):
        await send("http://gpu.internal:8000/v1", options)


async def test_an_address_that_the_operator_wrote_is_what_it_is():
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url], TransportOptions(reach=Reach.PUBLIC))
        assert (await fetch(transport, server.url))[0] == 200
        await transport.close()


@pytest.mark.parametrize("proxy", ["http://169.254.169.254:80", "http://[fe80::1]:80"])
async def test_a_proxy_is_looked_at_in_the_upstream_s_place(proxy):
    with pytest.raises(AddressRefused):
        await send("http://api.vendor.test/v1", TransportOptions(proxy=proxy))


async def test_a_proxy_s_name_is_looked_at_too(monkeypatch):
    real = socket.getaddrinfo

    def look_up(host, port, *args, **kwargs):
        host = "169.254.169.254" if host == "proxy.test" else host
        return real(host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(AddressRefused):
        await send("http://api.vendor.test/v1", TransportOptions(proxy="http://proxy.test:80"))


async def test_through_a_proxy_the_proxy_alone_knows_where_the_name_leads():
    async with RawServer(serve_forever) as server:
        url = "http://api.vendor.test/v1"
        options = TransportOptions(proxy=server.url, reach=Reach.PUBLIC)
        transport = Transport([url], options)
        assert (await fetch(transport, url))[0] == 200
        await transport.close()


async def test_a_redirect_is_an_answer_and_not_followed():
    async def redirect(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"", "location: http://169.254.169.254/", status=307))
        await writer.drain()

    async with RawServer(redirect) as server, RawServer(serve_forever) as other:
        transport = Transport([server.url, other.url])
        status, _, headers = await fetch(transport, server.url, body=b"")
        assert (status, headers["location"]) == (307, "http://169.254.169.254/")
        assert len(server.accepted) == 1
        assert other.accepted == []
        await transport.close()


def test_a_refused_address_is_nothing_sent():
    assert issubclass(AddressRefused, NotSent)
