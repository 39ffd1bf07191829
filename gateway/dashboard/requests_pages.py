"""`/ui/requests`: the attempts behind a figure, a page at a time, and a request with all of its.

No content is kept, so none can be shown. A request of a team that may not be seen is as one that
does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request, Response

from gateway.access.asking import Within
from gateway.clock import Clock
from gateway.dashboard.finance import attempts
from gateway.dashboard.finance.amounts import shown
from gateway.dashboard.finance.attempts import Wanted
from gateway.dashboard.finance.explorer import DIMENSIONS, BadAddress, days_text
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import Shell
from gateway.errors import InvalidField, LedgerUnavailable
from gateway.ledger.attempt_views import Attempt, AttemptPage, AttemptQuery, RequestQuery
from gateway.ledger.views import COST_TAG, GroupBy, SpendQuery, SpendReport

_REQUEST_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NAMES = {**DIMENSIONS, GroupBy.PRIVACY_TAG: "Privacy tag"}


class AttemptReader(Protocol):
    """What the pages ask of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def load_attempts(self, query: AttemptQuery) -> AttemptPage:
        """A page of attempts, newest first."""
        ...

    async def load_request(self, query: RequestQuery) -> list[Attempt]:
        """Every booked attempt of a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsPages:
    """The pages.

    Attributes:
        ledger: Where the attempts come from.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
        key_name: What the key of an id is called, empty where nobody knows.
    """

    ledger: AttemptReader
    clock: Clock
    calendar: Calendar
    shell: Shell
    key_name: Callable[[str], str]

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/requests", self.requests
        yield "GET", "/requests/{request_id}", self.request

    async def requests(self, request: Request, within: Within) -> Response:
        """The attempts behind a figure."""
        shown_here = finance_frame(self.shell, request, self.clock.wall_us(), self.calendar)
        try:
            wanted = self._wanted(request)
            is_complete = await self.ledger.catch_up()
            page = await self.ledger.load_attempts(wanted.query(within.sums))
            total = await self._total(wanted, within.sums)
        except (BadAddress, InvalidField) as error:
            return self.shell.bad_address(shown_here, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown_here)
        following = ""
        if page.next is not None:
            following = wanted.address(after=attempts.place_text(page.next))
        shown_here |= {
            "wanted": wanted,
            "days": wanted.hour or days_text(wanted.first, wanted.last),
            "active": [
                {"text": f"{_name(key)}: {value or 'none'}", "href": wanted.address(**{key: None})}
                for key, value in wanted.filters.items()
            ],
            "restricted": within.teams is not None,
            "is_complete": is_complete,
            "total": None if total is None else shown(total.total.cost_pico_usd),
            "attempts": None if total is None else f"{total.total.attempts:,}",
            "lines": attempts.attempt_lines(
                page.attempts, zone=self.calendar.zone, key_name=self.key_name
            ),
            "following": following,
            "is_first": wanted.after is None,
            "first_page": wanted.address(),
            "is_cut": page.is_cut,
        }
        return self.shell.page("requests.html", shown_here)

    async def request(self, request: Request, request_id: str, within: Within) -> Response:
        """One request with all of its attempts."""
        shown_here = finance_frame(self.shell, request, self.clock.wall_us(), self.calendar)
        shown_here["request_id"] = request_id[:64]
        found: list[Attempt] = []
        if _REQUEST_ID.fullmatch(request_id):
            try:
                await self.ledger.catch_up()
                found = await self.ledger.load_request(
                    RequestQuery(request_id=bytes.fromhex(request_id), teams=within.sums)
                )
            except LedgerUnavailable:
                return self.shell.away(shown_here)
        if not found:
            return self.shell.page("no_request.html", shown_here, status=404)
        costs = [one.cost_pico_usd for one in found if one.cost_pico_usd is not None]
        shown_here |= {
            "lines": attempts.attempt_lines(found, zone=self.calendar.zone, key_name=self.key_name),
            "total": shown(sum(costs)) if costs else None,
        }
        return self.shell.page("request.html", shown_here)

    def _wanted(self, request: Request) -> Wanted:
        return attempts.read_wanted(
            request.query_params,
            now_us=self.clock.wall_us(),
            zone=self.calendar.zone,
            fiscal_month=self.calendar.fiscal_month,
            cost_tags=self.calendar.cost_tags,
        )

    async def _total(self, wanted: Wanted, teams: tuple[str, ...] | None) -> SpendReport | None:
        """The figure that the attempts add up to; None where only they themselves can tell."""
        query = SpendQuery(
            group_by=(GroupBy.TEAM,),
            from_us=wanted.window.start_us,
            to_us=wanted.window.end_us,
            filters=wanted.dimensions,
            teams=teams,
        )
        try:
            return await self.ledger.spend_report(query)
        except InvalidField:
            return None


def _name(dimension: str) -> str:
    if dimension.startswith(COST_TAG):
        return f"Cost tag {dimension.removeprefix(COST_TAG)}"
    return _NAMES[dimension]
