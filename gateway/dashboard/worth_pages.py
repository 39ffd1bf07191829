"""`/ui/savings` and `/ui/commitments`: what routing saved, and what was bought ahead.

Savings are sums of the ledger, of the teams that whoever looks may see; commitments are the
organisation's, so their page is for those who read finance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Request, Response

from gateway.access.asking import Within
from gateway.clock import Clock
from gateway.dashboard.finance import periods
from gateway.dashboard.finance.burn_down import commitments_page
from gateway.dashboard.finance.savings import savings_page
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.commitment_messages import CommitmentStanding, ListCommitments
from gateway.finance.requests import FinanceRequest
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport


class WorthReader(Protocol):
    """What the pages ask; each raises `LedgerUnavailable` when the ledger is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthPages:
    """The pages.

    Attributes:
        ledger: Where the figures come from.
        clock: Time.
        calendar: How days are counted.
        baselines: Names of the models that have a baseline now.
        shell: What pages share.
    """

    ledger: WorthReader
    clock: Clock
    calendar: Calendar
    baselines: tuple[tuple[str, str], ...]
    shell: Shell

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/savings", self.savings
        yield "GET", "/commitments", self.commitments

    async def savings(self, request: Request, within: Within) -> Response:
        """What routing saved in a month, and how that is worked out."""
        calendar, now_us = self.calendar, self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, calendar)
        named = request.query_params.get("month")
        month = periods.month_named(named, now_us=now_us, time_zone=calendar.zone)
        if month is None:
            return self.shell.bad_address(shown, periods.no_month(named))
        try:
            is_complete = await self.ledger.catch_up()
            report = await self.ledger.spend_report(
                SpendQuery(
                    group_by=(GroupBy.MODEL,),
                    from_us=month.window.start_us,
                    to_us=month.window.end_us,
                    teams=within.sums,
                    zone=calendar.zone,
                )
            )
        except LedgerUnavailable:
            return self.shell.away(shown)
        following = periods.month_after(month, time_zone=calendar.zone)
        today = local_day(now_us, ZoneInfo(calendar.zone))
        shown |= {
            "month": month,
            "previous": periods.month_before(month, time_zone=calendar.zone).name,
            "following": following.name if following.first <= today else "",
            "is_complete": is_complete,
            "restricted": within.teams is not None,
            "baselines": self.baselines,
            "page": savings_page(report),
        }
        return self.shell.page("savings.html", shown)

    async def commitments(self, request: Request) -> Response:
        """Commitments and prepaid credits, and how each goes down."""
        shown = finance_frame(self.shell, request, self.clock.wall_us(), self.calendar)
        try:
            is_complete = await self.ledger.catch_up()
            answer = await self.ledger.finance(ListCommitments())
        except LedgerUnavailable:
            return self.shell.away(shown)
        found = msgspec.convert(answer, tuple[CommitmentStanding, ...])
        shown |= {"is_complete": is_complete, "page": commitments_page(found)}
        return self.shell.page("commitments.html", shown)
