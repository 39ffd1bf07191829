"""`/admin/v1/finance/price-proposals`: prices that bills imply, and what people decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field

from gateway.access.asking import Asking
from gateway.finance.price_messages import (
    DecidePrice,
    ListPriceProposals,
    PriceProposal,
    PriceState,
    how_to_set,
)
from gateway.http.admin import PREFIX
from gateway.http.admin_finance import Document, MonthName, Number, document, object_of
from gateway.http.admin_models import AdminModel
from gateway.http.supervisor_calls import SupervisorCalls


class PriceParams(AdminModel):
    """Which proposals are wanted."""

    state: PriceState | None = None
    month: MonthName | None = None


class PriceDecisionBody(AdminModel):
    """Why a price is accepted or rejected."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]


class PricesApi:
    """The routes.

    Args:
        calls: The supervisor.
    """

    def __init__(self, calls: SupervisorCalls) -> None:
        self._calls = calls

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=f"{PREFIX}/finance/price-proposals", tags=["administration"])
        routes: Sequence[tuple[str, str, Callable[..., object], str]] = (
            ("GET", "", self.proposals, "List prices that bills imply"),
            ("POST", "/{proposal_id}/accept", self.accept, "Accept a price that a bill implies"),
            ("POST", "/{proposal_id}/reject", self.reject, "Reject a price that a bill implies"),
        )
        for method, path, endpoint, summary in routes:
            router.add_api_route(path, endpoint, methods=[method], summary=summary)
        return router

    async def proposals(self, params: Annotated[PriceParams, Query()]) -> Document:
        """List them, newest first, with our price, that of the bill, and what it rests on."""
        query = ListPriceProposals(state=params.state, month=params.month)
        return {"proposals": document(await self._calls.finance(query))}

    async def accept(
        self, proposal_id: Number, body: PriceDecisionBody, asking: Asking
    ) -> Document:
        """Accept it; `how_to_set` says what to put into the configuration, which is not changed."""
        decision = DecidePrice(
            actor=asking.actor, proposal_id=proposal_id, is_accepted=True, reason=body.reason
        )
        done = await self._calls.finance(decision)
        said = how_to_set(msgspec.convert(done, PriceProposal))
        return {**object_of(done), "how_to_set": said}

    async def reject(
        self, proposal_id: Number, body: PriceDecisionBody, asking: Asking
    ) -> Document:
        """Reject it; the same prices of the same month are not proposed again."""
        decision = DecidePrice(
            actor=asking.actor, proposal_id=proposal_id, is_accepted=False, reason=body.reason
        )
        return object_of(await self._calls.finance(decision))
