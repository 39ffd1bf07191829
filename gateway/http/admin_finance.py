"""`/admin/v1/finance`: vendors' bills, reconciliation, adjustments, closing a month."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path as FilePath
from typing import Annotated, Literal, cast

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from gateway import errors
from gateway.access.asking import Asking, Within
from gateway.finance.bill_messages import (
    ImportFile,
    ListImports,
    ListRuns,
    Overlap,
    ShowRun,
    SourceKind,
)
from gateway.finance.errors import FinanceError, Refused
from gateway.finance.generation_messages import GenerationState, ListGenerations
from gateway.finance.journal_csv import journal_csv
from gateway.finance.journal_messages import (
    IssueJournal,
    JournalDocument,
    JournalPosting,
    ShowJournal,
)
from gateway.finance.journal_orders import journal_posting
from gateway.finance.messages import (
    MONTH_PATTERN,
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Propose,
)
from gateway.finance.orders import reconcile_order
from gateway.finance.statement_messages import days_of
from gateway.finance.story_messages import ShowAnomalies, ShowBridge
from gateway.http.admin import PREFIX
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls
from pricing.errors import InvalidAmount
from pricing.money import PICO_PER_USD, format_usd, parse_usd

Document = dict[str, object]
"""An answer: amounts in picodollars, and each beside it as decimal text in dollars."""
JournalAnswer = Document | Response
"""JSON, or CSV when that was asked for."""
MonthName = Annotated[str, Field(pattern=MONTH_PATTERN)]
MonthPath = Annotated[str, Path(pattern=MONTH_PATTERN, description="A month in UTC: `2026-10`.")]
Number = Annotated[int, Path(ge=1, lt=2**62)]
Words = Annotated[str, Field(min_length=1, max_length=128)]


class ImportBody(AdminModel):
    """A vendor's file."""

    source: SourceKind = Field(description="Its format.")
    account: Words = Field(description="Provider of the configuration that it is about.")
    file_name: Annotated[str, Field(min_length=1, max_length=255)]
    content: str | None = Field(default=None, description="The file, when it is text.")
    content_base64: str | None = Field(default=None, description="The file, when it is none.")
    mapping: str | None = Field(
        default=None, max_length=65_536, description="YAML that names the columns, for `csv`."
    )
    issued_on: date | None = Field(default=None, description="Day of an invoice that says none.")
    number: Annotated[str, Field(max_length=128)] = ""
    overlap: Overlap = Field(
        default=Overlap.REFUSE, description="What to do with days that are covered already."
    )


class ReconcileBody(AdminModel):
    """A month to be compared."""

    month: MonthName
    propose: bool = Field(default=True, description="Whether to propose adjustments.")


class LineBody(AdminModel):
    """One amount of a proposal."""

    amount_usd: Annotated[str, Field(max_length=40)] = Field(description="Decimal text, signed.")
    team: Words = Field(description="Who pays; `unattributed` for nobody.")
    project: Annotated[str, Field(max_length=128)] = ""
    account: Annotated[str, Field(max_length=128)] = ""
    model: Annotated[str, Field(max_length=256)] = ""
    day: date | None = None


class ProposalBody(AdminModel):
    """Adjustments by hand."""

    period: MonthName
    kind: AdjustmentKind
    reason: Annotated[str, Field(min_length=1, max_length=1_000)]
    lines: Annotated[list[LineBody], Field(min_length=1, max_length=1_000)]


class AdjustmentParams(AdminModel):
    """Which adjustments are wanted."""

    from_: MonthName | None = Field(default=None, alias="from", description="First month.")
    to: MonthName | None = Field(default=None, description="First month not wanted.")
    team: Annotated[str | None, Field(max_length=128)] = None


class GenerationParams(AdminModel):
    """Which generations are wanted."""

    month: MonthName
    account: Annotated[str | None, Field(max_length=128)] = None
    state: GenerationState | None = Field(
        default=None, description="Unset: all that are not the same on both sides."
    )


class ProposalParams(AdminModel):
    """Which proposals are wanted."""

    state: Literal["proposed", "posted", "rejected"] | None = None


class RunParams(AdminModel):
    """Which runs are wanted."""

    month: MonthName | None = None


class JournalParams(AdminModel):
    """Which journal is wanted, and how."""

    draft: bool = Field(default=False, description="A draft, of a month that is open too.")
    format: Literal["json", "csv"] = "json"


class BridgeParams(AdminModel):
    """Which months are compared."""

    against: MonthName | None = Field(default=None, description="Unset: the month before.")
    team: Annotated[str | None, Field(max_length=128)] = None


class AnomalyParams(AdminModel):
    """Which days are looked at, in UTC."""

    from_: date = Field(alias="from", description="First day.")
    to: date = Field(description="Last day, counted too; at most 62 days in all.")
    excess_usd: int = Field(default=10, ge=1, le=1_000_000, description="Least excess.")


class JournalBody(AdminModel):
    """An order to issue a journal."""

    revise: bool = Field(
        default=False,
        description="Whether another one is issued where accounts or cost centres changed since.",
    )


class FinanceApi:
    """The routes.

    Args:
        service: The worker's parts.
        calls: The supervisor.
    """

    def __init__(self, service: Service, calls: SupervisorCalls) -> None:
        self._service = service
        self._calls = calls

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=f"{PREFIX}/finance", tags=["administration"])
        routes: Sequence[tuple[str, str, Callable[..., object], int, str]] = (
            ("GET", "/imports", self.list_imports, 200, "List files that were taken"),
            ("POST", "/imports", self.import_file, 200, "Take a vendor's file"),
            ("GET", "/reconciliations", self.list_runs, 200, "List reconciliation runs"),
            ("POST", "/reconciliations", self.reconcile, 201, "Compare a month"),
            ("GET", "/reconciliations/{run_id}", self.show_run, 200, "Show a run"),
            ("GET", "/generations", self.generations, 200, "Match generations of bills by id"),
            ("GET", "/proposals", self.list_proposals, 200, "List proposed adjustments"),
            ("POST", "/proposals", self.propose, 201, "Propose adjustments"),
            ("POST", "/proposals/{proposal_id}/approve", self.approve, 200, "Approve and post"),
            ("POST", "/proposals/{proposal_id}/reject", self.reject, 200, "Reject"),
            ("GET", "/adjustments", self.list_adjustments, 200, "List posted adjustments"),
            ("GET", "/months/{month}/journal", self.journal, 200, "Show a month's journal"),
            ("POST", "/months/{month}/journal", self.issue_journal, 200, "Issue a journal"),
            ("GET", "/months/{month}/bridge", self.bridge, 200, "Explain a month's cost"),
            ("GET", "/anomalies", self.anomalies, 200, "List days that stood out"),
        )
        for method, path, endpoint, status, summary in routes:
            router.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=status,
                summary=summary,
                response_model=None if endpoint == self.journal else Document,
            )
        return router

    async def list_imports(self) -> Document:
        """List every import, newest first, those that could not be read included."""
        return {"imports": document(await self._calls.finance(ListImports()))}

    async def import_file(self, body: ImportBody, asking: Asking) -> Document:
        """Take a file as a whole, or refuse it with every wrong line; twice changes nothing."""
        check_provider(self._service, body.account, param="account")
        rates_file = self._service.reporting.rates_path
        order = ImportFile(
            actor=asking.actor,
            source=body.source,
            account=body.account,
            file_name=body.file_name,
            content=_content(body),
            mapping=body.mapping,
            issued_on="" if body.issued_on is None else body.issued_on.isoformat(),
            number=body.number,
            overlap=body.overlap,
            rates=await rates_text(rates_file),
            rates_name="" if rates_file is None else str(rates_file),
        )
        return object_of(await self._calls.finance(order))

    async def list_runs(self, params: Annotated[RunParams, Query()]) -> Document:
        """List runs, newest first, without their differences."""
        return {"runs": document(await self._calls.finance(ListRuns(month=params.month)))}

    async def reconcile(self, body: ReconcileBody, asking: Asking) -> Document:
        """Compare what vendors bill with what the ledger holds."""
        order = reconcile_order(
            self._service.finance.reconciliation,
            actor=asking.actor,
            month=body.month,
            proposes=body.propose,
        )
        return object_of(await self._calls.finance(order))

    async def show_run(self, run_id: Number) -> Document:
        """Show a run with every difference."""
        return object_of(await self._calls.finance(ShowRun(run_id=run_id)))

    async def generations(self, params: Annotated[GenerationParams, Query()]) -> Document:
        """Match generations of a vendor's bill with our attempts by the vendor's id."""
        query = ListGenerations(month=params.month, account=params.account, state=params.state)
        return {"generations": document(await self._calls.finance(query))}

    async def list_proposals(self, params: Annotated[ProposalParams, Query()]) -> Document:
        """List proposals, newest first."""
        found = await self._calls.finance(ListProposals(state=params.state))
        return {"proposals": document(found)}

    async def propose(self, body: ProposalBody, asking: Asking) -> Document:
        """Propose adjustments; they count once somebody else has approved them."""
        order = Propose(
            actor=asking.actor,
            period=body.period,
            kind=body.kind,
            reason=body.reason,
            lines=tuple(_line(line) for line in body.lines),
        )
        return object_of(await self._calls.finance(order))

    async def approve(self, proposal_id: Number, asking: Asking) -> Document:
        """Approve a proposal and post its adjustments, for good."""
        decision = Decide(actor=asking.actor, proposal_id=proposal_id, is_approved=True)
        return object_of(await self._calls.finance(decision))

    async def reject(self, proposal_id: Number, asking: Asking) -> Document:
        """Reject a proposal; it is kept and posts nothing."""
        decision = Decide(actor=asking.actor, proposal_id=proposal_id, is_approved=False)
        return object_of(await self._calls.finance(decision))

    async def list_adjustments(self, params: Annotated[AdjustmentParams, Query()]) -> Document:
        """List posted adjustments, by the month that they count in."""
        query = ListAdjustments(from_period=params.from_, to_period=params.to, team=params.team)
        return {"adjustments": document(await self._calls.finance(query))}

    async def journal(
        self, month: MonthPath, params: Annotated[JournalParams, Query()]
    ) -> JournalAnswer:
        """Show the journal of a month as it was issued, or a draft of it."""
        posting = await self._posting(month)
        query = ShowJournal(month=month, posting=posting, is_draft=params.draft)
        found = await self._calls.finance(query)
        if params.format == "json":
            return object_of(found)
        made = msgspec.convert(found, JournalDocument)
        return Response(
            journal_csv(made),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{made.number}.csv"'},
        )

    async def issue_journal(self, month: MonthPath, body: JournalBody, asking: Asking) -> Document:
        """Issue the journal of a closed month; asked again, it comes again unchanged."""
        order = IssueJournal(
            actor=asking.actor,
            month=month,
            posting=await self._posting(month),
            is_revision=body.revise,
        )
        return object_of(await self._calls.finance(order))

    async def _posting(self, month: str) -> JournalPosting:
        """How the configuration wants a journal; a file may be read, so that in a thread."""
        try:
            return await anyio.to_thread.run_sync(journal_posting, self._service.reporting, month)
        except Refused as error:
            raise errors.FinanceConflict(str(error)) from error
        except FinanceError as error:
            raise errors.InvalidField(str(error), param="finance.rates_file") from error

    async def bridge(
        self, month: MonthPath, params: Annotated[BridgeParams, Query()], within: Within
    ) -> Document:
        """Explain a month's cost against another's; the parts sum to the difference."""
        before = params.against or f"{days_of(month)[0] - timedelta(days=1):%Y-%m}"
        query = ShowBridge(before=before, after=month, team=params.team, teams=within.sums)
        return object_of(await self._calls.finance(query))

    async def anomalies(
        self, params: Annotated[AnomalyParams, Query()], within: Within
    ) -> Document:
        """List days that cost much more than such days do, with the team, model and keys."""
        query = ShowAnomalies(
            first_day=params.from_.isoformat(),
            last_day=params.to.isoformat(),
            excess_pico_usd=params.excess_usd * PICO_PER_USD,
            teams=within.sums,
        )
        return {"anomalies": document(await self._calls.finance(query))}


def document(value: object) -> object:
    """A value with each `*_pico_usd` also as exact decimal text, `*_usd`."""
    if isinstance(value, list):
        return [document(one) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    made: Document = {}
    for name, one in cast("Mapping[str, object]", value).items():
        if name.endswith("_pico_usd") and isinstance(one, int):
            made[f"{name.removesuffix('_pico_usd')}_usd"] = format_usd(one)
        made[name] = document(one)
    return made


def object_of(value: object) -> Document:
    """The same of one object."""
    return cast("Document", document(value))


def _content(body: ImportBody) -> bytes:
    """The file's bytes.

    Raises:
        InvalidField: There is none, there are two, or it is no base64.
    """
    if (body.content is None) == (body.content_base64 is None):
        raise errors.InvalidField("give one of content and content_base64", param="content")
    if body.content is not None:
        return body.content.encode()
    try:
        return base64.b64decode(body.content_base64 or "", validate=True)
    except binascii.Error as error:
        raise errors.InvalidField(f"is no base64: {error}", param="content_base64") from error


def _line(line: LineBody) -> AdjustmentLine:
    try:
        amount = parse_usd(line.amount_usd)
    except InvalidAmount as error:
        raise errors.InvalidField(str(error), param="amount_usd") from error
    return AdjustmentLine(
        amount_pico_usd=amount,
        team=line.team,
        project=line.project,
        account=line.account,
        model=line.model,
        day="" if line.day is None else line.day.isoformat(),
    )


def check_provider(service: Service, name: str, *, param: str) -> None:
    """Refuse the name of a provider that is not there.

    Raises:
        InvalidField: It is not.
    """
    known = service.admission.fleet.providers
    if name not in known:
        names = ", ".join(sorted(known))
        raise errors.InvalidField(f"no provider {name!r}; there are: {names}", param=param)


async def rates_text(name: FilePath | None) -> str | None:
    """The rates file as text, None without one; what is wrong with it is told when it is parsed.

    Raises:
        InvalidField: It cannot be read.
    """
    return None if name is None else await anyio.to_thread.run_sync(_read_text, name)


def _read_text(name: FilePath) -> str:
    try:
        return name.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise errors.InvalidField(
            f"finance.rates_file {name}: {error.strerror}", param="finance.rates_file"
        ) from error
