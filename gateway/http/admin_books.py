"""`/admin/v1`: whether the ledger holds, statements of teams, and what was sent of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from gateway.access.asking import Asking, Within
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_json import statement_json
from gateway.finance.statement_messages import ShowStatement, TeamStatement
from gateway.http.admin import PREFIX
from gateway.http.admin_finance import Document, document, object_of
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import FINANCE_TIMEOUT_S, WRITE_TIMEOUT_S, SupervisorCalls
from gateway.notices.messages import SendStatement

StatementAnswer = Document | Response
"""JSON; or CSV or a page, when that was asked for."""
PeriodPath = Annotated[
    str,
    Path(
        pattern=r"^[0-9]{4}-((0[1-9]|1[0-2])|W[0-5][0-9])$",
        description="A month, `2026-10`, or a week by its ISO 8601 number, `2026-W44`; in UTC.",
    ),
]
TeamName = Annotated[str, Field(max_length=128)]


class StatementParams(AdminModel):
    """Whose statement is wanted, and how."""

    team: TeamName = Field(description="Empty for spend of no team.")
    format: Literal["json", "csv", "html"] = "json"


class SendBody(AdminModel):
    """A statement to be sent now."""

    team: TeamName = Field(description="Whose.")
    again: bool = Field(default=False, description="Also to those who were sent it before.")


class BooksApi:
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
        router = APIRouter(prefix=PREFIX, tags=["administration"])
        routes: Sequence[tuple[str, str, Callable[..., object], str]] = (
            ("GET", "/ledger/verification", self.verify, "Recompute costs and sums"),
            ("GET", "/finance/statements/{period}", self.statement, "Show a team's statement"),
            ("POST", "/finance/statements/{period}/send", self.send, "Send a team's statement"),
            ("GET", "/finance/notices", self.notices, "List what was sent"),
        )
        for method, path, endpoint, summary in routes:
            router.add_api_route(
                path,
                endpoint,
                methods=[method],
                summary=summary,
                response_model=None if endpoint == self.statement else Document,
            )
        return router

    async def verify(self) -> Document:
        """Recompute costs and roll-ups and check the spools; nothing is changed.

        A fault is no error of the call: `faults` holds a sentence for each, and is empty when
        everything holds. It reads every entry, which takes minutes where there are many.
        """
        found = await self._calls.ask("verify", None, object, timeout_s=FINANCE_TIMEOUT_S)
        return object_of(found)

    async def statement(
        self, period: PeriodPath, params: Annotated[StatementParams, Query()], within: Within
    ) -> StatementAnswer:
        """Show what a team is charged; one that may not be seen is as one that spent nothing."""
        await self._calls.catch_up()
        reporting = self._service.reporting
        query = ShowStatement(
            team=params.team,
            period=period,
            organisation=reporting.finance.organisation,
            cost_centres=reporting.cost_centres,
            teams=within.sums,
        )
        found = msgspec.convert(await self._calls.finance(query), TeamStatement)
        if params.format == "json":
            return statement_json(found)
        if params.format == "html":
            page = await anyio.to_thread.run_sync(_page, found)
            return Response(page, media_type="text/html; charset=utf-8")
        return Response(
            statement_csv(found),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="statement-{period}.csv"'},
        )

    async def send(self, period: PeriodPath, body: SendBody, asking: Asking) -> Document:
        """Send it now to those to whom `finance.statements` sends it, and who were not sent it."""
        order = SendStatement(
            actor=asking.actor, team=body.team, period=period, is_again=body.again
        )
        count = await self._calls.ask("send_statement", order, int, timeout_s=WRITE_TIMEOUT_S)
        return {"period": period, "team": body.team, "schedules": count}

    async def notices(self) -> Document:
        """List statements and anomalies that were sent, newest first, and how far each got."""
        return {"notices": document(await self._calls.ask("sent_notices", None, object))}


def _page(statement: TeamStatement) -> str:
    # Templates, for this one format only.
    from gateway.dashboard.finance.statement_document import statement_html
    from gateway.dashboard.templating import make_templates

    return statement_html(statement, make_templates())
