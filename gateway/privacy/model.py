"""What a privacy policy is made of: tags that require, deployments and tools that claim, sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

SELF_HOSTED = "self_hosted"
LOCAL = "local"

DIRECT = "direct"
"""No aggregator stands between the gateway and whoever computes the answer."""

SELF_HOSTED_GIVES = frozenset({"no_train", "zero_retention", "dpa", DIRECT})
"""Nobody else processes the data, so nobody trains on it, keeps it, needs an agreement or passes it
on."""

NO_TOOLS: Final[frozenset[str]] = frozenset()
"""What nearly every request uses of `gateway.privacy.tools`."""


class Sink(StrEnum):
    """Where something of a request may come to rest, or leave by, beside its deployment."""

    CONTENT_LOG = "content_log"
    TRACES = "traces"
    RESPONSE_CACHE = "response_cache"
    BATCH_FILES = "batch_files"
    EXPORTS = "exports"


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
        verified_by: Who looked at the proof, empty for nobody.
        verified_on: The day of that, None for never.
        condition: What whoever sends the request must put into it for the claim to hold, as one of
            the names in `TrustedDeployment.enforces`; empty where it holds without.
    """

    attribute: str
    expires_at: datetime | None = None
    evidence: str = ""
    verified_by: str = ""
    verified_on: date | None = None
    condition: str = ""

    def counts_at(self, at: datetime) -> bool:
        """Whether the claim has not expired at an aware instant."""
        return self.expires_at is None or at < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedDeployment:
    """A deployment and what is claimed about it.

    Attributes:
        name: `provider/model-id`.
        claims: May be empty: nothing is known, so no requirement is met.
        enforces: Conditions that the deployment's adapter puts into every request, whatever its
            client sent.
    """

    name: str
    claims: tuple[TrustClaim, ...] = ()
    enforces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamFloor:
    """Tags that requests carry because of whose they are; they add up.

    Attributes:
        tags: Every request of the team carries them.
        projects: By project: its requests carry them, too.
        keys: By the name of a key in the file: its requests carry them, too. Those of a key in the
            database come with its record.
    """

    tags: frozenset[str] = frozenset()
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """Everything that decides, as configured; the compiler and the oracle both start from it.

    Attributes:
        tags: Rule per tag.
        deployments: Every deployment that can be called.
        floor: Tags that every request carries.
        implications: What an attribute gives beside itself; followed transitively.
        tools: What is claimed of tools that leave the machine; one that is missing has no claim.
        sinks: Tags, with those that they imply, that a request may carry and still reach a sink; a
            sink that is missing is for requests without tags.
        teams: Floors by team.
    """

    tags: Mapping[str, TagRule]
    deployments: tuple[TrustedDeployment, ...]
    floor: frozenset[str] = frozenset()
    implications: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    tools: Mapping[str, tuple[TrustClaim, ...]] = field(
        default_factory=dict[str, tuple[TrustClaim, ...]]
    )
    sinks: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    teams: Mapping[str, TeamFloor] = field(default_factory=dict[str, TeamFloor])

    def floors(self) -> Iterator[frozenset[str]]:
        """Every set of tags that a request begins with: of teams, projects and keys in the file."""
        for team in self.teams.values():
            for project in (frozenset[str](), *team.projects.values()):
                yield team.tags | project
                yield from (team.tags | project | key for key in team.keys.values())


def shipped_implications(server_region: str | None) -> Mapping[str, frozenset[str]]:
    """The attribute implications that Fareway ships.

    Args:
        server_region: Where this machine stands, None when not configured: then a local deployment
            satisfies no region requirement.
    """
    local = {SELF_HOSTED} if server_region is None else {SELF_HOSTED, f"region:{server_region}"}
    return MappingProxyType({SELF_HOSTED: SELF_HOSTED_GIVES, LOCAL: frozenset(local)})
