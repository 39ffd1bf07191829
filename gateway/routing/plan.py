"""The plan of a model's decisions: everything that does not depend on the single request.

While configuration, prices, tags and faults stand still, requests for a model differ only in what
they ask for and in how many tokens they use. A plan holds the rest ready: who is excluded and why,
what all the others can do, what a token costs there, and where it follows from the prices alone, in
which order they are tried. It decides exactly as `decide` does or not at all: where a request may
not fit everywhere or asks for what the plan does not know of, `decide` has the word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec

from gateway.routing.decision import Decision
from gateway.routing.needs import EXPECTED_OUTPUT_TOKENS
from gateway.routing.ranking import Candidate, Strategy, label
from pricing.money import PicoUsd
from pricing.price_book import Linear, PriceVersion
from pricing.quote import Quote

_STRATEGY = Strategy.CHEAPEST

_Counts = tuple[int, int, int, int | None, int]
"""Expected prompt tokens, most prompt tokens, expected output tokens of all choices, most output
tokens of one choice, choices."""


class Demands(msgspec.Struct, frozen=True):
    """What a request asks for that some deployment cannot give.

    Attributes:
        fields: Top-level members of the body.
        has_media: Whether that is message parts other than text.
    """

    fields: frozenset[str] = frozenset()
    has_media: bool = False


NO_DEMANDS = Demands()


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

    def bound_pico_usd(self, counts: _Counts) -> PicoUsd | None:
        """The most that a request with these counts can cost, None when nothing bounds it."""
        prompt, largest_prompt, _, limit, choices = counts
        if limit is None:
            if self.window_tokens is None:
                return None
            limit = self.window_tokens - prompt
        linear = self.linear
        return PicoUsd(
            largest_prompt * linear.dearest_prompt
            + limit * choices * linear.dearest_output
            + linear.fee
        )


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
        prompt_tokens, _, output_tokens, _, _ = counts = self._counts
        linear = place.linear
        expected = prompt_tokens * linear.input + output_tokens * linear.output + linear.fee
        bound = place.bound_pico_usd(counts)
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
        outline: The decision about a request that fits everywhere.
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
        max_pico_usd: int | None = None,
    ) -> Decision | None:
        """What `decide` decides for such needs with nothing cached.

        Args:
            prompt_tokens: As `RequestNeeds.prompt_tokens_estimate`.
            max_prompt_tokens: As there.
            max_output_tokens: As there.
            fields: As there.
            has_media: As there.
            n: As there.
            max_pico_usd: As in `decide`.

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
            return outline if max_pico_usd is None else None
        expected_tokens *= n
        places = self.places
        if not self.is_steady:
            places = self._by_cost(prompt_tokens, expected_tokens)
        elif not prompt_tokens or not expected_tokens:
            return None  # rates that are not asked for leave ties, in the operator's order
        largest_tokens = max(prompt_tokens, max_prompt_tokens)
        counts = (prompt_tokens, largest_tokens, expected_tokens, max_output_tokens, n)
        if max_pico_usd is not None and not self._stays_within(max_pico_usd, counts):
            return None
        return Decision(
            asked=outline.asked,
            model=outline.model,
            strategy=_STRATEGY,
            candidates=Ranked((*places, *self.unpriced) if self.unpriced else places, counts),
            excluded=outline.excluded,
            reachable=outline.reachable,
            is_narrowed_by_privacy=outline.is_narrowed_by_privacy,
        )

    def demands(self, fields: frozenset[str], *, has_media: bool) -> Demands:
        """What of a request's fields and parts some deployment cannot give.

        Args:
            fields: Top-level members of the body.
            has_media: Whether a message part is something other than text.
        """
        beyond = fields & self.unsupported
        if self.supported is not None:
            beyond |= fields - self.supported
        return Demands(beyond, has_media and not self.is_multimodal)

    def _stays_within(self, max_pico_usd: int, counts: _Counts) -> bool:
        """Whether a ceiling excludes nobody, of those who are down either."""
        if len(self.places) != len(self.outline.reachable):
            return False
        bounds = [place.bound_pico_usd(counts) for place in self.places]
        return all(bound is not None and bound <= max_pico_usd for bound in bounds)

    def _by_cost(self, prompt_tokens: int, output_tokens: int) -> tuple[Place, ...]:
        """The priced places by expected cost."""
        costs = [
            prompt_tokens * one.linear.input + output_tokens * one.linear.output + one.linear.fee
            for one in self.places
        ]
        # Sorting is stable, so equal ones keep the operator's order.
        order = sorted(range(len(costs)), key=costs.__getitem__)
        return tuple([self.places[index] for index in order])
