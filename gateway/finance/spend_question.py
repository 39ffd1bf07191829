"""What a report is asked for, in the words of a command or of the administration API.

Days and months are those of one time zone, named by the caller or by `finance.time_zone`; amounts
are shown in dollars and in one currency, named likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

from gateway.clock import from_microseconds, to_microseconds
from gateway.finance.errors import NoRate
from gateway.finance.fx import FxRates, load_rates
from gateway.ledger.errors import BadQuery
from gateway.ledger.report_time import local_day, midnight_us, month_bounds, zone_of
from gateway.ledger.views import COST_TAG, USD, CostCentre, DayRate, SpendQuery
from gateway.settings.cost_centres import cost_centres
from gateway.settings.document import Settings
from gateway.settings.finance import FinanceSettings

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MONTH = re.compile(r"\d{4}-\d{2}", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)
_EPOCH = date(1970, 1, 1)
_YEARS = (2000, 2199)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendWords:
    """A question as it was put.

    Attributes:
        by: Dimensions, in the order of the columns.
        from_: First day or instant, ISO 8601; without an offset in the zone.
        to: First day or instant that is not counted.
        month: A month of the zone, `YYYY-MM`, in place of the two.
        is_last_month: Whether the month before this one is meant, in place of all three.
        zone: IANA name; None for `finance.time_zone`.
        currency: Three letters; None for `finance.currency`.
        filters: Values by dimension, any one of several.
        cost_tags: `name=value`, all of them; an empty value means requests without that tag.
        teams: Only these may be seen; None for all.
        with_adjustments: Whether each row says what its months are charged for, too.
    """

    by: Sequence[str]
    from_: str | None = None
    to: str | None = None
    month: str | None = None
    is_last_month: bool = False
    zone: str | None = None
    currency: str | None = None
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    cost_tags: Sequence[str] = ()
    teams: tuple[str, ...] | None = None
    with_adjustments: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What the configuration says about reports.

    Attributes:
        finance: Its section.
        base_dir: Where relative paths begin.
        cost_centres: Who is charged to which.
    """

    finance: FinanceSettings = field(default_factory=FinanceSettings)
    base_dir: Path = field(default_factory=Path)
    cost_centres: tuple[CostCentre, ...] = ()

    @classmethod
    def of(cls, settings: Settings, *, base_dir: Path) -> Reporting:
        """What a configuration says."""
        return cls(
            finance=settings.finance,
            base_dir=base_dir,
            cost_centres=tuple(CostCentre(*one) for one in cost_centres(settings)),
        )

    @property
    def rates_path(self) -> Path | None:
        """The file of exchange rates, wherever the process runs; None without one."""
        name = self.finance.rates_file
        return None if name is None else (self.base_dir / Path(name).expanduser()).absolute()

    def load_rates(self, currency: str) -> FxRates:
        """The exchange rates.

        Raises:
            BadQuery: There is no file of them.
            UnreadableSource: It cannot be read.
        """
        path = self.rates_path
        if path is None:
            raise BadQuery(
                f"amounts in {currency} need exchange rates; name a file in finance.rates_file",
                param="currency",
            )
        return load_rates(path)


def spend_query(words: SpendWords, reporting: Reporting, *, now_us: int) -> SpendQuery:
    """What the ledger is asked; reads the file of exchange rates where one is needed.

    Args:
        words: The question.
        reporting: Settings for what it leaves open.
        now_us: Now, for the last month and for rates up to today.

    Raises:
        BadQuery: A part of it has no meaning.
        FinanceError: The file of exchange rates cannot be read.
    """
    finance = reporting.finance
    zone = zone_of(words.zone or finance.time_zone)
    from_us, to_us = _bounds(words, zone, now_us=now_us)
    currency = words.currency or finance.currency
    if not _CURRENCY.fullmatch(currency):
        raise BadQuery(
            f"{currency!r} is no currency of three capital letters such as EUR", param="currency"
        )
    rates: tuple[DayRate, ...] = ()
    if currency != USD:
        found = reporting.load_rates(currency)
        rates = tuple(_day_rates(found, currency, from_us=from_us, to_us=to_us, now_us=now_us))
    return SpendQuery(
        group_by=tuple(words.by),
        from_us=from_us,
        to_us=to_us,
        filters=_filters(words),
        teams=words.teams,
        zone=zone.key,
        fiscal_month=finance.fiscal_year_start_month,
        currency=currency,
        rates=rates,
        cost_centres=reporting.cost_centres,
        with_adjustments=words.with_adjustments,
    )


def _bounds(words: SpendWords, zone: ZoneInfo, *, now_us: int) -> tuple[int | None, int | None]:
    given = [words.from_ is not None or words.to is not None, words.month is not None]
    if sum((*given, words.is_last_month)) > 1:
        raise BadQuery("give --from and --to, or --month, or --last-month, and only one of them")
    if words.month is not None:
        if not _MONTH.fullmatch(words.month):
            raise BadQuery(f"{words.month!r} is no month such as 2026-11", param="month")
        return month_bounds(_day_of(f"{words.month}-01", "month"), zone)
    if words.is_last_month:
        this = local_day(now_us, zone).replace(day=1)
        return month_bounds(this - timedelta(days=1), zone)
    return _instant_us(words.from_, zone, "from"), _instant_us(words.to, zone, "to")


def _instant_us(text: str | None, zone: ZoneInfo, param: str) -> int | None:
    """A local day's first instant, or an instant; of a time that comes twice the first."""
    if text is None:
        return None
    if _DAY.fullmatch(text):
        return midnight_us(_day_of(text, param), zone)
    try:
        at = datetime.fromisoformat(text)
        at_us = to_microseconds(at if at.tzinfo else at.replace(tzinfo=zone))
        _day_of(at.date().isoformat(), param)
    except (ValueError, OverflowError) as error:
        raise BadQuery(
            f"{text!r} is no day or instant such as 2026-11-01 or 2026-11-01T06:00",
            param=param,
        ) from error
    return at_us


def _day_of(text: str, param: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise BadQuery(f"{text!r} is no day such as 2026-11-01", param=param) from error
    if not _YEARS[0] <= day.year <= _YEARS[1]:
        raise BadQuery(f"{text!r} lies outside of what a ledger can hold", param=param)
    return day


def _filters(words: SpendWords) -> dict[str, tuple[str, ...]]:
    found = {name: tuple(values) for name, values in words.filters.items() if values}
    for pair in words.cost_tags:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadQuery(f"{pair!r} is no cost tag such as feature=search", param="cost_tag")
        before = found.get(f"{COST_TAG}{name}", ())
        found[f"{COST_TAG}{name}"] = (*before, value)
    return found


def _day_rates(
    rates: FxRates, currency: str, *, from_us: int | None, to_us: int | None, now_us: int
) -> Iterator[DayRate]:
    """The rate of every UTC day of the range that has one; without bounds, of those in the file."""
    first = min(rates.by_day, default=_EPOCH)
    day = first if from_us is None else max(first, from_microseconds(from_us).date())
    end_us = now_us + 1 if to_us is None else to_us
    last = from_microseconds(end_us - 1).date()
    while day <= last:
        rate = _rate_of(rates, day, currency)
        if rate is not None:
            yield DayRate(day=(day - _EPOCH).days, rate=str(rate))
        day += timedelta(days=1)


def _rate_of(rates: FxRates, day: date, currency: str) -> Fraction | None:
    """The rate of a day; none is a fault only where something was spent, which the ledger tells."""
    try:
        return rates.rate(day, USD, currency).rate
    except NoRate:
        return None
