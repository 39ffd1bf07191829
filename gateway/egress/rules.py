"""The list of destinations in the words of what enforces networks: nftables, Kubernetes, squid.

Only what the format can say is written. Packet filters know addresses and no names, so for a named
place a rule can only open its port, and a comment says so; a proxy such as squid knows the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from ipaddress import ip_address

from gateway.egress.destinations import Destination


class Format(StrEnum):
    """Whose rules are written."""

    NFTABLES = "nftables"
    NETWORKPOLICY = "networkpolicy"
    SQUID = "squid"


def rules(listed: Sequence[Destination], form: Format) -> str:
    """Rules that let through what is listed and nothing else.

    Args:
        listed: Destinations.
        form: Whose rules.
    """
    lines = {
        Format.NFTABLES: _nftables,
        Format.NETWORKPOLICY: _network_policy,
        Format.SQUID: _squid,
    }[form](listed)
    return "\n".join(lines) + "\n"


def _nftables(listed: Sequence[Destination]) -> Iterator[str]:
    yield "# Where the gateway may connect to; run it for the gateway's user or container alone."
    yield "table inet fareway {"
    yield "  chain output {"
    yield "    type filter hook output priority filter; policy drop;"
    yield "    ct state established,related accept"
    yield '    oifname "lo" accept'
    yield '    meta l4proto { tcp, udp } th dport 53 accept comment "names"'
    for one in listed:
        note = f'comment "{one.purpose}: {one.setting}"'
        family = _family(one)
        if family is None:
            yield f"    # {one.host} is a name: only its port can be enforced here"
            yield f"    tcp dport {one.port} accept {note}"
        else:
            yield f"    {family} daddr {one.host} tcp dport {one.port} accept {note}"
    yield "  }"
    yield "}"


def _network_policy(listed: Sequence[Destination]) -> Iterator[str]:
    yield "# Where the gateway's pods may connect to. A NetworkPolicy knows no names: a named place"
    yield "# opens its port to every address, and a proxy or a policy by names has to narrow that."
    yield "apiVersion: networking.k8s.io/v1"
    yield "kind: NetworkPolicy"
    yield "metadata: {name: fareway-egress}"
    yield "spec:"
    yield "  podSelector: {matchLabels: {app.kubernetes.io/name: fareway}}"
    yield "  policyTypes: [Egress]"
    yield "  egress:"
    yield "    - ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]"
    for one in listed:
        family = _family(one)
        yield f"    # {one.purpose}: {one.setting}, {one.place}"
        yield f"    - ports: [{{protocol: TCP, port: {one.port}}}]"
        if family is not None:
            bits = 32 if family == "ip" else 128
            yield f'      to: [{{ipBlock: {{cidr: "{one.host}/{bits}"}}}}]'


def _squid(listed: Sequence[Destination]) -> Iterator[str]:
    yield "# Where the gateway may connect to, by this proxy."
    for place, one in enumerate(listed):
        kind = "dstdomain" if _family(one) is None else "dst"
        host = one.host.removeprefix("*") if kind == "dstdomain" else one.host
        yield f"# {one.purpose}: {one.setting}"
        yield f"acl fareway_host_{place} {kind} {host}"
        yield f"acl fareway_port_{place} port {one.port}"
        yield f"http_access allow fareway_host_{place} fareway_port_{place}"
    yield "http_access deny all"


def _family(one: Destination) -> str | None:
    """`ip` or `ip6` for an address, None for a name."""
    try:
        return "ip" if ip_address(one.host).version == 4 else "ip6"
    except ValueError:
        return None
