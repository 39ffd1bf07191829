"""What the dashboard asks beside what commands ask: files held for a look, acts done once.

A browser may send a form twice, and gives a file only once: so an act carries the number of its
form, and an upload is held by the ledger process until whoever sent it has seen what is in it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.bill_messages import ImportedFile, ImportFile, Reconcile
from gateway.finance.close_messages import CloseMonth, ProposeClose, WithdrawClose
from gateway.finance.journal_messages import IssueJournal
from gateway.finance.messages import Decide, Month, Propose
from gateway.finance.price_messages import DecidePrice

FormToken = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
FILE_BYTES_MAX = 48 * 1024 * 1024
"""Largest file that is taken; a call between processes is bounded."""


class ImportHeld(msgspec.Struct, frozen=True, kw_only=True, tag="import_held"):
    """Take a file that is held.

    Attributes:
        held: Its token, as `PreviewFile` gave it.
        order: Everything about it but its content, which is empty here.
    """

    held: FormToken
    order: ImportFile


class Once(msgspec.Struct, frozen=True, kw_only=True, tag="once"):
    """Do what a form asks for once, however often the form is sent.

    Attributes:
        form: The form's own random number.
        act: What it asks for.
    """

    form: FormToken
    act: (
        ImportHeld
        | Reconcile
        | Propose
        | Decide
        | IssueJournal
        | CloseMonth
        | ProposeClose
        | WithdrawClose
        | DecidePrice
    )


def actor_of(order: Once) -> str:
    """Who sends a form."""
    return order.act.order.actor if isinstance(order.act, ImportHeld) else order.act.actor


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a form.

    Attributes:
        subject: Number of the import, run, proposal or journal; the month of a close.
        sentence: What was done.
        is_repeated: Whether the form was sent before, so that nothing was done now.
    """

    subject: str
    sentence: str
    is_repeated: bool = False


class ShowForm(msgspec.Struct, frozen=True, kw_only=True, tag="show_form"):
    """What became of a form; `None` when it was never acted on.

    Attributes:
        sent: The form; refused where it asked for something else before.
    """

    sent: Once


class PreviewFile(msgspec.Struct, frozen=True, kw_only=True, tag="preview_file"):
    """Hold a file and say what an import would take of it, and what it would refuse.

    Attributes:
        order: The import; its content is empty where the file is held already.
        held: Token of the file that is held, empty for a new one.
    """

    order: ImportFile
    held: str = ""


class PreviewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as the import would take it.

    Attributes:
        line: Of the file.
        kind: `usage`, `tax`, `credit` or `rounding`; `count` for usage without money.
        day: UTC.
        model: The vendor's id, empty for none.
        meter: Empty for none.
        units: None where the file does not say.
        amount: As the file has it, with its currency; empty for a count.
        amount_pico_usd: Converted, None for a count.
    """

    line: int
    kind: str
    day: str
    model: str
    meter: str
    units: int | None
    amount: str
    amount_pico_usd: int | None


class FilePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a file that is held.

    Attributes:
        held: Its token.
        file_name: As it was given.
        byte_count: Its size.
        sha256: Of its content, hexadecimal.
        columns: Names of a table's columns; empty for what is no table.
        cells: The first rows of a table as text, in the order of the columns.
        rows: The first rows as they would be taken.
        problems: Everything that is wrong; then nothing of the file would be taken.
        first_day: First day that it covers, empty where it cannot be read.
        last_day: Last one, counted.
        row_count: Rows that would be taken.
        left_out: Rows of other services, or that repeat others.
        total_pico_usd: Sum of its money, 0 for usage.
        same_as: The import of the same file, None when there is none.
        covered: Imports that cover days of it already.
    """

    held: str
    file_name: str
    byte_count: int
    sha256: str
    columns: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    rows: tuple[PreviewRow, ...] = ()
    problems: tuple[str, ...] = ()
    first_day: str = ""
    last_day: str = ""
    row_count: int = 0
    left_out: int = 0
    total_pico_usd: int = 0
    same_as: int | None = None
    covered: tuple[ImportedFile, ...] = ()


class ShowProposal(msgspec.Struct, frozen=True, kw_only=True, tag="show_proposal"):
    """One proposal."""

    proposal_id: int


class ShowCell(msgspec.Struct, frozen=True, kw_only=True, tag="show_cell"):
    """Both sides of one difference as they are now.

    Attributes:
        month: The month that is compared.
        account: Provider of the configuration.
        day: Day of charge; empty for lines that are about the month.
        model: The ledger's name, empty for every model of the day.
        meter: Empty for every meter.
        kind: The difference's class.
        is_usage: Whether the difference is of usage; else it is of the bill's lines of that class.
        aliases: Names of models on bills, as in `Reconcile`.
    """

    month: Month
    account: str
    day: str
    model: str
    meter: str
    kind: str
    is_usage: bool
    aliases: dict[str, str] = {}


class CellRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row behind a difference.

    Attributes:
        side: `ledger`, `adjustment`, `bill`, `count` or `unknown bill`.
        what: Team and project, the bill's words, or the attempt.
        model: As that side calls it.
        meter: Empty for none.
        units: None where that side counts nothing.
        amount_pico_usd: None where that side says no money.
    """

    side: str
    what: str
    model: str
    meter: str
    units: int | None
    amount_pico_usd: int | None
