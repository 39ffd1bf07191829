"""Trust attributes: facts about a deployment that satisfy the requirements of privacy tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import AfterValidator, Field, JsonValue

from gateway.settings.scalars import Day, TextOrSection, Word

SELF_HOSTED = "self_hosted"
LOCAL = "local"

DIRECT = "direct"

KNOWN_ATTRIBUTES = frozenset(
    {"no_train", "zero_retention", "dpa", "baa", SELF_HOSTED, LOCAL, DIRECT, "isolated_cache"}
)
"""Attributes that Fareway ships; operators may add their own, and `region:` ones are open."""


def is_known_attribute(attribute: str) -> bool:
    """Whether Fareway ships the attribute."""
    return attribute in KNOWN_ATTRIBUTES or attribute.startswith("region:")


class TrustClaim(TextOrSection):
    """An attribute that the operator vouches for; plain text stands for a claim without proof."""

    attribute: Word
    """The attribute, for example `self_hosted` or `region:eu`."""
    evidence: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Where the proof is, for auditors."""
    verified_by: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Who looked at the proof."""
    verified_on: Day | None = None
    """The day on which they did."""
    expires: Day | None = None
    """First day on which the claim no longer counts."""
    condition: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """A member of `enforce` and its value, for example `provider.zdr=true`: the claim counts only
    where every request carries it."""


def claims_attribute(claims: tuple[TrustClaim, ...] | None, attribute: str) -> TrustClaim | None:
    """Find the claim of an attribute, None when nobody makes it."""
    return next((claim for claim in claims or () if claim.attribute == attribute), None)


_ASKED_BY_CLIENTS = frozenset(
    {
        "max_completion_tokens", "max_tokens", "messages", "metadata", "model", "n", "stream",
        "stream_options", "tools",
    }
)  # fmt: skip
_DEPTH_MAX = 8


def _check_enforced(members: Mapping[str, JsonValue]) -> Mapping[str, object]:
    for name in members:
        if name.casefold() in _ASKED_BY_CLIENTS:
            raise ValueError(f"{name} is what clients ask for and cannot be enforced")
    _check_values(members, depth=0)
    return cast("Mapping[str, object]", members)


def _check_values(value: object, *, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"holds more than {_DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        if not members and depth:
            raise ValueError("an empty object enforces nothing")
        for name, one in members.items():
            if not name or not name.isascii() or not name.isprintable() or set(name) & set(".= "):
                raise ValueError(f"{name!r} is no name of a member")
            _check_values(one, depth=depth + 1)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            _check_values(one, depth=depth + 1)
    elif value is not None and not isinstance(value, str | bool | int):
        raise ValueError("values are text, whole numbers, true, false, null, lists and objects")


EnforcedMembers = Annotated[Mapping[str, JsonValue], AfterValidator(_check_enforced)]
"""Members of a request's body, by name."""
