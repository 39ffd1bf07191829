"""The guard of one process: an audit hook, and a stand-in for name look-ups, against one list.

Python tells audit hooks of each connection, datagram, look-up and child process before it happens,
whichever library asks, and a hook cannot be taken out again. What a name leads to is learnt from
the look-ups themselves: an address may be connected to when it is listed, or when a listed name has
just led there and it stands where that name may stand. So a name that leads elsewhere by the second
look-up leads nowhere, and an address that nobody looked up is refused.

Loops that connect with code of their own are bound by `gateway.egress.loops`; libraries that do are
not imported. What a guard in a process cannot do is stop a process that wants to get past it: that
is the network's work, for which `destinations` gives the list.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import cast

from gateway.egress.errors import EgressImportRefused, EgressRefused
from gateway.egress.places import Place, Places, normal_name, plain_address
from providers.addresses import Reach, why_refused

logger = logging.getLogger(__name__)

LEARNT_S = 600.0
"""So long an address counts as what a name led to; whoever keeps names longer looks up again."""
LEARNT_MAX = 4096
NAMES_MAX = 64
"""Addresses that are remembered, and names for each."""
LOG_EVERY_S = 60.0
TOLD_MAX = 256
_NEVER = "that is refused whatever the configuration says"

NATIVE = frozenset(
    {
        "aiodns", "curl_cffi", "grpc", "hf_xet", "psycopg2", "psycopg_binary", "psycopg_c",
        "pyarrow._azurefs", "pyarrow._flight", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs",
        "pycares", "pycurl", "zmq",
    }
)  # fmt: skip
"""Modules that connect or look names up with code of their own; nothing of ours needs them."""

_LOOP_MODULE = "uvloop.loop"

_SPAWNING = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork",
             "os.forkpty")  # fmt: skip

_SENDING = ("socket.connect", "socket.sendto", "socket.sendmsg")

Address = tuple[object, ...]
Arguments = tuple[object, ...]
"""Of an audit event."""
AddressInfo = tuple[int, int, int, str, Address]


class Guard:
    """What a process may connect to; `install` puts it in force.

    Attributes:
        refused: How often something was refused, or would have been.
    """

    def __init__(
        self,
        places: Iterable[Place] = (),
        *,
        may_spawn: bool = True,
        names: Iterable[str] = (),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with a list.

        Args:
            places: What may be connected to.
            may_spawn: Whether child processes may be started.
            names: Further names that may be looked up, to listen on.
            monotonic_s: For how long what was learnt counts.
        """
        self.refused = 0
        self.is_enforced = True
        self._places = Places.of(places)
        self._may_spawn = may_spawn
        self._own_names = frozenset({"localhost", *map(normal_name, names)})
        self._monotonic_s = monotonic_s
        self._learnt: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], float] = {}
        self._look_up = socket.getaddrinfo
        self._native = NATIVE
        self.handlers: dict[str, Callable[[Arguments], None]] = {
            **dict.fromkeys(_SENDING, self._check_socket),
            "socket.getaddrinfo": lambda args: self.check_name(args[0], args[1]),
            "socket.gethostbyname": lambda args: self.check_name(args[0], None),
            "socket.gethostbyaddr": lambda args: self.check_name(args[0], None),
            "import": self._check_import,
            **dict.fromkeys(_SPAWNING, self.check_spawn),
        }

    @property
    def places(self) -> Places:
        """The list in force."""
        return self._places

    def allow(self, places: Iterable[Place], *, is_enforced: bool = True) -> None:
        """Replace the list, at once and as a whole."""
        self._places = Places.of(places)
        self.is_enforced = is_enforced

    def narrow(self, places: Iterable[Place], *, is_enforced: bool = True) -> None:
        """Keep what another list has, too."""
        self._places = self._places.narrowed(Places.of(places))
        self.is_enforced = self.is_enforced or is_enforced

    def add(self, place: Place) -> None:
        """Put one more place on the list, until it is replaced."""
        self._places = Places(self._places.listed | {place})

    def own(self, names: Iterable[str]) -> None:
        """Let further names be looked up, to listen on."""
        self._own_names |= frozenset(map(normal_name, names))

    def check_name(self, host: object, port: object) -> None:
        """Go on where a name may be looked up.

        Args:
            host: A name, an address, or None.
            port: A number, a number as text, or None and everything else for any.

        Raises:
            EgressRefused: It may not.
        """
        if not host:
            return
        name = normal_name(host)
        if plain_address(name) is not None:
            return  # nobody is asked; to connect there is another question
        number = _number(port)
        ports = self._places.ports_of(name)
        if number in ports or (number is None and ports):
            return
        if name in self._own_names or name == normal_name(socket.gethostname()):
            return
        self._refuse(_shown(name, number), None)

    def check_address(self, family: int, address: object) -> None:
        """Go on where a socket may connect, or send a datagram.

        Args:
            family: Of the socket.
            address: As sockets take it; None where it is connected already.

        Raises:
            EgressRefused: It may not.
        """
        if address is None or family == socket.AF_UNIX:
            return
        if family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            self._refuse(f"a socket of family {family}", _NEVER, is_absolute=True)
            return
        host, port = cast("Address", address)[:2]
        text = plain_address(str(host))
        place = _shown(str(host), _number(port))
        if text is None:
            # The kernel's side would look it up, where nobody sees what it leads to.
            self._refuse(place, "look the name up first, and connect to its address")
            return
        reason = why_refused(text)
        if reason is not None:
            self._refuse(place, f"it {reason}; {_NEVER}", is_absolute=True)
            return
        number = _number(port)
        if number is None or self._may_connect(text, number):
            return
        self._refuse(place, None)

    def refuse_datagrams(self) -> None:
        """Refuse a socket that could send to anybody without asking.

        Raises:
            EgressRefused: Always, where the list is enforced.
        """
        self._refuse("a datagram socket without a remote address", "it could send anywhere")

    def look_up(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as it is called by name
        proto: int = 0,
        flags: int = 0,
    ) -> list[AddressInfo]:
        """`socket.getaddrinfo`, whose answers are learnt; stands in for it.

        Raises:
            EgressRefused: The name may not be looked up, or stands where it must not.
        """
        found = cast("list[AddressInfo]", self._look_up(host, port, family, type, proto, flags))
        return self.learn(host, port, found)

    def learn(self, host: object, port: object, found: Sequence[AddressInfo]) -> list[AddressInfo]:
        """Remember what a name led to; the answers that may be used.

        Raises:
            EgressRefused: None of them may.
        """
        name = normal_name(host) if host else ""
        ports = self._places.ports_of(name)
        if not ports or plain_address(name) is not None:
            return list(found)  # to listen on, or to be asked for at the connection
        number = _number(port)
        reaches = [ports[number]] if number in ports else list(ports.values())
        kept: list[AddressInfo] = []
        reason = None
        for info in found:
            address = plain_address(str(info[4][0])) or ""
            faults = [why_refused(address, reach) for reach in reaches or [Reach.ANY]]
            if None in faults:
                self._remember(address, name)
                kept.append(info)
            else:
                reason = f"it leads to {address}, which {faults[0]}"
        if found and not kept:
            self._refuse(_shown(name, number), f"{reason}; {_NEVER}", is_absolute=True)
        return kept

    def _check_socket(self, args: Arguments) -> None:
        sock, address = args[0], args[1]
        assert isinstance(sock, socket.SocketType)
        self.check_address(sock.family, address)

    def _may_connect(self, address: str, port: int) -> bool:
        places = self._places
        if places.has_address(address, port):
            return True
        names = self._learnt.get(address)
        if names is None:
            return False
        now = self._monotonic_s()
        for name, until in list(names.items()):
            reach = places.ports_of(name).get(port)
            if now < until and reach is not None and why_refused(address, reach) is None:
                return True
        return False

    def _remember(self, address: str, name: str) -> None:
        with self._lock:
            names = self._learnt.setdefault(address, {})
            names[name] = self._monotonic_s() + LEARNT_S
            if len(names) > NAMES_MAX:
                del names[next(iter(names))]
            self._learnt.move_to_end(address)
            while len(self._learnt) > LEARNT_MAX:
                self._learnt.popitem(last=False)

    def forbid_loop(self) -> None:
        """Refuse the loop with sockets of its own from here on: it was not bound to this guard."""
        self._native |= {_LOOP_MODULE}

    def _check_import(self, args: Arguments) -> None:
        name = str(args[0])
        if name in self._native:
            raise EgressImportRefused(
                f"{name} connects past the egress guard and is not imported", name=name
            )

    def check_spawn(self, args: Arguments) -> None:
        """Go on where a child process may be started.

        Raises:
            EgressRefused: This process starts none.
        """
        if not self._may_spawn:
            what = str(args[0]) if args else "a copy of this process"
            self._refuse(f"the child process {what[:100]}", "this process starts none")

    def _refuse(self, place: str, reason: str | None, *, is_absolute: bool = False) -> None:
        """Count, tell and refuse; where the list is only observed, let pass what it may."""
        self.refused += 1
        asked_by = _asked_by()
        if reason is None:
            reason = (
                "it is not on the list of what this process connects to; if it is meant, add"
                f" `egress: {{allow: ['{place}']}}` to the configuration"
            )
        is_refused = is_absolute or self.is_enforced
        self._tell(place, asked_by, reason, is_refused=is_refused)
        if is_refused:
            raise EgressRefused(place, asked_by, reason)

    def _tell(self, place: str, asked_by: str, reason: str, *, is_refused: bool) -> None:
        now = self._monotonic_s()
        last = self._told.get((place, asked_by))
        if last is not None and now - last < LOG_EVERY_S:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[place, asked_by] = now
        verb = "refused" if is_refused else "would be refused"
        logger.warning("egress %s to %s: %s: %s", verb, asked_by, place, reason)


def _number(port: object) -> int | None:
    """A port's number, None where any is meant or nobody knows."""
    if isinstance(port, bytes):
        port = port.decode("ascii", "replace")
    if isinstance(port, str):
        port = int(port) if port.isascii() and port.isdigit() else _service(port)
    return port if isinstance(port, int) and port > 0 else None


def _service(name: str) -> int:
    try:
        return socket.getservbyname(name)
    except OSError:
        return 0


def _shown(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _asked_by() -> str:
    """The modules on whose behalf: the library's, and the first one of ours behind it."""
    asked: list[str] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and len(asked) < 2:
        name = str(cast("object", frame.f_globals.get("__name__", "?")))
        top = name.partition(".")[0]
        is_ours = top in _OURS and not name.startswith("gateway.egress")
        if is_ours or (not asked and top not in sys.stdlib_module_names and top not in _SKIPPED):
            asked.append(name)
            if is_ours:
                break
        frame = frame.f_back
    return " for ".join(asked) or "a thread of the standard library"


_OURS = frozenset({"gateway", "providers", "local_engine", "pricing"})
_SKIPPED = frozenset({"gateway", "uvloop", "anyio", "aiohappyeyeballs", "__main__"})
