"""A policy that holds, and one that a fault was planted in: what the gateway would do with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gateway.privacy.inventory import Holder, Inventory, Road
from gateway.privacy.model import (
    NO_TOOLS,
    PolicySource,
    TagRule,
    TeamFloor,
    TrustClaim,
    TrustedDeployment,
    shipped_implications,
)
from gateway.privacy.policy import Policy
from gateway.privacy.proof import Proof
from gateway.privacy.prover import prove

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DAY = timedelta(days=1)
VENDOR, OWN, BROKER = "vendor/llama", "own/llama", "broker/llama"
PARTNER, FORGETFUL, STRANGER = "partner/llama", "forgetful/llama", "stranger/llama"


def _claims(*attributes: str) -> tuple[TrustClaim, ...]:
    return tuple(TrustClaim(attribute=one) for one in attributes)


SOURCE = PolicySource(
    tags={
        "known": TagRule(require=frozenset({"contract"})),
        "internal": TagRule(require=frozenset({"no_train"})),
        "confidential": TagRule(
            require=frozenset({"zero_retention"}), implies=frozenset({"internal"})
        ),
        "private": TagRule(require=frozenset({"self_hosted"}), implies=frozenset({"confidential"})),
        "direct_only": TagRule(require=frozenset({"direct"})),
        "secret": TagRule(deny=True),
    },
    deployments=(
        TrustedDeployment(name=VENDOR, claims=_claims("contract", "no_train", "direct")),
        TrustedDeployment(
            name=OWN,
            claims=(
                TrustClaim(attribute="contract"),
                TrustClaim(attribute="self_hosted", expires_at=NOW + 90 * DAY),
            ),
        ),
        TrustedDeployment(
            name=BROKER,
            claims=(
                TrustClaim(attribute="contract"),
                TrustClaim(attribute="no_train"),
                TrustClaim(attribute="zero_retention", condition="zdr"),
                TrustClaim(attribute="dpa", expires_at=NOW - DAY),
            ),
        ),
        TrustedDeployment(name=PARTNER, claims=_claims("contract", "no_train", "zero_retention")),
        TrustedDeployment(name=FORGETFUL, claims=_claims("contract", "zero_retention")),
        TrustedDeployment(name=STRANGER, claims=_claims("no_train")),
    ),
    floor=frozenset({"known"}),
    implications=shipped_implications("eu"),
    tools={"web_search": _claims("contract", "no_train")},
    sinks={"response_cache": frozenset({"known", "internal"})},
    teams={"payments": TeamFloor(tags=frozenset({"private"}))},
)

NAMES = frozenset({"chat", "small", VENDOR, OWN, BROKER, PARTNER, FORGETFUL, STRANGER})
INVENTORY = Inventory(
    models={"chat": (VENDOR, OWN), "other": (BROKER, PARTNER)},
    aliases={"small": "chat"},
    holders=(
        Holder(name="the administrator", names=NAMES | {"other"}),
        Holder(name="team payments", team="payments", floor=frozenset({"private"}), names=NAMES),
    ),
)


@dataclass(kw_only=True)
class Gateway:
    """What a gateway does that does everything right, from what it was made of.

    Attributes:
        source: What it compiled, which a fault may have doctored.
        inventory: What it resolves names with.
    """

    source: PolicySource = SOURCE
    inventory: Inventory = INVENTORY
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self.policy = Policy.of(self.source)

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        return self.policy.allowed(tags, at=at, tools=tools)

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        return self.policy.sink_allows(sink, tags)

    def begins_with(self, holder: Holder, added: frozenset[str]) -> frozenset[str]:
        team = self.source.teams.get(holder.team)
        return added if team is None else team.tags | added

    def tried(self, name: str, allowed: frozenset[str], road: Road) -> Collection[str]:
        leads = {one: listed for one, listed, _ in self.inventory.names(self.source)}
        return [one for one in leads[name] if one in allowed]


def proof_of(gateway: Gateway) -> Proof:
    """What the prover says about a gateway that should do as `SOURCE` and `INVENTORY` say."""
    return prove(gateway, SOURCE, INVENTORY, policy_digest=gateway.policy.digest, at=NOW)


def with_tag(name: str, **changes: object) -> PolicySource:
    """The policy with one rule changed."""
    rule = replace(SOURCE.tags[name], **changes)
    return replace(SOURCE, tags={**SOURCE.tags, name: rule})


def with_claims(name: str, *claims: TrustClaim) -> PolicySource:
    """The policy with one deployment's claims replaced."""
    return replace(
        SOURCE,
        deployments=tuple(
            replace(one, claims=claims) if one.name == name else one for one in SOURCE.deployments
        ),
    )
