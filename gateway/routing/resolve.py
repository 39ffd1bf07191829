"""From the name in a request to what it stands for, and whether a key may use it."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import FleetSnapshot

NEAR_NAMES_MAX = 3
_COMPARED_CHARS_MAX = 128
"""Longer names are cut before they are compared: comparing is quadratic."""
_COMPARED_EACH_WAY = 24
"""Names before and behind the asked one that are compared, of each kind: about 20 us per name."""


class NameKind(StrEnum):
    """What a name is."""

    MODEL = "model"
    ALIAS = "alias"
    DEPLOYMENT = "deployment"


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for.

    Attributes:
        name: As the client wrote it.
        kind: What it is.
        model: The logical model; None for a deployment, asked for directly or by alias.
        deployments: Deployment names in the operator's order; one for a deployment.
    """

    name: str
    kind: NameKind
    model: str | None
    deployments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownModel:
    """No such name.

    Attributes:
        name: As the client wrote it.
        near: Similar names that the key may use, most similar first.
    """

    name: str
    near: tuple[str, ...]


def resolve(
    snapshot: FleetSnapshot, name: str, *, scope: KeyScope | None = None
) -> Resolved | UnknownModel:
    """Find what a name stands for; names match exactly, in case and in every character.

    Args:
        snapshot: The fleet.
        name: A logical model, an alias, or a deployment `provider/model-id`.
        scope: Limits which near names are told; None tells all.
    """
    found = find(snapshot, name)
    if found is not None:
        return found
    cut = name[:_COMPARED_CHARS_MAX]
    known = [one for names in _usable(snapshot, scope or KeyScope()) for one in _around(cut, names)]
    near = difflib.get_close_matches(cut, known, n=NEAR_NAMES_MAX)
    return UnknownModel(name=name, near=tuple(near))


def is_authorised(snapshot: FleetSnapshot, resolved: Resolved, scope: KeyScope) -> bool:
    """Whether a key may use a name, on every hop from the name to a deployment.

    Granting a model grants its aliases and its declared deployments. Granting an alias by its own
    name grants what it stands for; a pattern that merely covers the alias does not, because the
    target may lie outside (`cheap*` must not reach `frontier` through `cheap-and-new`).
    """
    if resolved.model is None:
        [deployment] = resolved.deployments
        is_granted = scope.names(deployment) or any(
            deployment in deployments and scope.names(model)
            for model, deployments in snapshot.models.items()
        )
    else:
        is_granted = scope.names(resolved.model)
    return is_granted or scope.spells_out(resolved.name)


def usable_names(snapshot: FleetSnapshot, scope: KeyScope) -> tuple[str, ...]:
    """Models, aliases and deployments that a key may ask for, sorted within each kind."""
    return tuple(name for names in _usable(snapshot, scope) for name in names)


def _usable(snapshot: FleetSnapshot, scope: KeyScope) -> Iterator[list[str]]:
    """The same by kind: what `is_authorised` says of every name, with one look at each model."""
    models = {name for name in snapshot.models if scope.names(name)}
    granted = models | {name for name in snapshot.deployments if scope.names(name)}
    granted.update(*(snapshot.models[name] for name in models))
    aliases = snapshot.aliases
    for names in (snapshot.models, aliases, snapshot.deployments):
        yield sorted(
            name for name in names if aliases.get(name, name) in granted or scope.spells_out(name)
        )


def _around(name: str, names: Sequence[str]) -> Sequence[str]:
    """Those of sorted names that stand nearest to a name, which begin as it does; all of a few."""
    if len(names) <= 2 * _COMPARED_EACH_WAY:
        return names
    place = bisect_left(names, name)
    return names[max(0, place - _COMPARED_EACH_WAY) : place + _COMPARED_EACH_WAY]


def find(snapshot: FleetSnapshot, name: str) -> Resolved | None:
    """What a name stands for, None when there is no such name."""
    target = snapshot.aliases.get(name, name)
    if target in snapshot.models:
        kind = NameKind.MODEL if target == name else NameKind.ALIAS
        return Resolved(name=name, kind=kind, model=target, deployments=snapshot.models[target])
    if target in snapshot.deployments:
        kind = NameKind.DEPLOYMENT if target == name else NameKind.ALIAS
        return Resolved(name=name, kind=kind, model=None, deployments=(target,))
    return None
