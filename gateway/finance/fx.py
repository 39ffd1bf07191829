"""Exchange rates from a file: exact fractions, each with its day and its source.

The file is CSV with the columns day, base, quote, rate, source: on that day one unit of `base`
bought `rate` units of `quote`. A day without a rate takes that of the nearest earlier day, a week
back at most: banks publish none at weekends. A pair that the file lacks is found the other way
round, or through one third currency, always from rates of one and the same day.
"""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path

from gateway.finance.errors import NoRate, UnreadableSource

COLUMNS = ("day", "base", "quote", "rate", "source")
AGE_DAYS_MAX = 7
"""Days that a rate may be older than the day it is used for."""
_RATE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,18})?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FxRate:
    """What one unit of a currency bought of another.

    Attributes:
        day: The day that the rate is of; up to `AGE_DAYS_MAX` before the one that was asked for.
        base: Three letters of ISO 4217.
        quote: Three letters of ISO 4217.
        rate: Units of `quote` per unit of `base`, exact, above 0.
        source: Who published it; of a cross rate both, `a x b`.
    """

    day: date
    base: str
    quote: str
    rate: Fraction
    source: str

    def convert(self, amount: int | Fraction) -> int:
        """An amount of `base` in `quote`, in the same unit, rounded once, half to even."""
        return round(amount * self.rate)


@dataclass(frozen=True, slots=True)
class FxRates:
    """The rates of a file.

    Attributes:
        by_day: Per day the rates by (base, quote), as the file has them.
    """

    by_day: Mapping[date, Mapping[tuple[str, str], FxRate]] = field(
        default_factory=dict[date, Mapping[tuple[str, str], FxRate]]
    )

    def rate(self, day: date, base: str, quote: str) -> FxRate:
        """The rate in force on a day.

        Args:
            day: The day of the charge or of the booking.
            base: Currency of the amount.
            quote: Currency that is wanted.

        Raises:
            NoRate: Neither that day nor the week before it has one.
        """
        if base == quote:
            return FxRate(day=day, base=base, quote=quote, rate=Fraction(1), source="same currency")
        days = sorted(self.by_day)
        for known in reversed(days[: bisect_right(days, day)]):
            if day - known > timedelta(days=AGE_DAYS_MAX):
                break
            found = _find(self.by_day[known], known, base, quote)
            if found is not None:
                return found
        raise NoRate(
            f"no exchange rate from {base} to {quote} for {day} or the {AGE_DAYS_MAX} days before"
            " it; add one to finance.rates_file"
        )


def parse_rates(text: str, *, name: str) -> FxRates:
    """Read a rates file.

    Args:
        text: The file's content.
        name: The file's name, for errors.

    Raises:
        UnreadableSource: A line is wrong; every problem is named, with file and line.
    """
    reader = csv.reader(io.StringIO(text), strict=True)
    by_day: dict[date, dict[tuple[str, str], FxRate]] = {}
    problems: list[str] = []
    try:
        header = tuple(cell.strip().lower() for cell in next(reader, list[str]()))
        if header != COLUMNS:
            raise UnreadableSource([f"{name}:1: the columns must be {', '.join(COLUMNS)}"])
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            found = _parse_row([cell.strip() for cell in cells])
            if isinstance(found, str):
                problems.append(f"{name}:{reader.line_num}: {found}")
                continue
            pair = (found.base, found.quote)
            if by_day.setdefault(found.day, {}).setdefault(pair, found) is not found:
                problems.append(
                    f"{name}:{reader.line_num}: {found.day} has two rates from {found.base} to"
                    f" {found.quote}"
                )
    except csv.Error as error:
        problems.append(f"{name}:{reader.line_num}: {error}")
    if problems:
        raise UnreadableSource(problems)
    return FxRates(by_day)


def load_rates(path: Path) -> FxRates:
    """Read a rates file from disk.

    Raises:
        UnreadableSource: It cannot be read, or a line is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableSource([f"{path}: not UTF-8 at byte {error.start}"]) from error
    except OSError as error:
        raise UnreadableSource([f"{path}: {error.strerror}"]) from error
    return parse_rates(text, name=str(path))


def _parse_row(cells: list[str]) -> FxRate | str:
    """A rate, or what is wrong with the line."""
    if len(cells) != len(COLUMNS):
        return f"{len(cells)} columns, must be {len(COLUMNS)}"
    day_text, base, quote, rate_text, source = cells
    try:
        day = date.fromisoformat(day_text)
    except ValueError:
        return f"day {day_text!r} is no day such as 2026-11-01"
    for currency in (base, quote):
        if not _CURRENCY.fullmatch(currency):
            return f"{currency!r} is no currency of three capital letters such as EUR"
    if base == quote:
        return f"base and quote are both {base}"
    if not _RATE.fullmatch(rate_text) or not Fraction(rate_text):
        return f"rate {rate_text!r} is no number above 0 such as 1.0842"
    if not source:
        return "the source is empty; say who published the rate"
    return FxRate(day=day, base=base, quote=quote, rate=Fraction(rate_text), source=source)


def _find(
    rates: Mapping[tuple[str, str], FxRate], day: date, base: str, quote: str
) -> FxRate | None:
    """The rate of one day: as it stands, the other way round, or through a third currency."""
    direct = _either_way(rates, day, base, quote)
    if direct is not None:
        return direct
    for middle in sorted(set(_currencies(rates)) - {base, quote}):
        first = _either_way(rates, day, base, middle)
        second = _either_way(rates, day, middle, quote)
        if first is not None and second is not None:
            return FxRate(
                day=day,
                base=base,
                quote=quote,
                rate=first.rate * second.rate,
                source=f"{first.source} x {second.source}",
            )
    return None


def _either_way(
    rates: Mapping[tuple[str, str], FxRate], day: date, base: str, quote: str
) -> FxRate | None:
    found = rates.get((base, quote))
    if found is not None:
        return found
    inverse = rates.get((quote, base))
    if inverse is None:
        return None
    return FxRate(day=day, base=base, quote=quote, rate=1 / inverse.rate, source=inverse.source)


def _currencies(rates: Mapping[tuple[str, str], FxRate]) -> Iterator[str]:
    for pair in rates:
        yield from pair
