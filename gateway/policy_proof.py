"""Prove the privacy policy of a configuration before anything is served with it.

Apart from `gateway.app`, because the supervisor needs this and nothing of what answers requests.
What is proved are the gateway's own functions: the compiled policy, the tags with which admission
lets requests begin, and the decision that names every attempt. What is asked by itself (a retry, a
fallback, what a later road of the gateway adds) draws from that one decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gateway.admission.floors import TeamRules, rules_of_teams, starting_tags
from gateway.clock import Clock, from_microseconds
from gateway.fleet import build_policy, listed_deployments
from gateway.privacy.inventory import ADMINISTRATOR, Holder, Inventory, Road
from gateway.privacy.model import NO_TOOLS
from gateway.privacy.policy import Policy
from gateway.privacy.proof import CounterExample, Kind, Notice, Proof
from gateway.privacy.prover import prove
from gateway.routing.decision import decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.resolve import usable_names
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from gateway.settings.document import Settings
from gateway.settings.loader import LoadedConfig
from gateway.settings.validation import Path
from pricing.price_book import Unpriced

SHOWN_MAX = 3
"""Counter-examples that an error spells out."""


class PolicyUnproved(Exception):
    """The policy does not hold, or nobody has proved it; nothing may be served with it."""


@dataclass(slots=True, kw_only=True)
class GatewayRuntime:
    """The gateway's own functions, as the prover asks them.

    Attributes:
        policy: The compiled policy.
        rules: By team.
        key_tags: What keys of the file carry, by team and name.
        snapshot: The whole fleet, everything up.
        at: Aware instant, for prices, which play no part.
    """

    policy: Policy
    rules: Mapping[str, TeamRules]
    key_tags: Mapping[tuple[str, str], frozenset[str]]
    snapshot: FleetSnapshot
    at: datetime
    _last: tuple[str, frozenset[str], frozenset[str]] | None = field(default=None, init=False)

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        """As `Policy.allowed`."""
        return self.policy.allowed(tags, at=at, tools=tools)

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        """As `Policy.sink_allows`."""
        return self.policy.sink_allows(sink, tags)

    def begins_with(self, holder: Holder, added: frozenset[str]) -> frozenset[str]:
        """As admission: the floors of team and project, and what is added."""
        rules = self.rules[holder.team] if holder.team else TeamRules()
        own = self.key_tags.get((holder.team, holder.key), frozenset[str]())
        return starting_tags(rules, team=holder.team, project=holder.project, added=own | added)

    def tried(self, name: str, allowed: frozenset[str], road: Road) -> Collection[str]:
        """Everything that the decision about a name names, whatever the road."""
        if self._last is not None and self._last[:2] == (name, allowed):
            return self._last[2]
        decision = decide(
            self.snapshot,
            model=name,
            allowed=allowed,
            scope=KeyScope(),
            needs=RequestNeeds(prompt_tokens_estimate=0),
            now=self.at,
        )
        tried = {one.deployment for one in decision.candidates}.union(decision.reachable)
        self._last = (name, allowed, frozenset(tried))
        return self._last[2]


def proved_policy(settings: Settings, clock: Clock) -> Policy:
    """Compile the policy of a configuration and prove it.

    Raises:
        PolicyUnproved: With the first counter-examples.
    """
    policy = build_policy(settings)
    proof = prove_policy(settings, policy, at=from_microseconds(clock.wall_us()))
    require_holds(proof)
    return policy


def require_holds(proof: Proof) -> None:
    """Refuse a policy with a counter-example.

    Raises:
        PolicyUnproved: With the first of them.
    """
    if not proof.holds:
        shown = "; ".join(str(one) for one in proof.counter_examples[:SHOWN_MAX])
        raise PolicyUnproved(f"the privacy policy does not hold: {shown}")


def prove_policy(settings: Settings, policy: Policy, *, at: datetime) -> Proof:
    """Prove a compiled policy of a configuration.

    Args:
        settings: The configuration.
        policy: What requests would be decided with.
        at: Aware instant of the proof.
    """
    snapshot = _snapshot(settings)
    runtime = GatewayRuntime(
        policy=policy,
        rules=rules_of_teams(settings, policy.source),
        key_tags={
            (name, key): tags
            for name, team in policy.source.teams.items()
            for key, tags in team.keys.items()
        },
        snapshot=snapshot,
        at=at,
    )
    return prove(
        runtime,
        policy.source,
        inventory_of(settings, snapshot),
        policy_digest=policy.digest,
        at=at,
    )


def prove_config(config: LoadedConfig, *, at: datetime) -> Proof:
    """Prove the policy of a configuration, and say where in its files things stand.

    Raises:
        PolicyError: The policy cannot be compiled.
    """
    settings = config.settings
    proof = prove_policy(settings, build_policy(settings), at=at)
    return replace(
        proof,
        counter_examples=tuple(_located(config, one) for one in proof.counter_examples),
        warnings=tuple(_noted(config, one) for one in proof.warnings),
    )


def inventory_of(settings: Settings, snapshot: FleetSnapshot | None = None) -> Inventory:
    """Names and holders as the configuration states them.

    Args:
        settings: The configuration.
        snapshot: The fleet, for the names that a holder's patterns come to.
    """
    fleet = snapshot or _snapshot(settings)
    everything = frozenset(usable_names(fleet, KeyScope()))
    holders = [Holder(name=ADMINISTRATOR, names=everything)]
    for name, team in settings.teams.items():
        names = frozenset(usable_names(fleet, KeyScope(models=team.models)))
        floor = frozenset(team.tags)
        whole = Holder(name=f"team {name}", team=name, floor=floor, names=names)
        holders.append(whole)
        projects = {one: floor.union(each.tags) for one, each in team.projects.items()}
        for project, tags in projects.items():
            shown = f"team {name}, project {project}"
            holders.append(replace(whole, name=shown, project=project, floor=tags))
        for key in team.keys:
            tags = projects.get(key.project or "", floor).union(key.tags)
            shown = f"team {name}, key {key.name}"
            holders.append(
                replace(whole, name=shown, project=key.project or "", key=key.name, floor=tags)
            )
    return Inventory(
        models={
            name: tuple(entry.deployment for entry in model.deployments)
            for name, model in settings.models.items()
        },
        aliases={alias: name for name, model in settings.models.items() for alias in model.aliases},
        holders=tuple(holders),
    )


def _snapshot(settings: Settings) -> FleetSnapshot:
    nothing = Unpriced(reason="the prover looks at no price")
    return FleetSnapshot(
        deployments={
            name: DeploymentView(name=name, price=nothing) for name in listed_deployments(settings)
        },
        models={
            name: tuple(entry.deployment for entry in model.deployments)
            for name, model in settings.models.items()
        },
        aliases={alias: name for name, model in settings.models.items() for alias in model.aliases},
    )


def _located(config: LoadedConfig, one: CounterExample) -> CounterExample:
    if one.holder:
        return replace(one, line=_line_of_holder(config, one.holder))
    if one.deployment.startswith("sink "):
        path: Path = ("privacy", "sinks", one.deployment.removeprefix("sink "))
        return replace(one, line=_line(config, path))
    return replace(one, line=_line(config, _deployment_path(config.settings, one.deployment)))


def _noted(config: LoadedConfig, one: Notice) -> Notice:
    settings = config.settings
    if one.subject in settings.privacy.tags and one.kind in {Kind.NOBODY, Kind.NEVER_FIRES}:
        return replace(one, line=_line(config, ("privacy", "tags", one.subject)))
    if one.kind is Kind.NOBODY:
        return replace(one, line=_line_of_holder(config, one.subject))
    return replace(one, line=_line(config, _deployment_path(settings, one.subject)))


def _line_of_holder(config: LoadedConfig, holder: str) -> str:
    """Where the floor of a holder's team stands; that of the administrator is the policy's."""
    if holder == ADMINISTRATOR:
        return _line(config, ("privacy", "floor"))
    return _line(config, ("teams", holder.removeprefix("team ").partition(",")[0], "tags"))


def _deployment_path(settings: Settings, deployment: str) -> Path:
    """Where a deployment's claims stand: at the model that lists it, or at its provider."""
    for name, model in settings.models.items():
        for index, entry in enumerate(model.deployments):
            if entry.deployment == deployment:
                if entry.trust is not None:
                    return "models", name, "deployments", index, "trust"
                break
    provider = deployment.partition("/")[0]
    return "providers", provider, "trust"


def _line(config: LoadedConfig, path: Path) -> str:
    place = config.locate(*path)
    return f"{place.file}:{place.line}"
