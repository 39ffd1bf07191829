"""Which network addresses may be connected to at all, and which may stand behind a name; pure.

Metadata services of clouds hand credentials to whoever asks from the machine, so they and every
other link-local address are refused, however they are written; addresses that stand for no single
machine are refused too. IPv6 has many forms that carry an IPv4 address inside: each is judged by
the address that a packet would arrive at.

Source: IANA's registries of special-purpose addresses (2026-11); RFC 4291 (mapped, compatible),
RFC 6052 and 8215 (NAT64), RFC 3056 (6to4), RFC 4380 (Teredo), RFC 5214 (ISATAP), RFC 2765 (SIIT).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, Oracle and most others
            "169.254.170.2",  # AWS, credentials of a container task
            "169.254.170.23",  # AWS, credentials of a pod
            "fd00:ec2::254",  # AWS over IPv6
            "fd00:ec2::23",  # AWS, credentials of a pod over IPv6
            "fd20:ce::254",  # Google over IPv6
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure's platform channel, a public address
            "192.0.0.192",  # Oracle, bare metal
        ),
    )
)
"""Where clouds answer questions about the machine that asks, credentials among the answers."""

_SHARED = IPv4Network("100.64.0.0/10")
"""Between a provider and its customers (RFC 6598); overlay networks use it for machines of one's
own."""
_BROADCAST = IPv4Address("255.255.255.255")
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_SITE_LOCAL = IPv6Network("fec0::/10")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
_SIIT = IPv6Network("::ffff:0:0:0/96")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOW_32 = 0xFFFF_FFFF


class Reach(StrEnum):
    """Where the machines behind a name may stand."""

    ANY = "any"
    """Anywhere that may be connected to."""
    PUBLIC = "public"
    """On the internet only: a vendor's name that leads into one's own network is an attack."""
    PRIVATE = "private"
    """In private networks or on this machine only: what is said to be one's own server."""


def why_refused(text: str, reach: Reach = Reach.ANY) -> str | None:
    """Why an address may not be connected to, as the end of a sentence; None where it may.

    Args:
        text: An address in the form that sockets use, a scope after `%` included.
        reach: Where it may stand.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return "is no address"
    carried = tuple(embedded(address))
    for one in (address, *carried):
        if (reason := _never(one)) is not None:
            return reason
    if reach is Reach.PUBLIC and not all(one.is_global for one in (destination(address), *carried)):
        return "is not on the internet"
    if reach is Reach.PRIVATE and not is_private(destination(address)):
        return "is not in a private network"
    return None


def embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address carries, of which a packet may reach one."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address in _SIIT or address in _NAT64:
        yield IPv4Address(number & _LOW_32)
    if address in _NAT64_LOCAL:
        # The prefix below may have any of the lengths of RFC 6052, section 2.2: each is looked at.
        yield IPv4Address(number & _LOW_32)
        yield IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
        yield IPv4Address((number >> 64 & 0xFF) << 24 | number >> 32 & 0xFF_FFFF)
        yield IPv4Address(number >> 24 & _LOW_32)
    if address in _COMPATIBLE and number > 1:
        yield IPv4Address(number & _LOW_32)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if number >> 32 & _LOW_32 in _ISATAP:
        yield IPv4Address(number & _LOW_32)


def destination(address: Address) -> Address:
    """The machine's own address: what is mapped or translated stands for the address inside."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _SIIT or address in _NAT64:
            return IPv4Address(int(address) & _LOW_32)
        if address.sixtofour is not None:
            return address.sixtofour
    return address


def is_private(address: Address) -> bool:
    """Whether it stands for a machine in a private network, or for this one."""
    if address.is_loopback:
        return True
    if isinstance(address, IPv4Address) and address in _SHARED:
        return True
    return address.is_private and not _never(address)


def _never(address: Address) -> str | None:
    """Why nothing may connect there, whatever the configuration says."""
    if address in METADATA:
        return "is a cloud's metadata service"
    if address.is_link_local:
        return "is link-local, where metadata services answer"
    if address.is_unspecified or (isinstance(address, IPv4Address) and address in _THIS_NETWORK):
        return "is unspecified"
    if address.is_multicast:
        return "is multicast"
    if address == _BROADCAST:
        return "is broadcast"
    if isinstance(address, IPv6Address):
        if address in _SITE_LOCAL:
            return "is site-local, a form that was withdrawn"
    elif address.is_reserved:
        return "is reserved"
    return None
