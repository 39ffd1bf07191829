"""Generations of a bill matched with our attempts by the vendor's own id. Pure.

OpenRouter bills each generation under an id that an attempt of ours has kept. What is missing or
too much is then known one by one, and cannot cancel out in the sums of a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.finance.cells import Billed, Sent
from gateway.finance.generation_messages import GenerationState

_OURS_LOOK_LIKE = "gen-"
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A generation.

    Attributes:
        state: What was found.
        line: On the bill, None for an extra attempt.
        sent: Our attempt, None for a missing one.
    """

    state: GenerationState
    line: Billed | None
    sent: Sent | None


def match(billed: Sequence[Billed], sent: Sequence[Sent]) -> list[Match]:
    """Every line with its attempt, then attempts without a line.

    A generation that stands on the bill twice is missing the second time.
    """
    left = {one.generation: one for one in sent if one.generation}
    found: list[Match] = []
    for line in billed:
        one = left.pop(line.generation, None)
        if one is None:
            state = GenerationState.MISSING
        elif one.is_unknown:
            state = GenerationState.UNKNOWN_BILL
        elif one.cost_pico_usd == line.amount_pico_usd:
            state = GenerationState.SAME
        else:
            state = GenerationState.OTHER_COST
        found.append(Match(state=state, line=line, sent=one))
    taken = {one.sent.event_id for one in found if one.sent is not None}
    found += [
        Match(state=GenerationState.EXTRA, line=None, sent=one)
        for one in sent
        if one.event_id not in taken and one.cost_pico_usd
    ]
    return found


def can_be_matched(billed: Sequence[Billed], sent: Sequence[Sent]) -> bool:
    """Whether ids say something: every line has one, and our attempts keep ids of that kind."""
    if not billed or not all(line.generation for line in billed):
        return False
    ids = {line.generation for line in billed}
    return all(
        one.generation in ids or one.generation.startswith(_OURS_LOOK_LIKE)
        for one in sent
        if one.cost_pico_usd
    )


def parts_of(found: Sequence[Match], *, booked: int, adjusted: int) -> tuple[int, int, int]:
    """What is missing, what is extra (at most 0) and what costs otherwise; together the difference.

    Args:
        found: Every match of a cell.
        booked: What the ledger holds in the cell, attempts without an id included.
        adjusted: What was adjusted before; it settles what is missing, then what is extra, then
            the rest.

    Returns:
        Picodollars that sum to billed, less booked, less adjusted.
    """
    unknown = (GenerationState.MISSING, GenerationState.UNKNOWN_BILL)
    missing = sum(
        one.line.amount_pico_usd for one in found if one.line is not None and one.state in unknown
    )
    pairs = [
        (one.line.amount_pico_usd, one.sent.cost_pico_usd)
        for one in found
        if one.line is not None and one.sent is not None and one.state not in unknown
    ]
    extra = sum(ours for _, ours in pairs) - booked
    price = sum(theirs - ours for theirs, ours in pairs)
    for_missing = _settled(missing, adjusted)
    for_extra = _settled(extra, adjusted - for_missing)
    rest = adjusted - for_missing - for_extra
    return missing - for_missing, extra - for_extra, price - rest


def _settled(amount: int, by: int) -> int:
    """How much of an amount an adjustment of the same sign settles."""
    if amount > 0 and by > 0:
        return min(amount, by)
    return max(amount, by) if amount < 0 and by < 0 else 0


def told(found: Sequence[Match]) -> Mapping[GenerationState, str]:
    """What is said of each state, with the first ids."""
    return {
        state: _ids([one for one in found if one.state is state])
        for state in GenerationState
        if any(one.state is state for one in found)
    }


def told_otherwise(found: Sequence[Match]) -> int:
    """Generations that are billed at another amount than the vendor told with the answer."""
    return sum(
        one.line is not None
        and one.sent is not None
        and one.sent.provider_cost_pico_usd not in (None, one.line.amount_pico_usd)
        for one in found
    )


def _ids(some: Sequence[Match]) -> str:
    names = [one.line.generation if one.line else _name(one.sent) for one in some]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{len(names)} ({', '.join(names[:_NAMED_MAX])}{more})"


def _name(sent: Sent | None) -> str:
    assert sent is not None, "a match has one side at least"
    return sent.generation or f"attempt {sent.event_id}"
