"""A reconciliation run as people read it: coverage, classes that add up, each difference. Pure."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import urlencode

from gateway.dashboard.books.frame import ADJUSTMENTS_PATH, RECONCILIATION_PATH
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import Shown, shown, shown_together
from gateway.dashboard.finance.charts import Figure, Series
from gateway.finance.bill_messages import AccountCoverage, Difference, ReconciliationRun
from gateway.finance.shown import coverage_text, ratio_text

ROWS_SHOWN = 200
WHOLE_MONTH = "month"
"""Stands for the day of what is about no day of the month."""
CLASSES: Mapping[str, tuple[str, str]] = {
    "missing_event": ("Billed, not metered", "went past the gateway, or its count was lost"),
    "extra_event": ("Booked, not billed", "we booked usage that the bill does not have"),
    "price_drift": ("Another price", "the same quantity at another price than ours"),
    "tier": ("Another tier", "billed at another service tier than was booked"),
    "late": ("Not final yet", "days whose figures the vendor still changes; compare again"),
    "fx": ("Exchange rate", "the invoice's day against the day of charge"),
    "rounding": ("Rounding", "within the tolerances that are set"),
    "tax": ("Tax", "lines of tax on the bill"),
    "credit": ("Credits", "lines of credit on the bill"),
}
"""Every class of differences, with its name and what it means."""
_STATES: Mapping[str, str] = {
    "read": "read",
    "no source": "no bill",
    "unreadable": "UNREADABLE",
    "own machine": "own machine, nobody bills it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLine:
    """How much of what one vendor bills was metered.

    Attributes:
        account: Provider of the configuration.
        state: Whether its bill was read.
        is_fine: Whether it was, in full.
        coverage: Per cent of tokens, or that they are not counted.
        metered: Tokens, grouped digits.
        billed_units: Tokens, or a dash.
        booked: On the compared days, adjustments included.
        billed: For those days.
        difference: Billed less booked.
        outside: Booked on days without a bill, empty for nothing.
        reason: Why it could not be read.
    """

    account: str
    state: str
    is_fine: bool
    coverage: str
    metered: str
    billed_units: str
    booked: Shown
    billed: Shown
    difference: Shown
    outside: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLine:
    """One class of differences.

    Attributes:
        kind: As the command calls it.
        label: For people.
        meaning: In a few words.
        count: How many differences.
        amount: Their sum.
        href: Only these.
        is_chosen: Whether only these are shown.
    """

    kind: str
    label: str
    meaning: str
    count: int
    amount: Shown
    href: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceLine:
    """One difference.

    Attributes:
        number: Its place in the run, from 1.
        day: Of charge, or that it is of the month.
        place: Model and meter.
        label: Its class.
        amount: What it makes.
        sentence: Why, with both figures.
        href: Its rows on both sides.
        proposal: Number of the proposal that corrects it, None for none.
        proposal_href: That proposal.
    """

    number: int
    account: str
    day: str
    place: str
    label: str
    amount: Shown
    sentence: str
    href: str
    proposal: int | None
    proposal_href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """A day of a provider.

    Attributes:
        day: ISO date.
        amount: Billed less booked, None where bill and ledger agree.
        css: How far they are apart: `heat-1` to `heat-3` billed more, `cool-1` to `cool-3` less.
        href: The differences of the cell.
    """

    day: str
    amount: Shown | None
    css: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """A provider's days.

    Attributes:
        account: Provider of the configuration.
        cells: Each day of the month.
        whole: Differences that are of no day, None for none.
        total: Of both.
    """

    account: str
    cells: Sequence[HeatCell]
    whole: HeatCell
    total: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Everything of a run.

    Attributes:
        coverage: The headline.
        is_whole: Whether every vendor's bill was read and compared.
        billed: By vendors.
        booked: In the ledger, on the compared days.
        adjusted: Posted before.
        difference: Billed, less booked, less adjusted.
        accounts: By name.
        classes: All nine, whether there is any of them or not.
        figure: The classes as bars.
        heat: Drift by provider and day.
        heat_days: Days of the month, as headings.
        lines: Differences of the chosen class, at most `ROWS_SHOWN`.
        hidden: How many more there are.
        proposals: Those that the run made, with their addresses.
    """

    coverage: str
    is_whole: bool
    billed: Shown
    booked: Shown
    adjusted: Shown
    difference: Shown
    accounts: Sequence[AccountLine]
    classes: Sequence[ClassLine]
    figure: Figure
    heat: Sequence[HeatRow]
    heat_days: Sequence[str]
    lines: Sequence[DifferenceLine]
    hidden: int
    proposals: Sequence[tuple[int, str]]


def run_page(run: ReconciliationRun, *, kind: str, account: str, day: str = "") -> RunPage:
    """A run, with the differences of one class, account or day, or all of them.

    Args:
        run: With its differences.
        kind: A class; empty for all.
        account: A provider; empty for all.
        day: ISO date, or `WHOLE_MONTH` for what is of no day; empty for all.
    """
    difference = run.billed_pico_usd - run.ledger_pico_usd - run.adjusted_pico_usd
    numbered = [
        (number, one)
        for number, one in enumerate(run.differences, start=1)
        if kind in ("", one.kind)
        and account in ("", one.account)
        and day in ("", one.day or WHOLE_MONTH)
    ]
    return RunPage(
        coverage=coverage_text(run.accounts),
        is_whole=run.state == "read",
        billed=shown(run.billed_pico_usd),
        booked=shown(run.ledger_pico_usd),
        adjusted=shown(run.adjusted_pico_usd),
        difference=shown(difference),
        accounts=[_account_line(one) for one in run.accounts],
        classes=_class_lines(run, kind=kind, account=account),
        figure=_figure(run),
        heat=_heat(run),
        heat_days=days_of(run.month),
        lines=[_line(run.month, run.run_id, number, one) for number, one in numbered[:ROWS_SHOWN]],
        hidden=max(len(numbered) - ROWS_SHOWN, 0),
        proposals=[(number, f"{ADJUSTMENTS_PATH}/{number}") for number in run.proposal_ids],
    )


def run_address(run: ReconciliationRun, **query: str) -> str:
    """The page of a run."""
    wanted = {"month": run.month, "run": str(run.run_id), **query}
    return f"{RECONCILIATION_PATH}?{urlencode({k: v for k, v in wanted.items() if v})}"


def column(amounts_pico_usd: Sequence[int]) -> list[Shown]:
    """Amounts whose cents add up to the cents of their sum; nothing but nothing reads 0.00."""
    return [
        alone if alone.text.startswith(("<", ">")) and together.text == "0.00" else together
        for alone, together in zip(
            map(shown, amounts_pico_usd), shown_together(amounts_pico_usd), strict=True
        )
    ]


def units_text(units: int | None) -> str:
    """Grouped digits, a dash where nothing is counted."""
    return NOTHING if units is None else f"{units:,}"


def place_text(model: str, meter: str) -> str:
    """Model and meter as a bill names them."""
    return " · ".join(part for part in (model, meter.replace("_", " ")) if part) or "the whole bill"


def _account_line(one: AccountCoverage) -> AccountLine:
    booked = one.ledger_pico_usd + one.adjusted_pico_usd
    is_own = one.state == "own machine"
    has_outside = bool(one.outside_pico_usd) and not is_own
    counted = one.billed_units is not None
    return AccountLine(
        account=one.account,
        state=_STATES[one.state],
        is_fine=is_own or (one.state == "read" and not has_outside),
        coverage=ratio_text(one.metered_units, one.billed_units or 0) if counted else NOTHING,
        metered=f"{one.metered_units:,}" if counted else NOTHING,
        billed_units=units_text(one.billed_units),
        booked=shown(booked),
        billed=shown(one.billed_pico_usd),
        difference=shown(one.billed_pico_usd - booked),
        outside=shown(one.outside_pico_usd).text if has_outside else "",
        reason=one.reason,
    )


def _class_lines(run: ReconciliationRun, *, kind: str, account: str) -> list[ClassLine]:
    """All nine, rounded so that their cents add up to the cents of the difference."""
    sums = dict.fromkeys(CLASSES, 0)
    counts = dict.fromkeys(CLASSES, 0)
    for one in run.differences:
        sums[one.kind] += one.amount_pico_usd
        counts[one.kind] += 1
    amounts = column([sums[name] for name in CLASSES])
    return [
        ClassLine(
            kind=name,
            label=label,
            meaning=meaning,
            count=counts[name],
            amount=amount,
            href=run_address(run, kind="" if name == kind else name, account=account),
            is_chosen=name == kind,
        )
        for (name, (label, meaning)), amount in zip(CLASSES.items(), amounts, strict=True)
    ]


def _figure(run: ReconciliationRun) -> Figure:
    sums = dict.fromkeys(CLASSES, 0)
    for one in run.differences:
        sums[one.kind] += one.amount_pico_usd
    labels = [label for label, _ in CLASSES.values()]
    series = Series(name="billed less booked", amounts_pico_usd=list(sums.values()))
    return charts.bars(labels, [series], is_stacked=False)


def days_of(month: str) -> list[str]:
    """Every day of a month."""
    first = date.fromisoformat(f"{month}-01")
    return [
        (first + timedelta(days=place)).isoformat()
        for place in range(calendar.monthrange(first.year, first.month)[1])
    ]


def _heat(run: ReconciliationRun) -> list[HeatRow]:
    """Drift by provider and day; colours are shades of the largest of the run."""
    drift: dict[tuple[str, str], int] = {}
    for one in run.differences:
        place = one.account, one.day or WHOLE_MONTH
        drift[place] = drift.get(place, 0) + one.amount_pico_usd
    largest = max(map(abs, drift.values()), default=0)
    accounts = sorted({one.account for one in run.accounts} | {account for account, _ in drift})

    def cell(account: str, day: str) -> HeatCell:
        amount = drift.get((account, day))
        is_there = amount is not None
        return HeatCell(
            day=day,
            amount=shown(amount) if is_there else None,
            css=_shade(amount or 0, largest),
            href=f"{run_address(run, account=account, day=day)}#differences" if is_there else "",
        )

    return [
        HeatRow(
            account=account,
            cells=[cell(account, day) for day in days_of(run.month)],
            whole=cell(account, WHOLE_MONTH),
            total=shown(sum(one for (of, _), one in drift.items() if of == account)),
        )
        for account in accounts
    ]


def _shade(amount_pico_usd: int, largest_pico_usd: int) -> str:
    """One of six shades, none for nothing: thirds of the largest amount, by its sign."""
    if not amount_pico_usd:
        return ""
    level = max(1, -(-3 * abs(amount_pico_usd) // largest_pico_usd))
    return f"heat-{level}" if amount_pico_usd > 0 else f"cool-{level}"


def _line(month: str, run_id: int, number: int, one: Difference) -> DifferenceLine:
    has_proposal = one.proposal_id is not None
    return DifferenceLine(
        number=number,
        account=one.account,
        day=one.day or month,
        place=place_text(one.model, one.meter),
        label=CLASSES[one.kind][0],
        amount=shown(one.amount_pico_usd),
        sentence=one.sentence,
        href=f"{RECONCILIATION_PATH}/{run_id}/{number}",
        proposal=one.proposal_id,
        proposal_href=f"{ADJUSTMENTS_PATH}/{one.proposal_id}" if has_proposal else "",
    )
