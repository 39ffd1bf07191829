"""`/ui/acts`: who did what to the books, as the audit log has it; read only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response

from gateway.access.asking import viewer_of
from gateway.access.people import AuditLine, AuditQuery
from gateway.access.permissions import Action, restriction_for
from gateway.clock import from_microseconds
from gateway.dashboard.books.frame import (
    ACTS_PATH,
    ADJUSTMENTS_PATH,
    CLOSE_PATH,
    IMPORTS_PATH,
    RECONCILIATION_PATH,
    Books,
    spoken,
)
from gateway.errors import LedgerUnavailable
from pricing.money import format_usd

AREAS = (
    "import",
    "reconciliation",
    "adjustment",
    "price",
    "period",
    "journal",
    "commitment",
    "ledger",
)
LINES_SHOWN = 100
_ACTS: Mapping[str, str] = {
    "import.keep": "took a vendor's file",
    "import.unreadable": "gave a file that could not be read",
    "reconciliation.run": "compared a month",
    "adjustment.propose": "proposed adjustments",
    "adjustment.post": "approved and posted",
    "adjustment.reject": "rejected",
    "adjustment.withdraw": "withdrew by a newer run",
    "period.soft_close": "closed a month softly",
    "period.close": "closed a month for good",
    "price.propose": "found another price on a bill",
    "price.accept": "accepted a price of a bill",
    "price.reject": "rejected a price of a bill",
    "price.withdraw": "withdrew prices that an older run proposed",
    "period.propose_close": "proposed to close a month for good",
    "period.withdraw_close": "took back a proposed close",
    "period.void_close": "found a proposed close void",
    "journal.issue": "issued the journal of a month",
    "commitment.withdraw": "withdrew a commitment",
    "ledger.rebuild": "made sums anew",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLine:
    """One act.

    Attributes:
        number: Its place in the audit log.
        at: UTC, to the second.
        who: By name.
        what: In words.
        subject: Number or month.
        href: Its page, empty for none.
        details: Name and value of each, amounts in dollars.
        hash: That chains it to the line before, hexadecimal.
    """

    number: int
    at: str
    who: str
    what: str
    subject: str
    href: str
    details: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActsPages:
    """The page.

    Attributes:
        books: What the pages of the books share.
    """

    books: Books

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/acts", self.show

    async def show(self, request: Request) -> Response:
        """The newest acts, or those before one."""
        month = self.books.month(request.query_params.get("month"))
        if month is None:
            return self.books.bad_month(request, ACTS_PATH)
        said = request.query_params.get("before", "")
        is_number = said.isascii() and said.isdigit() and len(said) < 19
        if said and not is_number:
            return self.books.bad_address(request, ACTS_PATH, "before: is no number of a line")
        query = AuditQuery(count=LINES_SHOWN, before=int(said) if is_number else None, areas=AREAS)
        may_check = not restriction_for(viewer_of(request), Action.READ_AUDIT).is_nothing
        people = self.books.shell.people
        try:
            lines = await people.read_audit(query)
            wants_check = may_check and request.query_params.get("check") == "1"
            checked = await people.verify_audit() if wants_check else None
        except LedgerUnavailable:
            return self.books.away(request)
        names = await self.books.names()
        older = {"month": month.name, "before": str(lines[-1].number)} if lines else {}
        shown_ = {
            **self.books.frame(request, ACTS_PATH, month),
            "lines": [act_line(one, names) for one in lines],
            "older": f"{ACTS_PATH}?{urlencode(older)}" if len(lines) == LINES_SHOWN else "",
            "may_check": may_check,
            "checked": checked,
            "head": "" if checked is None else checked.head.hex(),
        }
        return self.books.shell.page("acts.html", shown_)


def act_line(line: AuditLine, names: Mapping[str, str]) -> ActLine:
    """A line of the audit log as text."""
    area = line.action.partition(".")[0]
    hrefs = {
        "import": IMPORTS_PATH,
        "reconciliation": f"{RECONCILIATION_PATH}?"
        + urlencode({"month": str(line.details.get("month", "")), "run": line.subject}),
        "adjustment": f"{ADJUSTMENTS_PATH}/{line.subject}"
        if line.subject.isdigit()
        else f"{ADJUSTMENTS_PATH}?{urlencode({'month': line.subject})}",
        "period": f"{CLOSE_PATH}?{urlencode({'month': line.subject})}",
    }
    return ActLine(
        number=line.number,
        at=f"{from_microseconds(line.at_us):%Y-%m-%d %H:%M:%S}",
        who=spoken(line.actor, names),
        what=_ACTS.get(line.action, line.action),
        subject=line.subject,
        href=hrefs.get(area, ""),
        details="; ".join(
            _detail(name, value, names)
            for name, value in line.details.items()
            # Whoever rejects may be anybody, the one who proposed it too.
            if value not in ("", None) and (name, line.action) != ("is_alone", "adjustment.reject")
        ),
        hash=line.hash.hex(),
    )


def _detail(name: str, value: object, names: Mapping[str, str]) -> str:
    if name.endswith("_pico_usd") and isinstance(value, int):
        return f"{name.removesuffix('_pico_usd').replace('_', ' ')} {format_usd(value)} USD"
    if name == "proposed_by":
        return f"proposed by {spoken(str(value), names)}"
    if name == "is_alone":
        return "by the same person, as nobody else could" if value else "by two people"
    return f"{name.replace('_', ' ')} {value}"
