"""Why a request can go nowhere: a stable code, a sentence for a person, and what the answer needs.

`gateway.http` gives each code its error class; this package knows no HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.routing.needs import Inability, Obstacle, RequestNeeds, obstacles
from gateway.routing.snapshot import DeploymentView
from pricing.money import format_usd
from pricing.price_book import Unpriced
from pricing.quote import Quote

REASONS_MAX = 5
"""Deployments whose reasons a message spells out."""
_SHOWN_CHARS_MAX = 100


class RefusalCode(StrEnum):
    """What kind of refusal it is; the contract's error codes, and the request's own ceiling."""

    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    PRIVACY_DENIED = "privacy_denied"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MAX_USD_EXCEEDED = "max_usd_exceeded"
    PRIVATE_CAPACITY_UNAVAILABLE = "private_capacity_unavailable"
    NO_HEALTHY_DEPLOYMENT = "no_healthy_deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing can be tried.

    Attributes:
        code: Stable and machine-readable.
        message: What is wrong and the mend; no secret, no content.
        param: The request parameter at fault, None when none is.
        retry_after_s: Seconds until a deployment may be back, None when unknown or never.
        near: Similar model names, for an unknown one.
    """

    code: RefusalCode
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    near: tuple[str, ...] = ()


def refuse_unknown(name: str, near: tuple[str, ...]) -> Refusal:
    """No model, alias or deployment has this name."""
    hint = f"; near names: {', '.join(near)}" if near else ""
    return Refusal(
        code=RefusalCode.MODEL_NOT_FOUND,
        message=f"no model {_shown(name)}{hint}",
        param="model",
        near=near,
    )


def refuse_scope(name: str) -> Refusal:
    """The key may not use what the name stands for; says only what the caller asked for."""
    return Refusal(
        code=RefusalCode.MODEL_NOT_ALLOWED,
        message=f"this key may not use model {_shown(name)}",
        param="model",
    )


def refuse_privacy(name: str, reasons: Mapping[str, str]) -> Refusal:
    """No deployment could ever satisfy the request's tags.

    Args:
        name: The name in the request.
        reasons: Why not, by deployment.
    """
    return Refusal(
        code=RefusalCode.PRIVACY_DENIED,
        message=f"no deployment of {_shown(name)} satisfies this request's privacy tags: "
        f"{_listed(reasons)}",
    )


def refuse_ability(name: str, needs: RequestNeeds, views: Sequence[DeploymentView]) -> Refusal:
    """No deployment can do what the request needs.

    The length is to blame where a deployment would be able but for it, else a parameter.

    Args:
        name: The name in the request.
        needs: What the request needs.
        views: The deployments, at least one, each with an obstacle.
    """
    found = {view.name: obstacles(needs, view) for view in views}
    too_long = [view for view in views if _is_only_too_long(found[view.name])]
    if too_long:
        return _refuse_length(name, needs, too_long)
    faults = {
        deployment: [one for one in each if one.kind is Inability.PARAMETER]
        for deployment, each in found.items()
    }
    common = set[str].intersection(*({one.param for one in each} for each in faults.values()))
    first = next(iter(faults.values()))[0].param
    param = min(common, default=first)
    reasons = {
        deployment: next((one.reason for one in each if one.param == param), each[0].reason)
        for deployment, each in faults.items()
    }
    return Refusal(
        code=RefusalCode.UNSUPPORTED_PARAMETER,
        message=f"no deployment of {_shown(name)} can honour {param!r}: {_listed(reasons)}",
        param=param,
    )


def refuse_ceiling(name: str, max_pico_usd: int, quotes: Mapping[str, Quote | Unpriced]) -> Refusal:
    """No deployment is sure to stay within the request's ceiling.

    Args:
        name: The name in the request.
        max_pico_usd: The ceiling.
        quotes: By deployment.
    """
    bounds = [
        one.upper_bound_pico_usd
        for one in quotes.values()
        if isinstance(one, Quote) and one.upper_bound_pico_usd is not None
    ]
    if bounds:
        lowest = f"the cheapest may cost up to {format_usd(min(bounds))} USD; lower max_tokens"
    else:
        lowest = "none has a known upper bound; set max_tokens"
    return Refusal(
        code=RefusalCode.MAX_USD_EXCEEDED,
        message=f"no deployment of {_shown(name)} is sure to stay within "
        f"{format_usd(max_pico_usd)} USD: {lowest}",
        param="fareway_max_usd",
    )


def refuse_health(
    name: str, views: Sequence[DeploymentView], *, is_narrowed_by_privacy: bool
) -> Refusal:
    """Deployments may serve the request, and none can now.

    Args:
        name: The name in the request.
        views: They, at least one.
        is_narrowed_by_privacy: Whether tags excluded others, which stay excluded.
    """
    waits_s = [view.retry_after_s for view in views if view.retry_after_s is not None]
    reasons = {view.name: view.unavailable_reason or "not available now" for view in views}
    if is_narrowed_by_privacy:
        code = RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE
        message = f"deployments of {_shown(name)} that satisfy the privacy tags cannot serve now"
    else:
        code = RefusalCode.NO_HEALTHY_DEPLOYMENT
        message = f"no deployment of {_shown(name)} can serve now"
    return Refusal(
        code=code,
        message=f"{message}: {_listed(reasons)}",
        retry_after_s=min(waits_s, default=None),
    )


def _is_only_too_long(found: Sequence[Obstacle]) -> bool:
    return all(one.kind is Inability.LENGTH for one in found)


def _refuse_length(name: str, needs: RequestNeeds, views: Sequence[DeploymentView]) -> Refusal:
    windows_tokens = [view.capabilities.context_window_tokens or 0 for view in views]
    output = (
        ""
        if needs.max_output_tokens is None
        else f" and {needs.max_output_tokens} tokens of output"
    )
    return Refusal(
        code=RefusalCode.CONTEXT_LENGTH_EXCEEDED,
        message=f"the longest context window of {_shown(name)} is {max(windows_tokens)} tokens; "
        f"the prompt has about {needs.prompt_tokens_estimate} tokens{output}",
        param="messages",
    )


def _listed(reasons: Mapping[str, str]) -> str:
    shown = [f"{deployment}: {reason}" for deployment, reason in reasons.items()][:REASONS_MAX]
    rest = len(reasons) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _shown(name: str) -> str:
    """A client's name in quotes, cut and with control characters escaped."""
    return repr(name[:_SHOWN_CHARS_MAX])
