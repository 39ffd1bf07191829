"""What is asked and answered about closing a month."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Month

Reason = Annotated[str, Meta(min_length=1, max_length=500)]
Accepted = dict[str, Reason]
"""Reasons by items of the checklist."""


class CloseStep(StrEnum):
    """How far a month is closed."""

    SOFT = "soft"
    """Figures may go out as preliminary; late events still land in the month."""
    HARD = "hard"
    """For good."""


class CloseItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the checklist.

    Attributes:
        name: What `accept` calls it.
        state: `ok`, `open` or `accepted`.
        is_acceptable: Whether it may be accepted with a reason; else it has to be mended.
        sentence: What was looked at and found, or why it was accepted.
    """

    name: str
    state: str
    is_acceptable: bool
    sentence: str


class CloseProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A hard close that somebody else has to confirm, or that was decided.

    Attributes:
        proposal_id: Its number.
        month: The month.
        at_us: When it was proposed, microseconds since the epoch.
        proposed_by: Who.
        digest: Of the month as it was then, hexadecimal.
        accepted: Reasons by items of the checklist that were open and may be.
        events: Entries of the month, late ones not counted.
        cost_pico_usd: Booked in the month.
        adjusted_pico_usd: Adjustments that count in it.
        state: `open`, `confirmed`, `withdrawn`, `replaced` by another one, or `void` because the
            month changed.
        is_current: Whether the month still has the digest that was proposed.
        decided_at_us: When, None while it is open.
        decided_by: Who confirmed, withdrew or replaced it, or found it void.
        reason: Why it was withdrawn.
    """

    proposal_id: int
    month: str
    at_us: int
    proposed_by: str
    digest: str
    accepted: dict[str, str]
    events: int
    cost_pico_usd: int
    adjusted_pico_usd: int
    state: str
    is_current: bool = True
    decided_at_us: int | None = None
    decided_by: str = ""
    reason: str = ""


class CloseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a month stands.

    Attributes:
        month: The month.
        state: `open`, `soft` or `closed`.
        items: The checklist for the next step; that of the close once it is closed.
        events: Entries of the month, late ones not counted.
        cost_pico_usd: Booked in the month.
        adjusted_pico_usd: Adjustments that count in it.
        late_pico_usd: Counted in it although it happened in closed months.
        soft_at_us: When it was soft closed, None when it was not.
        soft_by: Who.
        closed_at_us: When it was closed, None while it is not.
        closed_by: Who.
        digest: Of the closed month, hexadecimal; empty while it is not closed.
        anchor: Head of the audit chain with the close in it, hexadecimal; keep it outside.
        proposal: The close that waits for a second person, or that a second person confirmed.
    """

    month: str
    state: str
    items: tuple[CloseItem, ...]
    events: int
    cost_pico_usd: int
    adjusted_pico_usd: int
    late_pico_usd: int
    soft_at_us: int | None = None
    soft_by: str = ""
    closed_at_us: int | None = None
    closed_by: str = ""
    digest: str = ""
    anchor: str = ""
    proposal: CloseProposal | None = None


class CloseDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Days after the end of a month from which it may be closed."""

    soft_days: int = 2
    hard_days: int = 5


class CloseStatus(msgspec.Struct, frozen=True, kw_only=True, tag="close_status"):
    """Ask where a month stands and what its next step lacks."""

    month: Month
    step: CloseStep = CloseStep.HARD
    delays: CloseDelays = CloseDelays()


class CloseMonth(msgspec.Struct, frozen=True, kw_only=True, tag="close_month"):
    """Close a month.

    Attributes:
        actor: Who closes it.
        month: The month.
        step: How far.
        accepted: Reasons by items of the checklist that are open and may be.
        delays: From when on it may be closed.
        needs_two: Whether a hard close only confirms what somebody else proposed.
        digest: What is confirmed, hexadecimal as it was proposed; empty for nothing.
    """

    actor: str
    month: Month
    step: CloseStep
    accepted: Accepted = {}
    delays: CloseDelays = CloseDelays()
    needs_two: bool = False
    digest: Annotated[str, Meta(max_length=64)] = ""


class ProposeClose(msgspec.Struct, frozen=True, kw_only=True, tag="propose_close"):
    """Propose the hard close of a month, for somebody else to confirm.

    Attributes:
        actor: Who proposes.
        month: The month.
        accepted: Reasons by items of the checklist that are open and may be.
        delays: From when on it may be closed.
    """

    actor: str
    month: Month
    accepted: Accepted = {}
    delays: CloseDelays = CloseDelays()


class WithdrawClose(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw_close"):
    """Take back or turn down a close that waits for a second person.

    Attributes:
        actor: Who.
        month: The month.
        reason: Why.
    """

    actor: str
    month: Month
    reason: Reason


class VerifyCloses(msgspec.Struct, frozen=True, kw_only=True, tag="verify_closes"):
    """Recompute the digest of every closed month."""


class VerifiedClose(msgspec.Struct, frozen=True, kw_only=True):
    """A closed month and what its rows say now.

    Attributes:
        month: The month.
        closed_digest: As it was closed, hexadecimal.
        digest: Recomputed, hexadecimal.
        is_same: Whether both are equal.
    """

    month: str
    closed_digest: str
    digest: str
    is_same: bool


class ListCloses(msgspec.Struct, frozen=True, kw_only=True, tag="list_closes"):
    """Months that are soft or closed, newest first; what is not among them is open."""


class ListedClose(msgspec.Struct, frozen=True, kw_only=True):
    """How far a month is closed.

    Attributes:
        month: The month.
        state: `soft` or `closed`.
        at_us: When it was closed so far, microseconds since the epoch.
    """

    month: str
    state: str
    at_us: int
