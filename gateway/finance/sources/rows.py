"""The rows that every reader makes, and how text from outside becomes numbers and days.

Numbers are decimal text from the first byte on: no value passes through a float, except in Parquet
files whose vendor wrote floats, which are taken at their shortest decimal text. A wrong value is a
`Wrong`; the reader adds file and line and goes on, so that all problems of a file are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TypeVar, cast
from zoneinfo import ZoneInfo

from pricing.usage import Meter

T = TypeVar("T")

UNITS_MAX = 2**62
AMOUNT_DIGITS_MAX = 40
STANDARD = "standard"
"""The tier of what says nothing of one."""
OTHER = "other"
"""The meter of usage that Fareway does not meter, such as a vendor's own tools."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)
_TEXT_MAX = 512
_NO_TEXT = re.compile("[\\x00\\ud800-\\udfff]")
"""What no database keeps: NUL, and halves of characters, which JSON can write."""
_TOKEN_METERS = frozenset(
    {Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE, Meter.OUTPUT, Meter.REASONING}
)
TOKEN_METERS = frozenset(meter.value for meter in _TOKEN_METERS)
"""Meters that count tokens."""


class Wrong(Exception):
    """A value that cannot be what it stands for; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What a vendor says was used, without money.

    Attributes:
        line: Line of the file, or the number of the entry in it.
        day: UTC.
        model: The vendor's id; empty when the file does not say.
        meter: A meter of ours, another word for what we do not meter, empty for all together.
        tier: Service tier.
        units: At least 0.
    """

    line: int
    day: date
    model: str
    meter: str
    tier: str
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyRow:
    """What a vendor bills.

    Attributes:
        line: Line of the file, or the number of the entry in it.
        kind: `usage`, `tax`, `credit` or `rounding`.
        day: UTC day of charge.
        model: The vendor's id; empty when the file does not say, or the row is no usage.
        meter: As in `UsageRow`.
        tier: Service tier.
        units: What was used; None when the file does not say.
        amount: In `currency`; negative is money back.
        currency: Three letters of ISO 4217.
        description: The vendor's words.
    """

    line: int
    kind: str
    day: date
    model: str = ""
    meter: str = ""
    tier: str = STANDARD
    units: int | None = None
    amount: Decimal
    currency: str
    description: str = ""


@dataclass(slots=True, kw_only=True)
class SourceFile:
    """What a file holds.

    Attributes:
        name: For errors.
        usage: Rows of usage.
        money: Rows of money.
        days: Every day that the file speaks of, also those with nothing on them.
        number: The invoice's number, empty for a report.
        issued_on: Day of the invoice, None for a report.
        is_bill: False for a report of usage: it bills nothing, which is not the same as a bill of
            nothing.
        left_out: Rows that are not about models, such as other services of a cloud.
        problems: One sentence each, with file and place.
    """

    name: str
    usage: list[UsageRow] = field(default_factory=list[UsageRow])
    money: list[MoneyRow] = field(default_factory=list[MoneyRow])
    days: set[date] = field(default_factory=set[date])
    number: str = ""
    issued_on: date | None = None
    is_bill: bool = True
    left_out: int = 0
    problems: list[str] = field(default_factory=list[str])

    def wrong(self, place: str | int, why: object) -> None:
        """Note a problem and go on."""
        self.problems.append(f"{self.name}:{place}: {why}")


def to_decimal(value: object, what: str, *, has_decimal_comma: bool = False) -> Decimal:
    """A finite decimal number from text, an integer or a decimal.

    Args:
        value: As the file has it.
        what: Its name in the file.
        has_decimal_comma: Whether `1.234,50` is one thousand and a half, not `1,234.50`.

    Raises:
        Wrong: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise Wrong(f"{what} is {_kind(value)}, must be a number")
    if isinstance(value, int):
        return Decimal(value)
    text = value.strip() if isinstance(value, str) else str(value)
    if has_decimal_comma:
        whole, _, decimals = text.partition(",")
        text = f"{_without_groups(whole, '.', what)}.{decimals}" if decimals else whole
        text = text if decimals else _without_groups(whole, ".", what)
    elif "," in text:
        whole, point, decimals = text.partition(".")
        text = f"{_without_groups(whole, ',', what)}{point}{decimals}"
    if len(text) > AMOUNT_DIGITS_MAX or not _NUMBER.fullmatch(text):
        raise Wrong(f"{what} {text[:AMOUNT_DIGITS_MAX]!r} is no number")
    return Decimal(text)


def to_units(value: object, what: str, *, times: Decimal = Decimal(1)) -> int:
    """A whole number of units, at least 0.

    Args:
        value: As the file has it.
        what: Its name in the file.
        times: Units that one of the file's stands for, such as 1000.

    Raises:
        Wrong: It is none; a vendor's float noise below a thousandth of a unit is forgiven.
    """
    number = to_decimal(value, what) * times
    units = int(number.to_integral_value())
    if abs(number - units) > Decimal("0.001"):
        raise Wrong(f"{what} {number} is no whole number of units")
    if not 0 <= units <= UNITS_MAX:
        raise Wrong(f"{what} {number} is below 0 or out of range")
    return units


def to_day(value: object, what: str, *, zone: ZoneInfo | None = None) -> date:
    """The UTC day of an ISO 8601 day or instant.

    Args:
        value: Text; an instant without an offset is UTC, or of `zone`.
        what: Its name in the file.
        zone: Where instants without an offset are of; a bare day is taken as it stands.

    Raises:
        Wrong: It is none.
    """
    if isinstance(value, datetime):
        at = value
    else:
        text = to_text(value, what)
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise Wrong(f"{what} {text!r} is no day or instant such as 2026-10-31") from error
        if len(text) == len("2026-10-31"):
            return at.date()
    return (at if at.tzinfo else at.replace(tzinfo=zone or UTC)).astimezone(UTC).date()


def to_unix_day(value: object, what: str) -> date:
    """The UTC day of seconds since the epoch.

    Raises:
        Wrong: It is no whole number, or of no calendar year.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**37:
        raise Wrong(f"{what} is {_kind(value)}, must be seconds since 1970")
    return datetime.fromtimestamp(value, UTC).date()


def to_currency(value: object, what: str) -> str:
    """Three letters of ISO 4217, in capitals.

    Raises:
        Wrong: It is none.
    """
    text = to_text(value, what).upper()
    if not _CURRENCY.fullmatch(text):
        raise Wrong(f"{what} {text!r} is no currency such as USD")
    return text


def to_text(value: object, what: str) -> str:
    """Text of a bounded length, without space around it.

    Raises:
        Wrong: It is none, or far too long.
    """
    if not isinstance(value, str):
        raise Wrong(f"{what} is {_kind(value)}, must be text")
    text = value.strip()
    if len(text) > _TEXT_MAX:
        raise Wrong(f"{what} is longer than {_TEXT_MAX} characters")
    if _NO_TEXT.search(text):
        raise Wrong(f"{what} holds a character that is no text, such as NUL")
    return text


def to_optional_text(value: object, what: str) -> str:
    """Text, empty for null.

    Raises:
        Wrong: It is something else.
    """
    return "" if value is None else to_text(value, what)


def to_object(value: object, what: str) -> Mapping[str, object]:
    """A JSON object.

    Raises:
        Wrong: It is none.
    """
    if not isinstance(value, dict):
        raise Wrong(f"{what} is {_kind(value)}, must be an object")
    return cast("Mapping[str, object]", value)


def to_list(value: object, what: str) -> Sequence[object]:
    """A JSON array.

    Raises:
        Wrong: It is none.
    """
    if not isinstance(value, list):
        raise Wrong(f"{what} is {_kind(value)}, must be a list")
    return cast("Sequence[object]", value)


def _without_groups(whole: str, mark: str, what: str) -> str:
    """An integer part without the marks between thousands; they must stand where they belong."""
    if mark not in whole:
        return whole
    groups = whole.lstrip("+-").split(mark)
    is_sound = 1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])
    if not is_sound:
        raise Wrong(f"{what} {whole!r} has {mark!r} where no thousands end")
    return whole.replace(mark, "")


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float):
        return "a float"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else ascii(value)[:60]
