"""uvloop under the guard: it connects, looks names up and starts processes with code of its own.

Each of its methods that leaves the process is replaced by one that asks first and, where a name is
given, looks it up by the guard and connects to what that led to. Its methods on sockets
(`sock_connect`, `sock_sendall`) go through Python's sockets, where the audit hook sees them.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from gateway.egress.guard import AddressInfo, Guard

Method = Callable[..., Awaitable[object]]
LookUp = Callable[..., Awaitable[list[AddressInfo]]]


def bind_loop(loop_class: type, guard: Guard) -> None:
    """Have every loop of a class ask the guard; for the rest of the process's life.

    Args:
        loop_class: `uvloop.Loop`.
        guard: Of this process.
    """

    def original(name: str) -> Method:
        return cast("Method", getattr(loop_class, name))

    look_up = _guarded_look_up(original("getaddrinfo"), guard)
    connect = _guarded_connect(original("create_connection"), look_up, guard)
    datagrams = _guarded_datagrams(original("create_datagram_endpoint"), look_up, guard)
    setattr(loop_class, "getaddrinfo", look_up)  # noqa: B010 - a type has no such attribute
    setattr(loop_class, "create_connection", connect)  # noqa: B010
    setattr(loop_class, "create_datagram_endpoint", datagrams)  # noqa: B010
    for name in ("subprocess_exec", "subprocess_shell"):
        setattr(loop_class, name, _guarded_spawn(original(name), guard))


def _guarded_look_up(original: Method, guard: Guard) -> LookUp:
    async def getaddrinfo(
        self: object, host: object, port: object, **options: object
    ) -> list[AddressInfo]:
        guard.check_name(host, port)
        found = cast("list[AddressInfo]", await original(self, host, port, **options))
        return guard.learn(host, port, found)

    return getaddrinfo


def _guarded_connect(original: Method, look_up: LookUp, guard: Guard) -> Method:
    async def create_connection(
        self: object,
        protocol_factory: Callable[[], object],
        host: str | None = None,
        port: object = None,
        **options: object,
    ) -> object:
        if host is None:
            # On a socket that somebody has connected, which the hook has seen.
            return await original(self, protocol_factory, host, port, **options)
        for name in ("happy_eyeballs_delay", "interleave"):
            options.pop(name, None)
        asked = {name: options.pop(name, 0) for name in ("family", "proto", "flags")}
        found = await look_up(self, host, port, type=socket.SOCK_STREAM, **asked)
        if options.get("ssl"):
            options["server_hostname"] = options.get("server_hostname") or host
        failure = OSError(f"{host} has no address")
        for family, *_, address in found:
            try:
                guard.check_address(family, address)
                return await original(
                    self, protocol_factory, str(address[0]), address[1], **options
                )
            except OSError as error:
                failure = error
        raise failure

    return create_connection


def _guarded_datagrams(original: Method, look_up: LookUp, guard: Guard) -> Method:
    async def create_datagram_endpoint(
        self: object,
        protocol_factory: Callable[[], object],
        local_addr: object = None,
        remote_addr: Sequence[object] | None = None,
        **options: object,
    ) -> object:
        if remote_addr is None:
            guard.refuse_datagrams()  # it could send anywhere without asking
        else:
            family = options.pop("family", 0)
            found = await look_up(self, *remote_addr[:2], family=family, type=socket.SOCK_DGRAM)
            options["family"], remote_addr = found[0][0], found[0][4]
            guard.check_address(found[0][0], remote_addr)
        return await original(self, protocol_factory, local_addr, remote_addr, **options)

    return create_datagram_endpoint


def _guarded_spawn(original: Method, guard: Guard) -> Method:
    async def spawn(
        self: object, factory: Callable[[], object], *command: object, **options: object
    ) -> object:
        guard.check_spawn(command)
        return await original(self, factory, *command, **options)

    return spawn
