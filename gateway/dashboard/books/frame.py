"""What the pages of the books share: months, who may act, names of people, forms sent once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response

from gateway.access.asking import viewer_of
from gateway.access.permissions import Action, restriction_for
from gateway.access.roles import Role
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.figures import stamp_time
from gateway.dashboard.finance import periods
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.shell import FORM_NUMBER, PATH, Shell, to
from gateway.errors import CallerFault, LedgerUnavailable
from gateway.finance.form_messages import Done, Once, ShowForm
from gateway.finance.journal_messages import JournalPosting
from gateway.finance.requests import FinanceRequest
from gateway.ledger.views import SpendQuery, SpendReport
from gateway.settings.finance import FinanceSettings

T = TypeVar("T")

UTC = "UTC"
CLOSE_PATH = f"{PATH}/close"
IMPORTS_PATH = f"{PATH}/imports"
RECONCILIATION_PATH = f"{PATH}/reconciliation"
ADJUSTMENTS_PATH = f"{PATH}/adjustments"
UNATTRIBUTED_PATH = f"{PATH}/unattributed"
ACTS_PATH = f"{PATH}/acts"
TABS = (
    (CLOSE_PATH, "Close"),
    (IMPORTS_PATH, "Imports"),
    (RECONCILIATION_PATH, "Reconciliation"),
    (ADJUSTMENTS_PATH, "Adjustments"),
    (UNATTRIBUTED_PATH, "Unattributed and estimated"),
    (ACTS_PATH, "Acts"),
)
_WORD_OF_ACTOR = {"admin-key": "the administrator's key"}


class BooksCalls(Protocol):
    """What the pages ask of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; a refusal is a `CallerFault`."""
        ...


class FieldFaults(Exception):
    """A form cannot be acted on.

    Attributes:
        faults: By field, one sentence each; the empty name is the form as a whole.
    """

    def __init__(self, faults: Mapping[str, str]) -> None:
        """Keep them."""
        super().__init__("; ".join(faults.values()))
        self.faults = dict(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A form as somebody filled it in, and what is wrong with it.

    Attributes:
        values: By field.
        faults: By field; the empty name is the form as a whole.
    """

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: Mapping[str, str] = field(default_factory=dict[str, str])

    def value(self, name: str, otherwise: str = "") -> str:
        """What a field holds."""
        return self.values.get(name, otherwise)

    def fault(self, name: str) -> str:
        """What is wrong with a field, empty for nothing."""
        return self.faults.get(name, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the pages of the books share.

    Attributes:
        calls: The ledger.
        shell: What all pages share.
        clock: Time.
        settings: How finance is kept.
        rates_file: Exchange rates, None for none.
        providers: Names of the configured providers at this moment.
        teams: Names of the configured teams at this moment.
        posting: How the configuration wants the journal of a month; may read a file.
    """

    calls: BooksCalls
    shell: Shell
    clock: Clock
    settings: FinanceSettings
    rates_file: Path | None
    providers: Callable[[], Collection[str]]
    teams: Callable[[], Collection[str]]
    posting: Callable[[str], JournalPosting]

    async def ask(self, request: FinanceRequest, result_type: type[T]) -> T:
        """Have finance answer, as the type that it answers with.

        Raises:
            CallerFault: It was refused; the sentence says why.
            LedgerUnavailable: Nobody answers.
        """
        return msgspec.convert(await self.calls.finance(request), result_type)

    async def act(self, order: Once) -> Done:
        """Do what a form asks for, once.

        Raises:
            FieldFaults: The books do not allow it.
            LedgerUnavailable: Nobody answers.
        """
        try:
            return await self.ask(order, Done)
        except CallerFault as error:
            raise FieldFaults({"": error.message}) from error

    async def earlier(self, order: Once) -> Done | None:
        """What became of a form that was sent before, None for a new one.

        Raises:
            FieldFaults: It asked for something else then.
            LedgerUnavailable: Nobody answers.
        """
        try:
            found = await self.calls.finance(ShowForm(sent=order))
        except CallerFault as error:
            raise FieldFaults({"": error.message}) from error
        return None if found is None else msgspec.convert(found, Done)

    def actor(self, request: Request) -> str:
        """Who asks, as the audit log names them."""
        return viewer_of(request).actor

    def can_change(self, request: Request) -> bool:
        """Whether whoever looks may act here, too."""
        return not restriction_for(viewer_of(request), Action.CHANGE_FINANCE).is_nothing

    def month(self, name: str | None) -> Month | None:
        """The month that an address names, else the one before this; None where it names none."""
        now_us = self.clock.wall_us()
        if name is not None:
            return periods.month_named(name, now_us=now_us, time_zone=UTC)
        this = periods.month_named(None, now_us=now_us, time_zone=UTC)
        assert this is not None, "now is a month"
        return periods.month_before(this, time_zone=UTC)

    def frame(self, request: Request, here: str, month: Month) -> dict[str, object]:
        """What every page of the books shows."""
        now_us = self.clock.wall_us()
        before = periods.month_before(month, time_zone=UTC)
        following = periods.month_after(month, time_zone=UTC)
        return {
            **self.shell.frame(request, CLOSE_PATH),
            "now": stamp_time(now_us),
            "now_iso": from_microseconds(now_us).isoformat(timespec="seconds"),
            "month": month,
            "here": here,
            "tabs": [
                (f"{path}?{urlencode({'month': month.name})}", label, path == here)
                for path, label in TABS
            ],
            "month_before": f"{here}?{urlencode({'month': before.name})}",
            "month_after": f"{here}?{urlencode({'month': following.name})}"
            if following.window.start_us <= now_us
            else "",
            "can_change": self.can_change(request),
        }

    def bad_address(self, request: Request, here: str, message: str) -> Response:
        """Say that an address has no meaning."""
        shown = {**self.shell.frame(request, CLOSE_PATH), "here": here}
        return self.shell.bad_address(shown, message)

    def bad_month(self, request: Request, here: str) -> Response:
        """Say that an address names no month."""
        name = request.query_params.get("month", "")
        return self.bad_address(request, here, f"month: {name[:64]!r} is no month such as 2026-10")

    async def of_month(
        self, request: Request, here: str, page: Callable[[Month], Awaitable[Response]]
    ) -> Response:
        """A page about the month that an address names.

        Args:
            request: Whose.
            here: The page's path.
            page: Makes it.
        """
        month = self.month(request.query_params.get("month"))
        if month is None:
            return self.bad_month(request, here)
        try:
            return await page(month)
        except LedgerUnavailable:
            return self.away(request)

    def away(self, request: Request) -> Response:
        """Say that the ledger does not answer."""
        return self.shell.away(self.shell.frame(request, CLOSE_PATH))

    async def names(self) -> Mapping[str, str]:
        """Names of people by how the audit log names them; none while nobody can say."""
        try:
            people = await self.shell.people.list_people()
        except LedgerUnavailable:
            return {}
        return {f"person:{one.person_id}": one.name for one in people}

    async def other_approvers(self, actor: str) -> list[str]:
        """Names of the people beside whoever acts who could approve."""
        people = await self.shell.people.list_people()
        return [
            one.name
            for one in people
            if one.disabled_at_us is None
            and any(grant.role is Role.FINANCE_ADMIN for grant in one.grants)
            and f"person:{one.person_id}" != actor
        ]


def form_number(form: Mapping[str, str]) -> str:
    """The number of the form that was sent.

    Raises:
        FieldFaults: It has none of ours.
    """
    number = form.get("once", "")
    if not FORM_NUMBER.fullmatch(number):
        raise FieldFaults({"": "this form is not complete; open the page again"})
    return number


def spoken(actor: str, names: Mapping[str, str]) -> str:
    """An actor for people: `person:…` by name, commands by the machine's user."""
    who, mark, rest = actor.partition(", ")
    kind, _, name = who.partition(":")
    if who in names:
        said = names[who]
    elif kind == "cli" and name:
        said = f"{name}, by a command"
    elif kind == "person":
        said = "somebody who is not there any more"
    else:
        said = _WORD_OF_ACTOR.get(who, who)
    return f"{said}{mark}{rest}"


def instant(at_us: int | None) -> str:
    """UTC to the minute, empty for never."""
    return "" if at_us is None else f"{from_microseconds(at_us):%Y-%m-%d %H:%M} UTC"


def back(path: str, **query: str) -> Response:
    """Send the browser to a page of the books, so that a reload sends nothing twice."""
    return to(f"{path}?{urlencode(query)}")
