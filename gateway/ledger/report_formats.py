"""A spend report as a table, as CSV or as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import assert_never, cast

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.ledger.report_csv import as_csv
from gateway.ledger.report_document import report_document
from gateway.ledger.views import AMOUNTS, USD, PeriodSums, SpendReport, SpendSums
from pricing.money import format_usd


class ReportFormat(StrEnum):
    """How a report is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


_TABLE_SUMS = ("requests", "attempts", "input_tokens", "cached_input_tokens", "output_tokens")
_PERIOD_TITLES = ("booked USD", "late USD", "adjusted USD", "charged USD")
_TABLE_WIDTH = 200


def render(report: SpendReport, form: ReportFormat) -> str:
    """The report as text that ends with a line break."""
    match form:
        case ReportFormat.TABLE:
            return as_table(report)
        case ReportFormat.CSV:
            return as_csv(report)
        case ReportFormat.JSON:
            return msgspec.json.format(msgspec.json.encode(report_document(report))).decode() + "\n"
    assert_never(form)


def as_table(report: SpendReport) -> str:
    """For a terminal; says below it what the cost does not tell."""
    table = Table(show_footer=True)
    for index, name in enumerate(report.columns):
        table.add_column(_shown(name), footer="total" if index == 0 else "", overflow="fold")
    total = cast("dict[str, int]", msgspec.structs.asdict(report.total))
    for name in _TABLE_SUMS:
        table.add_column(name.replace("_", " "), footer=f"{total[name]:,}", justify="right")
    amounts = _amount_columns(report)
    for title, amount in amounts.items():
        footer = format_usd(amount(report.total, report.total_converted))
        table.add_column(title, footer=footer, justify="right")
    for title, amount in zip(_PERIOD_TITLES, _period_amounts(report.total_period), strict=False):
        table.add_column(title, footer=amount, justify="right")
    for row in report.rows:
        sums = cast("dict[str, int]", msgspec.structs.asdict(row.sums))
        table.add_row(
            *(Text(_shown(name)) for name in row.group),
            *(f"{sums[name]:,}" for name in _TABLE_SUMS),
            *(format_usd(amount(row.sums, row.converted)) for amount in amounts.values()),
            *_period_amounts(row.period),
        )
    out = io.StringIO()
    Console(file=out, width=_TABLE_WIDTH, color_system=None).print(table)
    lines = (line.rstrip() for line in out.getvalue().splitlines())
    return "".join(f"{line}\n" for line in (*lines, *_notes(report)))


def _period_amounts(period: PeriodSums | None) -> list[str]:
    if period is None:
        return []
    amounts = (
        period.booked_pico_usd,
        period.late_pico_usd,
        period.adjusted_pico_usd,
        period.total_pico_usd,
    )
    return [format_usd(amount) for amount in amounts]


def _amount_columns(
    report: SpendReport,
) -> dict[str, Callable[[SpendSums, Sequence[int]], int]]:
    """What each row's amounts are by column: list prices and a currency where there are any."""
    columns: dict[str, Callable[[SpendSums, Sequence[int]], int]] = {}
    if report.total.list_price_attempts:
        columns["list USD"] = lambda sums, _converted: sums.list_cost_pico_usd
    columns["cost USD"] = lambda sums, _converted: sums.cost_pico_usd
    if report.currency != USD:
        cost_at = AMOUNTS.index("cost_pico_usd")
        columns[f"cost {report.currency}"] = lambda _sums, converted: converted[cost_at]
    return columns


def _notes(report: SpendReport) -> list[str]:
    """What a reader must know before using the total."""
    total = report.total
    notes: list[str] = []
    if report.zone != "UTC":
        notes.append(f"zone: {report.zone}")
    if not report.is_partition:
        notes.append(
            "privacy tags: a request with several is in several rows, which add up to more than the"
            " total"
        )
    if total.provider_cost_attempts:
        notes.append(
            f"providers told: {format_usd(total.provider_cost_pico_usd)} USD, for"
            f" {total.provider_cost_attempts} of {total.attempts} attempts"
        )
    if total.cache_saved_pico_usd:
        notes.append(f"cache savings: {format_usd(total.cache_saved_pico_usd)} USD, no credit")
    if total.compared_attempts:
        notes.append(
            f"baseline: {format_usd(total.saved_pico_usd)} USD saved of"
            f" {format_usd(total.baseline_cost_pico_usd)} USD, over {total.compared_attempts} of"
            f" {total.attempts} attempts"
        )
    if total.uncompared_attempts:
        notes.append(
            f"baseline unknown: {total.uncompared_attempts} attempts are in no saving, for one of"
            " the two costs is unknown"
        )
    if total.failed_cost_pico_usd:
        notes.append(f"failed: {format_usd(total.failed_cost_pico_usd)} USD of the cost")
    if total.estimated_cost_pico_usd:
        notes.append(f"estimated: {format_usd(total.estimated_cost_pico_usd)} USD of the cost")
    if total.nominal_cost_pico_usd:
        notes.append(
            f"nominal: {format_usd(total.nominal_cost_pico_usd)} USD at a nominal machine rate"
        )
    if total.unpriced_attempts:
        notes.append(f"unpriced: {total.unpriced_attempts} attempts are not in the cost")
    if total.exposure_pico_usd:
        notes.append(
            f"unknown billing: up to {format_usd(total.exposure_pico_usd)} USD more may be billed"
        )
    if total.exposure_unknown_attempts:
        notes.append(
            f"unknown billing without a bound: {total.exposure_unknown_attempts} attempts may cost"
            " more, nobody can say how much"
        )
    return notes


def _shown(name: str) -> str:
    """A name that cannot disturb the terminal; a blank one says so."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name) or "(none)"
