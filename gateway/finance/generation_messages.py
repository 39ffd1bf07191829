"""What is asked and answered about single generations of a bill; no database behind it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gateway.finance.messages import Month


class GenerationState(StrEnum):
    """How a generation of a bill and an attempt of ours stand to each other."""

    SAME = "same"
    """Billed at what we booked."""
    OTHER_COST = "other_cost"
    """Billed at another amount than we booked."""
    MISSING = "missing"
    """Billed, and no attempt of ours has its id."""
    EXTRA = "extra"
    """An attempt that cost something, and no bill of its day has its id."""
    UNKNOWN_BILL = "unknown_bill"
    """Billed, and what our attempt would cost was not known."""


class ListGenerations(msgspec.Struct, frozen=True, kw_only=True, tag="list_generations"):
    """Generations of a month that stand on bills or that our attempts kept, matched by id.

    Attributes:
        month: Which month; a generation is of the day of our attempt, else of the bill's.
        account: Provider of the configuration, None for all.
        state: Only those, None for all that are not the same on both sides.
    """

    month: Month
    account: str | None = None
    state: GenerationState | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of a bill, an attempt of ours, or both.

    Attributes:
        state: How they stand to each other.
        generation: The vendor's id, empty where our attempt kept none.
        event_id: Of our attempt, hexadecimal; empty for a missing one.
        account: Provider of the configuration.
        day: Day of charge.
        model: Model at the provider.
        metered_units: Tokens that we counted, None for a missing one.
        billed_units: Tokens on the bill, None for an extra one.
        booked_pico_usd: What we booked, None for a missing one.
        told_pico_usd: What the vendor told with the answer, None where it told nothing.
        billed_pico_usd: What the bill says, None for an extra one.
    """

    state: GenerationState
    generation: str
    event_id: str
    account: str
    day: str
    model: str
    metered_units: int | None
    billed_units: int | None
    booked_pico_usd: int | None
    told_pico_usd: int | None
    billed_pico_usd: int | None
