"""`/ui/close`: the checklist of a month, the soft and the hard close, and what comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response

from gateway.dashboard.books.close_view import (
    SOFT_ITEMS,
    field_of,
    figures_of,
    item_lines,
    lacking,
    proposed_close,
    reasons_of,
    soft_from,
    typed_reasons,
)
from gateway.dashboard.books.frame import (
    CLOSE_PATH,
    UTC,
    Books,
    FieldFaults,
    Filled,
    back,
    form_number,
    instant,
    spoken,
)
from gateway.dashboard.books.journal_view import issue_order, journal_shown
from gateway.dashboard.finance import periods
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import form_of
from gateway.finance.close_messages import (
    CloseMonth,
    CloseReport,
    CloseStatus,
    CloseStep,
    ProposeClose,
    VerifiedClose,
    VerifyCloses,
    WithdrawClose,
)
from gateway.finance.form_messages import Once
from gateway.finance.orders import close_delays
from gateway.ledger.views import GroupBy, SpendQuery

DIGEST_CHARACTERS = 64
_CLOSED = "closed"
_REASON_CHARACTERS_MAX = 500
_DONE = {
    "soft": "The month is closed softly: its figures may go out as preliminary.",
    "hard": "The month is closed for good.",
    "journal": "The journal of the month is issued.",
    "proposed": "The close is proposed. Somebody else has to confirm it.",
    "withdrawn": "The proposed close is taken back.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosePages:
    """The pages.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/close", self.show
        yield "POST", "/close/{month}", self.close

    async def show(self, request: Request) -> Response:
        """Where a month stands."""

        async def page(month: Month) -> Response:
            return await self._page(request, month, Filled())

        return await self.books.of_month(request, CLOSE_PATH, page)

    async def close(self, request: Request, month: str) -> Response:
        """Close a month softly, show what a hard close would do, do it, or issue its journal."""
        named = self.books.month(month)
        if named is None:
            message = f"month: {month[:64]!r} is no month such as 2026-10"
            return self.books.bad_address(request, CLOSE_PATH, message)
        form = await form_of(request)
        steps = {
            "soft": self._soft,
            "review": self._review,
            "hard": self._hard,
            "propose": self._propose,
            "confirm": self._confirm_proposed,
            "withdraw": self._withdraw,
            "journal": self._journal,
            "revise": self._journal,
        }
        step = steps.get(form.get("do", ""), self._unknown)
        try:
            return await step(request, named, form)
        except FieldFaults as error:
            return await self._page(request, named, Filled(values=form, faults=error.faults))

    async def _unknown(self, *_given: object) -> Response:
        raise FieldFaults({"": "the form does not say what to do"})

    async def _soft(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        report = await self._status(month, CloseStep.SOFT)
        await self._do(request, month, form, report, CloseStep.SOFT)
        return back(CLOSE_PATH, month=month.name, done="soft")

    async def _review(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        """Show once more what a hard close freezes, before it is done."""
        report = await self._status(month, CloseStep.HARD)
        reasons = _checked_reasons(report, form)
        return self._confirm(request, month, report, reasons, Filled())

    async def _hard(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        report = await self._status(month, CloseStep.HARD)
        if report.state != _CLOSED and form.get("confirm", "").strip() != month.name:
            reasons = _checked_reasons(report, form)
            fault = {"confirm": f"type {month.name} to confirm"}
            filled = Filled(values=form, faults=fault)
            return self._confirm(request, month, report, reasons, filled)
        await self._do(request, month, form, report, CloseStep.HARD)
        return back(CLOSE_PATH, month=month.name, done="hard")

    async def _propose(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        """Propose the hard close, where two people close."""
        report = await self._status(month, CloseStep.HARD)
        reasons = _checked_reasons(report, form)
        order = ProposeClose(
            actor=self.books.actor(request),
            month=month.name,
            accepted=reasons,
            delays=close_delays(self.books.settings.close),
        )
        await self.books.act(Once(form=form_number(form), act=order))
        return back(CLOSE_PATH, month=month.name, done="proposed")

    async def _confirm_proposed(
        self, request: Request, month: Month, form: Mapping[str, str]
    ) -> Response:
        """Close for good what somebody else proposed, with the digest that was shown."""
        if form.get("confirm", "").strip() != month.name:
            raise FieldFaults({"confirm": f"type {month.name} to confirm"})
        order = CloseMonth(
            actor=self.books.actor(request),
            month=month.name,
            step=CloseStep.HARD,
            delays=close_delays(self.books.settings.close),
            needs_two=True,
            digest=form.get("digest", "")[:DIGEST_CHARACTERS],
        )
        await self.books.act(Once(form=form_number(form), act=order))
        return back(CLOSE_PATH, month=month.name, done="hard")

    async def _withdraw(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        """Take back or turn down what was proposed."""
        reason = form.get("reason", "").strip()
        if not reason or len(reason) > _REASON_CHARACTERS_MAX:
            raise FieldFaults({"reason": f"1 to {_REASON_CHARACTERS_MAX} characters"})
        order = WithdrawClose(actor=self.books.actor(request), month=month.name, reason=reason)
        await self.books.act(Once(form=form_number(form), act=order))
        return back(CLOSE_PATH, month=month.name, done="withdrawn")

    async def _journal(self, request: Request, month: Month, form: Mapping[str, str]) -> Response:
        """Issue the journal of a closed month, or another one where the configuration changed."""
        order = await issue_order(
            self.books,
            month.name,
            form,
            actor=self.books.actor(request),
            is_revision=form.get("do") == "revise",
        )
        await self.books.act(Once(form=form_number(form), act=order))
        return back(CLOSE_PATH, month=month.name, done="journal")

    async def _do(
        self,
        request: Request,
        month: Month,
        form: Mapping[str, str],
        report: CloseReport,
        step: CloseStep,
    ) -> None:
        """Close; a form that is sent twice finds the month closed by itself, and that is fine.

        Raises:
            FieldFaults: Something is open, or the books do not allow it.
        """
        is_closed = report.state == _CLOSED
        reasons = typed_reasons(form) if is_closed else _checked_reasons(report, form)
        order = CloseMonth(
            actor=self.books.actor(request),
            month=month.name,
            step=step,
            accepted=reasons,
            delays=close_delays(self.books.settings.close),
            needs_two=self.books.settings.close.two_person,
        )
        await self.books.act(Once(form=form_number(form), act=order))

    def _confirm(
        self,
        request: Request,
        month: Month,
        report: CloseReport,
        reasons: Mapping[str, str],
        filled: Filled,
    ) -> Response:
        accepted = {field_of(name): reason for name, reason in reasons.items()}
        lines = item_lines(report, Filled(values=accepted), month_before="")
        shown = {
            **self.books.frame(request, CLOSE_PATH, month),
            "figures": figures_of(report),
            "accepted": [one for one in lines if one.is_open],
            "takes_two": self.books.settings.close.two_person,
            "filled": filled,
        }
        if filled.faults:
            shown["once"] = filled.value("once") or shown["once"]
        return self.books.shell.page(
            "close_confirm.html", shown, status=422 if filled.faults else 200
        )

    async def _status(self, month: Month, step: CloseStep) -> CloseReport:
        delays = close_delays(self.books.settings.close)
        return await self.books.ask(
            CloseStatus(month=month.name, step=step, delays=delays), CloseReport
        )

    async def _page(self, request: Request, month: Month, filled: Filled) -> Response:
        report = await self._status(month, CloseStep.HARD)
        before = periods.month_before(month, time_zone=UTC)
        lines = item_lines(report, filled, month_before=before.name)
        names = await self.books.names()
        is_closed = report.state == _CLOSED
        shown = {
            **self.books.frame(request, CLOSE_PATH, month),
            "report": report,
            "figures": figures_of(report),
            "items": lines,
            "open_count": sum(one.is_open for one in lines),
            "blocked": [one.label for one in lines if one.is_open and not one.takes_reason],
            "soft_blocked": [
                one.label
                for one in lines
                if one.is_open and not one.takes_reason and one.name in SOFT_ITEMS
            ],
            "takes_two": self.books.settings.close.two_person,
            "proposed": proposed_close(report, names, actor=self.books.actor(request)),
            "soft_from": soft_from(month, days=self.books.settings.close.soft_after_days),
            "soft_at": instant(report.soft_at_us),
            "soft_by": spoken(report.soft_by, names),
            "closed_at": instant(report.closed_at_us),
            "closed_by": spoken(report.closed_by, names),
            "filled": filled,
            "done": _DONE.get(request.query_params.get("done", ""), ""),
            "teams": await self._teams(month) if is_closed else (),
            "journal": await journal_shown(self.books, month.name, names) if is_closed else None,
            "verified": await self._verified(month) if _wants_check(request, is_closed) else None,
            "export": f"/admin/v1/spend/export?{urlencode({'month': month.name})}",
            "following": periods.month_after(month, time_zone=UTC),
        }
        return self.books.shell.page("close.html", shown, status=422 if filled.faults else 200)

    async def _teams(self, month: Month) -> list[tuple[str, str]]:
        """Teams with spend in the month, each with the address of its statement."""
        report = await self.books.calls.spend_report(
            SpendQuery(
                group_by=(GroupBy.TEAM,),
                from_us=month.window.start_us,
                to_us=month.window.end_us,
            )
        )
        names = sorted(row.group[0] for row in report.rows)
        return [
            (name, f"/ui/statement?{urlencode({'team': name, 'month': month.name})}")
            for name in names
        ]

    async def _verified(self, month: Month) -> VerifiedClose | None:
        closes = await self.books.ask(VerifyCloses(), tuple[VerifiedClose, ...])
        return next((one for one in closes if one.month == month.name), None)


def _wants_check(request: Request, is_closed: bool) -> bool:
    return is_closed and request.query_params.get("check") == "1"


def _checked_reasons(report: CloseReport, form: Mapping[str, str]) -> dict[str, str]:
    """The reasons of a form for what is open.

    Raises:
        FieldFaults: Something is open without a reason, or has to be mended.
    """
    reasons = reasons_of(report.items, form)
    faults = lacking(report.items, reasons)
    for name, reason in reasons.items():
        if len(reason) > _REASON_CHARACTERS_MAX:
            faults[field_of(name)] = f"at most {_REASON_CHARACTERS_MAX} characters"
    if faults:
        raise FieldFaults(faults)
    return reasons
