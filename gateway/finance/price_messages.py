"""What is asked and answered about prices that bills imply; no database behind it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Month

PriceReason = Annotated[str, Meta(min_length=1, max_length=500)]


class PriceState(StrEnum):
    """What became of a proposal."""

    OPEN = "open"
    ACCEPTED = "accepted"
    """The configuration is to have this price; nothing that was booked changes."""
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    """A newer run of the month looked again."""


class PriceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a proposal rests on.

    Attributes:
        days: Days of charge, in their order.
        metered_units: Units that we priced on them.
        billed_units: Units that the bill counts on them.
        billed_pico_usd: Billed for them, without what the currency makes.
        at_ours_pico_usd: The same units at our price, rounded once, half-even.
        imports: Numbers of the imports.
        lines: Numbers of the bills' lines, the first of many.
        line_count: How many there are.
    """

    days: tuple[str, ...]
    metered_units: int
    billed_units: int
    billed_pico_usd: int
    at_ours_pico_usd: int
    imports: tuple[int, ...]
    lines: tuple[int, ...]
    line_count: int


class PriceProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A price that a bill implies and that is not ours.

    Attributes:
        proposal_id: Its number.
        at_us: When it was made, microseconds since the epoch.
        run_id: The reconciliation run that found it.
        month: The month that was compared.
        account: Provider of the configuration.
        model: Model at the provider.
        meter: What is priced.
        price_key: What the configuration calls that price.
        our_price: What we charged, in the unit of `price_key`, at most 12 digits; the mean by units
            where several prices were charged.
        is_mixed: Whether they were.
        billed_price: What the bill implies, likewise.
        our_rate: The same exactly: picodollars per unit as a fraction, `5000001/2`.
        billed_rate: Likewise.
        evidence: What it rests on.
        state: Whether it waits.
        decided_at_us: When it was decided, None while it waits.
        decided_by: Who, empty while it waits.
        reason: Why.
    """

    proposal_id: int
    at_us: int
    run_id: int
    month: str
    account: str
    model: str
    meter: str
    price_key: str
    our_price: str
    is_mixed: bool
    billed_price: str
    our_rate: str
    billed_rate: str
    evidence: PriceEvidence
    state: PriceState
    decided_at_us: int | None = None
    decided_by: str = ""
    reason: str = ""

    @property
    def deployment(self) -> str:
        """What can be called at that price, `provider/model`."""
        return f"{self.account}/{self.model}"

    @property
    def setting(self) -> str:
        """The line for the configuration, as YAML."""
        since = f"{self.evidence.days[0]}T00:00:00Z"
        return f"price: {{{self.price_key}: {self.billed_price}, valid_from: {since}}}"


class ListPriceProposals(msgspec.Struct, frozen=True, kw_only=True, tag="list_price_proposals"):
    """Proposals of prices, newest first; of one state and of one month where they are given."""

    state: PriceState | None = None
    month: Month | None = None


class DecidePrice(msgspec.Struct, frozen=True, kw_only=True, tag="decide_price"):
    """Accept or reject a proposed price; either is kept with person and reason.

    Attributes:
        actor: Who decides.
        proposal_id: Which.
        is_accepted: False rejects it.
        reason: Why.
    """

    actor: str
    proposal_id: int
    is_accepted: bool
    reason: PriceReason


def how_to_set(proposal: PriceProposal) -> str:
    """What has to be put into the configuration, in one sentence; the price book is not ours."""
    return (
        f"put into the configuration, with the other rates of {proposal.deployment} (its entry"
        f" under models, else providers.{proposal.account}): {proposal.setting}; what was booked"
        " stays as it is, adjustments correct it"
    )
