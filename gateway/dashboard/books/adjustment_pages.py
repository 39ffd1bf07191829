"""`/ui/adjustments`: what is proposed, who decides, what was posted; never an edit of an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastapi import Request, Response

from gateway.dashboard.books.adjustment_view import (
    KINDS,
    LINES,
    line_rows,
    posted_lines,
    proposal_line,
    proposal_of,
)
from gateway.dashboard.books.frame import (
    ADJUSTMENTS_PATH,
    Books,
    FieldFaults,
    Filled,
    back,
    form_number,
)
from gateway.dashboard.finance.amounts import shown
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import form_of
from gateway.errors import CallerFault, LedgerUnavailable
from gateway.finance.form_messages import Once, ShowProposal
from gateway.finance.messages import (
    UNATTRIBUTED,
    Adjustment,
    Decide,
    ListAdjustments,
    ListProposals,
    Proposal,
)

_REASON_CHARACTERS_MAX = 500
_DONE = {
    "proposed": "The proposal waits for approval.",
    "approve": "Approved and posted.",
    "reject": "Rejected; nothing was posted.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustmentPages:
    """The pages.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/adjustments", self.show
        yield "GET", "/adjustments/new", self.new
        yield "POST", "/adjustments", self.propose
        yield "GET", "/adjustments/{proposal}", self.proposal
        yield "POST", "/adjustments/{proposal}", self.decide

    async def show(self, request: Request) -> Response:
        """Proposals and posted adjustments of a month."""
        month = self.books.month(request.query_params.get("month"))
        if month is None:
            return self.books.bad_month(request, ADJUSTMENTS_PATH)
        try:
            asked = ListProposals(period=month.name)
            of_month = await self.books.ask(asked, tuple[Proposal, ...])
            asked = ListProposals(state="proposed")
            waiting = await self.books.ask(asked, tuple[Proposal, ...])
            asked = ListAdjustments(of_month=month.name)
            posted = await self.books.ask(asked, tuple[Adjustment, ...])
        except LedgerUnavailable:
            return self.books.away(request)
        names = await self.books.names()
        lines = [proposal_line(one, names) for one in of_month]
        counted = [one for one in posted if one.period == month.name]
        elsewhere = [one for one in posted if one.original_period == month.name]
        shown_ = {
            **self.books.frame(request, ADJUSTMENTS_PATH, month),
            "waiting": [one for one in lines if one.is_open],
            "decided": [one for one in lines if not one.is_open],
            "elsewhere": sorted({one.period for one in waiting} - {month.name}),
            "posted": posted_lines(counted, names),
            "total": shown(sum(one.amount_pico_usd for one in counted)),
            "later": posted_lines(elsewhere, names),
            "later_total": shown(sum(one.amount_pico_usd for one in elsewhere)),
        }  # fmt: skip
        return self.books.shell.page("adjustments.html", shown_)

    async def new(self, request: Request) -> Response:
        """A form for a proposal by hand."""
        month = self.books.month(request.query_params.get("month"))
        if month is None:
            return self.books.bad_month(request, ADJUSTMENTS_PATH)
        return self._form(request, month, Filled())

    async def propose(self, request: Request) -> Response:
        """Propose adjustments by hand."""
        form = await form_of(request)
        month = self.books.month(form.get("month", ""))
        if month is None:
            return self.books.bad_address(
                request, ADJUSTMENTS_PATH, "the form names no month such as 2026-10"
            )
        try:
            order = proposal_of(
                form,
                actor=self.books.actor(request),
                month=month.name,
                teams=self.books.teams(),
                providers=self.books.providers(),
            )
            done = await self.books.act(Once(form=form_number(form), act=order))
        except FieldFaults as error:
            return self._form(request, month, Filled(values=form, faults=error.faults))
        return back(f"{ADJUSTMENTS_PATH}/{done.subject}", done="proposed")

    async def proposal(self, request: Request, proposal: str) -> Response:
        """A proposal with every line."""
        return await self._proposal_page(request, proposal, Filled())

    async def decide(self, request: Request, proposal: str) -> Response:
        """Approve and post a proposal, or reject it with a reason."""
        form = await form_of(request)
        what = form.get("do", "")
        try:
            order = Decide(
                actor=self.books.actor(request),
                proposal_id=_number(proposal),
                is_approved=what == "approve",
                reason=_checked_decision(form),
            )
            await self.books.act(Once(form=form_number(form), act=order))
        except FieldFaults as error:
            filled = Filled(values=form, faults=error.faults)
            return await self._proposal_page(request, proposal, filled)
        return back(f"{ADJUSTMENTS_PATH}/{order.proposal_id}", done=what)

    def _form(self, request: Request, month: Month, filled: Filled) -> Response:
        shown_ = {
            **self.books.frame(request, ADJUSTMENTS_PATH, month),
            "filled": filled,
            "kinds": list(KINDS.items()),
            "lines": range(1, LINES + 1),
            "teams": [*((name, name) for name in sorted(self.books.teams())),
                      (UNATTRIBUTED, "nobody (unattributed)")],
            "providers": [(name, name) for name in sorted(self.books.providers())],
        }  # fmt: skip
        return self.books.shell.page(
            "adjustment_new.html", shown_, status=422 if filled.faults else 200
        )

    async def _proposal_page(self, request: Request, number: str, filled: Filled) -> Response:
        try:
            query = ShowProposal(proposal_id=_number(number))
            found = await self.books.ask(query, Proposal)
        except CallerFault as error:
            return self.books.bad_address(request, ADJUSTMENTS_PATH, error.message)
        except LedgerUnavailable:
            return self.books.away(request)
        month = self.books.month(found.period)
        assert month is not None, "a proposal is about a month"
        names = await self.books.names()
        actor = self.books.actor(request)
        shown_ = {
            **self.books.frame(request, ADJUSTMENTS_PATH, month),
            "filled": filled,
            "one": proposal_line(found, names),
            "lines": line_rows(found),
            "is_own": found.proposed_by == actor,
            "others": await self.books.other_approvers(actor),
            "done": _DONE.get(request.query_params.get("done", ""), ""),
        }
        return self.books.shell.page(
            "adjustment.html", shown_, status=422 if filled.faults else 200
        )


def _checked_decision(form: Mapping[str, str]) -> str:
    """The reason of a decision.

    Raises:
        FieldFaults: It is none, or lacks what it needs.
    """
    what, reason = form.get("do", ""), form.get("reason", "").strip()
    if len(reason) > _REASON_CHARACTERS_MAX:
        raise FieldFaults({"reason": f"at most {_REASON_CHARACTERS_MAX} characters"})
    if what == "approve":
        if form.get("looked") != "yes":
            raise FieldFaults({"looked": "say that you looked: a posting is never undone"})
    elif what != "reject":
        raise FieldFaults({"": "the form does not say what to do"})
    elif not reason:
        raise FieldFaults({"reason": "say why, so that it can be understood later"})
    return reason


def _number(text: str) -> int:
    """A number of an address; 0, which nothing has, for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
