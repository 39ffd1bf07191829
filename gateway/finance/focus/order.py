"""What is asked of an export, without the database behind it; workers import this module."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from gateway.clock import from_microseconds, to_microseconds
from gateway.finance.focus.errors import BadOrder

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
RANGE_US_MAX = 3_700 * DAY_US
"""About ten years, longer than books are kept."""


class Profile(StrEnum):
    """Who issues the invoice that the file stands for (`docs/finance.md`)."""

    CHARGEBACK = "chargeback"
    """The operator bills its teams."""
    OVERLAY = "overlay"
    """To be merged with the vendors' own exports: nothing is billed here."""
    RECONCILED = "reconciled"
    """What vendors invoiced, spread over what was metered."""


class FocusVersion(StrEnum):
    """Version of the specification."""

    V1_2 = "1.2"
    V1_4 = "1.4"


class Grain(StrEnum):
    """Length of a charge period."""

    HOUR = "hour"
    DAY = "day"


class FileFormat(StrEnum):
    """How rows are written."""

    CSV = "csv"
    PARQUET = "parquet"


class NameForm(StrEnum):
    """How values that may be personal data are written."""

    PSEUDONYMS = "pseudonyms"
    PLAIN = "plain"


class SelfHost(StrEnum):
    """What machines of the organisation are told at."""

    BOOKED = "booked"
    """Busy time of requests, as the ledger has booked it."""
    ACTUAL = "actual"
    """What they cost, shared among teams, with a row for idle time."""


GRAIN_US = {Grain.HOUR: HOUR_US, Grain.DAY: DAY_US}


class ExportOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which export is wanted; `check` it before use.

    Attributes:
        from_us: First instant, microseconds since the epoch; the beginning of an hour (day).
        to_us: First instant after the last.
        profile: Who issues the invoice.
        version: Version of the specification.
        grain: Length of a charge period.
        names: How keys and the values of undeclared cost tags are written.
        with_keys: Whether charges are told apart by key.
        is_spreadsheet: Whether text that a spreadsheet would run gets an apostrophe (CSV only).
        self_host: What machines of the organisation are told at.
    """

    from_us: int
    to_us: int
    profile: Profile = Profile.CHARGEBACK
    version: FocusVersion = FocusVersion.V1_4
    grain: Grain = Grain.HOUR
    names: NameForm = NameForm.PSEUDONYMS
    with_keys: bool = False
    is_spreadsheet: bool = False
    self_host: SelfHost = SelfHost.BOOKED

    @property
    def grain_us(self) -> int:
        """Microseconds of a charge period."""
        return GRAIN_US[self.grain]

    def check_form(self, form: FileFormat) -> None:
        """Refuse a combination that has no meaning, and bounds that have none.

        Raises:
            BadOrder: Spreadsheet mode for a file that no spreadsheet guesses about.
        """
        self.check()
        if self.is_spreadsheet and form is not FileFormat.CSV:
            raise BadOrder("the spreadsheet mode is for CSV; Parquet has types of its own")

    def check(self) -> None:
        """Refuse bounds that no charge period begins or ends with.

        Raises:
            BadOrder: Says which bound, and what it must be.
        """
        for bound_us in (self.from_us, self.to_us):
            if bound_us % self.grain_us:
                at = from_microseconds(bound_us).isoformat()
                raise BadOrder(f"{at} is not the beginning of a UTC {self.grain}")
        if self.self_host is SelfHost.ACTUAL and self.grain is not Grain.HOUR:
            raise BadOrder("shares of machines are told by the hour, not by the day")
        if self.from_us >= self.to_us:
            raise BadOrder("the first instant is not before the first one that is not exported")
        if self.to_us - self.from_us > RANGE_US_MAX:
            raise BadOrder("an export spans ten years at most; name a shorter range")


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands on an export.

    Attributes:
        organisation: Who runs the gateway and bills the teams (`finance.organisation`).
        machines: Providers of the configuration that are machines of the organisation.
        declared_tags: Cost tags whose values are no personal data (`finance.cost_tags`).
    """

    organisation: str
    machines: tuple[str, ...] = ()
    declared_tags: tuple[str, ...] = ()


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process asks another for.

    Attributes:
        order: Checked.
        parties: Who stands on the export.
        pseudonym_key: What pseudonyms are derived with.
        form: How rows are written.
    """

    order: ExportOrder
    parties: Parties
    pseudonym_key: bytes
    form: FileFormat = FileFormat.CSV

    def __repr__(self) -> str:
        return f"<ExportRequest {self.order}>"


def month_of(text: str) -> tuple[int, int]:
    """The first instant of a month written `2026-11`, and that of the next month.

    Raises:
        BadOrder: It is no month.
    """
    try:
        start_us = to_microseconds(datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC))
        return start_us, billing_period(start_us)[1]
    except ValueError as error:  # also for the last month that a date can have
        raise BadOrder(f"{text!r} is no month such as 2026-11") from error


def instant_us(text: str) -> int:
    """Microseconds of an ISO 8601 day or instant; UTC unless it says otherwise.

    Raises:
        BadOrder: It is neither.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadOrder(
            f"{text!r} is no day or instant such as 2026-11-01 or 2026-11-01T06:00"
        ) from error
    return to_microseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


def billing_period(at_us: int) -> tuple[int, int]:
    """The calendar month (UTC) of an instant: its first instant and that of the next month."""
    first = from_microseconds(at_us).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    is_december = first.month == 12
    following = first.replace(
        year=first.year + is_december, month=1 if is_december else first.month + 1
    )
    return to_microseconds(first), to_microseconds(following)


def billing_months(from_us: int, to_us: int) -> Iterator[int]:
    """First instants of the calendar months (UTC) that begin in a range."""
    start_us, end_us = billing_period(from_us)
    month_us = start_us if start_us == from_us else end_us
    while month_us < to_us:
        yield month_us
        month_us = billing_period(month_us)[1]
