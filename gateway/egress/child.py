"""Run a module under the guard: `python -m gateway.egress.child [OPTIONS] MODULE ARGUMENTS...`.

For children that do not begin with `gateway.boot`: an engine, which needs no network at all, and
pip, which needs what it fetches from. Without a network the child first takes itself into a network
namespace of its own, where the machine lets it: there is no way out of that for any code. Where it
does not (a container without the right), the guard alone binds it, and the log says so.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import logging
import os
import runpy
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from gateway.egress.guard import Guard
from gateway.egress.installed import install
from gateway.egress.places import Place, index_hosts, normal_name, place_of_url

logger = logging.getLogger(__name__)

_CLONE_NEWNET, _CLONE_NEWUSER = 0x4000_0000, 0x1000_0000
"""Source: Linux, include/uapi/linux/sched.h."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
"""Source: Linux, include/uapi/linux/sockios.h and if.h."""
_PROXY_VARIABLES = (
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
)
_NAME_BYTES, _REQUEST_BYTES = 16, 40


class _Configuration(Protocol):
    def load(self) -> None: ...
    def items(self) -> Iterable[tuple[str, str]]: ...


class _Load(Protocol):
    def __call__(self, *, isolated: bool) -> _Configuration: ...


class _Arguments(argparse.Namespace):
    place: Sequence[str]
    no_network: bool
    pip: bool
    observe: bool
    module: str
    arguments: Sequence[str]


def main(arguments: Sequence[str]) -> None:
    """Bind this process, and run the module as if it had been started by itself."""
    parser = argparse.ArgumentParser(prog="gateway.egress.child")
    parser.add_argument("--place", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--no-network", action="store_true")
    parser.add_argument("--pip", action="store_true", help="add what pip is configured with")
    parser.add_argument("--observe", action="store_true", help="count and tell, refuse nothing")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments, namespace=_Arguments())
    if given.no_network and not leave_network():
        from gateway.telemetry.logs import set_up_logging  # few children need it

        set_up_logging(given.module)  # in the form that the module itself begins with
        logger.warning(
            "%s has no network namespace of its own on this machine; the guard in it refuses"
            " connections",
            given.module,
        )
    places = [*map(_place, given.place), *(pip_places() if given.pip else ())]
    install(Guard()).allow(places, is_enforced=not given.observe)
    sys.argv = [given.module, *given.arguments]
    runpy.run_module(given.module, run_name="__main__", alter_sys=True)


def pip_places() -> Iterator[Place]:
    """What pip connects to as this machine has set it up: indexes, links, proxies."""
    from gateway.settings.environment import process_environ  # an engine needs none of it

    module = import_module("pip._internal.configuration")
    found = cast("_Load", vars(module)["Configuration"])(isolated=False)
    found.load()
    stated: dict[str, str] = {}
    for key, value in found.items():
        stated[key.rpartition(".")[2]] = f"{stated.get(key.rpartition('.')[2], '')} {value}"
    environ = process_environ()
    urls = " ".join(stated.get(name, "") for name in ("index-url", "extra-index-url", "find-links"))
    proxies = [stated.get("proxy", ""), *(environ.get(name, "") for name in _PROXY_VARIABLES)]
    for url in (*urls.split(), *proxies):
        place = place_of_url(url.strip())
        if place is not None:
            yield Place(*place)
    if "index-url" not in stated:
        for host in index_hosts():
            yield Place(host, 443)


def leave_network() -> bool:
    """Go into a network namespace with nothing but loopback; whether the machine allows it.

    Of a process with one thread only. Source: unshare(2), user_namespaces(7).
    """
    if sys.platform != "linux":
        return False
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        # Without the right to it, in a user namespace where the same user has it.
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        except OSError:
            # It goes by the overflow ids then, which changes nothing of what it may open.
            logger.info("this process keeps no user id of its own in its namespace")
    _raise_loopback()
    return True


def _raise_loopback() -> None:
    """Let processes of the namespace talk to themselves, as collective libraries do."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack(f"{_NAME_BYTES}sh", b"lo", 0).ljust(_REQUEST_BYTES, b"\0")
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
            (flags,) = struct.unpack_from("h", answer, _NAME_BYTES)
            up = struct.pack(f"{_NAME_BYTES}sh", b"lo", flags | _IFF_UP)
            fcntl.ioctl(sock, _SIOCSIFFLAGS, up.ljust(_REQUEST_BYTES, b"\0"))
        except OSError as error:
            logger.info("loopback stays down in this namespace: %s", error.strerror)


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    return Place(normal_name(host), int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
