"""The checklist of a month as people read it: what is open, and where it is mended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from gateway.clock import from_microseconds
from gateway.dashboard.books.frame import (
    ADJUSTMENTS_PATH,
    CLOSE_PATH,
    IMPORTS_PATH,
    RECONCILIATION_PATH,
    UNATTRIBUTED_PATH,
    Filled,
    instant,
    spoken,
)
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import PATH
from gateway.finance.close_messages import CloseItem, CloseReport

SOFT_ITEMS = frozenset({"month_over", "delay", "spools_loaded", "ledger_verified", "quarantine"})
"""Items that a soft close asks for."""
_FIELD = "accept-"
_OPEN = "open"
_LABELS: Mapping[str, str] = {
    "month_over": "The month is over",
    "delay": "Vendors' figures are final",
    "spools_loaded": "Everything is loaded",
    "ledger_verified": "The ledger verifies",
    "quarantine": "Nothing lies in quarantine",
    "earlier_months": "Earlier months are closed",
    "unpriced": "Every attempt has a price",
    "reconciliation": "Bills and ledger are compared",
    "exposures": "No bill is unknown",
    "proposals": "Every proposal is decided",
    "machines": "Our own machines are booked",
}
_STATES: Mapping[str, str] = {"ok": "done", "open": "open", "accepted": "accepted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where an item is mended.

    Attributes:
        text: What is done there.
        href: The page.
    """

    text: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """One line of the checklist.

    Attributes:
        name: As the command and the form call it.
        label: For people.
        state: `done`, `open` or `accepted`.
        is_open: Whether it stops the close.
        takes_reason: Whether it may be accepted with one.
        sentence: What was looked at and found.
        ways: Where it is mended, none once it is done.
        reason: What was typed so far.
        fault: What is wrong with the reason.
    """

    name: str
    label: str
    state: str
    is_open: bool
    takes_reason: bool
    sentence: str
    ways: Sequence[Way]
    reason: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The amounts of a month.

    Attributes:
        booked: What the ledger holds.
        adjusted: Posted adjustments that count in it.
        late: Counted in it although it happened in closed months.
        total: All three.
        events: Entries, grouped digits.
    """

    booked: Shown
    adjusted: Shown
    late: Shown
    total: Shown
    events: str


def figures_of(report: CloseReport) -> Figures:
    """The amounts of a month as text."""
    total = report.cost_pico_usd + report.adjusted_pico_usd + report.late_pico_usd
    return Figures(
        booked=shown(report.cost_pico_usd),
        adjusted=shown(report.adjusted_pico_usd),
        late=shown(report.late_pico_usd),
        total=shown(total),
        events=f"{report.events:,}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedClose:
    """A close that waits for a second person, or that a second person confirmed.

    Attributes:
        at: When it was proposed.
        by: Who proposed it.
        digest: What was proposed.
        accepted: Labels of what was accepted, with reasons.
        total: What was booked and adjusted then.
        events: Entries, grouped digits.
        is_current: Whether the month still has the digest.
        is_own: Whether whoever looks proposed it and so cannot confirm it.
    """

    at: str
    by: str
    digest: str
    accepted: Sequence[tuple[str, str]]
    total: Shown
    events: str
    is_current: bool
    is_own: bool


def proposed_close(
    report: CloseReport, names: Mapping[str, str], *, actor: str
) -> ProposedClose | None:
    """What is shown of a proposed close; None where there is none.

    Args:
        report: Where the month stands.
        names: Names of people by actor.
        actor: Who looks.
    """
    found = report.proposal
    if found is None:
        return None
    return ProposedClose(
        at=instant(found.at_us),
        by=spoken(found.proposed_by, names),
        digest=found.digest,
        accepted=[(_label(name), reason) for name, reason in sorted(found.accepted.items())],
        total=shown(found.cost_pico_usd + found.adjusted_pico_usd),
        events=f"{found.events:,}",
        is_current=found.is_current,
        is_own=found.proposed_by == actor,
    )


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def item_lines(report: CloseReport, filled: Filled, *, month_before: str) -> list[ItemLine]:
    """The checklist with what somebody typed.

    Args:
        report: Where the month stands.
        filled: The form as it was sent, empty at first.
        month_before: Name of the month before.
    """
    return [
        ItemLine(
            name=item.name,
            label=_label(item.name),
            state=_STATES[item.state],
            is_open=item.state == _OPEN,
            takes_reason=item.state == _OPEN and item.is_acceptable,
            sentence=item.sentence,
            ways=_ways(item.name, report.month, month_before) if item.state == _OPEN else (),
            reason=filled.value(field_of(item.name)),
            fault=filled.fault(field_of(item.name)),
        )
        for item in report.items
    ]


def typed_reasons(values: Mapping[str, str]) -> dict[str, str]:
    """The reasons of a form by item, whatever is open."""
    typed = {
        name.removeprefix(_FIELD): reason.strip()
        for name, reason in values.items()
        if name.startswith(_FIELD)
    }
    return {name: reason for name, reason in typed.items() if reason}


def field_of(item: str) -> str:
    """The field of the form that holds the reason for an item."""
    return f"{_FIELD}{item}"


def lacking(items: Sequence[CloseItem], reasons: Mapping[str, str]) -> dict[str, str]:
    """What stops a close, one sentence by field of the form; nothing when it may go on."""
    return {
        field_of(item.name): "give a reason, or mend it"
        if item.is_acceptable
        else "this has to be mended first"
        for item in items
        if item.state == _OPEN and not (item.is_acceptable and reasons.get(item.name))
    }


def reasons_of(items: Sequence[CloseItem], values: Mapping[str, str]) -> dict[str, str]:
    """The reasons that were typed for items that are open and take one."""
    typed = typed_reasons(values)
    return {
        item.name: typed[item.name]
        for item in items
        if item.state == _OPEN and item.is_acceptable and item.name in typed
    }


def soft_from(month: Month, *, days: int) -> str:
    """The first day on which a month may be closed softly without a reason."""
    end = from_microseconds(month.window.end_us)
    return (end + timedelta(days=days)).date().isoformat()


def _ways(item: str, month: str, month_before: str) -> Sequence[Way]:
    def at(path: str, name: str = month, place: str = "") -> str:
        return f"{path}?{urlencode({'month': name})}{place}"

    ways: Mapping[str, Sequence[Way]] = {
        "earlier_months": (Way(text="Go to the month before", href=at(CLOSE_PATH, month_before)),),
        "unpriced": (Way(text="See them", href=at(UNATTRIBUTED_PATH, place="#estimated")),),
        "reconciliation": (
            Way(text="Import bills", href=at(IMPORTS_PATH)),
            Way(text="Compare the month", href=at(RECONCILIATION_PATH)),
        ),
        "exposures": (Way(text="See them", href=at(UNATTRIBUTED_PATH, place="#estimated")),),
        "proposals": (Way(text="Decide them", href=at(ADJUSTMENTS_PATH)),),
        "machines": (Way(text="See what they cost", href=at(f"{PATH}/machines")),),
    }
    return ways.get(item, ())
