"""`/ui/unattributed`: spend of nobody, and what rests on estimates, each with the way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastapi import Request, Response

from gateway.dashboard.books.frame import (
    ADJUSTMENTS_PATH,
    UNATTRIBUTED_PATH,
    Books,
    FieldFaults,
    Filled,
    back,
    form_number,
)
from gateway.dashboard.books.unattributed_view import (
    Balance,
    balances,
    doubt_lines,
    item_lines,
    reattribution_of,
)
from gateway.dashboard.finance.amounts import shown
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import form_of
from gateway.finance.form_messages import Once
from gateway.finance.messages import (
    Adjustment,
    ListAdjustments,
    ListProposals,
    Proposal,
)
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport


@dataclass(frozen=True, slots=True, kw_only=True)
class UnattributedPages:
    """The pages.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/unattributed", self.show
        yield "POST", "/unattributed", self.give

    async def show(self, request: Request) -> Response:
        """What nobody has, and what is not exact."""

        async def page(month: Month) -> Response:
            found = await self._balances(month)
            item = request.query_params.get("item", "")
            values = {"item": item} if item in found else {}
            return await self._page(request, month, found, Filled(values=values))

        return await self.books.of_month(request, UNATTRIBUTED_PATH, page)

    async def give(self, request: Request) -> Response:
        """Propose to give spend of nobody to a team; somebody else approves it."""
        form = await form_of(request)
        month = self.books.month(form.get("month", ""))
        if month is None:
            message = "the form names no month such as 2026-10"
            return self.books.bad_address(request, UNATTRIBUTED_PATH, message)
        found = await self._balances(month)
        try:
            order, faults = reattribution_of(
                form,
                found,
                actor=self.books.actor(request),
                month=month.name,
                teams=self.books.teams(),
            )
            sent = Once(form=form_number(form), act=order)
            # Of a form that was sent before, what it asked for is given, and would look like too
            # much now.
            done = await self.books.earlier(sent)
            if done is None and faults:
                raise FieldFaults(faults)
            done = done or await self.books.act(sent)
        except FieldFaults as error:
            filled = Filled(values=form, faults=error.faults)
            return await self._page(request, month, found, filled)
        return back(f"{ADJUSTMENTS_PATH}/{done.subject}", done="proposed")

    async def _balances(self, month: Month) -> Mapping[str, Balance]:
        asked = ListAdjustments(of_month=month.name)
        posted = await self.books.ask(asked, tuple[Adjustment, ...])
        waiting = await self.books.ask(
            ListProposals(state="proposed", period=month.name), tuple[Proposal, ...]
        )
        return balances(
            await self._report(month, GroupBy.DEPLOYMENT, filters={GroupBy.TEAM: ""}),
            [one for one in posted if one.period == month.name],
            waiting,
        )

    async def _report(
        self, month: Month, *group_by: GroupBy, filters: Mapping[str, str] | None = None
    ) -> SpendReport:
        await self.books.calls.catch_up()
        return await self.books.calls.spend_report(
            SpendQuery(
                group_by=group_by,
                from_us=month.window.start_us,
                to_us=month.window.end_us,
                filters=dict(filters or {}),
            )
        )

    async def _page(
        self, request: Request, month: Month, found: Mapping[str, Balance], filled: Filled
    ) -> Response:
        report = await self._report(month, GroupBy.QUALITY, GroupBy.TEAM, GroupBy.DEPLOYMENT)
        whole = report.total
        lines = item_lines(found, month=month.name)
        chosen = next((one for one in lines if one.item == filled.value("item")), None)
        sums = {
            name: shown(sum(getattr(one, name) for one in found.values()))
            for name in ("booked", "billed", "moved", "waiting", "left")
        }
        shown_ = {
            **self.books.frame(request, UNATTRIBUTED_PATH, month),
            "filled": filled,
            "items": lines,
            "sums": sums,
            "choices": [
                (one.item, f"{one.item}: {one.free} USD") for one in lines if one.free != "0"
            ],
            "free": "" if chosen is None else chosen.free,
            "teams": [(name, name) for name in sorted(self.books.teams())],
            "doubts": doubt_lines(report, month=month.name),
            "estimated": shown(whole.estimated_cost_pico_usd),
            "exposure": shown(whole.exposure_pico_usd),
            "exposure_beside": f"{whole.exposure_unknown_attempts:,} attempts more have no bound"
            if whole.exposure_unknown_attempts
            else "at most, for attempts that broke off",
            "unpriced": f"{whole.unpriced_attempts:,}",
        }
        return self.books.shell.page(
            "unattributed.html", shown_, status=422 if filled.faults else 200
        )
