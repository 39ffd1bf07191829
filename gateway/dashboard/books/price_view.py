"""Prices that bills imply, as people read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.dashboard.books.frame import instant, spoken
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.finance.price_messages import PriceProposal, PriceState, how_to_set


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    """A price that a bill implies.

    Attributes:
        number: Of the proposal.
        deployment: What can be called at that price.
        key: What the configuration calls it.
        ours: Our price; that it is a mean, where several were charged.
        billed: That of the bill.
        days: First and last day of charge, and how many had usage.
        units: Billed, grouped digits.
        amount: Billed, less the same at our price.
        rests_on: Lines and imports.
        state: A word.
        is_open: Whether it waits.
        decided: When, by whom and why; empty while it waits.
        how_to_set: What to put into the configuration, of an accepted one.
    """

    number: int
    deployment: str
    key: str
    ours: str
    billed: str
    days: str
    units: str
    amount: Shown
    rests_on: str
    state: str
    is_open: bool
    decided: str
    how_to_set: str


def price_line(one: PriceProposal, names: Mapping[str, str]) -> PriceLine:
    """A proposal as text.

    Args:
        one: The proposal.
        names: Names of people by actor.
    """
    evidence = one.evidence
    imports = ", ".join(str(number) for number in evidence.imports)
    by = f"{instant(one.decided_at_us)}, by {spoken(one.decided_by, names)}"
    said = f": {one.reason}" if one.reason else ""
    return PriceLine(
        number=one.proposal_id,
        deployment=one.deployment,
        key=one.price_key,
        ours=f"{one.our_price}{' (mean)' if one.is_mixed else ''}",
        billed=one.billed_price,
        days=f"{evidence.days[0]} to {evidence.days[-1]}, {len(evidence.days)} with usage",
        units=f"{evidence.billed_units:,}",
        amount=shown(evidence.billed_pico_usd - evidence.at_ours_pico_usd),
        rests_on=f"{evidence.line_count} lines of import {imports}",
        state=one.state.value,
        is_open=one.state is PriceState.OPEN,
        decided=by + said if one.decided_by else "",
        how_to_set=how_to_set(one) if one.state is PriceState.ACCEPTED else "",
    )
