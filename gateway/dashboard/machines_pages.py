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
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.machines.asking import NoMeaning, question
from gateway.finance.machines.messages import MachinesReport, ShowMachines
from gateway.finance.machines.shown import as_csv
from gateway.finance.requests import FinanceRequest
from gateway.fleet import Fleet
from gateway.settings.machines import MachineSettings
from pricing.price_book import Basis, PriceVersion

_UTC = "UTC"


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
        fleet: The deployments of the moment, whose prices pools are compared with.
    """

    ledger: FinanceReader
    clock: Clock
    calendar: Calendar
    shell: Shell
    settings: MachineSettings
    fleet: Callable[[], Fleet]

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/machines", self.machines
        yield "GET", "/machines.csv", self.machines_csv

    async def machines(self, request: Request, within: Within) -> Response:
        """A month of machines."""
        return await self._answer(request, within, self._page)

    async def machines_csv(self, request: Request, within: Within) -> Response:
        """The shares as `fareway spend machines --format csv` prints them."""
        return await self._answer(request, within, _file)

    async def _answer(
        self,
        request: Request,
        within: Within,
        tell: Callable[[dict[str, object], ShowMachines, MachinesReport], Response],
    ) -> Response:
        """Ask what an address means, and tell the answer."""
        given, now_us = request.query_params, self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        try:
            query = question(
                month=given.get("month"),
                day=given.get("day"),
                rate=given.get("rate"),
                against=given.get("against"),
                teams=within.sums,
                usual=self.settings,
                fleet=self.fleet(),
                now_us=now_us,
            )
            report = msgspec.convert(await self.ledger.finance(query), MachinesReport)
        except NoMeaning as error:
            return self.shell.bad_address(shown, f"{error.param}: {error}")
        except LedgerUnavailable:
            return self.shell.away(shown)
        return tell(shown, query, report)

    def _page(
        self, shown: dict[str, object], query: ShowMachines, report: MachinesReport
    ) -> Response:
        now_us = self.clock.wall_us()
        month = periods.month_of(date.fromisoformat(f"{query.month}-01"), time_zone=_UTC)
        before = periods.month_before(month, time_zone=_UTC)
        after = periods.month_after(month, time_zone=_UTC)
        here = machines.Place.of(query)
        shown |= {
            "month": month,
            "day": query.day or "",
            "rate": query.rate.value,
            "rates": [
                (kind.value, label, here.address(rate=kind))
                for kind, label in machines.RATE_NAMES.items()
            ],
            "previous": here.address(month=before.name),
            "following": here.address(month=after.name)
            if after.first <= from_microseconds(now_us).date()
            else "",
            "csv": here.address(suffix=".csv", day=""),
            "whole_month": here.address(day=""),
            "against": here.against,
            "alternatives": self._alternatives(),
            "restricted": report.is_restricted,
            "page": machines.machines_page(report, here),
        }
        return self.shell.page("machines.html", shown)

    def _alternatives(self) -> list[str]:
        """Deployments that pools can be compared with: those priced by usage now."""
        fleet, at = self.fleet(), from_microseconds(self.clock.wall_us())
        found = {name: fleet.prices.lookup(name, at) for name in fleet.deployments}
        return sorted(
            name
            for name, price in found.items()
            if isinstance(price, PriceVersion) and price.basis is Basis.TOKENS
        )


def _file(_shown: dict[str, object], query: ShowMachines, report: MachinesReport) -> Response:
    name = f"machines-{query.month}-{query.rate.value}.csv"
    return Response(
        as_csv(report),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )
