"""`/ui/machines`: what machines of our own cost, how busy they were, and which team bears what.

The figures are those of `fareway spend machines`. Hours, days and months are UTC's, as there. Who
may see only some teams is shown their shares, and nothing of the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Protocol

import msgspec
from fastapi import Request, Response

from gateway.access.asking import Within
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.finance import machines, periods
from gateway.dashboard.finance.explorer import BadAddress
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.machines.messages import MachinesReport, RateKind, ShowMachines
from gateway.finance.machines.shown import as_csv
from gateway.finance.requests import FinanceRequest
from gateway.settings.machines import MachineSettings

_UTC = "UTC"
_TEXT_MAX = 64


class FinanceReader(Protocol):
    """What pages ask of finance; raises `LedgerUnavailable` when it is away."""

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; plain values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesPages:
    """The pages.

    Attributes:
        ledger: Where the figures come from.
        clock: Time.
        calendar: How finance counts days; only for what every page of figures says.
        shell: What pages share.
        settings: Say the rate of the shares where an address names none.
    """

    ledger: FinanceReader
    clock: Clock
    calendar: Calendar
    shell: Shell
    settings: MachineSettings

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/machines", self.machines
        yield "GET", "/machines.csv", self.machines_csv

    async def machines(self, request: Request, within: Within) -> Response:
        """A month of machines."""
        now_us = self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        try:
            month, query = self._wanted(request, within.sums, now_us)
            report = await self._report(query)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        before = periods.month_before(month, time_zone=_UTC)
        after = periods.month_after(month, time_zone=_UTC)
        shown |= {
            "month": month,
            "day": query.day or "",
            "rate": query.rate.value,
            "rates": [
                (kind.value, label, machines.address(month.name, kind, day=query.day or ""))
                for kind, label in machines.RATE_NAMES.items()
            ],
            "previous": machines.address(before.name, query.rate),
            "following": machines.address(after.name, query.rate)
            if after.first <= from_microseconds(now_us).date()
            else "",
            "csv": machines.address(month.name, query.rate, suffix=".csv"),
            "whole_month": machines.address(month.name, query.rate),
            "restricted": report.is_restricted,
            "page": machines.machines_page(report),
        }
        return self.shell.page("machines.html", shown)

    async def machines_csv(self, request: Request, within: Within) -> Response:
        """The shares as `fareway spend machines --format csv` prints them."""
        now_us = self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        try:
            month, query = self._wanted(request, within.sums, now_us)
            report = await self._report(query)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        name = f"machines-{month.name}-{query.rate.value}.csv"
        return Response(
            as_csv(report),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def _report(self, query: ShowMachines) -> MachinesReport:
        return msgspec.convert(await self.ledger.finance(query), MachinesReport)

    def _wanted(
        self, request: Request, teams: tuple[str, ...] | None, now_us: int
    ) -> tuple[periods.Month, ShowMachines]:
        """What an address asks for.

        Raises:
            BadAddress: It has no meaning.
        """
        given = request.query_params
        day = given.get("day", "")
        named = given.get("month") or day[:7] or None
        month = periods.month_named(named, now_us=now_us, time_zone=_UTC)
        if month is None:
            raise BadAddress(f"month: {(named or '')[:_TEXT_MAX]!r} is no month such as 2026-11")
        if day and day not in map(date.isoformat, month.days):
            raise BadAddress(f"day: {day[:_TEXT_MAX]!r} is no day of {month.name}")
        rate = given.get("rate", self.settings.rate)
        if rate not in set(RateKind):
            raise BadAddress(f"rate: {rate[:_TEXT_MAX]!r} is none of {', '.join(RateKind)}")
        query = ShowMachines(month=month.name, rate=RateKind(rate), day=day or None, teams=teams)
        return month, query
