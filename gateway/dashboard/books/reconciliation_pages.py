"""`/ui/reconciliation`: what vendors bill against the ledger, and each difference with its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response

from gateway.dashboard.books.frame import (
    RECONCILIATION_PATH,
    Books,
    FieldFaults,
    Filled,
    back,
    form_number,
    instant,
    spoken,
)
from gateway.dashboard.books.price_view import price_line
from gateway.dashboard.books.run_view import (
    CLASSES,
    WHOLE_MONTH,
    RunPage,
    days_of,
    place_text,
    run_address,
    run_page,
    units_text,
)
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import form_of
from gateway.errors import CallerFault, LedgerUnavailable
from gateway.finance.bill_messages import Difference, ListRuns, ReconciliationRun, ShowRun
from gateway.finance.form_messages import CellRow, Once, ShowCell
from gateway.finance.orders import reconcile_order
from gateway.finance.price_messages import DecidePrice, ListPriceProposals, PriceProposal
from gateway.finance.shown import coverage_text

REASON_CHARACTERS_MAX = 500
_NUMBER_MAX = 2**62
_SIDES = {
    "ledger": "Booked in the ledger",
    "adjustment": "Adjusted before",
    "bill": "Billed by the vendor",
    "count": "Counted by the vendor",
    "unknown bill": "Bill unknown, at most",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLine:
    """One row behind a difference.

    Attributes:
        side: Whose word it is.
        what: Team, words of the bill, or attempt.
        place: Model and meter.
        units: Grouped digits, or a dash.
        amount: A dash where there is no money.
    """

    side: str
    what: str
    place: str
    units: str
    amount: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationPages:
    """The pages.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/reconciliation", self.show
        yield "POST", "/reconciliation", self.run
        yield "GET", "/reconciliation/{run}/{number}", self.difference
        yield "POST", "/reconciliation/prices/{proposal}", self.decide_price

    async def show(self, request: Request) -> Response:
        """The newest run of a month, or the one that the address names."""

        async def page(month: Month) -> Response:
            try:
                return await self._page(request, month, Filled())
            except CallerFault as error:
                return self.books.bad_address(request, RECONCILIATION_PATH, error.message)

        return await self.books.of_month(request, RECONCILIATION_PATH, page)

    async def run(self, request: Request) -> Response:
        """Compare a month; the differences are proposed to be corrected."""
        form = await form_of(request)
        month = self.books.month(form.get("month", ""))
        if month is None:
            return self.books.bad_address(
                request, RECONCILIATION_PATH, "the form names no month such as 2026-10"
            )
        order = reconcile_order(
            self.books.settings.reconciliation,
            actor=self.books.actor(request),
            month=month.name,
            proposes=True,
        )
        try:
            done = await self.books.act(Once(form=form_number(form), act=order))
        except FieldFaults as error:
            return await self._page(request, month, Filled(values=form, faults=error.faults))
        return back(RECONCILIATION_PATH, month=month.name, run=done.subject, done="1")

    async def decide_price(self, request: Request, proposal: str) -> Response:
        """Accept or reject a price that a bill implies."""
        form = await form_of(request)
        month = self.books.month(form.get("month", ""))
        if month is None or form.get("do") not in ("accept", "reject"):
            return self.books.bad_address(
                request, RECONCILIATION_PATH, "the form does not say what to do, or of which month"
            )
        number, reason = _whole(proposal), form.get("reason", "").strip()
        try:
            if not 1 <= len(reason) <= REASON_CHARACTERS_MAX:
                fault = f"give a reason of 1 to {REASON_CHARACTERS_MAX} characters"
                raise FieldFaults({f"reason-{number}": fault})
            order = DecidePrice(
                actor=self.books.actor(request),
                proposal_id=number,
                is_accepted=form["do"] == "accept",
                reason=reason,
            )
            await self.books.act(Once(form=form_number(form), act=order))
        except FieldFaults as error:
            return await self._page(request, month, Filled(values=form, faults=error.faults))
        return back(RECONCILIATION_PATH, month=month.name, price=str(number))

    async def difference(self, request: Request, run: str, number: str) -> Response:
        """The rows of both sides behind one difference."""
        try:
            found = await self._run(_whole(run))
            place = _whole(number)
            if not 1 <= place <= len(found.differences):
                message = f"run {found.run_id} has no difference {number[:20]!r}"
                return self.books.bad_address(request, RECONCILIATION_PATH, message)
            one = found.differences[place - 1]
            query = ShowCell(
                month=found.month,
                account=one.account,
                day=one.day,
                model=one.model,
                meter=one.meter,
                kind=one.kind,
                is_usage=one.metered_units is not None,
                aliases=dict(self.books.settings.reconciliation.model_aliases),
            )
            rows = await self.books.ask(query, tuple[CellRow, ...])
        except CallerFault as error:
            return self.books.bad_address(request, RECONCILIATION_PATH, error.message)
        except LedgerUnavailable:
            return self.books.away(request)
        month = self.books.month(found.month)
        assert month is not None, "a run is of a month"
        shown_ = {
            **self.books.frame(request, RECONCILIATION_PATH, month),
            **_both_sides(one, rows),
            "run_href": run_address(found),
            "run_id": found.run_id,
            "number": place,
            "one": one,
            "label": CLASSES[one.kind][0],
            "meaning": CLASSES[one.kind][1],
            "place": place_text(one.model, one.meter),
            "explorer": _explorer(one),
        }
        return self.books.shell.page("reconciliation_rows.html", shown_)

    async def _run(self, number: int) -> ReconciliationRun:
        return await self.books.ask(ShowRun(run_id=number), ReconciliationRun)

    async def _page(self, request: Request, month: Month, filled: Filled) -> Response:
        runs = await self.books.ask(ListRuns(month=month.name), tuple[ReconciliationRun, ...])
        wanted = request.query_params.get("run")
        kind, account = (request.query_params.get(name, "") for name in ("kind", "account"))
        day = request.query_params.get("day", "")
        message = ""
        if kind not in ("", *CLASSES):
            message = f"kind: {kind[:64]!r} is none of {', '.join(CLASSES)}"
        elif day not in ("", WHOLE_MONTH, *days_of(month.name)):
            message = f"day: {day[:64]!r} is no day of {month.name}"
        if message:
            return self.books.bad_address(request, RECONCILIATION_PATH, message)
        number = runs[0].run_id if runs and wanted is None else _whole(wanted or "0")
        found = await self._run(number) if number else None
        names = await self.books.names()
        prices = await self.books.ask(
            ListPriceProposals(month=month.name), tuple[PriceProposal, ...]
        )
        page: RunPage | None = None
        if found is not None:
            page = run_page(found, kind=kind, account=account[:128], day=day)
        shown_ = {
            **self.books.frame(request, RECONCILIATION_PATH, month),
            "filled": filled,
            "found": found,
            "page": page,
            "ran_at": "" if found is None else instant(found.at_us),
            "ran_by": "" if found is None else spoken(found.actor, names),
            "is_newest": bool(runs) and found is not None and found.run_id == runs[0].run_id,
            "all_href": "" if found is None else run_address(found),
            "prices": [price_line(one, names) for one in prices],
            "decided": request.query_params.get("price", ""),
            "kind": CLASSES[kind][0] if kind else "",
            "account": account[:128],
            "day": day,
            "done": request.query_params.get("done", ""),
            "runs": [
                (one.run_id, run_address(one), instant(one.at_us), spoken(one.actor, names),
                 coverage_text(one.accounts), shown(_difference(one)))
                for one in runs[:20]
            ],
        }  # fmt: skip
        return self.books.shell.page(
            "reconciliation.html", shown_, status=422 if filled.faults else 200
        )


def _both_sides(one: Difference, rows: Sequence[CellRow]) -> dict[str, object]:
    """The rows as text, and the sums of both sides as they were when the run was made."""
    return {
        "rows": [
            RowLine(
                side=_SIDES[row.side],
                what=row.what,
                place=place_text(row.model, row.meter),
                units=units_text(row.units),
                amount=Shown(text=NOTHING, exact="")
                if row.amount_pico_usd is None
                else shown(row.amount_pico_usd),
            )
            for row in rows
        ],
        "booked": shown(one.ledger_pico_usd),
        "billed": shown(one.billed_pico_usd),
        "amount": shown(one.amount_pico_usd),
        "metered_units": units_text(one.metered_units),
        "billed_units": units_text(one.billed_units),
    }


def _explorer(one: Difference) -> str:
    """The attempts of the cell in the explorer, empty where none can be behind it."""
    if one.metered_units is None or not one.day:
        return ""
    query = {"by": "key", "per": "hour", "from": one.day, "to": one.day}
    query |= (
        {"deployment": f"{one.account}/{one.model}"} if one.model else {"provider": one.account}
    )
    return f"/ui/spend?{urlencode(query)}"


def _difference(run: ReconciliationRun) -> int:
    return run.billed_pico_usd - run.ledger_pico_usd - run.adjusted_pico_usd


def _whole(text: str) -> int:
    """A number of an address; 0, which nothing has, for what is none."""
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return min(int(text), _NUMBER_MAX) if is_number else 0
