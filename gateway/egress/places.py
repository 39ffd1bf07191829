"""What of a list of destinations is compared with what a process asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_address
from typing import NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from providers.addresses import Reach

PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379, "postgresql": 5432}


class _Index(Protocol):
    netloc: str
    file_storage_domain: str


class Place(NamedTuple):
    """A destination as it travels to a process.

    Attributes:
        host: A name in lower case, `*.` before it for all names below it, or an address.
        port: The port.
        reach: Where the machines behind a name may stand.
    """

    host: str
    port: int
    reach: Reach = Reach.ANY


@dataclass(frozen=True, slots=True)
class Places:
    """A list, ready to be asked; immutable, so that a new one replaces it in one step.

    Attributes:
        listed: The places.
    """

    listed: frozenset[Place]

    @classmethod
    def of(cls, places: Iterable[Place]) -> Places:
        """Take the places; each once."""
        return cls(frozenset(places))

    def ports_of(self, name: str) -> dict[int, Reach]:
        """The ports at which a name may be connected to, with where it may stand; often none.

        Of two entries that cover a name the stricter one counts: a name on a vendor's list and on
        the operator's leads to the internet only.
        """
        found: dict[int, Reach] = {}
        for place in self.listed:
            if covers(place.host, name):
                known = found.get(place.port, Reach.ANY)
                found[place.port] = place.reach if known is Reach.ANY else known
        return found

    def has_address(self, address: str, port: int) -> bool:
        """Whether an address itself is listed, at this port."""
        return any(one.host == address and one.port == port for one in self.listed)

    def narrowed(self, other: Places) -> Places:
        """What both lists have."""
        return Places(self.listed & other.listed)


def place_of_url(url: str) -> tuple[str, int] | None:
    """Host and port of a URL, or of `host:port`; None where it leads to no network."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    host = normal_name(parts.hostname or "")
    return (host, port) if host and port else None


def index_hosts() -> Sequence[str]:
    """Where pip looks and fetches when nobody tells it otherwise; nowhere without pip."""
    if find_spec("pip") is None:
        return ()
    usual = cast("_Index", vars(import_module("pip._internal.models.index"))["PyPI"])
    return (usual.netloc, usual.file_storage_domain)


def covers(pattern: str, name: str) -> bool:
    """Whether a listed host stands for a name."""
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) > len(pattern) - 1
    return pattern == name


def normal_name(host: object) -> str:
    """A host as it is compared: text, lower case, without a dot at its end or brackets."""
    text = host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)
    return text.strip("[]").rstrip(".").lower()


def plain_address(text: str) -> str | None:
    """An address in the one form that addresses are compared in, None for everything else.

    Numbers that resolvers take for addresses too (`2130706433`, `127.1`) are none.
    """
    try:
        return str(ip_address(text.partition("%")[0]))
    except ValueError:
        return None
