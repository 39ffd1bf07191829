"""What a privacy policy is made of: tags that require, deployments that claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

SELF_HOSTED = "self_hosted"
LOCAL = "local"

SELF_HOSTED_GIVES = frozenset({"no_train", "zero_retention", "dpa"})
"""Nobody else processes the data, so nobody trains on it, keeps it or needs an agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRule:
    """What a tag means.

    Attributes:
        require: Trust attributes that a deployment must have, all of them.
        implies: Tags that come with it.
        deny: Whether a request with it may go nowhere.
    """

    require: frozenset[str] = frozenset()
    implies: frozenset[str] = frozenset()
    deny: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustClaim:
    """A fact that satisfies requirements.

    Attributes:
        attribute: Its name, for example `region:eu`.
        expires_at: First aware instant at which it no longer counts, None for never.
        evidence: Where the proof is, for auditors.
    """

    attribute: str
    expires_at: datetime | None = None
    evidence: str = ""

    def counts_at(self, at: datetime) -> bool:
        """Whether the claim has not expired at an aware instant."""
        return self.expires_at is None or at < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedDeployment:
    """A deployment and what is claimed about it.

    Attributes:
        name: `provider/model-id`.
        claims: May be empty: nothing is known, so no requirement is met.
    """

    name: str
    claims: tuple[TrustClaim, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """Everything that decides, as configured; the compiler and the oracle both start from it.

    Attributes:
        tags: Rule per tag.
        deployments: Every deployment that can be called.
        floor: Tags that every request carries.
        implications: What an attribute gives beside itself; followed transitively.
    """

    tags: Mapping[str, TagRule]
    deployments: tuple[TrustedDeployment, ...]
    floor: frozenset[str] = frozenset()
    implications: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


def shipped_implications(server_region: str | None) -> Mapping[str, frozenset[str]]:
    """The attribute implications that Fareway ships.

    Args:
        server_region: Where this machine stands, None when not configured: then a local deployment
            satisfies no region requirement.
    """
    local = {SELF_HOSTED} if server_region is None else {SELF_HOSTED, f"region:{server_region}"}
    return MappingProxyType({SELF_HOSTED: SELF_HOSTED_GIVES, LOCAL: frozenset(local)})
