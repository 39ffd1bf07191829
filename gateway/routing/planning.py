"""Making plans: what of a name's decisions stays the same from request to request.

The outline of a plan is a decision of `decide` itself, about a request with the same fields that
fits everywhere; so whatever `decide` looks at beside counts, a plan has looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from gateway.routing.decision import Decision, Stage, decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.plan import NO_DEMANDS, Demands, Place, Plan
from gateway.routing.ranking import Candidate
from gateway.routing.resolve import find
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.price_book import Basis, Unpriced


def make_plan(
    snapshot: FleetSnapshot,
    *,
    model: str,
    allowed: frozenset[str],
    scope: KeyScope,
    now: datetime,
    privacy_reasons: Mapping[str, str] | None = None,
    demands: Demands = NO_DEMANDS,
) -> Plan | None:
    """Work out everything about a name's decisions that a request does not change.

    The plan holds as long as the snapshot and what is allowed do, and the prices in force are.

    Args:
        snapshot: The fleet.
        model: The name in the request.
        allowed: Deployments that the privacy policy allows for the request's tags.
        scope: What the key may ask for.
        now: Aware instant, for prices.
        privacy_reasons: Why a deployment is not allowed, by deployment.
        demands: What requests ask for that only some deployments can give.

    Returns:
        None where nothing can be planned: an unknown name, or a candidate whose price is not a
        plain one per token.
    """
    found = find(snapshot, model)
    if found is None:
        return None
    views = {name: snapshot.deployments[name] for name in found.deployments}
    # All that `decide` says of a request that fits everywhere holds for each that does.
    endless = {
        name: replace(view, capabilities=replace(view.capabilities, context_window_tokens=None))
        for name, view in views.items()
    }
    outline = decide(
        FleetSnapshot(
            deployments=endless, models=snapshot.models, aliases=snapshot.aliases, is_checked=True
        ),
        model=model,
        allowed=allowed,
        scope=scope,
        needs=RequestNeeds(
            prompt_tokens_estimate=0, fields=demands.fields, has_media=demands.has_media
        ),
        now=now,
        privacy_reasons=privacy_reasons,
    )
    places = _places(outline, views)
    if places is None:
        return None
    steady = _steady_order(places)
    # Abilities are looked at once scope and privacy are settled, and before health is.
    settled = {one.deployment for one in outline.excluded if one.stage in _BEFORE_ABILITY}
    asked = [view.capabilities for name, view in views.items() if name not in settled]
    windows = [one.context_window_tokens for one in asked if one.context_window_tokens is not None]
    closed = [one.supported for one in asked if not one.is_open]
    return Plan(
        outline=outline,
        places=tuple(places if steady is None else steady),
        unpriced=tuple(one for one in outline.candidates if _is_never_priced(one)),
        is_steady=steady is not None,
        window_tokens=min(windows, default=None),
        unsupported=frozenset[str]().union(*(one.unsupported for one in asked)),
        supported=frozenset[str].intersection(*closed) if closed else None,
        is_multimodal=all(one.multimodal for one in asked),
    )


def _places(outline: Decision, views: Mapping[str, DeploymentView]) -> list[Place] | None:
    """The candidates that have a price, in the operator's order; None where one cannot be planned.

    That is a price which has to be rounded, one per busy time, or one whose lack is a matter of the
    instant.
    """
    candidates = {one.deployment: one for one in outline.candidates}
    places: list[Place] = []
    for name, view in views.items():
        candidate = candidates.get(name)
        if candidate is None or _is_never_priced(candidate):
            continue
        price = candidate.price
        if isinstance(price, Unpriced) or price.linear is None:
            return None
        window_tokens = view.capabilities.context_window_tokens
        places.append(
            Place(deployment=name, price=price, linear=price.linear, window_tokens=window_tokens)
        )
    return places


def _is_never_priced(candidate: Candidate) -> bool:
    """Whether no request can be quoted, whatever its counts: no price, or no measured speed."""
    if isinstance(candidate.price, Unpriced):
        return not candidate.price.is_momentary
    return candidate.price.basis is Basis.GPU_TIME and isinstance(candidate.quote, Unpriced)


def _steady_order(places: Sequence[Place]) -> list[Place] | None:
    """The order by cost, where it is the same for all counts above zero; equal ones keep theirs.

    That is so where none is dearer in one part and cheaper in another.
    """
    rates = [(one.linear.input, one.linear.output, one.linear.fee) for one in places]
    order = sorted(range(len(rates)), key=rates.__getitem__)
    for first, second in pairwise(order):
        if any(mine > yours for mine, yours in zip(rates[first], rates[second], strict=True)):
            return None
    return [places[index] for index in order]


_BEFORE_ABILITY = frozenset({Stage.SCOPE, Stage.PRIVACY})
