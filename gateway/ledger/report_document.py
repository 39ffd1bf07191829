"""A spend report as names and plain values: what its JSON, its CSV and the administration API show.

Amounts are exact in dollars, as decimal text and as whole picodollars. In another currency they
are rounded once, half to even, to twelve decimals: each row by itself, and the total by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import cast

import msgspec

from gateway.ledger.views import AMOUNTS, USD, PeriodSums, SpendReport, SpendSums
from pricing.money import format_usd

Plain = int | str
_PICO = "_pico_usd"
_SAME_AS_COST = ("contracted_cost", "effective_cost")
"""What is charged is what was contracted; as long as nothing is prepaid it is what it takes
effect as, too."""
_SHARE_STEP = Decimal("0.000001")


def report_document(report: SpendReport) -> dict[str, object]:
    """The report as `spend report --format json` prints it."""
    document: dict[str, object] = {
        "rows": [
            {
                **dict(zip(report.columns, row.group, strict=True)),
                **sums_document(row.sums, report.currency, row.converted),
                **period_document(row.period),
            }
            for row in report.rows
        ],
        "total": {
            **sums_document(report.total, report.currency, report.total_converted),
            **period_document(report.total_period),
        },
        "zone": report.zone,
        "currency": report.currency,
        "is_partition": report.is_partition,
    }
    return document


def sums_document(
    sums: SpendSums, currency: str = USD, converted: Sequence[int] = ()
) -> dict[str, Plain]:
    """Sums by name, each amount as text in dollars, in picodollars, and in the currency.

    Args:
        sums: Of a row or of the total.
        currency: Of the converted amounts.
        converted: In the order of `AMOUNTS`; empty for a report in dollars.
    """
    document: dict[str, Plain] = {}
    in_currency = dict(zip(AMOUNTS, converted, strict=True)) if converted else {}
    for name, value in cast("dict[str, int]", msgspec.structs.asdict(sums)).items():
        names = (name.removesuffix(_PICO),)
        if name == "cost_pico_usd":
            names = ("cost", *_SAME_AS_COST)
        for one in names:
            if name.endswith(_PICO):
                document[f"{one}_usd"] = format_usd(value)
                if in_currency:
                    document[f"{one}_{currency.lower()}"] = format_usd(in_currency[name])
            document[one if one == name else f"{one}{_PICO}"] = value
    document["estimated_share"] = _share(sums.estimated_cost_pico_usd, sums.cost_pico_usd)
    return document


def period_document(period: PeriodSums | None) -> dict[str, Plain]:
    """What months are charged for by name, as text in dollars and in picodollars; or nothing."""
    if period is None:
        return {}
    amounts = {
        "booked": period.booked_pico_usd,
        "late": period.late_pico_usd,
        "adjusted": period.adjusted_pico_usd,
        "charged": period.total_pico_usd,
    }
    document: dict[str, Plain] = {}
    for name, amount in amounts.items():
        document |= {f"{name}_usd": format_usd(amount), f"{name}{_PICO}": amount}
    return document


def _share(part: int, whole: int) -> str:
    """A part of a whole as a ratio to six decimals, half to even; 0 of nothing."""
    if not part or not whole:
        return "0"
    ratio = (Decimal(part) / Decimal(whole)).quantize(_SHARE_STEP, rounding=ROUND_HALF_EVEN)
    return f"{ratio:f}"
