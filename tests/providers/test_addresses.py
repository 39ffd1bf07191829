"""Addresses that nothing may connect to, in every form, and what a name may stand for."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.addresses import METADATA, Reach, embedded, why_refused

NEVER = {
    "AWS's metadata service": "169.254.169.254",
    "credentials of a task": "169.254.170.2",
    "metadata over IPv6": "fd00:ec2::254",
    "Alibaba's metadata service": "100.100.100.200",
    "Azure's platform channel": "168.63.129.16",
    "Google's metadata over IPv6": "fd20:ce::254",
    "link-local": "169.254.0.1",
    "link-local over IPv6": "fe80::1",
    "link-local with a scope": "fe80::1%eth0",
    "unspecified": "0.0.0.0",
    "the unspecified network, which is this machine on Linux": "0.1.2.3",
    "unspecified over IPv6": "::",
    "multicast": "224.0.0.1",
    "multicast over IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
    "site-local": "fec0::1",
    "metadata, mapped": "::ffff:169.254.169.254",
    "metadata, compatible": "::169.254.169.254",
    "metadata, translated": "64:ff9b::a9fe:a9fe",
    "metadata, translated behind a local prefix": "64:ff9b:1::a9fe:a9fe",
    "metadata, translated behind a local prefix of 48 bits": "64:ff9b:1:a9fe:a9:fe00::",
    "metadata, translated behind a local prefix of 56 bits": "64:ff9b:1:a9:fe:a9fe::",
    "metadata, translated behind a local prefix of 64 bits": "64:ff9b:1:0:a9:fea9:fe00:0",
    "metadata, by 6to4": "2002:a9fe:a9fe::1",
    "metadata, as a Teredo server": "2001:0:a9fe:a9fe::1",
    "metadata, by ISATAP": "2001:db8::5efe:a9fe:a9fe",
    "metadata, by ISATAP with a universal bit": "2001:db8::200:5efe:a9fe:a9fe",
    "metadata, by a stateless translator": "::ffff:0:a9fe:a9fe",
    "multicast, mapped": "::ffff:224.0.0.1",
    "unspecified, mapped": "::ffff:0.0.0.0",
    "no address": "example.com",
    "a number that resolvers take for an address": "2130706433",
    "nothing": "",
}


@pytest.mark.parametrize("text", NEVER.values(), ids=NEVER.keys())
def test_nothing_connects_to(text):
    for reach in Reach:
        assert why_refused(text, reach) is not None


REACHED = {
    "a public address": ("93.184.216.34", {Reach.ANY, Reach.PUBLIC}),
    "a public address over IPv6": ("2606:2800:220:1::1", {Reach.ANY, Reach.PUBLIC}),
    "loopback": ("127.0.0.1", {Reach.ANY, Reach.PRIVATE}),
    "all of loopback": ("127.9.9.9", {Reach.ANY, Reach.PRIVATE}),
    "loopback over IPv6": ("::1", {Reach.ANY, Reach.PRIVATE}),
    "a private network": ("10.0.0.5", {Reach.ANY, Reach.PRIVATE}),
    "another private network": ("192.168.1.1", {Reach.ANY, Reach.PRIVATE}),
    "an overlay network": ("100.64.0.9", {Reach.ANY, Reach.PRIVATE}),
    "a unique local address": ("fd12:3456::1", {Reach.ANY, Reach.PRIVATE}),
    "a public address, mapped": ("::ffff:93.184.216.34", {Reach.ANY, Reach.PUBLIC}),
    "a public address, translated": ("64:ff9b::5db8:d822", {Reach.ANY, Reach.PUBLIC}),
    "a private address, mapped": ("::ffff:10.0.0.5", {Reach.ANY, Reach.PRIVATE}),
    "a private address, translated": ("64:ff9b::a00:5", {Reach.ANY, Reach.PRIVATE}),
    "a private address, by 6to4": ("2002:a00:5::1", {Reach.ANY, Reach.PRIVATE}),
    "loopback, mapped": ("::ffff:127.0.0.1", {Reach.ANY, Reach.PRIVATE}),
}


@pytest.mark.parametrize(("text", "reaches"), REACHED.values(), ids=REACHED.keys())
def test_where_an_address_stands(text, reaches):
    assert {reach for reach in Reach if why_refused(text, reach) is None} == reaches


v4 = st.integers(0, 2**32 - 1).map(IPv4Address)


@given(v4)
def test_an_address_of_the_fourth_version_is_judged_alike_in_every_form(address):
    number = int(address)
    plain = why_refused(str(address))
    forms = [
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(0x0064_FF9B << 96 | number),
        IPv6Address(0x2002 << 112 | number << 80 | 1),
        IPv6Address(0xFFFF << 48 | number),
    ]
    for form in forms:
        assert address in set(embedded(form))
        assert (why_refused(str(form)) is None) == (plain is None)
        if plain is None and why_refused(str(address), Reach.PUBLIC) is not None:
            assert why_refused(str(form), Reach.PUBLIC) is not None


@given(st.one_of(v4, st.integers(0, 2**128 - 1).map(IPv6Address)))
def test_no_address_is_both_public_and_private(address):
    text = str(address)
    is_public = why_refused(text, Reach.PUBLIC) is None
    is_private = why_refused(text, Reach.PRIVATE) is None
    assert not (is_public and is_private)
    if is_public or is_private:
        assert why_refused(text) is None


@given(st.sampled_from(sorted(METADATA, key=str)))
def test_no_reach_lets_a_metadata_service_be_asked(address):
    assert ip_address(str(address)) in METADATA
    assert all(why_refused(str(address), reach) for reach in Reach)
