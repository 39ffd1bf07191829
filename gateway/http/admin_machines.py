"""`/admin/v1/spend/machines`: what machines of our own cost, and who bears it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, cast

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from gateway import errors
from gateway.access.asking import Asking, Within
from gateway.finance.machines.asking import NoMeaning, question
from gateway.finance.machines.messages import (
    MachinesReport,
    ProposeMachines,
    RateKind,
)
from gateway.finance.machines.shown import machines_document
from gateway.http.admin import PREFIX
from gateway.http.admin_finance import Document, MonthName, document
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls


class MachineParams(AdminModel):
    """Which month of machines is wanted; the same as the options of `fareway spend machines`."""

    month: MonthName | None = Field(
        default=None, description="A month (UTC), such as 2026-11; this one if not given."
    )
    day: date | None = Field(default=None, description="Tell each hour of this day (UTC) too.")
    rate: RateKind | None = Field(
        default=None, description="Rate of the shares; else finance.machines.rate."
    )
    against: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None,
        description="A deployment with a price by usage to compare every pool with; else those of"
        " finance.machines.pools.",
    )


class MachineProposalBody(AdminModel):
    """A month whose machines are to be brought to what they cost."""

    month: MonthName


class MachinesApi:
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
        router.add_api_route(
            "/spend/machines",
            self.machines,
            methods=["GET"],
            summary="Say what machines of our own cost, and who bears it",
        )
        router.add_api_route(
            "/finance/machines/proposals",
            self.propose,
            methods=["POST"],
            status_code=201,
            summary="Propose adjustments from what is booked for machines to what they cost",
        )
        return router

    async def machines(self, params: Annotated[MachineParams, Query()], within: Within) -> Document:
        """Say what machines of our own cost in a month, how busy they were, and who bears it.

        Who may see only some teams gets their shares, and nothing of the machines.
        """
        try:
            query = question(
                month=params.month,
                day=None if params.day is None else params.day.isoformat(),
                rate=params.rate,
                against=params.against,
                teams=within.sums,
                usual=self._service.finance.machines,
                fleet=self._service.admission.fleet,
                now_us=self._service.clock.wall_us(),
            )
        except NoMeaning as error:
            raise errors.InvalidField(str(error), param=error.param) from error
        found = msgspec.convert(await self._calls.finance(query), MachinesReport)
        return machines_document(found)

    async def propose(self, body: MachineProposalBody, asking: Asking) -> Document:
        """Propose what brings the month's bookings for machines to what they cost."""
        order = ProposeMachines(actor=asking.actor, month=body.month)
        return cast("Document", document(await self._calls.finance(order)))
