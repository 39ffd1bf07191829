"""The list of one process on its way to it, and the guard that takes it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.egress.installed import installed
from gateway.egress.places import Place, normal_name


class EgressList(msgspec.Struct, frozen=True, kw_only=True):
    """What a process may connect to.

    Attributes:
        places: The places; empty for nowhere.
        is_enforced: Whether what is not among them is refused, or only counted.
    """

    places: tuple[Place, ...] = ()
    is_enforced: bool = True

    def joined(self, other: EgressList) -> EgressList:
        """What either of two lists has, for the moment in which one follows the other."""
        return EgressList(
            places=tuple(dict.fromkeys((*self.places, *other.places))),
            is_enforced=self.is_enforced and other.is_enforced,
        )


def follow(listed: EgressList) -> None:
    """Have this process's guard go by a list; nothing happens in a process without one."""
    guard = installed()
    if guard is not None:
        guard.allow(listed.places, is_enforced=listed.is_enforced)


def narrow(listed: EgressList) -> None:
    """Have this process's guard keep only what a list has, too."""
    guard = installed()
    if guard is not None:
        guard.narrow(listed.places, is_enforced=listed.is_enforced)


def own(names: Iterable[str]) -> None:
    """Let further names be looked up in this process, to listen on."""
    guard = installed()
    if guard is not None:
        guard.own(names)


def also(host: str, port: int) -> None:
    """Let this process connect to one more place, until its list is replaced."""
    guard = installed()
    if guard is not None:
        guard.add(Place(normal_name(host), port))


def refused() -> int:
    """How often this process's guard has refused something, or would have."""
    guard = installed()
    return 0 if guard is None else guard.refused
