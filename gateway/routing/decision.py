"""The decision: from a name, a frozen allowed set and a snapshot to an ordered list with reasons.

Pure: the same arguments always give the same decision; requests, `explain` and replay share it.
Every deployment of the model ends up as a candidate or as an exclusion with stage and reason.
Stages run in a fixed order: what the key may use, what privacy allows, what is able, what stays
within the request's ceiling, what is up. Only the last looks at health, so health can empty the
list but never widen it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

import msgspec

from gateway.routing.needs import RequestNeeds, obstacles
from gateway.routing.ranking import Candidate, Offer, Strategy, rank
from gateway.routing.refusal import (
    Refusal,
    refuse_ability,
    refuse_ceiling,
    refuse_health,
    refuse_privacy,
    refuse_scope,
    refuse_unknown,
)
from gateway.routing.resolve import Resolved, UnknownModel, is_authorised, resolve
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.money import format_usd
from pricing.price_book import PriceVersion, Unpriced
from pricing.quote import quote


class Stage(StrEnum):
    """Where a deployment was excluded."""

    SCOPE = "scope"
    PRIVACY = "privacy"
    ABILITY = "ability"
    PRICE = "price"
    HEALTH = "health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A deployment that will not be tried.

    Attributes:
        deployment: `provider/model-id`.
        stage: What excluded it.
        reason: Why, one phrase.
    """

    deployment: str
    stage: Stage
    reason: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to try, in order, and why; or why nothing.

    Attributes:
        asked: The name in the request.
        model: The logical model, None when a deployment was asked for or the name is unknown.
        strategy: What decided among candidates.
        candidates: To be tried in this order; empty exactly when there is a refusal.
        excluded: Every other deployment of the model, in the order of stages.
        reachable: Deployments that configuration lets this request reach, whatever their health:
            no retry, fallback or hedge may leave this set.
        refusal: Why nothing can be tried, None when something can.
        is_narrowed_by_privacy: Whether tags kept deployments of the model out of it.
    """

    asked: str
    model: str | None
    strategy: Strategy
    candidates: Sequence[Candidate] = ()
    excluded: tuple[Exclusion, ...] = ()
    reachable: frozenset[str] = frozenset()
    refusal: Refusal | None = None
    is_narrowed_by_privacy: bool = False


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a stage may look at."""

    resolved: Resolved
    is_authorised: bool
    allowed: frozenset[str]
    needs: RequestNeeds
    now: datetime
    max_pico_usd: int | None
    privacy_reasons: Mapping[str, str]
    offers: dict[str, Offer]
    """What each deployment would take; only what came as far as the price has one."""


def decide(
    snapshot: FleetSnapshot,
    *,
    model: str,
    allowed: frozenset[str],
    scope: KeyScope,
    needs: RequestNeeds,
    now: datetime,
    strategy: Strategy = Strategy.CHEAPEST,
    max_pico_usd: int | None = None,
    privacy_reasons: Mapping[str, str] | None = None,
) -> Decision:
    """Decide where a request may go and in which order.

    Args:
        snapshot: The fleet.
        model: The name in the request.
        allowed: Deployments that the privacy policy allows for the request's tags.
        scope: What the key may ask for.
        needs: What the request needs.
        now: Aware instant; a price that has lapsed by then counts as unknown.
        strategy: What decides among candidates.
        max_pico_usd: Ceiling of the upper bound of the cost, None for none. A deployment without a
            known bound is not within any ceiling.
        privacy_reasons: Why a deployment is not allowed, by deployment, for the explanation.
    """
    resolved = resolve(snapshot, model, scope=scope)
    if isinstance(resolved, UnknownModel):
        refusal = refuse_unknown(resolved.name, resolved.near)
        return Decision(asked=model, model=None, strategy=strategy, refusal=refusal)
    views = [snapshot.deployments[name] for name in resolved.deployments]
    question = _Question(
        resolved=resolved,
        is_authorised=is_authorised(snapshot, resolved, scope),
        allowed=allowed,
        needs=needs,
        now=now,
        max_pico_usd=max_pico_usd,
        privacy_reasons=privacy_reasons or {},
        offers={},
    )
    return _sift(question, views, strategy)


def _sift(question: _Question, views: Sequence[DeploymentView], strategy: Strategy) -> Decision:
    """Run the stages until nothing is left or all are done."""
    excluded: list[Exclusion] = []
    refusal: Refusal | None = None
    reachable: frozenset[str] = frozenset()
    left = views
    for stage, find_faults in _STAGES:
        if stage is Stage.HEALTH:
            reachable = frozenset([view.name for view in left])
        faults = find_faults(question, left)
        if not faults:
            continue
        excluded += [
            Exclusion(deployment=name, stage=stage, reason=fault) for name, fault in faults.items()
        ]
        kept = [view for view in left if view.name not in faults]
        if not kept:
            refusal = _refuse(stage, question, left, excluded)
            break
        left = kept
    offers = () if refusal is not None else [_offer(question, view) for view in left]
    return Decision(
        asked=question.resolved.name,
        model=question.resolved.model,
        strategy=strategy,
        candidates=rank(offers, strategy),
        excluded=tuple(excluded),
        reachable=reachable,
        refusal=refusal,
        is_narrowed_by_privacy=_is_narrowed_by_privacy(excluded),
    )


def _price(view: DeploymentView, now: datetime) -> PriceVersion | Unpriced:
    if isinstance(view.price, Unpriced) or view.price.is_in_force(now):
        return view.price
    return Unpriced(reason="its price is not in force any more")


def _offer(question: _Question, view: DeploymentView) -> Offer:
    known = question.offers.get(view.name)
    if known is not None:
        return known
    workload = question.needs.workload(view)
    price = _price(view, question.now)
    made = Offer(
        view=view,
        price=price,
        quote=price if isinstance(price, Unpriced) else quote(workload, price, speed=view.speed),
        expected_output_tokens=workload.expected_output_tokens,
    )
    question.offers[view.name] = made
    return made


def _scope_faults(question: _Question, views: Sequence[DeploymentView]) -> Mapping[str, str]:
    if question.is_authorised:
        return _NO_FAULTS
    name = question.resolved.name
    return {view.name: f"the key may not use {name} and through it {view.name}" for view in views}


def _privacy_faults(question: _Question, views: Sequence[DeploymentView]) -> Mapping[str, str]:
    unknown = "does not satisfy the request's privacy tags"
    allowed = question.allowed
    return {
        view.name: question.privacy_reasons.get(view.name, unknown)
        for view in views
        if view.name not in allowed
    }


def _ability_faults(question: _Question, views: Sequence[DeploymentView]) -> Mapping[str, str]:
    faults: dict[str, str] = {}
    for view in views:
        found = obstacles(question.needs, view)
        if found:
            faults[view.name] = "; ".join(one.reason for one in found)
    return faults


def _ceiling_faults(question: _Question, views: Sequence[DeploymentView]) -> Mapping[str, str]:
    limit = question.max_pico_usd
    if limit is None:
        return _NO_FAULTS
    faults: dict[str, str] = {}
    for view in views:
        priced = _offer(question, view).quote
        if isinstance(priced, Unpriced):
            fault = f"unpriced ({priced.reason}), so not within the request's ceiling"
        elif priced.upper_bound_pico_usd is None:
            fault = "no upper bound of its cost without max_tokens"
        elif priced.upper_bound_pico_usd > limit:
            fault = f"may cost up to {format_usd(priced.upper_bound_pico_usd)} USD"
        else:
            continue
        faults[view.name] = fault
    return faults


def _health_faults(_question: _Question, views: Sequence[DeploymentView]) -> Mapping[str, str]:
    return {
        view.name: view.unavailable_reason or "not available now"
        for view in views
        if not view.is_available
    }


def _is_narrowed_by_privacy(excluded: Sequence[Exclusion]) -> bool:
    return any(one.stage is Stage.PRIVACY for one in excluded)


def _refuse(
    stage: Stage,
    question: _Question,
    left: Sequence[DeploymentView],
    excluded: Sequence[Exclusion],
) -> Refusal:
    """The refusal of the stage that excluded all that was left."""
    name = question.resolved.name
    match stage:
        case Stage.SCOPE:
            return refuse_scope(name)
        case Stage.PRIVACY:
            return refuse_privacy(name, {one.deployment: one.reason for one in excluded})
        case Stage.ABILITY:
            return refuse_ability(name, question.needs, left)
        case Stage.PRICE:
            assert question.max_pico_usd is not None
            quotes = {view.name: _offer(question, view).quote for view in left}
            return refuse_ceiling(name, question.max_pico_usd, quotes)
        case Stage.HEALTH:
            is_narrowed = _is_narrowed_by_privacy(excluded)
            return refuse_health(name, left, is_narrowed_by_privacy=is_narrowed)
        case _:
            assert_never(stage)


_NO_FAULTS: Mapping[str, str] = MappingProxyType({})

_FindFaults = Callable[[_Question, Sequence[DeploymentView]], Mapping[str, str]]

_STAGES: tuple[tuple[Stage, _FindFaults], ...] = (
    (Stage.SCOPE, _scope_faults),
    (Stage.PRIVACY, _privacy_faults),
    (Stage.ABILITY, _ability_faults),
    (Stage.PRICE, _ceiling_faults),
    (Stage.HEALTH, _health_faults),
)
