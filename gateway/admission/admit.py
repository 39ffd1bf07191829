"""Admit a request: close its tags, freeze what it may reach, decide; or refuse it.

`fareway explain` calls the same function, so that what it prints is what would happen. Nothing here
does input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import itemgetter

import msgspec

from gateway import errors
from gateway.admission.floors import TeamRules, starting_tags
from gateway.admission.routes import (
    FIELDS_CHARS_MAX,
    FIELDS_MAX,
    Route,
    RouteKey,
    Routes,
    make_route,
)
from gateway.auth.directory import Principal
from gateway.clock import from_microseconds
from gateway.dialects.controls import Controls
from gateway.dialects.openai_chat import ParsedChat
from gateway.fleet import Fleet
from gateway.health import HealthBoard
from gateway.privacy.errors import UnknownTags
from gateway.privacy.permit import Permits, both
from gateway.privacy.policy import Policy
from gateway.routing.decision import Decision, decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.plan import NO_DEMANDS, Plan
from gateway.routing.planning import make_plan
from gateway.routing.ranking import Candidate
from gateway.routing.refusal import Refusal, RefusalCode
from gateway.routing.resolve import find, is_authorised
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import FleetSnapshot
from providers.contract import EgressPermit, Provider

_REFUSALS: Mapping[RefusalCode, type[errors.GatewayError]] = {
    RefusalCode.MODEL_NOT_FOUND: errors.ModelNotFound,
    RefusalCode.MODEL_NOT_ALLOWED: errors.ModelNotAllowed,
    RefusalCode.PRIVACY_DENIED: errors.PrivacyDenied,
    RefusalCode.UNSUPPORTED_PARAMETER: errors.UnsupportedParameter,
    RefusalCode.CONTEXT_LENGTH_EXCEEDED: errors.ContextLengthExceeded,
    RefusalCode.MAX_USD_EXCEEDED: errors.MaxUsdExceeded,
    RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE: errors.PrivateCapacityUnavailable,
    RefusalCode.NO_HEALTHY_DEPLOYMENT: errors.NoHealthyDeployment,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Everything that admission looks at; immutable but for the health board's values and memory.

    Attributes:
        fleet: What can be called.
        policy: The proved policy.
        teams: Rules per team.
        providers: By name.
        health: What is up.
        permits: Says, by a reading of the policy of its own, where a request may be sent.
        routes: What is remembered.
    """

    fleet: Fleet
    policy: Policy
    teams: Mapping[str, TeamRules]
    providers: Mapping[str, Provider]
    health: HealthBoard
    permits: Permits
    # Never handed from one to the other: what is remembered goes with the policy that decided it.
    routes: Routes = field(default_factory=Routes, init=False, repr=False, compare=False)

    def admit(
        self, principal: Principal, parsed: ParsedChat, controls: Controls, *, wall_us: int
    ) -> Admitted:
        """Decide where a request may go.

        Args:
            principal: Who asks.
            parsed: The checked body.
            controls: What the client asked of the gateway; they only narrow.
            wall_us: Microseconds since the epoch, for prices and claims.

        Raises:
            InvalidRequest: A tag or project that does not exist.
            ModelNotAllowed: The key's team is not in the configuration any more.
        """
        health = self.health
        project = principal.project
        if controls.project is not None:
            project = self._project(principal, controls.project)
        tags, tools = controls.tags, parsed.tools
        if principal.tags:
            tags |= principal.tags
        key = (parsed.model, principal.team, principal.models, tags, project, tools)
        route = self.routes.known.get(key)
        # As `Route.holds_at`, without the call.
        if (
            route is None
            or route.health_epoch != health.epoch
            or not route.since_us <= wall_us < route.until_us
        ):
            route = self._find_route(principal, key, controls, wall_us=wall_us)
        decision = None
        if route.plan is not None:
            decision = route.plan.decide(
                prompt_tokens=parsed.prompt_tokens_low,
                max_prompt_tokens=parsed.prompt_tokens_max,
                max_output_tokens=parsed.max_output_tokens,
                fields=parsed.fields_used,
                has_media=parsed.has_media,
                n=parsed.choices,
                max_pico_usd=controls.max_pico_usd,
            )
        if decision is None:
            decision = self._decide_apart(principal, parsed, controls, route, wall_us=wall_us)
        candidates = decision.candidates
        egress = self.permits.issue(principal.team, tags, route.tags, wall_us, project, tools)
        if self.permits.is_narrowed:
            candidates = _still_permitted(candidates, egress)
        if health.has_pauses:
            candidates = self._paused_last(candidates)
        return Admitted(
            decision=decision,
            candidates=candidates,
            tags=route.tags,
            tags_text=route.tags_text,
            project=project,
            allowed=route.allowed,
            sinks=route.sinks,
            egress=egress,
            reissue=partial(
                self.permits.issue, principal.team, tags, route.tags, project=project, tools=tools
            ),
        )

    def _find_route(
        self, principal: Principal, key: RouteKey, controls: Controls, *, wall_us: int
    ) -> Route:
        """The route of a request that nobody has made before, or not since something changed."""
        model, _, _, added, project, tools = key
        rules = self._rules(principal)
        at, epoch = from_microseconds(wall_us), self.health.epoch
        tags = starting_tags(rules, team=principal.team, project=project, added=added)
        try:
            self.policy.close(controls.tags_given)  # unknown ones are told in the client's order
            reach = self.policy.reach(tags, at=at, tools=tools)
        except UnknownTags as error:
            if principal.tags.isdisjoint(error.tags):
                raise errors.InvalidRequest(str(error), param="x-fareway-tags") from error
            # A tag that was taken out of the policy after the key was made; without it the key must
            # not go on as if it had never had it.
            raise errors.ModelNotAllowed(
                f"{error}; key {principal.key_id} carries it: put it back, or make another key"
            ) from error
        snapshot = self._snapshot(at)
        found = find(snapshot, model)
        if found is None:
            # Clients can make up names without end, so it is not remembered.
            return make_route(None, reach, prices=(None, None), health_epoch=epoch)
        scope = self.scope(principal)
        plan_key = (model, tags, is_authorised(snapshot, found, scope), tools)
        route = self.routes.planned(plan_key, wall_us, health_epoch=epoch)
        if route is None:
            plan = make_plan(
                snapshot,
                model=model,
                allowed=reach.allowed,
                scope=scope,
                now=at,
                privacy_reasons=reach.reasons,
            )
            prices = self.fleet.prices.steady(found.deployments, at)
            route = make_route(plan, reach, prices=prices, health_epoch=epoch)
        self.routes.keep(key, plan_key, route)
        return route

    def _decide_apart(
        self,
        principal: Principal,
        parsed: ParsedChat,
        controls: Controls,
        route: Route,
        *,
        wall_us: int,
    ) -> Decision:
        """Decide about a request that its route's plan does not cover."""
        variant = self._variant(principal, parsed, route, wall_us=wall_us)
        if variant is not None:
            decision = variant.decide(
                prompt_tokens=parsed.prompt_tokens_low,
                max_prompt_tokens=parsed.prompt_tokens_max,
                max_output_tokens=parsed.max_output_tokens,
                fields=NO_DEMANDS.fields,  # they are settled
                has_media=NO_DEMANDS.has_media,
                n=parsed.choices,
                max_pico_usd=controls.max_pico_usd,
            )
            if decision is not None:
                return decision
        at = from_microseconds(wall_us)
        return decide(
            self._snapshot(at),
            model=parsed.model,
            allowed=route.allowed,
            scope=self.scope(principal),
            needs=RequestNeeds(
                prompt_tokens_estimate=parsed.prompt_tokens_low,
                max_prompt_tokens=parsed.prompt_tokens_max,
                max_output_tokens=parsed.max_output_tokens,
                fields=parsed.fields_used,
                has_media=parsed.has_media,
                n=parsed.choices,
            ),
            now=at,
            max_pico_usd=controls.max_pico_usd,
            privacy_reasons=route.reasons,
        )

    def _variant(
        self, principal: Principal, parsed: ParsedChat, route: Route, *, wall_us: int
    ) -> Plan | None:
        """The plan for what the request asks for and not all can give.

        None where they all can, and where it asks for more than is worth remembering.
        """
        if route.plan is None:
            return None
        demands = route.plan.demands(parsed.fields_used, has_media=parsed.has_media)
        if demands == NO_DEMANDS or len(demands.fields) > FIELDS_MAX:
            return None
        if sum(map(len, demands.fields)) > FIELDS_CHARS_MAX:
            return None
        plan = route.variants.get(demands)
        if plan is None:
            at = from_microseconds(wall_us)
            plan = make_plan(
                self._snapshot(at),
                model=parsed.model,
                allowed=route.allowed,
                scope=self.scope(principal),
                now=at,
                privacy_reasons=route.reasons,
                demands=demands,
            )
            assert plan is not None, "the route's plan has the same prices, and more candidates"
            self.routes.keep_variant(route, demands, plan)
        return plan

    def _snapshot(self, at: datetime) -> FleetSnapshot:
        return self.fleet.snapshot(providers=self.providers, health=self.health, at=at)

    def _paused_last(self, ranked: Sequence[Candidate]) -> Sequence[Candidate]:
        """The decision's order, with deployments that asked for a pause behind all others."""
        paused = [self.health.is_paused(one.deployment) for one in ranked]
        if not any(paused):
            return ranked
        # Sorting is stable: both groups keep the decision's order.
        return [one for _, one in sorted(zip(paused, ranked, strict=True), key=itemgetter(0))]

    def scope(self, principal: Principal) -> KeyScope:
        """What a key may ask for: its own models within its team's.

        Raises:
            ModelNotAllowed: Its team is not in the configuration any more.
        """
        return KeyScope(models=_scope_models(principal, self._rules(principal), self.fleet))

    def _rules(self, principal: Principal) -> TeamRules:
        if not principal.team:
            return TeamRules()
        rules = self.teams.get(principal.team)
        if rules is None:
            # The team was taken out of the configuration; its keys must not fall back to no floor.
            raise errors.ModelNotAllowed(
                f"team {principal.team!r} is not in the configuration any more"
            )
        return rules

    def _project(self, principal: Principal, wanted: str) -> str:
        """Check that a key may book on the project that its request names."""
        if wanted == principal.project:
            return wanted
        if principal.project:
            raise errors.InvalidRequest(
                f"this key belongs to project {principal.project!r} and cannot book on {wanted!r}",
                param="x-fareway-project",
            )
        if wanted not in self._rules(principal).projects:
            raise errors.InvalidRequest(
                f"team {principal.team!r} has no project {wanted!r}", param="x-fareway-project"
            )
        return wanted


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of admission.

    Attributes:
        decision: Candidates in order with reasons, or a refusal.
        candidates: Those of the decision, with deployments that asked for a pause behind all
            others: the order of the attempts.
        tags: Closed tags, sorted.
        tags_text: The same as a header's value.
        project: Project to book on, empty for none.
        allowed: Every deployment of the fleet that the tags may reach.
        sinks: Names of the sinks that something of the request may reach.
        egress: Where the request may be sent, whatever the decision says.
        reissue: The same, anew, at an instant in microseconds.
    """

    decision: Decision
    candidates: Sequence[Candidate]
    tags: tuple[str, ...]
    tags_text: bytes
    project: str
    allowed: frozenset[str]
    sinks: frozenset[str]
    egress: EgressPermit
    reissue: Callable[[int], EgressPermit]

    def permit_at(self, wall_us: int) -> EgressPermit:
        """Where the request may be sent at an instant: what it might be at first, and may still.

        Args:
            wall_us: Microseconds since the epoch.
        """
        return both(self.egress, self.reissue(wall_us))


def _still_permitted(candidates: Sequence[Candidate], egress: EgressPermit) -> Sequence[Candidate]:
    """The candidates that the configuration of now permits too, where this one was replaced.

    Raises:
        PrivacyDenied: None of them.
    """
    found = [one for one in candidates if one.deployment in egress.origins]
    if candidates and not found:
        raise errors.PrivacyDenied(
            "the configuration has changed, and no deployment of before may serve this any more;"
            " connect again"
        )
    return found


def refusal_error(refusal: Refusal) -> errors.GatewayError:
    """The error that a refusal becomes."""
    return _REFUSALS[refusal.code](
        refusal.message, param=refusal.param, retry_after_s=refusal.retry_after_s
    )


def _scope_models(principal: Principal, rules: TeamRules, fleet: Fleet) -> tuple[str, ...] | None:
    """The key's models within the team's; both lists hold names or patterns."""
    if principal.models is None:
        return rules.models
    own = tuple(sorted(principal.models))
    if rules.models is None:
        return own
    team = KeyScope(models=rules.models)
    return tuple(name for name in own if _is_within(name, team, fleet))


def _is_within(name: str, team: KeyScope, fleet: Fleet) -> bool:
    """Whether everything that a key's name or pattern grants is the team's to grant.

    A pattern matches another one only where it covers all that the other matches. A key that
    spells out an alias is granted what it stands for, so the team must be granted that too: its
    pattern covering the alias's own name is not enough (see `routing.resolve.is_authorised`).
    """
    target = fleet.aliases.get(name)
    if target is not None:
        return team.spells_out(name) or team.names(target)
    if team.names(name):
        return True
    return any(
        name in deployments and team.names(model) for model, deployments in fleet.models.items()
    )
