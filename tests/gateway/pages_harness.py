"""A worker's application in front of a real ledger process's service, for tests of the pages.

Nothing is patched: the application, its service, the ledger and both channels are the real ones;
only the supervisor between them is a few lines, and everything runs in one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
from anyio.abc import TaskGroup

from gateway.access.passwords import PasswordCost
from gateway.access.people import METHODS as PEOPLE_METHODS
from gateway.app import Credentials, build_service, load_credentials
from gateway.auth.directory import KeyRecord
from gateway.channel import Channel, Method, RemoteError, method, socket_pair
from gateway.health import HealthBoard
from gateway.http.asgi import Application
from gateway.http.pages import make_pages
from gateway.http.service import Service
from gateway.ledger.records import Intent, Settlement
from gateway.ledger.spool import SpoolWriter
from gateway.ledger.views import KeyCreation, KeyRevocation
from gateway.process.budget_link import no_budgets
from gateway.process.ledger_process import LedgerProcess
from gateway.process.messages import EngineSpeed, LedgerStart, ServiceStatus
from gateway.process.provider_setup import engine_links, set_up_providers
from gateway.settings.loader import load_text
from gateway.settings.login import LoginSettings
from tests.gateway.ledger_samples import FakeClock, intent, make_database, open_spool, settlement
from tests.support.asgi_cycle import over_asgi

LEDGER_READS = (
    "budget_reports",
    "change_budget",
    "expired_leases",
    "export_close",
    "export_next",
    "export_open",
    "finance",
    "flush",
    "list_keys",
    "load_attempts",
    "load_request",
    "recent_requests",
    "send_statement",
    "sent_notices",
    "spend_report",
    "stats",
    "verify",
    "write_off_leases",
)
CHEAP = PasswordCost(memory_kib=64, passes=1, lanes=1)
ADMIN_KEY = "administrators-key-0123456789"
PAYMENTS_KEY = "payments-fixed-key-0123456789"
SEARCH_KEY = "search-fixed-key-0123456789"
ORIGIN = "http://fareway.test"

CONFIG = """
providers:
  up:
    kind: openai_compatible
    base_url: {upstream}
models:
  chat-small:
    aliases: [small]
    deployments:
      - deployment: up/m
        price: {{input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.1, output_usd_per_mtok: 2}}
teams:
  payments:
    keys: [{{name: fixed, value_env: PAYMENTS_KEY, project: fraud}}]
    models: [chat-small, small, up/m]
    projects: {{fraud: {{}}}}
  search:
    keys: [{{name: fixed, value_env: SEARCH_KEY}}]
    models: [small]
"""


@dataclass(kw_only=True)
class Pages:
    """What a test works with."""

    app: Application
    service: Service
    spool: SpoolWriter
    time: FakeClock
    credentials: Credentials
    folder: Path
    ledger: Channel
    tasks: TaskGroup
    ledger_is_away: bool = False
    ledger_is_behind: bool = False
    refused_revocations: set[str] = field(default_factory=set)
    revision: int = 1
    _count: int = field(default=0)

    @asynccontextmanager
    async def browser(self, **options) -> AsyncIterator[httpx.AsyncClient]:
        """A client that keeps cookies and speaks to the application."""
        transport = httpx.ASGITransport(over_asgi(self.app), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, **options) as client:
            yield client

    def admin(self):
        """A client with the administrator's key."""
        return self.browser(headers={"authorization": f"Bearer {ADMIN_KEY}"})

    async def book(self, *, tokens: int = 100, changes: dict | None = None, **fields) -> int:
        """Write one attempt to the spool, as the relay does; returns its number."""
        self._count += 1
        number = self._count
        ago_us = fields.pop("ago_us", 0)
        at_us = self.time.wall - ago_us
        first: Intent = intent(number, at_us=at_us, **fields)
        self.spool.append(first)
        last: Settlement = settlement(
            number, tokens=tokens, settled_at_us=at_us + 500, **(changes or {})
        )
        self.spool.append(last)
        return number

    def take_keys(self, keys: Sequence[KeyRecord]) -> None:
        """What a worker does with the supervisor's `update_keys`."""
        self.revision += 1
        self.service.directory = self.credentials.directory(keys, self.revision)


@asynccontextmanager
async def running_pages(
    folder: Path,
    *,
    upstream: str = "http://127.0.0.1:9",
    login: LoginSettings | None = None,
    more: str = "",
) -> AsyncIterator[Pages]:
    """Run everything until the context is left."""
    time = FakeClock()
    environ = {
        "FAREWAY_STATE_DIR": str(folder / "state"),
        "FAREWAY_ADMIN_KEY": ADMIN_KEY,
        "PAYMENTS_KEY": PAYMENTS_KEY,
        "SEARCH_KEY": SEARCH_KEY,
    }
    config = load_text(CONFIG.format(upstream=upstream) + more, environ=environ, base_dir=folder)
    credentials = load_credentials(config, environ)
    health = HealthBoard(monotonic_s=time.clock.monotonic_s)
    providers = set_up_providers(config, environ=environ, links=engine_links(config))
    spool = open_spool(folder / "spool" / "worker-0", clock=time.clock)
    worker_end, supervisor_end = socket_pair()
    ledger_end, control_end = socket_pair()
    worker_channel = Channel(worker_end, {}, name="supervisor")
    ledger = Channel(ledger_end, {}, name="ledger")
    process = LedgerProcess(control_end, clock=time.clock, password_cost=CHEAP)
    service = build_service(
        config=config,
        credentials=credentials,
        database_keys=[],
        revision=1,
        providers=providers,
        health=health,
        spool=spool,
        clock=time.clock,
        supervisor=worker_channel,
        holds=no_budgets(time.clock),
    )
    if login is not None:
        service.login = login
    async with anyio.create_task_group() as tasks:
        pages = Pages(
            app=Application(service, make_pages),
            service=service,
            spool=spool,
            time=time,
            credentials=credentials,
            folder=folder,
            ledger=ledger,
            tasks=tasks,
        )
        supervisor = Channel(supervisor_end, _supervisor_methods(pages), name="worker")
        for run in (process.run, ledger.run, worker_channel.run, supervisor.run, spool.run):
            tasks.start_soon(run)
        start = LedgerStart(database_url=make_database(folder), spool_dir=str(folder / "spool"))
        pages.take_keys(
            await ledger.call("start", start, result_type=list[KeyRecord], timeout_s=30)
        )
        try:
            yield pages
        finally:
            with anyio.CancelScope(shield=True):
                await spool.close()
                await ledger.call("stop", None, result_type=type(None), timeout_s=30)
                for provider in providers.values():
                    await provider.close()
            for channel in (ledger, worker_channel, supervisor):
                channel.close()
            tasks.cancel_scope.cancel()


def _supervisor_methods(pages: Pages) -> dict[str, Method]:
    """The methods of `gateway.process.supervisor` in front of the same ledger."""

    async def ledger(name: str, params: object, result_type):
        if pages.ledger_is_away:
            raise RemoteError("ledger_unavailable", "the ledger process is being started again")
        if pages.ledger_is_behind and name == "flush":
            raise RemoteError("database_unavailable", "the database is locked")
        return await pages.ledger.call(name, params, result_type=result_type, timeout_s=30)

    def forward(name: str) -> Method:
        async def run(params, _fds):
            return await ledger(name, params, object)

        return Method(params_type=object, run=run)

    async def create_key(record, _fds):
        pages.take_keys(await ledger("create_key", record, list[KeyRecord]))

    async def revoke_key(key_id, _fds):
        if key_id.key_id in pages.refused_revocations:
            raise RemoteError("database_unavailable", "the database is locked")
        pages.take_keys(await ledger("revoke_key", key_id, list[KeyRecord]))

    async def status(_params, _fds):
        return ServiceStatus(
            url="http://127.0.0.1:1",
            pids={"supervisor": 1},
            engines={},
            revision=pages.revision,
            speeds={"local/m": EngineSpeed(prefill_tps=200, decode_tps=20)},
        )

    return {
        "status": method(type(None), status),
        "create_key": method(KeyCreation, create_key),
        "revoke_key": method(KeyRevocation, revoke_key),
        **{name: forward(name) for name in (*LEDGER_READS, *PEOPLE_METHODS)},
    }
