"""Look at the servers that are watched: whether they answer, and whether they have work.

Each is asked for its metrics every so often, beside everything else, over the connections that its
provider's settings describe, and nowhere else. Any answer below 500 says that it is up; what it
says of its requests, how busy it was. Between two looks its load is taken to be the mean of both.
One look that fails is passed over; from the first of two on, the server was down.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from yarl import URL

from gateway.clock import Clock
from gateway.egress.destinations import deployment_origins, provider_reach
from gateway.finance.machines.declared import Watched, watched_machines
from gateway.finance.machines.messages import EngineSample
from gateway.privacy.permit import operator_permit
from gateway.process.machine_load import is_loaded
from gateway.process.provider_connections import transport_options
from gateway.settings.errors import SecretError
from gateway.settings.loader import LoadedConfig
from providers.contract import AttemptFacts, Deadlines
from providers.errors import BadWire, ProviderError
from providers.transport import Transport

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 15.0
LOOK_S = 5.0
"""A server that has not answered in this time did not answer."""
CLOSE_S = 1.0
PAGE_BYTES_MAX = 2 * 1024 * 1024
SMALL_BYTES = 64 * 1024
"""A page below it is read on the event loop: a thread would take longer."""
AT_ONCE_MAX = 16
MISSES_MAX = 2
GAP_MAX_US = 120_000_000
"""Nobody looked for so long (a machine that slept): what was before is not joined to this look."""
CLOCK_SET_US = 60_000_000
"""A wall clock that moved so far against the other one was set."""
_OK, _SERVER_ERROR = 200, 500
_US_PER_S = 1_000_000
_VERSION = re.compile(r"/v[0-9]+$", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look at a server found.

    Attributes:
        is_up: Whether it answered.
        is_busy: Whether it has requests, None where it does not say.
    """

    is_up: bool
    is_busy: bool | None = None


@dataclass(slots=True, kw_only=True)
class _Session:
    """A time in which a server was found up all along, or down."""

    session: bytes
    is_down: bool
    started_us: int
    offset_us: int
    first_us: int
    last_us: int
    busy_us: int = 0
    load: int = 0
    missed_us: int | None = None


@dataclass(slots=True, kw_only=True)
class MachineWatch:
    """Looks, and tells what it found.

    Attributes:
        served: The configuration that is served now.
        environ: For the credentials of proxies.
        note: Takes what was found, each time.
        clock: Time.
        random_bytes: For the names of sessions.
    """

    served: Callable[[], LoadedConfig]
    environ: Mapping[str, str]
    note: Callable[[EngineSample], None]
    clock: Clock
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    _sessions: dict[str, _Session] = field(default_factory=dict[str, _Session])
    _transports: dict[str, Transport] = field(default_factory=dict[str, Transport])
    _made_for: LoadedConfig | None = None

    async def run(self) -> None:
        """Look at once and from then on, until cancelled."""
        try:
            while True:
                next_s = self.clock.monotonic_s() + WATCH_EVERY_S
                await self.look()
                await anyio.sleep(max(1.0, next_s - self.clock.monotonic_s()))
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._close()

    async def look(self) -> None:
        """Look at every server once."""
        config = self.served()
        if config is not self._made_for:
            await self._close()
            self._made_for = config
        watched = watched_machines(config.settings)
        for gone in self._sessions.keys() - {one.machine for one in watched}:
            del self._sessions[gone]
        limiter = anyio.CapacityLimiter(AT_ONCE_MAX)

        async def look_at(one: Watched) -> None:
            try:
                async with limiter:
                    self._take(one.machine, await self._seen(config, one))
            except Exception:  # whatever it is, the gateway goes on without this look
                logger.exception("%s could not be looked at", one.machine)

        async with anyio.create_task_group() as tasks:
            for one in watched:
                tasks.start_soon(look_at, one)

    async def _seen(self, config: LoadedConfig, one: Watched) -> Seen:
        """Ask a server."""
        facts = AttemptFacts()
        try:
            transport = self._transport(config, one)
            async with await transport.send(
                metrics_url(one.base_url),
                permit=operator_permit(
                    "look at a machine", deployment_origins(config.settings, [one.deployment])
                ),
                deployment=one.deployment,
                headers={"accept": "text/plain"},
                body=b"",
                deadlines=Deadlines(
                    connect_s=LOOK_S, first_token_s=LOOK_S, between_tokens_s=LOOK_S, total_s=LOOK_S
                ),
                facts=facts,
            ) as answer:
                page = await answer.read_all(max_bytes=PAGE_BYTES_MAX)
        except BadWire:
            return Seen(is_up=True)  # it answers, with something that is no page of metrics
        except (ProviderError, SecretError, OSError) as error:
            logger.debug("%s did not answer: %s", one.machine, error)
            return Seen(is_up=False)
        if facts.status is None or facts.status >= _SERVER_ERROR:
            return Seen(is_up=False)  # it is starting, or a proxy says that it is not there
        if facts.status != _OK:
            return Seen(is_up=True)
        if len(page) <= SMALL_BYTES:
            return Seen(is_up=True, is_busy=_load(page, one.model))
        is_busy = await anyio.to_thread.run_sync(_load, page, one.model)
        return Seen(is_up=True, is_busy=is_busy)

    def _transport(self, config: LoadedConfig, one: Watched) -> Transport:
        known = self._transports.get(one.provider)
        if known is None:
            options = transport_options(
                one.settings,
                environ=self.environ,
                config=config,
                reach=provider_reach(config.settings, one.provider),
            )
            known = Transport([one.base_url], options, method="GET")
            self._transports[one.provider] = known
        return known

    def _take(self, machine: str, seen: Seen) -> None:
        """Go on with a server's session, or begin another, and tell it."""
        now_us = round(self.clock.monotonic_s() * _US_PER_S)
        wall_us = self.clock.wall_us()
        known = self._sessions.get(machine)
        if known is not None and _is_broken(known, now_us, wall_us):
            known = None
        if known is not None and not known.is_down and not seen.is_up and known.missed_us is None:
            known.missed_us = now_us  # one look may fail
            return
        if known is None or known.is_down is seen.is_up:
            # A server that is down was so from the first look on that failed.
            missed_us = None if known is None else known.missed_us
            first_us = now_us if missed_us is None else missed_us
            known = self._sessions[machine] = _Session(
                session=self.random_bytes(16),
                is_down=not seen.is_up,
                started_us=max(0, wall_us - (now_us - first_us)),
                offset_us=wall_us - now_us,
                first_us=first_us,
                last_us=now_us,
                load=int(bool(seen.is_busy)),
            )
        else:
            load = int(bool(seen.is_busy))
            known.busy_us += (now_us - known.last_us) * (known.load + load) // 2
            known.last_us, known.load, known.missed_us = now_us, load, None
        self.note(
            EngineSample(
                session=known.session,
                machine=machine,
                deployment="",
                started_us=known.started_us,
                up_us=known.last_us - known.first_us,
                busy_us=known.busy_us,
                is_down=known.is_down,
            )
        )

    async def _close(self) -> None:
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.close()


def metrics_url(base_url: str) -> URL:
    """Where a server tells its metrics: beside its API, whose path ends with a version."""
    parts = urlsplit(base_url)
    path = _VERSION.sub("", parts.path.rstrip("/"))
    return URL(parts._replace(path=f"{path}/metrics", query="", fragment="").geturl())


def _load(page: bytes, model: str | None) -> bool | None:
    return is_loaded(page.decode("utf-8", "replace"), model=model)


def _is_broken(known: _Session, now_us: int, wall_us: int) -> bool:
    return (
        now_us - known.last_us > GAP_MAX_US
        or abs(wall_us - now_us - known.offset_us) > CLOCK_SET_US
    )
