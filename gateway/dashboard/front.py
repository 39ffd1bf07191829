"""How a browser reaches us: over TLS or not, from which address, from which page.

What a request says about a proxy in front of us is believed only when the connection comes from
one that the operator named; otherwise anybody could make up an address or a scheme.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from gateway.settings.login import LoginSettings, is_loopback

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HOPS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What stands between browsers and us.

    Attributes:
        public_url: Where browsers find us, None when nobody said.
        trusted: Addresses of proxies that are believed.
    """

    public_url: str | None
    trusted: Sequence[Network]

    def is_secure(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether the browser speaks TLS, to us or to a proxy of the operator's."""
        if scope.get("scheme") == "https":
            return True
        headers = _headers(scope)
        public = _split(self.public_url or "")
        if public.scheme == "https" and public.netloc.lower() == headers.get("host", "").lower():
            return True
        return self._comes_from_proxy(scope) and _last(scope, b"x-forwarded-proto") == "https"

    def is_in_the_clear(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether others on the way may read what is typed: no TLS, and not on this machine."""
        host = _split(f"//{_headers(scope).get('host', '')}").hostname or ""
        return not self.is_secure(scope) and not is_loopback(host)

    def address(self, scope: MutableMapping[str, Any]) -> str:
        """Where the request comes from; empty when unknown."""
        peer = _peer(scope)
        if not self._is_trusted(peer):
            return peer
        hops = [hop.strip() for hop in _joined(scope, b"x-forwarded-for").split(",")]
        # From us outwards, for each proxy adds the address that it saw at the end.
        for hop in reversed(hops[-_HOPS_MAX:]):
            parsed = _address(hop)
            if parsed is None:
                break
            peer = str(parsed)
            if not self._is_trusted(peer):
                break
        return peer

    def is_same_origin(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a form or a call was sent by a page of ours.

        A request that says nothing about where it comes from is none of ours, as every browser says
        so on a form.
        """
        headers = _headers(scope)
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return False
        origin = headers.get("origin")
        if origin is None:
            return site is not None
        parts = _split(origin)
        if self.is_secure(scope) and parts.scheme != "https":
            return False  # a page that somebody on the way may have written
        ours = {headers.get("host", "").lower(), _split(self.public_url or "").netloc.lower()}
        return bool(parts.netloc) and parts.netloc.lower() in ours

    def _comes_from_proxy(self, scope: MutableMapping[str, Any]) -> bool:
        return self._is_trusted(_peer(scope))

    def _is_trusted(self, peer: str) -> bool:
        parsed = _address(peer)
        return parsed is not None and any(parsed in network for network in self.trusted)


def make_front(login: LoginSettings) -> Front:
    """What the operator says about it."""
    return Front(
        public_url=login.public_url,
        trusted=tuple(ipaddress.ip_network(one) for one in login.trusted_proxies),
    )


def _peer(scope: MutableMapping[str, Any]) -> str:
    client = cast("Sequence[object] | None", scope.get("client"))
    return str(client[0]) if client else ""


def _address(text: str) -> Address | None:
    """An address, with or without a port behind it; None when it is none."""
    for candidate in (text, text.rpartition(":")[0].strip("[]"), text.strip("[]")):
        try:
            parsed = ipaddress.ip_address(candidate)
        except ValueError:
            continue
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return mapped or parsed
    return None


def _headers(scope: MutableMapping[str, Any]) -> Mapping[str, str]:
    """Each header's first value, names in lower case."""
    pairs = cast("Sequence[tuple[bytes, bytes]]", scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(pairs)}


def _joined(scope: MutableMapping[str, Any], name: bytes) -> str:
    pairs = cast("Sequence[tuple[bytes, bytes]]", scope["headers"])
    return ",".join(value.decode("latin-1") for found, value in pairs if found == name)


def _last(scope: MutableMapping[str, Any], name: bytes) -> str:
    """What the nearest proxy said, in lower case."""
    return _joined(scope, name).rpartition(",")[2].strip().lower()


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
