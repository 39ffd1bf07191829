"""`/ui/story`: why a month cost what it did against another, and the days that stood out.

The figures are those of `fareway spend bridge` and `fareway spend anomalies`: months and days of
UTC, of the teams that whoever looks may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response

from gateway.access.asking import Within, viewer_of
from gateway.access.permissions import Action, restriction_for
from gateway.clock import Clock
from gateway.dashboard.finance import periods
from gateway.dashboard.finance.explorer import VALUE_CHARS_MAX
from gateway.dashboard.finance.story import story_page
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import PATH, Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.requests import FinanceRequest
from gateway.finance.story_messages import BridgeReport, FoundAnomaly, ShowAnomalies, ShowBridge
from pricing.money import PICO_PER_USD

STORY_PATH = f"{PATH}/story"
_UTC = "UTC"


class StoryReader(Protocol):
    """What the page asks; each raises `LedgerUnavailable` when the ledger is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryPages:
    """The page.

    Attributes:
        ledger: Where the figures come from.
        clock: Time.
        calendar: How days are counted elsewhere.
        shell: What pages share.
        key_name: What the key of an id is called, empty where nobody knows.
        excess_usd: Least excess of a day that is listed, whole dollars.
    """

    ledger: StoryReader
    clock: Clock
    calendar: Calendar
    shell: Shell
    key_name: Callable[[str], str]
    excess_usd: int

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/story", self.story

    async def story(self, request: Request, within: Within) -> Response:
        """A month against another, the one before it unless the address says which."""
        now_us, given = self.clock.wall_us(), request.query_params
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        this = periods.month_named(None, now_us=now_us, time_zone=_UTC)
        assert this is not None, "now is a month"
        after = periods.month_before(this, time_zone=_UTC)
        if "month" in given:
            after = periods.month_named(given["month"], now_us=now_us, time_zone=_UTC)
        if after is None:
            return self._bad(shown, "month", given["month"])
        before = periods.month_before(after, time_zone=_UTC)
        if given.get("against"):
            before = periods.month_named(given["against"], now_us=now_us, time_zone=_UTC)
        if before is None:
            return self._bad(shown, "against", given["against"])
        team = given.get("team", "")[:VALUE_CHARS_MAX]
        try:
            is_complete = await self.ledger.catch_up()
            bridge = await self.ledger.finance(
                ShowBridge(
                    before=before.name, after=after.name, team=team or None, teams=within.sums
                )
            )
            anomalies = await self.ledger.finance(
                ShowAnomalies(
                    first_day=after.first.isoformat(),
                    last_day=after.last.isoformat(),
                    excess_pico_usd=self.excess_usd * PICO_PER_USD,
                    teams=within.sums,
                )
            )
        except LedgerUnavailable:
            return self.shell.away(shown)
        following = periods.month_after(after, time_zone=_UTC)
        sees_spend = not restriction_for(viewer_of(request), Action.READ_SPEND).is_nothing
        shown |= {
            "before": before,
            "after": after,
            "team": team,
            "is_over": after.window.end_us <= now_us,
            "excess_usd": f"{self.excess_usd:,}",
            "address_before": _address(periods.month_before(after, time_zone=_UTC).name, team),
            "address_after": _address(following.name, team)
            if following.window.start_us <= now_us
            else "",
            "address_all": _address(after.name, ""),
            "is_complete": is_complete,
            "restricted": within.teams is not None,
            "sees_spend": sees_spend,
            "page": story_page(
                msgspec.convert(bridge, BridgeReport),
                msgspec.convert(anomalies, tuple[FoundAnomaly, ...]),
                before=before,
                after=after,
                team=team,
                key_name=self.key_name,
                sees_spend=sees_spend,
            ),
        }
        return self.shell.page("story.html", shown)

    def _bad(self, shown: dict[str, object], name: str, value: str) -> Response:
        return self.shell.bad_address(shown, periods.no_month(value, parameter=name))


def _address(month: str, team: str) -> str:
    return f"{STORY_PATH}?{urlencode({'month': month} | ({'team': team} if team else {}))}"
