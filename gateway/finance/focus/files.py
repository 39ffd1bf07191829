"""An export as a folder: a file per dataset and a manifest, all or nothing.

Everything is written into a folder beside the target, synced, and then renamed: a reader sees the
whole export or none. The same rows give the same bytes, and a manifest without times the same
manifest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.focus.columns import ColumnType, Value
from gateway.finance.focus.errors import TargetTaken
from gateway.finance.focus.export import Export
from gateway.finance.focus.order import ExportOrder, FileFormat, FocusVersion
from gateway.finance.focus.parquet import ParquetFile
from gateway.finance.focus.version_1_4 import contract_values, invoice_values, period_values
from gateway.finance.focus.versions import COST_AND_USAGE
from gateway.finance.focus.writing import CsvFile, Header, WriterFactory
from pricing.money import format_usd

T = TypeVar("T")

MANIFEST = "manifest.json"
_READ_BYTES = 1 << 20


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an export."""

    name: str
    dataset: str
    rows: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an export holds, and what it was made from.

    Attributes:
        fareway_version: Which release wrote it.
        from_: First instant (UTC).
        to: First instant after the last.
        names: How keys and values of undeclared cost tags are written.
        files: All files but this one.
        totals: Sums over Cost and Usage: amounts as decimal strings in dollars, and counts.
        price_versions: Price versions that something was charged with.
        ledger_sha256: Digest of the ledger's sums of the range; the same for the same grain,
            whatever the profile, the format and the names.
    """

    fareway_version: str
    focus_version: str
    profile: str
    grain: str
    from_: str = msgspec.field(name="from")
    to: str
    names: str
    with_keys: bool
    format: str
    files: tuple[WrittenFile, ...]
    totals: dict[str, int | str]
    price_versions: tuple[str, ...]
    ledger_sha256: str


def check_order(order: ExportOrder, form: FileFormat) -> None:
    """As `ExportOrder.check_form`."""
    order.check_form(form)


def write_folder(
    connection: sa.Connection, export: Export, form: FileFormat, target: Path
) -> Manifest:
    """Write an export.

    Args:
        connection: In one transaction.
        export: Nothing of it taken yet.
        form: Of the files.
        target: A folder that does not exist, or is empty.

    Raises:
        TargetTaken: There is something in it.
        MissingExtra: A library is not installed.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TargetTaken(f"{target} is there already and not empty; name a new folder")
    with _staged(target) as stage:
        files = list(_datasets(connection, export, form, stage))
        manifest = _manifest(export, form, files)
        path = stage / MANIFEST
        path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        _sync(path)
    return manifest


@contextmanager
def _staged(target: Path) -> Generator[Path]:
    """A folder that becomes the target when all went well, and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield stage
        _sync(stage)
        stage.replace(target)  # over an empty folder at most
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def _datasets(
    connection: sa.Connection, export: Export, form: FileFormat, stage: Path
) -> Iterator[WrittenFile]:
    """Write Cost and Usage, then what stands beside it and has rows."""
    order = export.order
    make = _factory(order, form)
    columns = COST_AND_USAGE[order.version]
    header = [(column.name, column.type) for column in columns]
    reads = [column.value for column in columns]
    path = stage / f"cost_and_usage.{form}"
    writer = make(path, header)
    for lines in export.pieces(connection):
        writer.write([read(line) for read in reads] for line in lines)
    writer.close()
    yield _written(path, "Cost and Usage", export.totals.rows)
    if order.version is not FocusVersion.V1_4:
        return
    source, bounds = export.source, (order.from_us, order.to_us)
    beside: Sequence[tuple[str, str, list[dict[str, tuple[ColumnType, Value]]]]] = (
        ("billing_period", "Billing Period", _each(period_values, export.billing_periods())),
        ("invoice_detail", "Invoice Detail", _each(invoice_values, source.invoice_lines(*bounds))),
        (
            "contract_commitment",
            "Contract Commitment",
            _each(contract_values, source.contracts(*bounds)),
        ),
    )
    for name, dataset, rows in beside:
        if rows:
            path = stage / f"{name}.{form}"
            _write_all(make, path, rows)
            yield _written(path, dataset, len(rows))


def _each(
    values: Callable[[T], dict[str, tuple[ColumnType, Value]]], found: Sequence[T]
) -> list[dict[str, tuple[ColumnType, Value]]]:
    return [values(one) for one in found]


def _factory(order: ExportOrder, form: FileFormat) -> WriterFactory:
    if form is FileFormat.PARQUET:
        return ParquetFile
    return partial(CsvFile, is_spreadsheet=order.is_spreadsheet)


def _write_all(
    make: WriterFactory, path: Path, rows: Sequence[Mapping[str, tuple[ColumnType, Value]]]
) -> None:
    header: Header = [(name, kind) for name, (kind, _) in rows[0].items()]
    writer = make(path, header)
    writer.write([value for _, value in row.values()] for row in rows)
    writer.close()


def _written(path: Path, dataset: str, rows: int) -> WrittenFile:
    _sync(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return WrittenFile(
        name=path.name,
        dataset=dataset,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=digest.hexdigest(),
    )


def _manifest(export: Export, form: FileFormat, files: Sequence[WrittenFile]) -> Manifest:
    order, totals = export.order, export.totals
    return Manifest(
        fareway_version=version("fareway"),
        focus_version=order.version,
        profile=order.profile,
        grain=order.grain,
        from_=from_microseconds(order.from_us).isoformat(),
        to=from_microseconds(order.to_us).isoformat(),
        names=order.names,
        with_keys=order.with_keys,
        format=form,
        files=tuple(files),
        totals={
            "billed_cost": format_usd(totals.billed_pico_usd),
            "effective_cost": format_usd(totals.effective_pico_usd),
            "contracted_cost": format_usd(totals.contracted_pico_usd),
            "list_cost": format_usd(totals.list_pico_usd),
            "requests": totals.requests,
            "unpriced_attempts": totals.unpriced_attempts,
            "unknown_billing_attempts": totals.unknown_attempts,
            "exposure_upper_bound": format_usd(totals.exposure_pico_usd),
        },
        price_versions=tuple(sorted(export.price_versions)),
        ledger_sha256=export.ledger_digest,
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
