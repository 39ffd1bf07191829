"""The plan of a model's decisions: everything that does not depend on the single request.

While configuration, prices, tags and faults stand still, requests for a model differ only in what
they ask for and in how many tokens they use. A plan holds the rest ready: who is excluded and why,
what all the others can do, what a token costs there, and where it follows from the prices alone, in
which order they are tried. It decides exactly as `decide` does or not at all: where a request asks
for what only some can give, or a price is not a plain one per token, `decide` has the word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import overload

import msgspec

from gateway.routing.decision import Decision, decide
from gateway.routing.needs import EXPECTED_OUTPUT_TOKENS, RequestNeeds
from gateway.routing.ranking import Candidate, Strategy, label
from gateway.routing.resolve import find
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.money import PicoUsd
from pricing.price_book import Basis, Linear, PriceVersion, Unpriced
from pricing.quote import Quote
from providers.contract import Capabilities

_STRATEGY = Strategy.CHEAPEST

_Counts = tuple[int, int, int, int | None, int]
"""Expected prompt tokens, most prompt tokens, expected output tokens of all choices, most output
tokens of one choice, choices."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that can be tried, at whole picodollars per token.

    Attributes:
        deployment: `provider/model-id`.
        price: What an attempt is charged with.
        linear: The same as integers.
        window_tokens: Its context window, which bounds the output where the client does not; None
            when unknown.
    """

    deployment: str
    price: PriceVersion
    linear: Linear
    window_tokens: int | None


class Ranked(Sequence[Candidate]):
    """A request's candidates in order, each made when somebody looks at it.

    Nearly always that is the first one only; a model may list dozens.
    """

    __slots__ = ("_counts", "_made", "_places")

    def __init__(self, places: Sequence[Place | Candidate], counts: _Counts) -> None:
        """Keep what candidates are made of.

        Args:
            places: In order; a deployment without a price is a candidate as it stands.
            counts: Of the request.
        """
        self._places = places
        self._counts = counts
        self._made: dict[int, Candidate] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...

    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(index, slice):
            return tuple(self)[index]
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._make(index)
        return made

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Ranked) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _make(self, index: int) -> Candidate:
        place = self._places[index]
        if index < 0:  # one candidate is one object, however it is counted
            return self[index + len(self._places)]
        if isinstance(place, Candidate):
            return place
        prompt, largest_prompt, expected_output, limit, choices = self._counts
        linear = place.linear
        if limit is None and place.window_tokens is not None:
            limit = place.window_tokens - prompt
        bound: PicoUsd | None = None
        if limit is not None:
            bound = PicoUsd(
                largest_prompt * linear.dearest_prompt
                + limit * choices * linear.dearest_output
                + linear.fee
            )
        expected = prompt * linear.input + expected_output * linear.output + linear.fee
        return Candidate(
            deployment=place.deployment,
            price=place.price,
            quote=Quote(PicoUsd(expected), bound),
            exposure_pico_usd=bound,
            reason=label(index, _STRATEGY),
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided for every request for a name with the same tags and the same rights.

    Attributes:
        outline: The decision about a request that asks for nothing in particular.
        places: Priced candidates, in the order in which they are tried where `is_steady`, else in
            the operator's.
        unpriced: Candidates without a price, behind all others.
        is_steady: Whether the order is the same for all counts above zero.
        window_tokens: The smallest context window, None where none is known.
        unsupported: Fields that some deployment cannot honour.
        supported: The only fields that every deployment honours; None when all are open.
        is_multimodal: Whether all understand parts other than text.
    """

    outline: Decision
    places: tuple[Place, ...]
    unpriced: tuple[Candidate, ...]
    is_steady: bool
    window_tokens: int | None
    unsupported: frozenset[str]
    supported: frozenset[str] | None
    is_multimodal: bool

    def decide(
        self,
        *,
        prompt_tokens: int,
        max_prompt_tokens: int,
        max_output_tokens: int | None,
        fields: frozenset[str],
        has_media: bool,
        n: int,
    ) -> Decision | None:
        """What `decide` decides for such needs, without a ceiling and with nothing cached.

        Args:
            prompt_tokens: As `RequestNeeds.prompt_tokens_estimate`.
            max_prompt_tokens: As there.
            max_output_tokens: As there.
            fields: As there.
            has_media: As there.
            n: As there.

        Returns:
            None where only `decide` can tell.
        """
        expected_tokens = EXPECTED_OUTPUT_TOKENS
        if max_output_tokens is None:
            room_tokens = expected_tokens
        else:
            room_tokens = max_output_tokens
            expected_tokens = min(expected_tokens, max_output_tokens)
        if (
            (self.window_tokens is not None and prompt_tokens + room_tokens > self.window_tokens)
            or not self.unsupported.isdisjoint(fields)
            or (self.supported is not None and not fields <= self.supported)
            or (has_media and not self.is_multimodal)
        ):
            return None
        outline = self.outline
        if outline.refusal is not None:
            return outline
        expected_tokens *= n
        places = self.places
        if not self.is_steady:
            places = self._by_cost(prompt_tokens, expected_tokens)
        elif not prompt_tokens or not expected_tokens:
            return None  # rates that are not asked for leave ties, in the operator's order
        return Decision(
            asked=outline.asked,
            model=outline.model,
            strategy=_STRATEGY,
            candidates=Ranked(
                (*places, *self.unpriced) if self.unpriced else places,
                (
                    prompt_tokens,
                    max(prompt_tokens, max_prompt_tokens),
                    expected_tokens,
                    max_output_tokens,
                    n,
                ),
            ),
            excluded=outline.excluded,
            reachable=outline.reachable,
            is_narrowed_by_privacy=outline.is_narrowed_by_privacy,
        )

    def _by_cost(self, prompt_tokens: int, output_tokens: int) -> tuple[Place, ...]:
        """The priced places by expected cost."""
        costs = [
            prompt_tokens * one.linear.input + output_tokens * one.linear.output + one.linear.fee
            for one in self.places
        ]
        # Sorting is stable, so equal ones keep the operator's order.
        order = sorted(range(len(costs)), key=costs.__getitem__)
        return tuple([self.places[index] for index in order])


def make_plan(
    snapshot: FleetSnapshot,
    *,
    model: str,
    allowed: frozenset[str],
    scope: KeyScope,
    now: datetime,
    privacy_reasons: Mapping[str, str] | None = None,
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

    Returns:
        None where nothing can be planned: an unknown name, or a candidate whose price is not a
        plain one per token.
    """
    found = find(snapshot, model)
    if found is None:
        return None
    views = {name: snapshot.deployments[name] for name in found.deployments}
    # All that `decide` says of a request that everybody is able to serve holds for each such one.
    able = {name: replace(view, capabilities=_ABLE) for name, view in views.items()}
    outline = decide(
        FleetSnapshot(
            deployments=able, models=snapshot.models, aliases=snapshot.aliases, is_checked=True
        ),
        model=model,
        allowed=allowed,
        scope=scope,
        needs=_NO_NEEDS,
        now=now,
        privacy_reasons=privacy_reasons,
    )
    candidates = {one.deployment: one for one in outline.candidates}
    places: list[Place] = []
    unpriced: list[Candidate] = []
    for view in views.values():
        candidate = candidates.get(view.name)
        if candidate is None:
            continue
        if _is_never_priced(candidate):
            unpriced.append(candidate)
            continue
        place = _place(view, candidate.price)
        if place is None:
            return None
        places.append(place)
    steady = _steady_order(places)
    asked = [views[name].capabilities for name in outline.reachable]
    windows = [one.context_window_tokens for one in asked if one.context_window_tokens is not None]
    closed = [one.supported for one in asked if not one.is_open]
    return Plan(
        outline=outline,
        places=tuple(places if steady is None else steady),
        unpriced=tuple(unpriced),
        is_steady=steady is not None,
        window_tokens=min(windows, default=None),
        unsupported=frozenset[str]().union(*(one.unsupported for one in asked)),
        supported=frozenset[str].intersection(*closed) if closed else None,
        is_multimodal=all(one.multimodal for one in asked),
    )


def _is_never_priced(candidate: Candidate) -> bool:
    """Whether no request can be quoted, whatever its counts: no price, or no measured speed."""
    if isinstance(candidate.price, Unpriced):
        return not candidate.price.is_momentary
    return candidate.price.basis is Basis.GPU_TIME and isinstance(candidate.quote, Unpriced)


def _place(view: DeploymentView, price: PriceVersion | Unpriced) -> Place | None:
    """None for a price that has to be rounded, or is one per busy time."""
    if isinstance(price, Unpriced) or price.linear is None:
        return None
    return Place(
        deployment=view.name,
        price=price,
        linear=price.linear,
        window_tokens=view.capabilities.context_window_tokens,
    )


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


_ABLE = Capabilities()
_NO_NEEDS = RequestNeeds(prompt_tokens_estimate=0)
