"""Comparing what a vendor bills with what the ledger holds: quantity, then price, then the rest.

Pure. Of every cell the difference is taken apart into parts that sum to it exactly; each part has
a class and a sentence with both figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from fractions import Fraction

import msgspec

from gateway.finance.bill_messages import Difference, Tolerances
from gateway.finance.cells import (
    Adjusted,
    Billed,
    Cell,
    CellKey,
    Exposed,
    Metered,
    Sent,
    Used,
    billed_units,
    cells_of_day,
    metered_units,
    namer,
)
from gateway.finance.generation_messages import GenerationState
from gateway.finance.generations import (
    Match,
    can_be_matched,
    match,
    parts_of,
    told,
    told_otherwise,
)
from gateway.finance.sources.rows import STANDARD, TOKEN_METERS
from pricing.money import format_usd

USAGE = "usage"


class DifferenceKind(StrEnum):
    """Why a bill and the ledger differ."""

    MISSING_EVENT = "missing_event"
    """The vendor bills usage that we have not metered: it went past us, or its count was lost."""
    EXTRA_EVENT = "extra_event"
    """We booked usage that the vendor does not bill."""
    PRICE_DRIFT = "price_drift"
    TIER = "tier"
    """The vendor charged at another service tier than we booked."""
    LATE = "late"
    """The day is too recent for final figures."""
    FX = "fx"
    ROUNDING = "rounding"
    TAX = "tax"
    CREDIT = "credit"


_OF_QUANTITY = (DifferenceKind.MISSING_EVENT, DifferenceKind.EXTRA_EVENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Everything that is compared, of one month.

    Attributes:
        metered: The ledger's rows.
        exposed: Attempts whose bill is unknown and that no adjustment has settled.
        adjusted: Posted adjustments.
        billed: Lines of bills.
        used: Counts of reports without money.
        sent: Attempts by the vendor's id, of accounts whose bills name single generations.
        billed_days: Per account the days that its bills cover.
        used_days: Per account the days that its reports of usage cover.
    """

    metered: Sequence[Metered] = ()
    exposed: Sequence[Exposed] = ()
    adjusted: Sequence[Adjusted] = ()
    billed: Sequence[Billed] = ()
    used: Sequence[Used] = ()
    sent: Sequence[Sent] = ()
    billed_days: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    used_days: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A difference and what it is shared by.

    Attributes:
        difference: The part with its class.
        metered: The ledger's rows of its cell; empty for lines that are no usage.
        exposed: Attempts of its account, day and model whose bill is unknown.
        line_id: The line of the bill, where a single one is behind it.
    """

    difference: Difference
    metered: tuple[Metered, ...] = ()
    exposed: tuple[Exposed, ...] = ()
    line_id: int | None = None


@dataclass(slots=True)
class Day:
    """One account and day, sorted out of the sides."""

    metered: list[Metered] = field(default_factory=list[Metered])
    exposed: list[Exposed] = field(default_factory=list[Exposed])
    adjusted: list[Adjusted] = field(default_factory=list[Adjusted])
    billed: list[Billed] = field(default_factory=list[Billed])
    used: list[Used] = field(default_factory=list[Used])
    sent: list[Sent] = field(default_factory=list[Sent])


def compare(
    sides: Sides, tolerances: Tolerances, aliases: Mapping[str, str], *, as_of: date
) -> list[Found]:
    """Every difference on the days that bills cover, by account, day, model and meter.

    Their amounts sum to what is billed, less what is booked, less what is adjusted, on those days;
    adjustments of an account without a day count as well.

    Args:
        sides: What is compared.
        tolerances: What counts as the same.
        aliases: Names of models on bills, `account/name` to the ledger's.
        as_of: Today; the days just before it are not final.
    """
    days = by_day(sides)
    final = (as_of - timedelta(days=tolerances.delay_days)).isoformat()
    models: defaultdict[str, set[str]] = defaultdict(set)
    for row in (*sides.metered, *sides.exposed):
        models[row.account].add(row.model)
    found: list[Found] = []
    for (account, day), one in sorted(days.items()):
        name = namer(account, models[account], aliases)
        usage = [line for line in one.billed if line.kind == USAGE]
        trued = [row for row in one.adjusted if row.kind == USAGE]
        cells = cells_of_day(one.metered, trued, usage, one.used, name)
        parts: list[Found] = []
        for key, cell in sorted(cells.items()):
            judge = _Judge(
                account,
                day,
                key,
                cell,
                tolerances,
                is_used_known=day in sides.used_days.get(account, frozenset()),
                exposed=[row for row in one.exposed if key[0] in ("", row.model)],
                sent=[row for row in one.sent if key[0] in ("", row.model)],
            )
            parts += judge.parts()
        parts += _no_usage(account, day, one)
        found += [_as_late(part) if day and day >= final else part for part in parts]
    return found


def by_day(sides: Sides) -> dict[tuple[str, str], Day]:
    """What is compared, by account and day; what no bill covers is left out."""
    days: defaultdict[tuple[str, str], Day] = defaultdict(Day)

    def covers(row: Metered | Exposed | Adjusted | Billed | Used | Sent) -> bool:
        return row.day in sides.billed_days.get(row.account, frozenset())

    for row in filter(covers, sides.metered):
        days[row.account, row.day].metered.append(row)
    for attempt in filter(covers, sides.exposed):
        days[attempt.account, attempt.day].exposed.append(attempt)
    for posted in sides.adjusted:
        if covers(posted) or (not posted.day and posted.account in sides.billed_days):
            days[posted.account, posted.day].adjusted.append(posted)
    for line in filter(covers, sides.billed):
        days[line.account, line.day].billed.append(line)
    for count in filter(covers, sides.used):
        days[count.account, count.day].used.append(count)
    for attempted in filter(covers, sides.sent):
        days[attempted.account, attempted.day].sent.append(attempted)
    return dict(days)


def _no_usage(account: str, day: str, one: Day) -> Iterator[Found]:
    """Tax, credits and roundings of a day, less what was adjusted for them."""
    for kind in (DifferenceKind.TAX, DifferenceKind.CREDIT, DifferenceKind.ROUNDING):
        lines = [line for line in one.billed if line.kind == kind.value]
        posted = sum(row.amount_pico_usd for row in one.adjusted if row.kind == kind.value)
        billed = sum(line.amount_pico_usd for line in lines)
        if billed == posted:
            continue
        words = "; ".join(dict.fromkeys(line.description for line in lines if line.description))
        sentence = (
            f"{account} bills {format_usd(billed)} USD of {kind.value} on {day or 'the month'}"
            f"{f' ({words[:200]})' if words else ''}; {format_usd(posted)} USD are adjusted so far"
        )
        yield Found(
            difference=Difference(
                account=account,
                day=day,
                model="",
                meter="",
                tier="",
                kind=kind.value,
                metered_units=None,
                billed_units=None,
                ledger_pico_usd=posted,
                billed_pico_usd=billed,
                amount_pico_usd=billed - posted,
                sentence=sentence,
            ),
            line_id=lines[0].line_id if len(lines) == 1 else None,
        )


def _as_late(part: Found) -> Found:
    sentence = f"not final yet: {part.difference.sentence}"
    late = msgspec.structs.replace(
        part.difference, kind=DifferenceKind.LATE.value, sentence=sentence
    )
    return Found(difference=late)


class _Judge:
    """Takes the difference of one cell apart."""

    def __init__(
        self,
        account: str,
        day: str,
        key: CellKey,
        cell: Cell,
        tolerances: Tolerances,
        *,
        is_used_known: bool,
        exposed: Sequence[Exposed],
        sent: Sequence[Sent] = (),
    ) -> None:
        self._account, self._day, self._key, self._cell = account, day, key, cell
        self._tolerances = tolerances
        self._exposed = tuple(exposed)
        self._matches: Sequence[Match] = ()
        if can_be_matched(cell.billed, sent):
            self._matches = match(cell.billed, sent)
        self._fx = sum(line.fx_pico_usd for line in cell.billed)
        self._billed = sum(line.amount_pico_usd for line in cell.billed) - self._fx
        self._booked = sum(row.cost_pico_usd for row in cell.metered)
        self._adjusted = sum(row.amount_pico_usd for row in cell.adjusted)
        self._metered_units = metered_units(key, cell)
        self._billed_units = billed_units(key, cell, is_used_known=is_used_known)

    def parts(self) -> Iterator[Found]:
        """Currency, quantity, price; parts of nothing are left out."""
        if self._matches:
            yield from self._by_generation()
            return
        quantity, price = self._quantity_and_price()
        if self._fx:
            yield self._found(DifferenceKind.FX, self._fx)
        rounding = 0
        if abs(quantity) <= self._tolerances.amount_pico_usd:
            rounding += quantity
        else:
            billed = self._billed_units
            is_missing = billed is None or billed > self._metered_units
            kind = DifferenceKind.MISSING_EVENT if is_missing else DifferenceKind.EXTRA_EVENT
            yield self._found(kind, quantity)
        if self._is_within(price):
            rounding += price
        else:
            yield self._found(self._price_kind(), price)
        if rounding:
            yield self._found(DifferenceKind.ROUNDING, rounding)

    def _by_generation(self) -> Iterator[Found]:
        """What is missing and extra one by one, whatever it is worth; then other costs.

        Generations are billed in dollars, so no part comes from the currency.
        """
        missing, extra, price = parts_of(
            self._matches, booked=self._booked, adjusted=self._adjusted
        )
        if missing:
            yield self._found(DifferenceKind.MISSING_EVENT, missing)
        if extra:
            yield self._found(DifferenceKind.EXTRA_EVENT, extra)
        if price:
            is_rounding = self._is_within(price)
            yield self._found(
                DifferenceKind.ROUNDING if is_rounding else DifferenceKind.PRICE_DRIFT, price
            )

    def _quantity_and_price(self) -> tuple[int, int]:
        """The difference, less currency, as the part of quantity and the part of price."""
        whole = self._billed - self._booked - self._adjusted
        billed, metered = self._billed_units, self._metered_units
        if billed is None and not metered and not self._booked:
            return whole, 0  # whatever was billed, nothing of it was metered
        if billed is None or self._is_same(billed, metered):
            return 0, whole
        if not billed or not metered:
            return whole, 0
        worth = round(Fraction(self._billed, billed) * (billed - metered))
        # What earlier adjustments settled was missing quantity, mostly.
        quantity = worth - self._adjusted
        return quantity, whole - quantity

    def _is_same(self, billed: int, metered: int) -> bool:
        most = Fraction(self._tolerances.quantity_ratio) * max(billed, metered)
        return abs(billed - metered) <= most

    def _is_within(self, amount: int) -> bool:
        """Whether an amount is within tolerance of what is billed."""
        ratio = Fraction(self._tolerances.amount_ratio)
        return abs(amount) <= max(ratio * abs(self._billed), self._tolerances.amount_pico_usd)

    def _price_kind(self) -> DifferenceKind:
        tiers = {line.tier for line in self._cell.billed}
        return DifferenceKind.TIER if tiers - {STANDARD} else DifferenceKind.PRICE_DRIFT

    def _found(self, kind: DifferenceKind, amount: int) -> Found:
        tiers = sorted({line.tier for line in self._cell.billed})
        line_ids = [line.line_id for line in self._cell.billed]
        is_missing = kind is DifferenceKind.MISSING_EVENT
        return Found(
            difference=Difference(
                account=self._account,
                day=self._day,
                model=self._key[0],
                meter=self._key[1],
                tier=", ".join(tiers),
                kind=kind.value,
                metered_units=self._metered_units,
                billed_units=self._billed_units,
                ledger_pico_usd=self._booked + self._adjusted,
                billed_pico_usd=self._billed + self._fx,
                amount_pico_usd=amount,
                sentence=self._sentence(kind, amount),
            ),
            metered=tuple(self._cell.metered),
            exposed=self._exposed if is_missing else (),
            line_id=line_ids[0] if len(line_ids) == 1 else None,
        )

    def _sentence(self, kind: DifferenceKind, amount: int) -> str:
        """One sentence with both figures."""
        model, meter = self._key
        what = f"{meter or 'tokens'} of {model or 'all models'} on {self._day or 'the month'}"
        money = (
            f"{format_usd(self._billed + self._fx)} USD billed,"
            f" {format_usd(self._booked + self._adjusted)} USD booked"
        )
        billed = self._billed_units
        units = "units unknown" if billed is None else f"{billed:,} billed"
        counts = f"{units}, {self._metered_units:,} metered"
        worth = f"{format_usd(abs(amount))} USD"
        sentences = {
            DifferenceKind.MISSING_EVENT: f"usage worth {worth} is missing in the ledger",
            DifferenceKind.EXTRA_EVENT: f"usage worth {worth} was booked and is not billed",
            DifferenceKind.PRICE_DRIFT: self._drift(),
            DifferenceKind.TIER: f"the bill is of another tier than was booked, {worth} apart",
            DifferenceKind.FX: f"{worth} come from the rate of the invoice's day",
            DifferenceKind.ROUNDING: f"{worth} apart, which is within tolerance",
        }
        ids = self._ids(kind)
        return f"{self._account}, {what}: {counts}; {money}; {sentences[kind]}{ids}"

    def _ids(self, kind: DifferenceKind) -> str:
        """The generations behind a part, where they are known."""
        said = told(self._matches)
        states = {
            DifferenceKind.MISSING_EVENT: (GenerationState.MISSING, GenerationState.UNKNOWN_BILL),
            DifferenceKind.EXTRA_EVENT: (GenerationState.EXTRA,),
        }.get(kind, (GenerationState.OTHER_COST,))
        words = ", ".join(
            f"{state.value.replace('_', ' ')} {said[state]}" for state in states if state in said
        )
        otherwise = told_otherwise(self._matches) if kind not in _OF_QUANTITY else 0
        more = f", {otherwise} billed otherwise than told with the answer" if otherwise else ""
        return f"; generations: {words}{more}" if words else ""

    def _drift(self) -> str:
        """Both prices per million, where they can be told."""
        billed, metered = self._billed_units, self._metered_units
        if not billed or not metered:
            return "the amounts differ and there are no counts to tell the price from"
        prices = [
            format_usd(round(Fraction(amount * 1_000_000, units)))
            for amount, units in ((self._billed, billed), (self._booked, metered))
        ]
        return f"the price differs: {prices[0]} USD per million billed, {prices[1]} USD booked"


def total(found: Iterable[Found]) -> int:
    """The sum of all parts."""
    return sum(one.difference.amount_pico_usd for one in found)


def token_counts(sides: Sides, account: str) -> tuple[int, int] | None:
    """Tokens that we metered and that the vendor counted, on the days that it counted for us.

    Returns:
        Both counts; None when the vendor's files count no tokens.
    """
    days = {key: one for key, one in by_day(sides).items() if key[0] == account}
    metered = billed = 0
    is_counted = False
    for (_, day), one in days.items():
        lines = [line for line in one.billed if line.kind == USAGE and _may_be_tokens(line.meter)]
        if lines and all(line.units is not None for line in lines):
            billed += sum(line.units or 0 for line in lines)
        elif day in sides.used_days.get(account, frozenset()):
            billed += sum(row.units for row in one.used if row.meter in TOKEN_METERS)
        else:
            continue
        is_counted = True
        metered += sum(row.units for row in one.metered if row.meter in TOKEN_METERS)
    return (metered, billed) if is_counted else None


def _may_be_tokens(meter: str) -> bool:
    return not meter or meter in TOKEN_METERS
