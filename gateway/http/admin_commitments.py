"""`/admin/v1/finance/commitments`: what was bought or promised ahead, and how it goes down."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from gateway.access.asking import Asking
from gateway.finance.commitment_messages import (
    ListCommitments,
    RecordCommitment,
    WithdrawCommitment,
)
from gateway.http.admin import PREFIX
from gateway.http.admin_finance import (
    Document,
    check_provider,
    document,
    object_of,
    rates_text,
)
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls
from pricing.commitments import CommitmentKind

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NamePath = Annotated[str, Path(pattern=_NAME)]


class CommitmentBody(AdminModel):
    """A commitment to be recorded, or its correction."""

    name: Annotated[str, Field(pattern=_NAME)] = Field(description="What it is called.")
    kind: CommitmentKind = Field(description="How it is paid and used.")
    provider: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Provider of the configuration: the account at the vendor."
    )
    deployments: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=256)] = (
        Field(default_factory=list[str], description="Empty for all of the provider.")
    )
    amount: Annotated[str, Field(max_length=40)] = Field(
        description="Decimal text in the currency, above 0."
    )
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    first_day: date = Field(description="First day (UTC) on which usage is drawn.")
    last_day: date = Field(description="Last one.")
    invoice: Annotated[str, Field(max_length=128)] = ""
    is_correction: bool = Field(
        default=False, description="Whether it takes the place of what is recorded."
    )
    reason: Annotated[str, Field(max_length=512)] = ""


class WithdrawBody(AdminModel):
    """A withdrawal."""

    reason: Annotated[str, Field(min_length=1, max_length=512)]


class CommitmentApi:
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
        router = APIRouter(prefix=f"{PREFIX}/finance/commitments", tags=["administration"])
        for method, path, endpoint, summary in (
            ("GET", "", self.list_commitments, "Say where commitments stand"),
            ("POST", "", self.record, "Record or correct a commitment"),
            ("POST", "/{name}/withdraw", self.withdraw, "Withdraw a commitment"),
        ):
            router.add_api_route(path, endpoint, methods=[method], summary=summary)
        return router

    async def list_commitments(self) -> Document:
        """Say where every commitment stands at the end of yesterday (UTC), day by day."""
        return {"commitments": document(await self._calls.finance(ListCommitments()))}

    async def record(self, body: CommitmentBody, asking: Asking) -> Document:
        """Record a commitment; the same one twice changes nothing."""
        check_provider(self._service, body.provider, param="provider")
        rates_file = self._service.reporting.rates_path
        order = RecordCommitment(
            actor=asking.actor,
            name=body.name,
            kind=body.kind,
            provider=body.provider,
            deployments=tuple(body.deployments),
            amount=body.amount,
            currency=body.currency,
            first_day=body.first_day.isoformat(),
            last_day=body.last_day.isoformat(),
            invoice=body.invoice,
            is_correction=body.is_correction,
            reason=body.reason,
            rates=await rates_text(rates_file),
            rates_name="finance.rates_file" if rates_file is None else str(rates_file),
        )
        return object_of(await self._calls.finance(order))

    async def withdraw(self, name: NamePath, body: WithdrawBody, asking: Asking) -> Document:
        """Let a commitment draw nothing from the first open month on."""
        order = WithdrawCommitment(actor=asking.actor, name=name, reason=body.reason)
        return object_of(await self._calls.finance(order))
