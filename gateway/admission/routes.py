"""What admission remembers: the plan per name, tags and rights, for as long as it holds.

A route belongs to one `Admission`, and so to one configuration and one proved policy: it never
outlives them. Within them it ends where a price or a claim begins or ends, and when the health
board notes a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from gateway.clock import to_microseconds
from gateway.privacy.policy import REACHED_MAX, Reach
from gateway.relay.request_head import header_text
from gateway.routing.plan import Demands, Plan

KNOWN_MAX = 8192
"""Combinations of name, team, key's models and tags that are remembered."""

PLANNED_MAX = 16_384
"""Deployments in all plans that are remembered: 3,000 models of five, about 5 MB."""

FIELDS_MAX, FIELDS_CHARS_MAX = 8, 128
"""Members that a remembered plan is made for, and their names' length together: clients can make
up as many as they like, of any length."""

_FIRST_US = to_microseconds(datetime.min.replace(tzinfo=UTC))
_END_US = to_microseconds(datetime.max.replace(tzinfo=UTC)) + 1

RouteKey = tuple[str, str, frozenset[str] | None, frozenset[str], str, frozenset[str]]
"""The name in the request, the team, the key's models, the tags that the key and the client added,
the project, and the tools that leave the machine."""

PlanKey = tuple[str, frozenset[str], bool, frozenset[str]]
"""The name in the request, its tags with those of its floor, whether the key may use it, and the
tools that leave the machine."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests with one name, the same tags and the same rights go.

    Attributes:
        plan: What is decided about them; None where each one has to be looked at by itself.
        since_us: First microsecond since the epoch at which all this holds.
        until_us: First one at which it does not hold any more.
        health_epoch: The health board's epoch for which it holds.
        tags: Closed tags, sorted.
        tags_text: The same as a header's value.
        allowed: Every deployment of the fleet that the tags may reach.
        reasons: Why each other deployment may not be reached.
        sinks: Names of the sinks that may be reached.
        variants: Plans for requests that ask for what only some deployments can give.
    """

    plan: Plan | None
    since_us: int
    until_us: int
    health_epoch: int
    tags: tuple[str, ...]
    tags_text: bytes
    allowed: frozenset[str]
    reasons: Mapping[str, str]
    sinks: frozenset[str]
    variants: dict[Demands, Plan] = msgspec.field(default_factory=dict[Demands, Plan])

    def holds_at(self, wall_us: int, *, health_epoch: int) -> bool:
        """Whether it holds at a microsecond since the epoch, in an epoch of the health board."""
        return self.health_epoch == health_epoch and self.since_us <= wall_us < self.until_us


def make_route(
    plan: Plan | None,
    reach: Reach,
    *,
    prices: tuple[datetime | None, datetime | None],
    health_epoch: int,
) -> Route:
    """A route that holds as long as both the reach and the prices do.

    Args:
        plan: What is decided.
        reach: Where the tags may go.
        prices: First instant at which the prices are in force, None for always; first one after
            it, None for open.
        health_epoch: The health board's epoch before it was looked at.
    """
    since, until = prices
    begins = [to_microseconds(one) for one in (since, reach.since) if one is not None]
    ends = [to_microseconds(one) for one in (until, reach.until) if one is not None]
    return Route(
        plan=plan,
        since_us=max(begins, default=_FIRST_US),
        until_us=min(ends, default=_END_US),
        health_epoch=health_epoch,
        tags=reach.sorted_tags,
        tags_text=header_text(",".join(reach.sorted_tags)),
        allowed=reach.allowed,
        reasons=reach.reasons,
        sinks=reach.sinks,
    )


@dataclass(slots=True, kw_only=True)
class Routes:
    """Routes by what requests say, and behind them by what that comes to.

    Attributes:
        known_max: Most requests that are remembered.
        planned_max: Most deployments in all plans that are remembered.
        reached_max: Most deployments in all the reaches that plans were made for.
        known: By the request; whoever looks one up sees to it that it still holds.
        planned_deployments: In all plans that are remembered, with one more for each plan.
        reached_deployments: In all the reaches that these were made for, each counted once.
    """

    known_max: int = KNOWN_MAX
    planned_max: int = PLANNED_MAX
    reached_max: int = REACHED_MAX
    known: dict[RouteKey, Route] = field(default_factory=dict[RouteKey, Route], init=False)
    _planned: dict[PlanKey, Route] = field(default_factory=dict[PlanKey, Route], init=False)
    planned_deployments: int = field(default=0, init=False)
    reached_deployments: int = field(default=0, init=False)
    _reaches: set[int] = field(default_factory=set[int], init=False)

    def planned(self, key: PlanKey, wall_us: int, *, health_epoch: int) -> Route | None:
        """The route that other teams' requests have made already, if it still holds."""
        found = self._planned.get(key)
        if found is None or not found.holds_at(wall_us, health_epoch=health_epoch):
            return None
        return found

    def keep(self, key: RouteKey, plan_key: PlanKey, route: Route) -> None:
        """Remember a route; where there are too many, all others are forgotten first."""
        if self._planned.get(plan_key) is not route:
            self._keep_plan(plan_key, route)
        if len(self.known) >= self.known_max:
            self.known.clear()
        self.known[key] = route

    def keep_variant(self, route: Route, demands: Demands, plan: Plan) -> None:
        """Remember a variant with its route, for as long as that."""
        size = _size(plan)
        if self.planned_deployments + size > self.planned_max:
            self._clear()
        route.variants[demands] = plan
        self.planned_deployments += size

    def _keep_plan(self, key: PlanKey, route: Route) -> None:
        size = _size(route.plan)
        # A reach is about the whole fleet, and shared by the plans that were made for it; its
        # reasons are its own, and stay where they are for as long as a plan is kept.
        reach, reached = id(route.reasons), len(route.allowed) + len(route.reasons)
        if key in self._planned:
            # It has ended, and most others with it: none of them is to stay for the sake of a key
            # that nobody uses any more.
            self._clear()
        elif self.planned_deployments + size > self.planned_max or (
            reach not in self._reaches and self.reached_deployments + reached > self.reached_max
        ):
            self._clear()
        self._planned[key] = route
        self.planned_deployments += size
        if reach not in self._reaches:
            self._reaches.add(reach)
            self.reached_deployments += reached

    def _clear(self) -> None:
        self.known.clear()
        self._planned.clear()
        self._reaches.clear()
        self.planned_deployments = self.reached_deployments = 0


def _size(plan: Plan | None) -> int:
    """Deployments, and one for what is kept beside them."""
    return 1 if plan is None else 1 + len(plan.outline.candidates) + len(plan.outline.excluded)
