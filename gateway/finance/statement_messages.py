"""What is asked and answered about the statement of a team: a month, or a week."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.errors import Refused
from gateway.finance.messages import Adjustment
from gateway.ledger.cost_centres import CostCentreBook
from gateway.ledger.periods import next_month
from gateway.ledger.views import CostCentre, PeriodSums, SpendReport

Period = Annotated[str, Meta(pattern=r"^[0-9]{4}-((0[1-9]|1[0-2])|W[0-5][0-9])$")]
"""A month, `2026-10`, or a week by its ISO 8601 number, `2026-W44`; in UTC."""
_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})", re.ASCII)
_WEEK_DAYS = 7


class LateUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a closed month that is counted in a later one.

    Attributes:
        project: Empty for none.
        provider: Who was called.
        month: In which it happened.
        amount_pico_usd: Negative where it takes the place of more.
    """

    project: str
    provider: str
    month: str
    amount_pico_usd: int


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """A team's use of a pool of machines in a month, for a project.

    Attributes:
        pool: Which.
        project: Empty for none.
        deployment: What was used; empty for what was idle of the team's own slice.
        is_slice: Whether it is that.
        is_nominal: Whether any of it is at a nominal rate.
        used_us: Busy time.
        booked_pico_usd: What is booked for it, which is among the usage.
        actual_pico_usd: Its share in what the machines cost.
        ratio: That of the pool's cost, as decimal text.
    """

    pool: str
    project: str
    deployment: str
    is_slice: bool
    is_nominal: bool
    used_us: int
    booked_pico_usd: int
    actual_pico_usd: int
    ratio: str


class MachinePart(msgspec.Struct, frozen=True, kw_only=True):
    """What a team's use of machines really cost, beside what it is charged.

    Attributes:
        uses: By pool, the largest first.
        approved_pico_usd: Adjustments for it that were approved, in whatever month they count.
        waiting: Numbers of proposals for it that wait for approval.
        is_over: Whether the month is over, so that shares are of all of it.
    """

    uses: tuple[MachineUse, ...]
    approved_pico_usd: int
    waiting: tuple[int, ...]
    is_over: bool

    @property
    def booked_pico_usd(self) -> int:
        """What is booked for it."""
        return sum(use.booked_pico_usd for use in self.uses)

    @property
    def actual_pico_usd(self) -> int:
        """Its shares in what the machines cost."""
        return sum(use.actual_pico_usd for use in self.uses)

    @property
    def open_pico_usd(self) -> int:
        """What is not charged of it; negative where more is charged."""
        return self.actual_pico_usd - self.booked_pico_usd - self.approved_pico_usd

    @property
    def standing(self) -> str:
        """How far it is charged, as a sentence without its full stop."""
        if not self.is_over:
            return "the month is not over: shares are of what was until now, and nothing is charged"
        if not self.open_pico_usd:
            return "all of it is charged"
        if self.waiting:
            numbers = ", ".join(map(str, self.waiting))
            return f"not charged yet: proposal {numbers} waits for approval"
        return "not charged: no adjustment was approved or waits"


class TeamStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What a team is charged for a period.

    Attributes:
        team: Empty for spend of no team.
        organisation: Who bills it.
        period: As it was asked for.
        first_day: `YYYY-MM-DD`.
        last_day: `YYYY-MM-DD`, counted too.
        state: Of a month `open`, `soft` or `closed`; of a week `week`.
        as_of_us: When it was made, microseconds since the epoch.
        report: Usage by project and model, on its own days.
        sums: What is charged: of a month what was booked, came late and was adjusted, as its close
            tells it; of a week the same by when it came and when it was posted.
        late: Usage of closed months that is counted in this period.
        adjustments: Of the month, or posted in the week.
        cost_centres: Of the team and its projects.
        machines: What its use of machines really cost, None where it used none, and of a week; for
            information: only what is approved is charged.
    """

    team: str
    organisation: str
    period: str
    first_day: str
    last_day: str
    state: str
    as_of_us: int
    report: SpendReport
    sums: PeriodSums
    late: tuple[LateUsage, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    cost_centres: tuple[CostCentre, ...] = ()
    machines: MachinePart | None = None

    @property
    def counted_later_pico_usd(self) -> int:
        """Usage on days of the month that came after its close and is counted in a later one."""
        return self.report.total.cost_pico_usd - self.sums.booked_pico_usd

    def cost_centre(self, project: str) -> str:
        """Where a project's usage is charged to, empty where nobody has said."""
        return CostCentreBook(self.cost_centres).of(self.team, project)


class ShowStatement(msgspec.Struct, frozen=True, kw_only=True, tag="show_statement"):
    """Ask for a statement.

    Attributes:
        team: Empty for spend of no team.
        period: A month or a week.
        organisation: Who bills it.
        cost_centres: Who is charged to which.
        teams: Only these teams may be seen, None for all; another one is as one that spent nothing.
    """

    team: str
    period: Period
    organisation: str
    cost_centres: tuple[CostCentre, ...] = ()
    teams: tuple[str, ...] | None = None


def days_of(period: str) -> tuple[date, date]:
    """The first and the last day of a month or a week.

    Raises:
        Refused: There is no such period.
    """
    week = _WEEK.fullmatch(period)
    try:
        if week is not None:
            first = date.fromisocalendar(int(week[1]), int(week[2]), 1)
            return first, first + timedelta(days=_WEEK_DAYS - 1)
        first = date.fromisoformat(f"{period}-01")
        return first, date.fromisoformat(f"{next_month(period)}-01") - timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise Refused(
            f"{period!r} is no month such as 2026-10 and no week such as 2026-W44"
        ) from error


def week_of(day: date) -> str:
    """The week of a day, `2026-W44`."""
    year, number, _ = day.isocalendar()
    return f"{year:04}-W{number:02}"
