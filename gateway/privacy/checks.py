"""What is wrong with a policy as it is written, and its digest: everything that decides, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import UTC

from gateway.privacy.model import PolicySource, Sink, TrustClaim


def problems_of(source: PolicySource) -> Iterator[str]:
    """One sentence for each fault; such a policy cannot be compiled."""
    for tag, rule in source.tags.items():
        for implied in sorted(rule.implies - source.tags.keys()):
            yield f"tag {tag!r} implies {implied!r}, which is no tag"
    for tag in sorted(source.floor - source.tags.keys()):
        yield f"the floor holds {tag!r}, which is no tag"
    for sink, allowed in source.sinks.items():
        if sink not in frozenset(Sink):
            yield f"'{sink}' is no sink; there are {', '.join(Sink)}"
        for tag in sorted(allowed - source.tags.keys()):
            yield f"sink '{sink}' is open to {tag!r}, which is no tag"
    for floor, tags in _team_floors(source):
        for tag in sorted(tags - source.tags.keys()):
            yield f"the floor of {floor} holds {tag!r}, which is no tag"
    names: set[str] = set()
    for deployment in source.deployments:
        if deployment.name in names:
            yield f"deployment {deployment.name!r} is listed twice"
        names.add(deployment.name)
    for name, claim in all_claims(source):
        if claim.expires_at is not None and claim.expires_at.tzinfo is None:
            yield f"{name}: the expiry of {claim.attribute!r} has no time zone"


def _team_floors(source: PolicySource) -> Iterator[tuple[str, frozenset[str]]]:
    for name, team in source.teams.items():
        yield f"team {name!r}", team.tags
        for project, tags in team.projects.items():
            yield f"project {project!r} of team {name!r}", tags
        for key, tags in team.keys.items():
            yield f"key {key!r} of team {name!r}", tags


def all_claims(source: PolicySource) -> Iterator[tuple[str, TrustClaim]]:
    """Every claim, with the name of the deployment or tool that it is about."""
    for deployment in source.deployments:
        yield from ((deployment.name, claim) for claim in deployment.claims)
    for tool, claims in source.tools.items():
        yield from ((f"tool {tool}", claim) for claim in claims)


def digest_of(source: PolicySource) -> str:
    """Everything that decides, as hexadecimal SHA-256, in whatever order it was written."""
    content = {
        "tags": {
            tag: [sorted(rule.require), sorted(rule.implies), rule.deny]
            for tag, rule in source.tags.items()
        },
        "floor": sorted(source.floor),
        "deployments": {
            deployment.name: [_written(deployment.claims), sorted(deployment.enforces)]
            for deployment in source.deployments
        },
        "implications": {one: sorted(gives) for one, gives in source.implications.items()},
        "tools": {name: _written(claims) for name, claims in source.tools.items()},
        "sinks": {name: sorted(allowed) for name, allowed in source.sinks.items()},
        "teams": {
            name: [
                sorted(team.tags),
                {project: sorted(tags) for project, tags in team.projects.items()},
                {key: sorted(tags) for key, tags in team.keys.items()},
            ]
            for name, team in source.teams.items()
        },
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _written(claims: Iterable[TrustClaim]) -> list[list[str]]:
    return sorted(
        [
            claim.attribute,
            "" if claim.expires_at is None else claim.expires_at.astimezone(UTC).isoformat(),
            claim.evidence,
            claim.verified_by,
            "" if claim.verified_on is None else claim.verified_on.isoformat(),
            claim.condition,
        ]
        for claim in claims
    )
