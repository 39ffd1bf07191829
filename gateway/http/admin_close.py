"""`/admin/v1/finance/months`: where months stand, closing them, by one person or by two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from gateway import errors
from gateway.access.asking import Asking
from gateway.finance.close_messages import (
    CloseMonth,
    CloseStatus,
    CloseStep,
    ProposeClose,
    VerifyCloses,
    WithdrawClose,
)
from gateway.finance.orders import close_delays
from gateway.http.admin import PREFIX
from gateway.http.admin_finance import Document, MonthPath, Words, document, object_of
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls

Reason = Annotated[str, Field(min_length=1, max_length=500)]
Accepted = Annotated[
    dict[Words, Reason],
    Field(
        default_factory=dict[str, str],
        description="Reasons by items of the checklist that are open and may be accepted.",
    ),
]


class CloseBody(AdminModel):
    """A close."""

    step: CloseStep
    accepted: Accepted
    digest: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = Field(
        default=None,
        description="What somebody else proposed and this confirms; its `accepted` is taken.",
    )


class CloseProposalBody(AdminModel):
    """A hard close for somebody else to confirm."""

    accepted: Accepted


class WithdrawBody(AdminModel):
    """Why a proposal is taken back or turned down."""

    reason: Reason


class StatusParams(AdminModel):
    """Which step the checklist is for."""

    step: CloseStep = CloseStep.HARD


class CloseApi:
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
            ("GET", "/months/{month}", self.month, 200, "Say where a month stands"),
            ("POST", "/months/{month}/close", self.close, 200, "Close a month"),
            ("POST", "/months/{month}/close-proposal", self.propose_close, 201, "Propose a close"),
            (
                "POST",
                "/months/{month}/close-proposal/withdraw",
                self.withdraw_close,
                200,
                "Take back or turn down a proposed close",
            ),
            ("GET", "/closed-months", self.closed_months, 200, "Recompute closed months' digests"),
        )
        for method, path, endpoint, status, summary in routes:
            router.add_api_route(
                path, endpoint, methods=[method], status_code=status, summary=summary
            )
        return router

    async def month(self, month: MonthPath, params: Annotated[StatusParams, Query()]) -> Document:
        """Say where a month stands, and what its next step lacks."""
        delays = close_delays(self._service.finance.close)
        query = CloseStatus(month=month, step=params.step, delays=delays)
        return object_of(await self._calls.finance(query))

    async def close(self, month: MonthPath, body: CloseBody, asking: Asking) -> Document:
        """Close a month, softly or for good; refused while anything on its checklist is open.

        With `finance.close.two_person`, for good only what somebody else proposed: give its digest.
        """
        settings = self._service.finance.close
        if body.digest is not None and body.step is not CloseStep.HARD:
            raise errors.InvalidField("confirms a hard close only", param="digest")
        order = CloseMonth(
            actor=asking.actor,
            month=month,
            step=body.step,
            accepted=dict(body.accepted),
            delays=close_delays(settings),
            needs_two=settings.two_person or body.digest is not None,
            digest=body.digest or "",
        )
        return object_of(await self._calls.finance(order))

    async def propose_close(
        self, month: MonthPath, body: CloseProposalBody, asking: Asking
    ) -> Document:
        """Propose to close a month for good; it is closed once somebody else confirms the digest.

        A proposal that waits already is replaced.
        """
        delays = close_delays(self._service.finance.close)
        order = ProposeClose(
            actor=asking.actor, month=month, accepted=dict(body.accepted), delays=delays
        )
        return object_of(await self._calls.finance(order))

    async def withdraw_close(
        self, month: MonthPath, body: WithdrawBody, asking: Asking
    ) -> Document:
        """Take back or turn down the close that waits for a second person."""
        order = WithdrawClose(actor=asking.actor, month=month, reason=body.reason)
        return object_of(await self._calls.finance(order))

    async def closed_months(self) -> Document:
        """Recompute the digest of every closed month."""
        return {"months": document(await self._calls.finance(VerifyCloses()))}
