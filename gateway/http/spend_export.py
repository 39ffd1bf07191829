"""`GET /admin/v1/spend/export`: the ledger in FOCUS, streamed at the client's pace.

The ledger process reads one charge period after the other and hands over a piece when the piece
before it is with the client; a client that leaves ends its work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from gateway import errors
from gateway.finance.focus.errors import BadOrder
from gateway.finance.focus.order import (
    ExportOrder,
    ExportRequest,
    FileFormat,
    FocusVersion,
    Grain,
    NameForm,
    Parties,
    Profile,
    SelfHost,
    instant_us,
    month_of,
)
from gateway.http.admin_models import AdminModel
from gateway.http.supervisor_calls import SupervisorCalls

_MEDIA_TYPES = {FileFormat.CSV: "text/csv", FileFormat.PARQUET: "application/vnd.apache.parquet"}
_Text = Annotated[str | None, Field(max_length=64)]


class ExportParams(AdminModel):
    """Which export is wanted; the same as the options of `fareway spend export`."""

    month: _Text = Field(default=None, description="A month (UTC), such as 2026-11.")
    from_: _Text = Field(default=None, alias="from", description="First day or hour (UTC).")
    to: _Text = Field(default=None, description="First day or hour not exported (UTC).")
    profile: Profile = Profile.CHARGEBACK
    focus_version: FocusVersion = FocusVersion.V1_4
    grain: Grain = Grain.HOUR
    names: NameForm = NameForm.PSEUDONYMS
    by_key: bool = Field(default=False, description="Tell charges apart by key.")
    spreadsheet: bool = Field(
        default=False, description="An apostrophe before text that a spreadsheet would run."
    )

    self_host: SelfHost = Field(
        default=SelfHost.BOOKED,
        description="Machines of your own as booked, or shares of what they cost.",
    )
    format: FileFormat = Field(default=FileFormat.CSV, description="How rows are written.")

    def order(self) -> ExportOrder:
        """The order, checked.

        Raises:
            BadOrder: It has no meaning.
        """
        from_us, to_us = self._bounds()
        order = ExportOrder(
            from_us=from_us,
            to_us=to_us,
            profile=self.profile,
            version=self.focus_version,
            grain=self.grain,
            names=self.names,
            with_keys=self.by_key,
            is_spreadsheet=self.spreadsheet,
            self_host=self.self_host,
        )
        order.check_form(self.format)
        return order

    def _bounds(self) -> tuple[int, int]:
        if self.month is not None and self.from_ is None and self.to is None:
            return month_of(self.month)
        if self.month is not None or self.from_ is None or self.to is None:
            raise BadOrder("name a range: either month, or from and to")
        return instant_us(self.from_), instant_us(self.to)


class SpendExportApi:
    """The route.

    Args:
        calls: The supervisor.
        parties: Who stands on an export.
        pseudonym_key: What pseudonyms are derived with.
    """

    def __init__(self, calls: SupervisorCalls, *, parties: Parties, pseudonym_key: bytes) -> None:
        self._calls = calls
        self._parties = parties
        self._pseudonym_key = pseudonym_key

    def router(self) -> APIRouter:
        """The route as FastAPI wants it."""
        router = APIRouter(prefix="/admin/v1", tags=["administration"])
        router.add_api_route(
            "/spend/export",
            self.export,
            methods=["GET"],
            summary="Export the ledger in FOCUS",
            response_class=StreamingResponse,
            responses={
                200: {
                    "content": {
                        one: {"schema": {"type": "string"}} for one in _MEDIA_TYPES.values()
                    }
                }
            },
        )
        return router

    async def export(self, params: Annotated[ExportParams, Query()]) -> StreamingResponse:
        """Stream Cost and Usage as CSV or Parquet; exact to the picodollar."""
        try:
            order = params.order()
        except BadOrder as error:
            raise errors.InvalidField(str(error)) from error
        is_complete = await self._calls.catch_up()
        request = ExportRequest(
            order=order,
            parties=self._parties,
            pseudonym_key=self._pseudonym_key,
            form=params.format,
        )
        pieces = self._calls.export_pieces(request)
        # The head waits for the first piece, so that a refusal has its own status.
        first = await anext(pieces)
        return _Stream(first, pieces, form=params.format, is_complete=is_complete)


class _Stream(StreamingResponse):
    """Pieces of a file; however it ends, they are closed.

    Args:
        first: The first piece.
        pieces: The others.
        form: How rows are written.
        is_complete: Whether all that ended before the call was loaded.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes],
        *,
        form: FileFormat,
        is_complete: bool,
    ) -> None:
        self._pieces = pieces
        headers = {
            "content-disposition": f'attachment; filename="cost_and_usage.{form}"',
            "x-fareway-complete": "true" if is_complete else "false",
        }
        super().__init__(_chained(first, pieces), headers=headers, media_type=_MEDIA_TYPES[form])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        async with aclosing(self._pieces):
            await super().__call__(scope, receive, send)


async def _chained(first: bytes, others: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in others:
        yield piece
