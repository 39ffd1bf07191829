"""`/ui/imports`: vendors' files, looked at before anything of them is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import anyio.to_thread
import msgspec
from fastapi import Request, Response

from gateway.dashboard.books.frame import (
    IMPORTS_PATH,
    Books,
    FieldFaults,
    Filled,
    back,
    form_number,
    instant,
    spoken,
)
from gateway.dashboard.books.mapping_form import COLUMNS, mapping_of
from gateway.dashboard.books.run_view import place_text, units_text
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance.amounts import shown
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import form_of, upload_of
from gateway.errors import CallerFault
from gateway.finance.bill_messages import (
    ImportedFile,
    ImportFile,
    ListImports,
    Overlap,
    SourceKind,
)
from gateway.finance.form_messages import FilePreview, ImportHeld, Once, PreviewFile
from gateway.finance.sources.generic import MAPPING_BYTES_MAX

UPLOAD_PATH = IMPORTS_PATH
SOURCES: Mapping[str, str] = {
    SourceKind.OPENAI_COSTS: "OpenAI: costs (JSON)",
    SourceKind.OPENAI_USAGE: "OpenAI: usage (JSON)",
    SourceKind.ANTHROPIC_COSTS: "Anthropic: cost report (JSON)",
    SourceKind.ANTHROPIC_USAGE: "Anthropic: messages usage (JSON)",
    SourceKind.OPENROUTER_ACTIVITY: "OpenRouter: activity",
    SourceKind.OPENROUTER_GENERATIONS: "OpenRouter: generations",
    SourceKind.AWS_FOCUS: "AWS: FOCUS export (CSV or Parquet)",
    SourceKind.AZURE_FOCUS: "Azure: FOCUS export (CSV or Parquet)",
    SourceKind.FOCUS: "Anybody: FOCUS export (CSV or Parquet)",
    SourceKind.CSV: "Anything else: a table whose columns you name",
}
_LISTED = 200
_HELD = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NUMBER_CHARACTERS_MAX = 128
_OVERLAPS = {one.value: one for one in Overlap}
_RATES_AWAY = "the rates file of the configuration cannot be read: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPages:
    """The pages.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/imports", self.show
        yield "POST", "/imports", self.upload
        yield "POST", "/imports/{held}", self.take

    async def show(self, request: Request) -> Response:
        """Every file that was taken, and the form for another one."""

        async def page(month: Month) -> Response:
            return await self._page(request, month, Filled())

        return await self.books.of_month(request, IMPORTS_PATH, page)

    async def upload(self, request: Request) -> Response:
        """Show what is in a file that was chosen; nothing of it is taken yet."""
        form = await upload_of(request)
        month = self._month(form.fields)
        file = form.files.get("file")
        mapping = form.files.get("mapping_file")
        fields = dict(form.fields)
        try:
            faults: dict[str, str] = {}
            if mapping is not None and len(mapping.content) > MAPPING_BYTES_MAX:
                faults["mapping_file"] = f"is over {MAPPING_BYTES_MAX // 1024} KiB"
            elif mapping is not None and mapping.content:
                fields["mapping"] = mapping.content.decode("utf-8", "replace")
            if file is None or not file.name:
                faults["file"] = "choose a file"
            elif not file.content:
                faults["file"] = "the file is empty"
            order = await self._order(
                request, fields, file.name if file is not None else "", faults
            )
            if file is None or faults:
                raise FieldFaults(faults)
            order = msgspec.structs.replace(order, content=file.content)
            preview = await self.books.ask(PreviewFile(order=order), FilePreview)
        except FieldFaults as error:
            return await self._page(request, month, Filled(values=fields, faults=error.faults))
        except CallerFault as error:
            filled = Filled(values=fields, faults={"file": error.message})
            return await self._page(request, month, filled)
        return self._preview(request, month, Filled(values=fields), preview)

    async def take(self, request: Request, held: str) -> Response:
        """Look again with other fields, or take the file that is held."""
        fields = await form_of(request)
        month = self._month(fields)
        faults: dict[str, str] = {}
        try:
            if not _HELD.fullmatch(held):
                raise FieldFaults({"file": "the file is not held any more; choose it once more"})
            order = await self._order(request, fields, fields.get("file_name", ""), faults)
            if faults.keys() & {"source", "account"}:
                raise FieldFaults(faults)
            if fields.get("do") == "keep" and not faults:
                number = await self._keep(fields, ImportHeld(held=held, order=order), faults)
                if number:
                    return back(IMPORTS_PATH, month=month.name, taken=number)
            preview = await self.books.ask(PreviewFile(order=order, held=held), FilePreview)
        except FieldFaults as error:
            return await self._page(request, month, Filled(values=fields, faults=error.faults))
        except CallerFault as error:
            filled = Filled(values=fields, faults={"file": error.message})
            return await self._page(request, month, filled)
        return self._preview(request, month, Filled(values=fields, faults=faults), preview)

    async def _keep(
        self, fields: Mapping[str, str], act: ImportHeld, faults: dict[str, str]
    ) -> str:
        """Take a file; gives the import's number, or adds why it was not taken."""
        try:
            done = await self.books.act(Once(form=form_number(fields), act=act))
        except FieldFaults as error:
            faults |= error.faults
            return ""
        return done.subject

    def _month(self, fields: Mapping[str, str]) -> Month:
        found = self.books.month(fields.get("month") or None) or self.books.month(None)
        assert found is not None, "the month before this one is a month"
        return found

    async def _order(
        self, request: Request, fields: Mapping[str, str], name: str, faults: dict[str, str]
    ) -> ImportFile:
        """The import that a form asks for, without its content; adds what is wrong."""
        source, account = fields.get("source", ""), fields.get("account", "")
        if source not in SOURCES:
            faults["source"] = "choose what the file is"
        if account not in self.books.providers():
            faults["account"] = "choose the provider that the file is about"
        issued_on, number = fields.get("issued_on", "").strip(), fields.get("number", "").strip()
        if issued_on and not _is_day(issued_on):
            faults["issued_on"] = "must be a day such as 2026-10-31"
        if len(number) > _NUMBER_CHARACTERS_MAX:
            faults["number"] = f"at most {_NUMBER_CHARACTERS_MAX} characters"
        mapping = None
        if source == SourceKind.CSV:
            try:
                mapping = mapping_of(fields)
            except FieldFaults as error:
                faults |= error.faults
        rates = None
        if self.books.rates_file is not None:
            rates = await anyio.to_thread.run_sync(_read_text, self.books.rates_file)
        return ImportFile(
            actor=self.books.actor(request),
            source=SourceKind(source) if source in SOURCES else SourceKind.CSV,
            account=account[:128] or NOTHING,
            file_name=name[-255:] or NOTHING,
            content=b"",
            mapping=mapping,
            issued_on="" if "issued_on" in faults else issued_on,
            number=number[:_NUMBER_CHARACTERS_MAX],
            overlap=_OVERLAPS.get(fields.get("overlap", ""), Overlap.REFUSE),
            rates=rates,
            rates_name=str(self.books.rates_file or ""),
        )

    def _preview(
        self, request: Request, month: Month, filled: Filled, preview: FilePreview
    ) -> Response:
        source = filled.value("source")
        is_table = source == SourceKind.CSV
        has_mapping = bool(preview.rows or preview.problems) or not is_table
        mapping = _mapping_text(filled)
        shown_ = {
            **self.books.frame(request, IMPORTS_PATH, month),
            "filled": filled,
            "one": preview,
            "source": SOURCES.get(source, source),
            "is_table": is_table,
            "has_mapping": has_mapping,
            "mapping": mapping,
            "total": shown(preview.total_pico_usd),
            "rows": [
                (row.line, row.kind.replace("count", "usage, no money"), row.day,
                 place_text(row.model, row.meter), units_text(row.units), row.amount or NOTHING,
                 None if row.amount_pico_usd is None else shown(row.amount_pico_usd))
                for row in preview.rows
            ],
            "columns": [(name, name) for name in preview.columns],
            "meanings": list(COLUMNS.items()),
            "can_take": bool(preview.row_count) and preview.same_as is None and not filled.faults,
        }  # fmt: skip
        status = 422 if filled.faults or preview.problems else 200
        return self.books.shell.page("import_preview.html", shown_, status=status)

    async def _page(self, request: Request, month: Month, filled: Filled) -> Response:
        found = await self.books.ask(ListImports(), tuple[ImportedFile, ...])
        names = await self.books.names()
        taken = request.query_params.get("taken", "")
        shown_ = {
            **self.books.frame(request, IMPORTS_PATH, month),
            "filled": filled,
            "sources": list(SOURCES.items()),
            "providers": [(name, name) for name in sorted(self.books.providers())],
            "taken": next((one for one in found if str(one.batch_id) == taken), None),
            "imports": [
                (one, SOURCES.get(one.source, one.source), instant(one.at_us),
                 spoken(one.actor, names))
                for one in found[:_LISTED]
            ],
            "hidden": max(len(found) - _LISTED, 0),
        }  # fmt: skip
        return self.books.shell.page("imports.html", shown_, status=422 if filled.faults else 200)


def _mapping_text(filled: Filled) -> str:
    try:
        return mapping_of(filled.values) or ""
    except FieldFaults:
        return ""


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _read_text(path: Path) -> str:
    """The rates file as text; what is wrong with it is told when it is parsed.

    Raises:
        FieldFaults: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise FieldFaults({"": _RATES_AWAY.format(error.strerror)}) from error
