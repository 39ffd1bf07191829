"""Members of a body that the operator enforces, whatever the client sent.

What is enforced is written into every request of a provider, leaf by leaf: other members beside a
leaf stay the client's. A condition names one leaf and its value (`provider.zdr=true`); a claim of
trust may rest on it, because no request goes out without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

from providers.contract import ChatRequest

Members = Mapping[str, object]
"""JSON: text, whole numbers, booleans, null, lists of these, and objects of all of them."""


def conditions_of(members: Members) -> frozenset[str]:
    """Every leaf that is enforced, as `path=value`, texts without quotation marks."""
    return frozenset(
        f"{path}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for path, value in _leaves(members, "")
    )


def enforce(request: ChatRequest, members: Members) -> tuple[ChatRequest, list[str]]:
    """A request as it goes out, and what of the client's was changed.

    Names are compared without regard to case, as some servers do: what the client sent under
    another spelling of an enforced name is taken out.
    """
    fields = dict(request.fields)
    changes: list[str] = []
    for name, value in members.items():
        for other in [one for one in fields if one != name and one.casefold() == name.casefold()]:
            del fields[other]
            changes.append(f"{_shown(other)} removed")
        raw = fields.get(name)
        sent: object = None if raw is None else _decoded(raw)
        fields[name] = msgspec.Raw(msgspec.json.encode(_merge(sent, value, name, changes)))
    return msgspec.structs.replace(request, fields=fields), changes


def _merge(sent: object, enforced: object, path: str, changes: list[str]) -> object:
    """What goes out in the place of a client's value."""
    if not isinstance(enforced, Mapping):
        if sent is not None and sent != enforced:
            changes.append(f"{path} enforced")
        return enforced
    members = cast("Members", enforced)
    if not isinstance(sent, dict):
        if sent is not None:
            changes.append(f"{path} enforced")
        return members
    kept = dict(cast("dict[str, object]", sent))
    for name, value in members.items():
        for other in [one for one in kept if one != name and one.casefold() == name.casefold()]:
            del kept[other]
            changes.append(f"{path}.{_shown(other)} removed")
        kept[name] = _merge(kept.get(name), value, f"{path}.{name}", changes)
    return kept


def _decoded(raw: msgspec.Raw) -> object:
    try:
        return cast("object", msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return {}  # too deep to look into: what is enforced stands alone


def _shown(name: str) -> str:
    """A client's name as a header may carry it."""
    return "".join(one if one.isalnum() and one.isascii() else "_" for one in name[:64])


def _leaves(members: Members, prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in members.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(cast("Members", value), f"{path}.")
        else:
            yield path, value
