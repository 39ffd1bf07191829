"""`/admin/v1/budgets`: what may be spent, by whom, and where each budget stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from gateway import errors
from gateway.access.asking import Asking, Within
from gateway.access.restriction import Restriction
from gateway.access.roles import Viewer
from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import (
    BudgetChange,
    BudgetReport,
    BudgetScope,
    ExpiredLeases,
    LeaseWriteOff,
)
from gateway.budgets.reports import budget_document, expired_document
from gateway.forms import FormSent
from gateway.http.admin import PREFIX
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls
from gateway.settings.budget_orders import BudgetOrder
from gateway.settings.scalars import Name

BudgetName = Annotated[Name, Path(max_length=128, description="What the budget is called.")]


class BudgetView(AdminModel):
    """A budget and its present window; amounts are exact, in dollars and in picodollars."""

    name: str
    scope: BudgetScope
    team: str | None
    project: str | None
    key_id: str | None
    cost_tag: str | None
    window: str
    time_zone: str
    on_exceed: str
    alerts_at: list[int]
    source: str = Field(description="Where it can be changed: file or database.")
    window_start: datetime
    resets_at: datetime | None = Field(description="Null for a budget that never starts again.")
    limit_usd: str
    limit_pico_usd: int
    spent_usd: str
    spent_pico_usd: int
    reserved_usd: str
    reserved_pico_usd: int
    exposed_usd: str = Field(description="Upper bounds of attempts whose bill is unknown.")
    exposed_pico_usd: int
    room_usd: str
    room_pico_usd: int
    expired_usd: str = Field(
        description="Part of what is reserved whose worker was not heard of for long."
    )
    expired_pico_usd: int

    @classmethod
    def of(cls, report: BudgetReport) -> BudgetView:
        """A budget as the ledger tells it."""
        return cls.model_validate(budget_document(report))


class BudgetList(AdminModel):
    """Every budget in force, from the widest scope to the narrowest."""

    budgets: list[BudgetView]


class RemovedBudget(AdminModel):
    """A budget that caps nothing any more."""

    name: str
    state: str = "removed"


class ExpiredView(AdminModel):
    """What is reserved for a worker that was not heard of for five minutes or longer."""

    budget: str
    window_start: datetime
    worker: str = Field(description="Its directory, with its machine where several share.")
    session: str
    leases: int
    amount_usd: str
    amount_pico_usd: int
    heard_of_at: datetime


class ExpiredList(AdminModel):
    """By budget, window and worker."""

    expired: list[ExpiredView]


class WriteOffOrder(AdminModel):
    """A worker whose journal will never be loaded."""

    worker: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="As the list of what has expired names it."
    )


class WrittenOff(AdminModel):
    """What is reserved no longer."""

    written_off: list[ExpiredView]


class BudgetApi:
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
            "/budgets", self.list_budgets, methods=["GET"], summary="List every budget"
        )
        router.add_api_route(
            "/budgets/expired",
            self.list_expired,
            methods=["GET"],
            summary="List what is reserved for workers that are gone",
        )
        router.add_api_route(
            "/budgets/write-off",
            self.write_off,
            methods=["POST"],
            summary="Let go of what is reserved for a worker that is gone",
        )
        router.add_api_route(
            "/budgets/{name:path}", self.put_budget, methods=["PUT"], summary="Set a budget"
        )
        router.add_api_route(
            "/budgets/{name:path}",
            self.delete_budget,
            methods=["DELETE"],
            summary="Take a budget away",
        )
        return router

    async def list_budgets(self, within: Within) -> BudgetList:
        """List every budget in force and where its present window stands."""
        return BudgetList(budgets=[BudgetView.of(one) for one in await self.reports(within)])

    async def reports(self, within: Restriction) -> list[BudgetReport]:
        """Every budget in force that may be seen."""
        reports = await self._calls.budget_reports()
        return [report for report in reports if within.has(report.rule.team, "")]

    async def list_expired(self) -> ExpiredList:
        """List what is reserved for workers that were not heard of for five minutes or longer."""
        return ExpiredList(expired=_views(await self._calls.expired_leases()))

    async def write_off(self, body: WriteOffOrder, asking: Asking) -> WrittenOff:
        """Let go of what is reserved for a worker whose journal will never be loaded.

        Only for a machine that is gone: what its workers did spend of it is unknown, and counts
        only if their journal is loaded after all.
        """
        order = LeaseWriteOff(directory=body.worker, actor=asking.actor)
        return WrittenOff(written_off=_views(await self._calls.write_off_leases(order)))

    async def put_budget(
        self, name: BudgetName, body: BudgetOrder, within: Within, asking: Asking
    ) -> BudgetView:
        """Set a budget; every worker goes by it when this answers."""
        return await self.put(name, body, within, asking)

    async def put(
        self,
        name: str,
        body: BudgetOrder,
        within: Restriction,
        asking: Viewer,
        *,
        form: FormSent | None = None,
        is_new: bool = False,
    ) -> BudgetView:
        """Set a budget.

        Args:
            name: Of the budget.
            body: What it is from now on.
            within: What may be touched.
            asking: Who does it.
            form: The page's form that asks for it, acted on once; None for a call of the API.
            is_new: Whether to refuse where there is a budget of that name.
        """
        key = self._check(body, within)
        await self._check_present(name, within)
        finance = self._service.finance
        wanted = body.declaration(
            name,
            time_zone=finance.time_zone,
            fiscal_month=finance.fiscal_year_start_month,
            key_team="" if key is None else key.team,
        )
        change = BudgetChange(
            name=name, budget=wanted, actor=asking.actor, is_new=is_new, form=form
        )
        await self._calls.change_budget(change)
        for report in await self._calls.budget_reports():
            if report.rule.name == name:
                return BudgetView.of(report)
        raise errors.BudgetNotFound(f"the budget {name!r} was taken away meanwhile")

    async def delete_budget(
        self, name: BudgetName, within: Within, asking: Asking
    ) -> RemovedBudget:
        """Take a budget away; no worker goes by it when this answers."""
        await self.delete(name, within, asking)
        return RemovedBudget(name=name)

    async def delete(
        self, name: str, within: Restriction, asking: Viewer, *, form: FormSent | None = None
    ) -> None:
        """Take a budget away, for a page's form once."""
        await self._check_present(name, within)
        change = BudgetChange(name=name, budget=None, actor=asking.actor, form=form)
        await self._calls.change_budget(change)

    async def _check_present(self, name: str, within: Restriction) -> None:
        """Let nobody touch a budget outside of what is theirs.

        Raises:
            BudgetNotFound: It is another's, which is as if it were not there.
            RoleRequired: It caps a whole team, and is not the team's to change.
        """
        if within.teams is None:
            return
        for report in await self._calls.budget_reports():
            rule = report.rule
            if rule.name == name and not within.has(rule.team, ""):
                raise errors.BudgetNotFound(
                    f"no budget is called {name!r}; `fareway budgets list` shows them"
                )
            if rule.name == name:
                _check_reach(rule.scope, within)

    def _check(self, body: BudgetOrder, within: Restriction) -> KeyRecord | None:
        """Refuse a budget that would count nobody; the key that it counts.

        Raises:
            InvalidField: It names what does not exist.
            RoleRequired: It is not for whoever asks to set.
        """
        _check_reach(body.scope, within)
        teams = self._service.admission.teams
        if body.team is not None and (body.team not in teams or not within.has(body.team, "")):
            raise errors.InvalidField(f"no team {body.team!r}", param="team")
        if body.project is not None and body.project not in teams[body.team or ""].projects:
            raise errors.InvalidField(
                f"team {body.team!r} has no project {body.project!r}", param="project"
            )
        if body.scope is BudgetScope.COST_TAG and body.team is None and within.teams is not None:
            raise errors.InvalidField("name the team whose cost tag it is", param="team")
        if body.key_id is None:
            return None
        key = self._service.directory.record(body.key_id)
        if key is None or not within.has(key.team, ""):
            raise errors.InvalidField(f"no key with the id {body.key_id!r}", param="key_id")
        return key


def _views(found: Sequence[ExpiredLeases]) -> list[ExpiredView]:
    return [ExpiredView.model_validate(expired_document(one)) for one in found]


def _check_reach(scope: BudgetScope, within: Restriction) -> None:
    """A team may cap its parts, never lift what caps the team."""
    if within.teams is not None and scope in (BudgetScope.ORGANISATION, BudgetScope.TEAM):
        raise errors.RoleRequired(
            f"budgets of scope {scope} are set by a platform or finance administrator"
        )
