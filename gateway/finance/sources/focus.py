"""FOCUS exports of AWS, Azure and others, CSV or Parquet, by their header.

Source: FOCUS 1.0 to 1.4 column definitions, and the column pages of AWS Data Exports and of
Microsoft Cost Management, read 2026-11-30. Rows of other services than model services are left
out and counted. Clouds name what was used in columns of their own: AWS in `x_UsageType`
(`USE1-Claude3Sonnet-input-tokens`), Azure in `x_SkuMeterName` (`gpt 4o 0806 Inp glbl Tokens`);
`SkuMeter` comes first where it is filled. Aliases in the configuration bring the words together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from gateway.finance.sources.rows import (
    OTHER,
    STANDARD,
    MoneyRow,
    SourceFile,
    Wrong,
    to_currency,
    to_day,
    to_decimal,
    to_optional_text,
    to_units,
)
from gateway.finance.sources.tables import Cell, read_table
from pricing.usage import Meter

REQUIRED = ("BilledCost", "BillingCurrency", "ChargeCategory", "ChargePeriodStart")
_SERVICES = re.compile(
    r"bedrock|openai|foundry|cognitive services|ai services|vertex|generative|inference"
)
_AI_CATEGORY = "AI and Machine Learning"
_KINDS = {
    "Usage": "usage",
    "Purchase": "usage",
    "Tax": "tax",
    "Credit": "credit",
    "Adjustment": "rounding",
}
_UNITS = re.compile(r"(?:(\d+)\s*)?(k|m|thousand|million)?\s*(tokens?)", re.IGNORECASE | re.ASCII)
_TIMES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
_METERS: tuple[tuple[re.Pattern[str], Meter], ...] = (
    (re.compile(r"\bcache read\b|\bcache(d)? (in|inp|input)\b|\bcchd\b"), Meter.CACHE_READ),
    (re.compile(r"\bcache (write|creation)\b"), Meter.CACHE_WRITE),
    (re.compile(r"\b(out|outp|output|outpt|completion)\b"), Meter.OUTPUT),
    (re.compile(r"\b(in|inp|input|prompt)\b"), Meter.INPUT),
)
_WORDS_OF_METERS = re.compile(
    r"\b(cache|read|write|creation|cached|cchd|in|inp|input|prompt|out|outp|outpt|output|completion"
    r"|tokens?|count|batch|regnl|glbl|dz|data zone|1k|1m)\b"
)
_REGION = re.compile(r"^[A-Z]{2,4}\d-", re.ASCII)


def read_focus(content: bytes, name: str) -> SourceFile:
    """Read a FOCUS export; problems are in the result."""
    file = SourceFile(name=name)
    for line, row in read_table(content, name):
        missing = [column for column in REQUIRED if column not in row]
        if missing:
            file.wrong(1, f"there is no column {', '.join(missing)}; this is no FOCUS export")
            return file
        try:
            found = _row(row, line)
        except Wrong as error:
            file.wrong(line, error)
            continue
        if found is None:
            file.left_out += 1
            continue
        file.money.append(found)
        file.days.add(found.day)
    return file


def _row(row: Mapping[str, Cell], line: int) -> MoneyRow | None:
    """A row, None when it is of another service."""
    if not _is_of_models(row):
        return None
    category = _text(row, "ChargeCategory")
    kind = _KINDS.get(category)
    if kind is None:
        raise Wrong(f"ChargeCategory {category!r} is none of {', '.join(_KINDS)}")
    day = to_day(row["ChargePeriodStart"], "ChargePeriodStart")
    amount = to_decimal(row["BilledCost"], "BilledCost")
    currency = to_currency(row["BillingCurrency"], "BillingCurrency")
    words = next(
        (
            text
            for column in ("SkuMeter", "x_SkuMeterName", "x_UsageType", "SkuId")
            if (text := _text(row, column))
        ),
        _text(row, "ChargeDescription"),
    )
    description = _text(row, "ChargeDescription") or words
    if kind != "usage":
        return MoneyRow(
            line=line,
            kind=kind,
            day=day,
            amount=amount,
            currency=currency,
            description=description,
        )
    spoken = _spoken(words)
    meter = next((one.value for pattern, one in _METERS if pattern.search(spoken)), OTHER)
    return MoneyRow(
        line=line,
        kind=kind,
        day=day,
        model=_model(row, spoken),
        meter=meter,
        tier="batch" if re.search(r"\bbatch\b", spoken) else STANDARD,
        units=_units(row, meter),
        amount=amount,
        currency=currency,
        description=description,
    )


def _is_of_models(row: Mapping[str, Cell]) -> bool:
    names = " ".join(_text(row, column) for column in ("ServiceName", "x_ServiceCode"))
    is_named = _SERVICES.search(names.lower()) is not None
    return is_named or _text(row, "ServiceCategory") == _AI_CATEGORY


def _spoken(words: str) -> str:
    """Words apart: in small letters; `USE1-Claude3Sonnet-input-tokens` loses its region."""
    return _REGION.sub("", words).replace("-", " ").replace("_", " ").lower()


def _model(row: Mapping[str, Cell], spoken: str) -> str:
    """The model: as the row says, or what is left of the meter's name."""
    said = _text(row, "x_ModelId")
    return said or " ".join(_WORDS_OF_METERS.sub(" ", spoken).split())


def _units(row: Mapping[str, Cell], meter: str) -> int | None:
    """Tokens; None when the row counts something else, or in a unit that is not known."""
    quantity, unit = row.get("ConsumedQuantity"), _text(row, "ConsumedUnit")
    found = _UNITS.fullmatch(unit)
    if quantity in (None, "") or found is None or meter == OTHER:
        return None
    times = Decimal(found[1] or 1) * _TIMES.get((found[2] or "").lower(), 1)
    return to_units(quantity, "ConsumedQuantity", times=times)


def _text(row: Mapping[str, Cell], column: str) -> str:
    return to_optional_text(row.get(column), column)
