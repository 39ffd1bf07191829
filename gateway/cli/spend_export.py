"""`fareway spend export`: the ledger in FOCUS, as a folder or as CSV on standard output."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, BinaryIO

import anyio
import msgspec
import sqlalchemy as sa
import typer

from gateway.cli.admin import catch_up
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import system_clock
from gateway.finance.errors import FinanceError
from gateway.finance.focus.books import open_export
from gateway.finance.focus.errors import BadOrder
from gateway.finance.focus.export import Export
from gateway.finance.focus.files import Manifest, check_order, write_folder
from gateway.finance.focus.order import (
    ExportOrder,
    ExportRequest,
    FileFormat,
    FocusVersion,
    Grain,
    NameForm,
    Profile,
    SelfHost,
    instant_us,
    month_of,
)
from gateway.finance.focus.parties import parties_of
from gateway.finance.focus.streams import send_csv
from gateway.ledger.errors import LedgerError
from gateway.ledger.reading import read_ledger
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from gateway.settings.secrets import Label, load_master_keys

_STANDARD_OUTPUT = "-"


def export(
    profile: Annotated[
        Profile, typer.Option(help="Who issues the invoice that the file stands for.")
    ] = Profile.CHARGEBACK,
    focus_version: Annotated[
        FocusVersion, typer.Option(help="Version of FOCUS.")
    ] = FocusVersion.V1_4,
    month: Annotated[
        str | None, typer.Option(help="A month (UTC), such as 2026-11.", show_default=False)
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="First day or hour (UTC).", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="First day or hour not exported (UTC).", show_default=False),
    ] = None,
    grain: Annotated[Grain, typer.Option(help="Length of a charge period.")] = Grain.HOUR,
    form: Annotated[
        FileFormat, typer.Option("--format", help="How rows are written.")
    ] = FileFormat.CSV,
    out: Annotated[
        str, typer.Option(help="A new folder, or - for CSV on standard output.")
    ] = _STANDARD_OUTPUT,
    names: Annotated[
        NameForm, typer.Option(help="How keys and values of undeclared cost tags are written.")
    ] = NameForm.PSEUDONYMS,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Tell charges apart by key.", show_default=False)
    ] = False,
    spreadsheet: Annotated[
        bool,
        typer.Option(
            "--spreadsheet",
            help="An apostrophe before text that a spreadsheet would run.",
            show_default=False,
        ),
    ] = False,
    self_host: Annotated[
        SelfHost,
        typer.Option(help="Machines of your own as booked, or shares of what they cost."),
    ] = SelfHost.BOOKED,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export the ledger in FOCUS, exact to the picodollar.

    A running gateway is asked to load first what it has written.
    """
    try:
        from_us, to_us = _bounds(month, from_, to)
        order = ExportOrder(
            from_us=from_us,
            to_us=to_us,
            profile=profile,
            version=focus_version,
            grain=grain,
            names=names,
            with_keys=by_key,
            is_spreadsheet=spreadsheet,
            self_host=self_host,
        )
        check_order(order, form)
    except BadOrder as error:
        raise typer.BadParameter(str(error)) from error
    if out == _STANDARD_OUTPUT and (form is not FileFormat.CSV or as_json):
        raise typer.BadParameter("Parquet and --json need a folder: --out DIR")
    manifest = _write(load_guarded(config, environ=process_environ()), order, form, out)
    if manifest is not None:
        _tell(manifest, out, as_json=as_json)


def _write(loaded: LoadedConfig, order: ExportOrder, form: FileFormat, out: str) -> Manifest | None:
    """Write the export; None when it went to standard output."""
    if not anyio.run(catch_up, loaded):
        typer.echo("note: the running gateway has written more than is loaded yet", err=True)
    master = load_master_keys(loaded, environ=process_environ(), random_bytes=secrets.token_bytes)
    request = ExportRequest(
        order=order,
        parties=parties_of(loaded.settings),
        pseudonym_key=master.derive(Label.PSEUDONYM),
    )
    url = connection_url(loaded, environ=process_environ())
    try:
        if out == _STANDARD_OUTPUT:
            read_ledger(url, _print, request, typer.get_binary_stream("stdout"))
            return None
        return read_ledger(url, _write_folder, request, form, Path(out))
    except BadOrder as error:
        raise typer.BadParameter(str(error)) from error
    except (LedgerError, FinanceError) as error:
        raise CliFault(str(error)) from error


def _open(connection: sa.Connection, request: ExportRequest) -> Export:
    return open_export(
        connection,
        request.order,
        parties=request.parties,
        pseudonym_key=request.pseudonym_key,
        now_us=system_clock().wall_us(),
    )


def _write_folder(
    connection: sa.Connection, request: ExportRequest, form: FileFormat, target: Path
) -> Manifest:
    return write_folder(connection, _open(connection, request), form, target)


def _bounds(month: str | None, from_: str | None, to: str | None) -> tuple[int, int]:
    """The range that the options name.

    Raises:
        BadOrder: They name none, or two.
    """
    if month is not None:
        if from_ is not None or to is not None:
            raise BadOrder("--month is a range of its own; leave out --from and --to")
        return month_of(month)
    if from_ is None or to is None:
        raise BadOrder("name a range: --month 2026-11, or --from and --to")
    return instant_us(from_), instant_us(to)


def _print(connection: sa.Connection, request: ExportRequest, stream: BinaryIO) -> None:
    def send(piece: bytes) -> None:
        stream.write(piece)

    send_csv(connection, _open(connection, request), send)
    stream.flush()


def _tell(manifest: Manifest, out: str, *, as_json: bool) -> None:
    if as_json:
        document = msgspec.json.format(msgspec.json.encode(manifest)).decode()
        typer.echo(document)
        return
    for file in manifest.files:
        typer.echo(f"{Path(out) / file.name}: {file.rows} rows, SHA-256 {file.sha256}")
    totals = manifest.totals
    typer.echo(f"billed {totals['billed_cost']} USD, effective {totals['effective_cost']} USD")
    if totals["unpriced_attempts"]:
        typer.echo(f"unpriced: {totals['unpriced_attempts']} attempts are not in the cost")
    if totals["unknown_billing_attempts"]:
        exposure = totals["exposure_upper_bound"]
        typer.echo(
            f"unknown billing: {totals['unknown_billing_attempts']} attempts, "
            f"up to {exposure} USD more may be billed"
        )
