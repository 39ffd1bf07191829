"""The ledger process: `python -m gateway.process.ledger_process --control-fd N`.

The supervisor starts it, tells it where database and spools are, and forwards what workers and
commands ask. When the supervisor is gone it loads what there is and ends. It may be killed at any
point: what it had not committed it reads again.

The supervisor starts it at a lower priority than the workers: where they need every core, requests
go first and the spools grow, at the disk's cost only. About a tenth of a core stays its share, so
it is never starved, and what has gathered is loaded when the load goes down.
"""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
import msgspec
import uvloop
from anyio.abc import TaskGroup

from gateway.access.passwords import PasswordCost
from gateway.access.people import (
    AuditQuery,
    CodeUse,
    FailedLogin,
    KeyLogin,
    NewPerson,
    OidcLogin,
    PasswordChange,
    PasswordLogin,
    Passwords,
    PersonChange,
    SessionEnd,
    SessionQuery,
)
from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclarations,
    BudgetReport,
    BudgetRules,
    BudgetState,
    ExpiredLeases,
    LeaseReply,
    LeaseRequest,
    LeaseWriteOff,
)
from gateway.channel import Channel, Method, RemoteError, method
from gateway.clock import Clock, system_clock
from gateway.egress.lists import EgressList, follow
from gateway.finance import errors as finance_errors
from gateway.finance.commitment_alerts import watch
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import FinanceError
from gateway.finance.focus.order import ExportRequest
from gateway.finance.held_files import HeldFiles
from gateway.finance.requests import FinanceRequest
from gateway.ledger import errors
from gateway.ledger.attempt_views import Attempt, AttemptPage, AttemptQuery, RequestQuery
from gateway.ledger.errors import LedgerError
from gateway.ledger.people_desk import PeopleDesk
from gateway.ledger.pool_desk import SCRIPTS
from gateway.ledger.rebuild import RebuiltDay
from gateway.ledger.rounds import LoaderStats
from gateway.ledger.service import LedgerService
from gateway.ledger.verify import Verification
from gateway.ledger.views import (
    KeyCreation,
    KeyRevocation,
    RecentQuery,
    RecentRequest,
    SpendQuery,
    SpendReport,
    StoredKey,
)
from gateway.limits.shared import Connection
from gateway.notices.messages import NoticeDeclarations, SendStatement, SentNotice
from gateway.process.messages import DATABASE_UNAVAILABLE, UNUSABLE_DATABASE, LedgerStart
from gateway.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from gateway.finance.focus.sessions import ExportSessions
    from gateway.notices.sender import NoticeSender

logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")

ORPHAN_DRAIN_S = 5.0
NEWS_S = 60.0
"""How long workers may take to learn of changed keys and budgets; one that does not is ended."""
GC_THRESHOLDS = (200_000, 20, 50)
"""More objects than the rows of two batches, which are young for long: with Python's own thresholds
a tenth of loading is looking for cycles that cannot be there."""
_CODES: Mapping[type[LedgerError], str] = {
    errors.BadPerson: "bad_person",
    errors.BadQuery: "bad_query",
    errors.BudgetConflict: "budget_conflict",
    errors.BudgetTooLarge: "budget_too_large",
    errors.DatabaseUnavailable: DATABASE_UNAVAILABLE,
    errors.KeyConflict: "key_conflict",
    errors.UnknownBudget: "unknown_budget",
    errors.PersonConflict: "person_conflict",
    errors.UnknownKey: "unknown_key",
    errors.UnknownLease: "unknown_lease",
    errors.UnknownPerson: "unknown_person",
    errors.UnsupportedDatabase: "unsupported_database",
    errors.UnusableDatabase: UNUSABLE_DATABASE,
}

_FINANCE_CODES: Mapping[type[FinanceError], str] = {
    finance_errors.NoRate: "finance_unreadable",
    finance_errors.NotFound: "finance_not_found",
    finance_errors.Refused: "finance_conflict",
    finance_errors.UnreadableSource: "finance_unreadable",
}


class LedgerProcess:
    """Answers the supervisor's calls with a `LedgerService`.

    Args:
        control: The channel's socket; owned from here on.
        clock: Time.
        password_cost: What a password's hash costs; that of `PasswordCost` when None.
    """

    def __init__(
        self, control: socket.socket, *, clock: Clock, password_cost: PasswordCost | None = None
    ) -> None:
        self._clock = clock
        self._password_cost = password_cost
        self._service: LedgerService | None = None
        self._tasks: TaskGroup | None = None
        self._exports: ExportSessions | None = None
        self._held = HeldFiles()
        self._database_url = ""
        self._notices: NoticeSender | None = None
        self._declared = NoticeDeclarations()
        self._channel = Channel(control, self._methods(), name="supervisor")

    async def run(self) -> None:
        """Work until the channel ends, then load what is left, within a bound, and return."""
        async with anyio.create_task_group() as self._tasks:
            await self._channel.run()
            service, self._service = self._service, None
            if service is not None:
                logger.warning("the supervisor is gone; loading what is left")
                with anyio.move_on_after(ORPHAN_DRAIN_S):
                    await self._stop(service)
            self._tasks.cancel_scope.cancel()

    def _methods(self) -> dict[str, Method]:
        return {
            "start": _answer(LedgerStart, self._start),
            "stop": _answer(type(None), self._stop_called),
            "create_key": _answer(KeyCreation, self._create_key),
            "revoke_key": _answer(KeyRevocation, self._revoke_key),
            "load_keys": _answer(type(None), self._load_keys),
            "list_keys": _answer(type(None), self._list_keys),
            "set_budgets": _answer(BudgetDeclarations, self._set_budgets),
            "change_budget": _answer(BudgetChange, self._change_budget),
            "budget_rules": _answer(type(None), self._budget_rules),
            "lease_budgets": _answer(LeaseRequest, self._lease_budgets),
            "expired_leases": _answer(type(None), self._expired_leases),
            "write_off_leases": _answer(LeaseWriteOff, self._write_off_leases),
            "budget_states": _answer(type(None), self._budget_states),
            "budget_reports": _answer(type(None), self._budget_reports),
            "set_egress": _answer(EgressList, self._set_egress),
            "set_notices": _answer(NoticeDeclarations, self._set_notices),
            "send_statement": _answer(SendStatement, self._send_statement),
            "sent_notices": _answer(type(None), self._sent_notices),
            "finance": _answer(cast("type[FinanceRequest]", FinanceRequest), self._finance),
            "spend_report": _answer(SpendQuery, self._spend_report),
            "recent_requests": _answer(object, self._recent_requests),
            "load_attempts": _answer(AttemptQuery, self._load_attempts),
            "load_request": _answer(RequestQuery, self._load_request),
            "export_open": _answer(ExportRequest, self._export_open),
            "export_next": _answer(int, self._export_next),
            "export_close": _answer(int, self._export_close),
            "flush": _answer(type(None), self._flush),
            "verify": _answer(type(None), self._verify),
            "rebuild_sums": _answer(str, self._rebuild_sums),
            "stats": _answer(type(None), self._stats),
            **self._people_methods(),
        }

    def _people_methods(self) -> dict[str, Method]:
        """What the desk does, each under its own name; those of `gateway.access.people.METHODS`."""
        desk = self._people
        return {
            "list_people": _answer(type(None), lambda _: desk().list_people()),
            "create_person": _answer(NewPerson, lambda order: desk().create_person(order)),
            "change_person": _answer(PersonChange, lambda change: desk().change_person(change)),
            "offer_set_up": _answer(bytes, lambda code: desk().offer_set_up(code)),
            "login_state": _answer(Passwords, lambda passwords: desk().login_state(passwords)),
            "log_in_password": _answer(PasswordLogin, lambda login: desk().log_in_password(login)),
            "log_in_key": _answer(KeyLogin, lambda login: desk().log_in_key(login)),
            "log_in_oidc": _answer(OidcLogin, lambda login: desk().log_in_oidc(login)),
            "note_failed_login": _answer(
                FailedLogin, lambda failed: desk().note_failed_login(failed)
            ),
            "find_session": _answer(SessionQuery, lambda query: desk().find_session(query)),
            "end_session": _answer(SessionEnd, lambda end: desk().end_session(end)),
            "code_state": _answer(bytes, lambda code: desk().code_state(code)),
            "use_code": _answer(CodeUse, lambda use: desk().use_code(use)),
            "change_password": _answer(
                PasswordChange, lambda change: desk().change_password(change)
            ),
            "read_audit": _answer(AuditQuery, lambda query: desk().read_audit(query)),
            "verify_audit": _answer(type(None), lambda _: desk().verify_audit()),
        }

    def _people(self) -> PeopleDesk:
        return self._started().people

    async def _start(self, start: LedgerStart) -> list[KeyRecord]:
        if self._service is not None or self._tasks is None:
            raise RemoteError("invalid_state", "the ledger process is started once")
        set_up_logging("ledger", level=logging.getLogger().level, log_format=start.log_format)
        follow(start.egress)
        service = LedgerService(
            start.database_url,
            Path(start.spool_dir),
            clock=self._clock,
            keep_events_months=start.keep_events_months,
            cost_tags=start.cost_tags,
            check_hour=start.check_hour,
            password_cost=self._password_cost,
            redis=_redis(start),
            on_news=self._tell_news,
        )
        try:
            await service.start()
        except LedgerError:
            await service.stop(drain=False)
            raise
        self._service = service
        self._database_url = start.database_url
        self._tasks.start_soon(service.run)
        self._tasks.start_soon(partial(watch, service, clock=self._clock))
        return await self._records()

    async def _stop_called(self, _params: None) -> None:
        service, self._service = self._started(), None
        await self._stop(service)

    async def _stop(self, service: LedgerService) -> None:
        if self._notices is not None:
            self._notices.stop()
        try:
            await service.stop(drain=True)
        except LedgerError as error:
            logger.warning("left in the spools for the next start: %s", error)

    async def _create_key(self, creation: KeyCreation) -> list[KeyRecord]:
        await self._started().create_key(
            creation.record, actor=creation.actor, owner=creation.owner, form=creation.form
        )
        return await self._records()

    async def _revoke_key(self, revocation: KeyRevocation) -> list[KeyRecord]:
        await self._started().revoke_key(
            revocation.key_id, actor=revocation.actor, at_us=revocation.at_us
        )
        return await self._records()

    async def _load_keys(self, _params: None) -> list[KeyRecord]:
        return await self._records()

    async def _tell_news(self) -> None:
        await self._channel.call("news", None, result_type=type(None), timeout_s=NEWS_S)

    async def _list_keys(self, _params: None) -> tuple[StoredKey, ...]:
        return await self._started().list_keys()

    async def _set_budgets(self, declarations: BudgetDeclarations) -> BudgetRules:
        return await self._started().set_budgets(declarations)

    async def _change_budget(self, change: BudgetChange) -> BudgetRules:
        return await self._started().change_budget(change)

    async def _budget_rules(self, _params: None) -> BudgetRules:
        return await self._started().budget_rules()

    async def _lease_budgets(self, request: LeaseRequest) -> LeaseReply:
        return await self._started().lease_budgets(request)

    async def _expired_leases(self, _params: None) -> tuple[ExpiredLeases, ...]:
        return await self._started().expired_leases()

    async def _write_off_leases(self, order: LeaseWriteOff) -> tuple[ExpiredLeases, ...]:
        return await self._started().write_off_leases(order)

    async def _budget_states(self, _params: None) -> list[BudgetState]:
        return await self._started().budget_states()

    async def _budget_reports(self, _params: None) -> tuple[BudgetReport, ...]:
        return await self._started().budget_reports()

    async def _spend_report(self, query: SpendQuery) -> SpendReport:
        return await self._started().spend_report(query)

    async def _finance(self, request: FinanceRequest) -> object:
        desk = FinanceDesk(self._started(), clock=self._clock, held=self._held)
        try:
            return await desk.answer(request)
        except FinanceError as error:
            raise _refusal(error) from error

    async def _set_egress(self, listed: EgressList) -> None:
        follow(listed)

    async def _set_notices(self, declared: NoticeDeclarations) -> None:
        service = self._started()
        assert self._tasks is not None
        self._declared = declared
        if declared.schedules or declared.anomalies or self._notices is not None:
            self._sender().declare(declared)
        # Sums of a new cost tag are made of all entries, which may take longer than anybody waits.
        self._tasks.start_soon(service.set_cost_tags, declared.cost_tags)

    async def _send_statement(self, order: SendStatement) -> int:
        try:
            return await self._sender().send_statement(order)
        except FinanceError as error:
            raise _refusal(error) from error

    async def _sent_notices(self, _params: None) -> tuple[SentNotice, ...]:
        return await self._sender().sent()

    def _sender(self) -> NoticeSender:
        """Who makes and sends notices; imported when first needed, for it renders pages."""
        service = self._started()
        if self._notices is None:
            from gateway.notices.sender import NoticeSender

            assert self._tasks is not None
            self._notices = NoticeSender(service, clock=self._clock)
            self._notices.declare(self._declared)
            self._tasks.start_soon(self._notices.run)
        return self._notices

    async def _recent_requests(self, params: object) -> tuple[RecentRequest, ...]:
        """Take a query, or only a count."""
        if isinstance(params, int):
            return await self._started().recent_requests(params)
        query = msgspec.convert(params, RecentQuery)
        return await self._started().recent_requests(query.count, query.team, query.teams)

    async def _load_attempts(self, query: AttemptQuery) -> AttemptPage:
        return await self._started().load_attempts(query)

    async def _load_request(self, query: RequestQuery) -> tuple[Attempt, ...]:
        return await self._started().load_request(query)

    async def _export_open(self, request: ExportRequest) -> int:
        self._started()
        if self._exports is None:
            # Imported when first asked for: most gateways are never asked for an export.
            from gateway.finance.focus.sessions import ExportSessions

            assert self._tasks is not None
            self._exports = ExportSessions(
                database_url=self._database_url, tasks=self._tasks, clock=self._clock
            )
        return await self._exports.open(request)

    async def _export_next(self, number: int) -> bytes:
        if self._exports is None:
            raise errors.BadQuery(f"there is no export {number}")
        return await self._exports.next(number)

    async def _export_close(self, number: int) -> None:
        if self._exports is not None:
            self._exports.close(number)

    async def _flush(self, _params: None) -> None:
        await self._started().flush()

    async def _verify(self, _params: None) -> Verification:
        return await self._started().verify()

    async def _rebuild_sums(self, actor: str) -> tuple[RebuiltDay, ...]:
        return await self._started().rebuild_sums(actor=actor)

    async def _stats(self, _params: None) -> LoaderStats:
        return self._started().stats()

    async def _records(self) -> list[KeyRecord]:
        _, records = await self._started().load_all_keys()
        return list(records)

    def _started(self) -> LedgerService:
        if self._service is None:
            raise RemoteError("invalid_state", "the ledger process is not started or is stopping")
        return self._service


def _redis(start: LedgerStart) -> Callable[[], Awaitable[Connection]] | None:
    """What connects to the Redis that helps with budgets, None without one."""
    url, password = start.redis_url, start.redis_password
    if url is None:
        return None
    from gateway.limits.redis_link import RedisLink  # redis-py, for those who use it

    async def connect() -> Connection:
        return await RedisLink.connect(url, password, SCRIPTS)

    return connect


def _refusal(error: FinanceError) -> RemoteError:
    code = next(code for kind, code in _FINANCE_CODES.items() if isinstance(error, kind))
    return RemoteError(code, str(error))


def _answer(params_type: type[P], run: Callable[[P], Awaitable[R]]) -> Method:
    """A channel method whose refusals travel as code and sentence."""

    async def answer(params: P, _fds: Sequence[int]) -> object:
        try:
            return await run(params)
        except LedgerError as error:
            raise RemoteError(_CODES.get(type(error), "ledger_error"), str(error)) from error

    return method(params_type, answer)


class _Arguments(argparse.Namespace):
    control_fd: int
    log_level: int


def main(arguments: Sequence[str]) -> int:
    """Run the ledger process; the supervisor is the only caller."""
    parser = argparse.ArgumentParser(prog="gateway.process.ledger_process")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--log-level", type=int, default=logging.INFO)
    given = parser.parse_args(arguments, namespace=_Arguments())
    set_up_logging("ledger", level=given.log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*GC_THRESHOLDS)
    process = LedgerProcess(socket.socket(fileno=given.control_fd), clock=system_clock())
    uvloop.run(process.run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
