"""Any CSV file with a mapping file that says what its columns mean.

columns: {day: Datum, model: Modell, meter: Art, units: Menge, amount: Betrag netto}
day_format: "%d.%m.%Y"          # otherwise ISO 8601
zone: Europe/Berlin             # of instants without an offset
decimal: comma                  # or point
currency: EUR                   # or a column
units_per: 1000                 # the file counts thousands
meters: {Eingabe: input, Ausgabe: output}
kinds: {MwSt: tax, Gutschrift: credit}
credits: positive               # money back stands without a minus
skip: {Art: [Summe]}            # rows that repeat others, such as totals
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import yaml
from msgspec import Meta

from gateway.finance.errors import UnreadableSource
from gateway.finance.sources.rows import (
    STANDARD,
    MoneyRow,
    SourceFile,
    UsageRow,
    Wrong,
    to_currency,
    to_day,
    to_decimal,
    to_text,
    to_units,
)
from gateway.finance.sources.tables import Cell, read_table

Kind = Literal["usage", "tax", "credit", "rounding"]
MAPPING_BYTES_MAX = 64 * 1024


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the file's columns; without `amount` it is a file of usage."""

    day: str
    model: str | None = None
    meter: str | None = None
    tier: str | None = None
    units: str | None = None
    amount: str | None = None
    currency: str | None = None
    kind: str | None = None
    description: str | None = None
    number: str | None = None
    issued_on: str | None = None


class Mapped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping file."""

    columns: Columns
    day_format: str | None = None
    zone: str = "UTC"
    decimal: Literal["point", "comma"] = "point"
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    units_per: Annotated[int, Meta(ge=1, le=10**9)] = 1
    meters: dict[str, str] = {}
    kinds: dict[str, Kind] = {}
    credits: Literal["negative", "positive"] = "negative"
    skip: dict[str, list[str]] = {}
    encoding: str = "utf-8-sig"
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] | None = None


def parse_mapping(text: str, name: str) -> tuple[Mapped, ZoneInfo]:
    """Read a mapping file and its zone.

    Raises:
        UnreadableSource: It is no mapping; the sentence names the key.
    """
    try:
        if len(text) > MAPPING_BYTES_MAX:
            raise ValueError(f"is over {MAPPING_BYTES_MAX} bytes")
        mapped = msgspec.convert(cast("object", yaml.safe_load(text)), Mapped)
        return mapped, ZoneInfo(mapped.zone)
    except ZoneInfoNotFoundError as error:
        raise UnreadableSource([f"{name}: zone: {error}"]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableSource([f"{name}: {' '.join(str(error).split())}"]) from error


def read_mapped(content: bytes, name: str, mapping: str, mapping_name: str) -> SourceFile:
    """Read a CSV or Parquet file by its mapping; problems are in the result.

    Raises:
        UnreadableSource: The mapping or the table as a whole cannot be read.
    """
    mapped, zone = parse_mapping(mapping, mapping_name)
    file = SourceFile(name=name, is_bill=mapped.columns.amount is not None)
    reader = _Reader(file, mapped, zone)
    wanted = {
        column
        for column in cast("dict[str, str | None]", msgspec.structs.asdict(mapped.columns)).values()
        if column is not None
    } | mapped.skip.keys()
    for line, row in read_table(
        content, name, encoding=mapped.encoding, delimiter=mapped.delimiter
    ):
        missing = sorted(wanted - row.keys())
        if missing:
            file.wrong(1, f"there is no column {missing[0]!r}, which {mapping_name} names")
            return file
        try:
            reader.take(row, line)
        except Wrong as error:
            file.wrong(line, error)
    return file


class _Reader:
    """Turns rows of one file into ours."""

    def __init__(self, file: SourceFile, mapped: Mapped, zone: ZoneInfo) -> None:
        self._file = file
        self._mapped = mapped
        self._zone = zone

    def take(self, row: Mapping[str, Cell], line: int) -> None:
        """Add a row.

        Raises:
            Wrong: A value cannot be what it stands for.
        """
        mapped, columns = self._mapped, self._mapped.columns
        if any(self._plain(row, column) in values for column, values in mapped.skip.items()):
            self._file.left_out += 1
            return
        day = self._day(row, columns.day)
        model = self._plain(row, columns.model)
        said = self._plain(row, columns.meter)
        meter = mapped.meters.get(said, said)
        tier = self._plain(row, columns.tier) or STANDARD
        units = self._units(row)
        self._file.days.add(day)
        if columns.amount is None:
            if units is None:
                raise Wrong("there are neither units nor an amount")
            self._file.usage.append(
                UsageRow(line=line, day=day, model=model, meter=meter, tier=tier, units=units)
            )
            return
        self._invoice(row)
        kind = self._kind(row, said)
        is_usage = kind == "usage"
        self._file.money.append(
            MoneyRow(
                line=line,
                kind=kind,
                day=day,
                model=model if is_usage else "",
                meter=meter if is_usage else "",
                tier=tier,
                units=units if is_usage else None,
                amount=self._amount(row, columns.amount, kind),
                currency=self._currency(row),
                description=self._plain(row, columns.description) or said,
            )
        )

    def _kind(self, row: Mapping[str, Cell], meter: str) -> Kind:
        column = self._mapped.columns.kind
        said = meter if column is None else self._plain(row, column)
        kind = self._mapped.kinds.get(said)
        if kind is None and column is not None and said not in ("", "usage"):
            raise Wrong(f"{column} {said!r} is not among `kinds` of the mapping")
        return kind or "usage"

    def _amount(self, row: Mapping[str, Cell], column: str, kind: Kind) -> Decimal:
        is_comma = self._mapped.decimal == "comma"
        amount = to_decimal(row[column], column, has_decimal_comma=is_comma)
        return -amount if kind == "credit" and self._mapped.credits == "positive" else amount

    def _units(self, row: Mapping[str, Cell]) -> int | None:
        column = self._mapped.columns.units
        if column is None or row[column] in (None, ""):
            return None
        is_comma = self._mapped.decimal == "comma"
        number = to_decimal(row[column], column, has_decimal_comma=is_comma)
        return to_units(number, column, times=Decimal(self._mapped.units_per))

    def _currency(self, row: Mapping[str, Cell]) -> str:
        column = self._mapped.columns.currency
        return self._mapped.currency if column is None else to_currency(row[column], column)

    def _invoice(self, row: Mapping[str, Cell]) -> None:
        """Take the invoice's number and day, which all rows of a file share."""
        columns, file = self._mapped.columns, self._file
        number = self._plain(row, columns.number)
        if number and file.number not in ("", number):
            raise Wrong(f"{columns.number} is {number!r} after {file.number!r}: one file, one bill")
        file.number = number or file.number
        if columns.issued_on is not None:
            issued_on = self._day(row, columns.issued_on)
            if file.issued_on not in (None, issued_on):
                raise Wrong(f"{columns.issued_on} is {issued_on} after {file.issued_on}")
            file.issued_on = issued_on

    def _day(self, row: Mapping[str, Cell], column: str) -> date:
        form = self._mapped.day_format
        value = row[column]
        if form is None or isinstance(value, datetime):
            return to_day(value, column, zone=self._zone)
        text = to_text(value, column)
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007 - the zone is added below
        except ValueError as error:
            raise Wrong(f"{column} {text!r} is not of the form {form!r}") from error
        has_time = any(mark in form for mark in ("%H", "%I", "%s"))
        return to_day(at, column, zone=self._zone) if has_time else at.date()

    def _plain(self, row: Mapping[str, Cell], column: str | None) -> str:
        value = "" if column is None else row[column]
        return "" if value is None else to_text(str(value), column or "")
