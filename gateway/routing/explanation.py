"""A decision as plain values, for `fareway explain`, the dashboard and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gateway.routing.decision import Decision
from gateway.routing.ranking import Candidate
from pricing.money import format_usd
from pricing.price_book import PriceVersion, Unpriced


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCandidate:
    """A deployment that would be tried.

    Attributes:
        rank: 1 for the first to be tried.
        deployment: `provider/model-id`.
        reason: Why it stands here.
        expected_usd: Expected cost as an exact decimal string, None when unpriced.
        upper_bound_usd: Most that it can cost, None when nothing bounds it or it is unpriced.
        price_version: Identity of the price, None when unpriced.
        is_nominal: Whether the price is a stand-in.
        unpriced: Why the cost is unknown, None when it is known.
    """

    rank: int
    deployment: str
    reason: str
    expected_usd: str | None
    upper_bound_usd: str | None
    price_version: str | None
    is_nominal: bool
    unpriced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedExclusion:
    """A deployment that would not be tried, with the stage that excluded it and why."""

    deployment: str
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRefusal:
    """Why nothing would be tried: code, sentence, parameter and wait as the client gets them."""

    code: str
    message: str
    param: str | None
    retry_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision in words and numbers.

    Attributes:
        asked: The name in the request.
        model: The logical model, None when there is none.
        strategy: What decides among candidates.
        candidates: In the order of trying.
        excluded: In the order of stages.
        refusal: None when something would be tried.
    """

    asked: str
    model: str | None
    strategy: str
    candidates: tuple[ExplainedCandidate, ...]
    excluded: tuple[ExplainedExclusion, ...]
    refusal: ExplainedRefusal | None

    def to_json(self) -> dict[str, object]:
        """Plain mappings, tuples, strings and numbers; money is text."""
        return asdict(self)


def explain(decision: Decision) -> Explanation:
    """Put a decision into plain values."""
    refusal = decision.refusal
    return Explanation(
        asked=decision.asked,
        model=decision.model,
        strategy=decision.strategy.value,
        candidates=tuple(
            _candidate(place, one) for place, one in enumerate(decision.candidates, start=1)
        ),
        excluded=tuple(
            ExplainedExclusion(deployment=one.deployment, stage=one.stage.value, reason=one.reason)
            for one in decision.excluded
        ),
        refusal=None
        if refusal is None
        else ExplainedRefusal(
            code=refusal.code.value,
            message=refusal.message,
            param=refusal.param,
            retry_after_s=refusal.retry_after_s,
        ),
    )


def _candidate(place: int, candidate: Candidate) -> ExplainedCandidate:
    price, quoted = candidate.price, candidate.quote
    if isinstance(quoted, Unpriced):
        expected_usd, upper_bound_usd, unpriced = None, None, quoted.reason
    else:
        bound = quoted.upper_bound_pico_usd
        expected_usd = format_usd(quoted.expected_pico_usd)
        upper_bound_usd = None if bound is None else format_usd(bound)
        unpriced = None
    return ExplainedCandidate(
        rank=place,
        deployment=candidate.deployment,
        reason=candidate.reason,
        price_version=price.version_id if isinstance(price, PriceVersion) else None,
        is_nominal=isinstance(price, PriceVersion) and price.is_nominal,
        expected_usd=expected_usd,
        upper_bound_usd=upper_bound_usd,
        unpriced=unpriced,
    )
