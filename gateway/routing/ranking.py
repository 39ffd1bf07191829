"""The order in which candidates are tried: exact integers first, the operator's order last."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import msgspec

from gateway.routing.snapshot import DeploymentView
from pricing.money import PicoUsd
from pricing.price_book import PriceVersion, Unpriced
from pricing.quote import Quote


class Strategy(StrEnum):
    """What decides among candidates."""

    CHEAPEST = "cheapest"
    """Lowest expected cost."""
    FASTEST = "fastest"
    """Least expected time until the whole answer is there, where latency was observed."""
    BALANCED = "balanced"
    """Lowest product of expected cost and expected time, where both are known."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that may serve the request, with what it would take.

    Attributes:
        view: The deployment.
        price: What an attempt is charged with, or why that is unknown.
        quote: Its price for this request, or why there is none.
        expected_output_tokens: Output over which its speed is compared.
    """

    view: DeploymentView
    price: PriceVersion | Unpriced
    quote: Quote | Unpriced
    expected_output_tokens: int

    @property
    def cost_pico_usd(self) -> int | None:
        """Expected cost, None when unpriced."""
        return None if isinstance(self.quote, Unpriced) else self.quote.expected_pico_usd

    @property
    def time_us(self) -> int | None:
        """Expected time of the answer, None when no latency was observed."""
        latency = self.view.latency
        return None if latency is None else latency.total_us(self.expected_output_tokens)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment in its place in the decision.

    Attributes:
        deployment: `provider/model-id`.
        price: What an attempt is charged with, or why that is unknown; known also where only the
            quote is not (a price per busy time without measured speed).
        quote: Its price for this request, or why there is none.
        exposure_pico_usd: The most that an attempt can cost, None when nothing bounds it.
        reason: Why it stands here, one phrase.
    """

    deployment: str
    price: PriceVersion | Unpriced
    quote: Quote | Unpriced
    exposure_pico_usd: PicoUsd | None
    reason: str


def rank(offers: Sequence[Offer], strategy: Strategy) -> tuple[Candidate, ...]:
    """Order offers; equal ones keep the order given.

    An offer that lacks what the strategy compares stands behind all that have it, by price; an
    unpriced one stands behind all priced ones of its group. Nothing is guessed.

    Args:
        offers: In the operator's order.
        strategy: What decides.
    """
    # Sorting is stable, so the operator's order needs no key of its own.
    chosen = sorted(offers, key=_price_key)
    measured = len(chosen)
    if strategy is Strategy.CHEAPEST:  # by price is by score; the unpriced are last already
        measured -= sum([isinstance(offer.quote, Unpriced) for offer in chosen])
    else:
        scored = [(offer, _score(offer, strategy)) for offer in chosen]
        compared = [(offer, score) for offer, score in scored if score is not None]
        compared.sort(key=lambda pair: pair[1])
        measured = len(compared)
        others = [offer for offer, score in scored if score is None]
        chosen = [*(offer for offer, _ in compared), *others]
    return tuple(
        [
            Candidate(
                deployment=offer.view.name,
                price=offer.price,
                quote=offer.quote,
                exposure_pico_usd=None
                if isinstance(offer.quote, Unpriced)
                else offer.quote.upper_bound_pico_usd,
                reason=_reason(place, offer, strategy, is_measured=place < measured),
            )
            for place, offer in enumerate(chosen)
        ]
    )


def _price_key(offer: Offer) -> tuple[bool, int]:
    quote = offer.quote
    return (True, 0) if isinstance(quote, Unpriced) else (False, quote.expected_pico_usd)


def _score(offer: Offer, strategy: Strategy) -> int | None:
    """What a strategy compares beside the price, lower first; None when it is not known."""
    time_us = offer.time_us
    if strategy is Strategy.FASTEST or time_us is None:
        return time_us
    cost_pico_usd = offer.cost_pico_usd
    return None if cost_pico_usd is None else cost_pico_usd * time_us


def _reason(place: int, offer: Offer, strategy: Strategy, *, is_measured: bool) -> str:
    if is_measured:
        return label(place, strategy)
    if isinstance(offer.quote, Unpriced):
        return f"unpriced ({offer.quote.reason}), ranks last"
    return f"no latency observed, not comparable as {strategy}, ranked by price"


@lru_cache(maxsize=1024)  # the same few for every request
def label(place: int, strategy: Strategy) -> str:
    """Why a deployment stands at a place, counted from 0, where the strategy could compare it."""
    return strategy.value if place == 0 else f"number {place + 1} {strategy.value}"
