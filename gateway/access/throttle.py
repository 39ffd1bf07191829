"""How often somebody may try to log in.

Attempts are counted per account, per address, and per browser in which the account's login worked
before. Guessing soon costs a wait that doubles up to a minute (an address: five); nothing is ever
locked. The account's count does not hold a known browser back, so that whoever guesses at an
account cannot keep its owner out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

FREE_FAILURES = 5
FREE_FAILURES_OF_ADDRESS = 20
"""More, as a whole office may have one address."""
WAIT_S_MAX = 60.0
WAIT_S_MAX_OF_ADDRESS = 300.0
FORGET_S = 3600.0
ENTRIES_MAX = 20_000


@dataclass(slots=True)
class _Count:
    failures: int = 0
    free_at_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Table:
    """Counts of one kind, the least recently used first."""

    free: int
    wait_s_max: float
    counts: OrderedDict[str, _Count] = field(default_factory=OrderedDict[str, _Count])

    def of(self, name: str, now_s: float) -> _Count:
        found = self.counts.pop(name, None)
        if found is None or now_s - found.last_s > FORGET_S:
            found = _Count()
        self.counts[name] = found
        while len(self.counts) > ENTRIES_MAX:
            self.counts.popitem(last=False)
        return found

    def fail(self, name: str, now_s: float) -> None:
        count = self.of(name, now_s)
        count.failures += 1
        count.last_s = now_s
        beyond = count.failures - self.free
        if beyond > 0:
            count.free_at_s = now_s + min(self.wait_s_max, 2.0 ** min(beyond - 1, 16))


class LoginThrottle:
    """Counts attempts; in memory, of one ledger process.

    Args:
        monotonic_s: For waits.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._accounts = _Table(FREE_FAILURES, WAIT_S_MAX)
        self._devices = _Table(FREE_FAILURES, WAIT_S_MAX)
        self._addresses = _Table(FREE_FAILURES_OF_ADDRESS, WAIT_S_MAX_OF_ADDRESS)

    def begin(self, account: str, address: str, device: str) -> float:
        """Begin an attempt, which counts as a failure until `succeed`.

        So attempts that are under way at the same time count each other.

        Args:
            account: Who it is said to be, empty where nobody is named.
            address: Where it comes from.
            device: A browser that the account knows, empty for none.

        Returns:
            0.0 when it may go on, else the seconds to wait; a refused attempt counts for nothing.
        """
        now_s = self._monotonic_s()
        places = self._places(account, address, device)
        wait_s = max(table.of(name, now_s).free_at_s for table, name in places) - now_s
        if wait_s > 0:
            return wait_s
        for table, name in places:
            table.fail(name, now_s)
        return 0.0

    def succeed(self, account: str, address: str, device: str) -> None:
        """Forget what an attempt and those before it counted."""
        for table, name in self._places(account, address, device):
            table.counts.pop(name, None)

    def _places(self, account: str, address: str, device: str) -> list[tuple[_Table, str]]:
        places = [(self._addresses, network_of(address))]
        if device:
            places.append((self._devices, device))
        elif account:
            places.append((self._accounts, account))
        return places


def network_of(address: str) -> str:
    """What is counted as one address: an IPv4 address, or a site's half of an IPv6 one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
