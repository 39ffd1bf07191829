"""`/ui`: the first page, and all pages put together. Rendered on the server.

Rows are filtered by the query, never by the template: what a team may not see is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from fastapi import APIRouter, Request, Response
from jinja2 import Environment

from gateway.access.asking import viewer_of
from gateway.access.calls import PeopleCalls
from gateway.access.permissions import Action, restriction_for
from gateway.auth.directory import KeyDirectory
from gateway.auth.keys import RandomBytes
from gateway.clock import Clock
from gateway.dashboard.account_pages import AccountPages
from gateway.dashboard.assets import Assets, load_assets
from gateway.dashboard.books.frame import Books
from gateway.dashboard.books.pages import book_routes
from gateway.dashboard.budgets_pages import BudgetsPages
from gateway.dashboard.desk import Desk
from gateway.dashboard.exports_pages import ExportsPages
from gateway.dashboard.figures import clock_time, day_query, request_lines, spend_table
from gateway.dashboard.finance_pages import Calendar, FinancePages
from gateway.dashboard.front import make_front
from gateway.dashboard.keys_pages import KeysPages
from gateway.dashboard.login_pages import CALLBACK_PATH, LoginPages
from gateway.dashboard.machines_pages import MachinesPages
from gateway.dashboard.requests_pages import AttemptReader, RequestsPages
from gateway.dashboard.sessions import Sessions
from gateway.dashboard.shell import PATH, Shell
from gateway.dashboard.story_pages import StoryPages
from gateway.dashboard.templating import make_templates
from gateway.dashboard.users_pages import UsersPages
from gateway.dashboard.worth_pages import WorthPages
from gateway.errors import LedgerUnavailable
from gateway.finance.journal_orders import journal_posting
from gateway.finance.requests import FinanceRequest
from gateway.finance.spend_question import Reporting
from gateway.fleet import Fleet
from gateway.ledger.views import RecentQuery, RecentRequest, SpendQuery, SpendReport
from gateway.oidc.flow import OidcFlow, make_flow
from gateway.settings.finance import FinanceSettings
from gateway.settings.login import LoginSettings
from gateway.settings.statements import AnomalySettings

ASSETS = f"{PATH}/static/"
REQUESTS_SHOWN = 50


class LedgerReader(AttemptReader, Protocol):
    """What the pages ask of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def recent_requests(self, query: RecentQuery) -> list[RecentRequest]:
        """The newest requests, newest first."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; a refusal is a `CallerFault`."""
        ...


class Routed(Protocol):
    """Some pages."""

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What pages of figures are made with.

    Attributes:
        ledger: Where the numbers come from.
        desk: What the API does for people.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
    """

    ledger: LedgerReader
    desk: Desk
    clock: Clock
    calendar: Calendar
    shell: Shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """The pages.

    Attributes:
        shell: What pages share.
        ledger: Where the numbers come from.
        clock: Time.
        assets: Style sheets and scripts.
        login: The ways in and out.
        account: Pages about whoever looks.
        users: Pages about everybody.
        finance: A month, spend by anything, statements.
        more: Requests, budgets, keys, machines, the story, savings, commitments, exports.
        books: What the pages of the month close share.
    """

    shell: Shell
    ledger: LedgerReader
    clock: Clock
    assets: Assets
    login: LoginPages
    account: AccountPages
    users: UsersPages
    finance: FinancePages
    more: Sequence[Routed]
    books: Books

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=PATH, include_in_schema=False)
        routes: Sequence[tuple[str, str, Callable[..., object]]] = (
            ("GET", "", self.overview),
            ("GET", "/", self.overview),
            ("GET", "/static/{name:path}", self.asset),
            *self.login.routes(),
            *self.account.routes(),
            *self.users.routes(),
            *self.finance.routes(),
            *book_routes(self.books),
            *(route for pages in self.more for route in pages.routes()),
        )
        for method, path, endpoint in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None)
        return router

    async def overview(self, request: Request) -> Response:
        """Spend of the day and the newest requests: of everybody, or of the key's team."""
        viewer = viewer_of(request)
        now_us = self.clock.wall_us()
        shown = {**self._frame(request), "now": clock_time(now_us)}
        of_spend = restriction_for(viewer, Action.READ_SPEND)
        of_requests = restriction_for(viewer, Action.READ_REQUESTS)
        try:
            is_complete = await self.ledger.catch_up()
            report = await self.ledger.spend_report(day_query(now_us, of_spend.sums))
            requests = await self.ledger.recent_requests(
                RecentQuery(count=REQUESTS_SHOWN, teams=of_requests.sums)
            )
        except LedgerUnavailable:
            return self._page("away.html", shown, status=503)
        shown |= {
            "is_complete": is_complete,
            "sees_spend": not of_spend.is_nothing,
            "sees_requests": not of_requests.is_nothing,
            "spend": spend_table(report, now_us),
            "requests": request_lines(requests, now_us),
        }
        return self._page("overview.html", shown)

    async def refused(self, request: Request, reason: str) -> Response:
        """Say that the roles of whoever looks do not include this page."""
        shown = {**self._frame(request), "reason": reason}
        return self._page("role_required.html", shown, status=403)

    def too_large(self, request: Request, bytes_max: int) -> Response:
        """Say that a form with its file is larger than what is taken."""
        message = f"the form is over {bytes_max // 1024**2} MiB: choose a smaller file, or split it"
        shown = {**self._frame(request), "message": message}
        return self._page("bad_address.html", shown, status=413)

    async def asset(self, request: Request, name: str) -> Response:
        """A style sheet, a script or a library of the pages."""
        return self.assets.response(
            name,
            digest=request.query_params.get("v"),
            known=request.headers.get("if-none-match"),
        )

    def unreachable(self) -> Response:
        """Say that nobody can be recognised, as the ledger is away."""
        return self.shell.page("unreachable.html", {}, status=503)

    def forged(self) -> Response:
        """Say that a form did not come from a page of ours."""
        return self.shell.page("refused.html", {}, status=403)

    def _frame(self, request: Request) -> dict[str, object]:
        return self.shell.frame(request)

    def _page(self, name: str, shown: Mapping[str, object], *, status: int = 200) -> Response:
        return self.shell.page(name, shown, status=status)


def make_dashboard(
    *,
    session_key: bytes,
    directory: Callable[[], KeyDirectory],
    ledger: LedgerReader,
    people: PeopleCalls,
    login: LoginSettings,
    calendar: Calendar,
    reporting: Reporting,
    desk: Desk,
    oidc_secret: str,
    teams: Callable[[], Collection[str]],
    fleet: Callable[[], Fleet],
    clock: Clock,
    random_bytes: RandomBytes,
) -> Dashboard:
    """Put the pages together.

    Args:
        session_key: 32 bytes that cookies are signed with.
        directory: The keys of the moment; asked at every page.
        ledger: Where the numbers come from.
        people: The ledger, about people.
        login: The operator's settings.
        calendar: How finance counts days.
        reporting: How finance is kept, and where its files are.
        desk: What the API does for people.
        oidc_secret: The client secret at the identity provider, empty for none.
        teams: Names of the configured teams of the moment.
        fleet: The configured deployments of the moment, and their prices.
        clock: Time.
        random_bytes: A cryptographic source.
    """
    assets = load_assets()
    shell = Shell(
        sessions=Sessions(key=session_key, directory=directory, random_bytes=random_bytes),
        people=people,
        front=make_front(login),
        login=login,
        clock=clock,
        templates=_templates(assets),
    )
    oidc = _oidc(login, oidc_secret, clock=clock, random_bytes=random_bytes)
    return Dashboard(
        shell=shell,
        ledger=ledger,
        clock=clock,
        assets=assets,
        login=LoginPages(shell=shell, oidc=oidc),
        account=AccountPages(shell=shell),
        users=UsersPages(shell=shell, teams=teams),
        finance=FinancePages(ledger=ledger, clock=clock, calendar=calendar, shell=shell, desk=desk),
        more=_more(
            Bench(ledger=ledger, desk=desk, clock=clock, calendar=calendar, shell=shell),
            key_name=lambda key_id: _key_name(directory(), key_id),
            teams=teams,
            fleet=fleet,
            finance=reporting.finance,
        ),
        books=Books(
            calls=ledger,
            shell=shell,
            clock=clock,
            settings=reporting.finance,
            rates_file=reporting.rates_path,
            providers=lambda: fleet().providers,
            teams=teams,
            posting=partial(journal_posting, reporting),
        ),
    )


def _more(
    bench: Bench,
    *,
    key_name: Callable[[str], str],
    teams: Callable[[], Collection[str]],
    fleet: Callable[[], Fleet],
    finance: FinanceSettings,
) -> Sequence[Routed]:
    ledger, desk, shell = bench.ledger, bench.desk, bench.shell
    clock, calendar = bench.clock, bench.calendar
    return (
        RequestsPages(
            ledger=ledger, clock=clock, calendar=calendar, shell=shell, key_name=key_name
        ),
        BudgetsPages(ledger=ledger, desk=desk, clock=clock, calendar=calendar, shell=shell),
        ExportsPages(ledger=ledger, clock=clock, calendar=calendar, shell=shell),
        KeysPages(
            ledger=ledger, desk=desk, clock=clock, calendar=calendar, shell=shell, teams=teams
        ),
        MachinesPages(
            ledger=ledger,
            clock=clock,
            calendar=calendar,
            shell=shell,
            settings=finance.machines,
            fleet=fleet,
        ),
        StoryPages(
            ledger=ledger,
            clock=clock,
            calendar=calendar,
            shell=shell,
            key_name=key_name,
            excess_usd=(finance.anomalies or AnomalySettings()).excess_usd,
        ),
        WorthPages(
            ledger=ledger,
            clock=clock,
            calendar=calendar,
            baselines=tuple(
                (model, one.deployment) for model, one in sorted(finance.baseline.models.items())
            ),
            shell=shell,
        ),
    )


def _oidc(
    login: LoginSettings, secret: str, *, clock: Clock, random_bytes: RandomBytes
) -> OidcFlow | None:
    """The way through the identity provider, None where there is none."""
    if login.oidc is None:
        return None
    return make_flow(
        login.oidc,
        client_secret=secret,
        redirect_uri=f"{login.public_url}{CALLBACK_PATH}",
        clock=clock,
        random_bytes=random_bytes,
    )


def _templates(assets: Assets) -> Environment:
    """Every template, compiled now: this runs in a thread, and pages do not."""
    templates = make_templates()
    cast("dict[str, object]", templates.globals)["asset"] = assets.url
    for name in templates.list_templates():
        templates.get_template(name)
    return templates


def _key_name(directory: KeyDirectory, key_id: str) -> str:
    record = directory.record(key_id)
    return "" if record is None else record.name
