"""Late usage and adjustments beside a report: what its months are charged for, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger.cost_centres import CostCentreBook
from gateway.ledger.errors import BadQuery
from gateway.ledger.period_charges import ChargePlace, load_charges
from gateway.ledger.periods import month_bounds_us, month_of, next_month
from gateway.ledger.reports import spend_report
from gateway.ledger.views import GroupBy, PeriodSums, SpendQuery, SpendReport, SpendRow, SpendSums

MONTHS_MAX = 60
_TOLD = (
    GroupBy.TEAM,
    GroupBy.PROJECT,
    GroupBy.PROVIDER,
    GroupBy.COST_CENTRE,
    GroupBy.MONTH,
)
"""What an adjustment can be told by."""
_NOTHING = PeriodSums(booked_pico_usd=0, late_pico_usd=0, adjusted_pico_usd=0)


def report_with_corrections(connection: sa.Connection, query: SpendQuery) -> SpendReport:
    """A report with, in each row, what the months of the range are charged for.

    Raises:
        BadQuery: The report has no meaning, or is not of whole months in UTC, or by something
            that an adjustment does not say.
    """
    months = _months(query)
    for name in (*query.group_by, *query.filters):
        if name not in _TOLD:
            raise BadQuery(
                f"adjustments are not told by {name}; with them a report is by {', '.join(_TOLD)}",
                param="with_adjustments",
            )
    report = spend_report(connection, query)
    book = CostCentreBook(query.cost_centres)
    sums: defaultdict[tuple[str, ...], PeriodSums] = defaultdict(lambda: _NOTHING)
    for month in months:
        for place, charge in load_charges(connection, month, query.teams).items():
            values = _values(place, month, book)
            if _is_wanted(values, query.filters):
                group = tuple(values[name] for name in report.columns)
                sums[group] = added(sums[group], charge)
    rows = [
        msgspec.structs.replace(row, period=sums.pop(row.group, _NOTHING)) for row in report.rows
    ]
    total = _NOTHING
    for charge in (*(row.period or _NOTHING for row in rows), *sums.values()):
        total = added(total, charge)
    rows += [
        SpendRow(
            group=group,
            sums=msgspec.convert(dict.fromkeys(SpendSums.__struct_fields__, 0), SpendSums),
            converted=(0,) * len(report.total_converted),
            period=charge,
        )
        for group, charge in sorted(sums.items())
    ]
    return msgspec.structs.replace(report, rows=tuple(rows), total_period=total)


def added(one: PeriodSums, other: PeriodSums) -> PeriodSums:
    """The sum of two."""
    return PeriodSums(
        booked_pico_usd=one.booked_pico_usd + other.booked_pico_usd,
        late_pico_usd=one.late_pico_usd + other.late_pico_usd,
        adjusted_pico_usd=one.adjusted_pico_usd + other.adjusted_pico_usd,
    )


def _months(query: SpendQuery) -> list[str]:
    from_us, to_us = query.from_us, query.to_us
    if from_us is None or to_us is None or from_us >= to_us:
        raise BadQuery(
            "adjustments are of whole months: give --month, or --from and --to",
            param="with_adjustments",
        )
    first, last = month_of(from_us), month_of(to_us - 1)
    if query.zone != "UTC" or month_bounds_us(first)[0] != from_us:
        raise _not_whole(query, from_us)
    if month_bounds_us(last)[1] != to_us:
        raise _not_whole(query, to_us)
    months = [first]
    while months[-1] != last:
        if len(months) == MONTHS_MAX:
            raise BadQuery(
                f"adjustments are told for at most {MONTHS_MAX} months", param="with_adjustments"
            )
        months.append(next_month(months[-1]))
    return months


def _not_whole(query: SpendQuery, bound_us: int) -> BadQuery:
    at = from_microseconds(bound_us).isoformat()
    zone = "" if query.zone == "UTC" else f" and the zone is {query.zone}: add --zone UTC"
    return BadQuery(
        f"adjustments are of whole months in UTC; {at} is a bound of the report{zone}",
        param="with_adjustments",
    )


def _values(place: ChargePlace, month: str, book: CostCentreBook) -> Mapping[str, str]:
    return {
        GroupBy.TEAM: place.team,
        GroupBy.PROJECT: place.project,
        GroupBy.PROVIDER: place.provider,
        GroupBy.COST_CENTRE: book.of(place.team, place.project),
        GroupBy.MONTH: month,
    }


def _is_wanted(values: Mapping[str, str], filters: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(
        values[name] in ((wanted,) if isinstance(wanted, str) else wanted)
        for name, wanted in filters.items()
    )


_Reader = Callable[[sa.Connection, SpendQuery], SpendReport]


def answer_spend_query(connection: sa.Connection, query: SpendQuery) -> SpendReport:
    """The report that a query asks for, with corrections where it asks for them.

    Raises:
        BadQuery: It has no meaning.
    """
    read: _Reader = report_with_corrections if query.with_adjustments else spend_report
    return read(connection, query)
