"""Tell the ledger which machines of ours are configured, and how long their engines computed.

Every so often, and at the end, the ledger process is told the machines of the configuration that is
served and what each engine's meter said last. What was told but not answered is told again: taking
the same twice changes nothing. What an engine computed after its last sign of life before the
gateway was killed is lost to the utilisation (never to the ledger): a few seconds.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import anyio

from gateway.channel import ChannelError
from gateway.clock import Clock
from gateway.finance.machines.declared import declared_machines
from gateway.finance.machines.messages import EngineSample, NoteMachines
from gateway.ledger import node
from gateway.settings.document import Settings
from gateway.settings.loader import LoadedConfig
from gateway.telemetry.snapshot import Series
from local_engine.api import EngineStats

logger = logging.getLogger(__name__)

NOTE_EVERY_S = 30.0
LOOK_EVERY_S = 5.0
"""As often as engines give a sign of life."""
CLOCK_SET_US = 60_000_000
"""A wall clock that moved so far against the other one was set: the meter's session begins anew."""
_US_PER_S = 1_000_000


def node_of(loaded: LoadedConfig) -> str:
    """The name of this one among several that share the storage; empty where it is alone."""
    return node.make(loaded.spool_dir).rstrip("/") if loaded.settings.storage.is_shared else ""


@dataclass(slots=True, kw_only=True)
class _Meter:
    """One engine's meter, in sessions between which the clock was not set."""

    session: bytes
    started_us: int
    offset_us: int
    base_up_us: int = 0
    base_busy_us: int = 0
    up_us: int = 0
    busy_us: int = 0


@dataclass(slots=True, kw_only=True)
class MachineNotes:
    """Gathers and tells.

    Attributes:
        settings: Those that are served now.
        node: The name of this machine among several that share the database, else empty.
        engine_stats: What each running engine told last, by deployment.
        tell: Has the ledger process write a note down.
        clock: Time.
        random_bytes: For the names of sessions.
        samples_max: Readings that wait for a ledger process that is away; beyond it every second
            one goes.
    """

    settings: Callable[[], Settings]
    node: str
    engine_stats: Callable[[], Mapping[str, EngineStats]]
    tell: Callable[[NoteMachines], Awaitable[None]]
    clock: Clock
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    samples_max: int = 10_000
    _meters: dict[str, _Meter] = field(default_factory=dict[str, _Meter])
    _waiting: list[EngineSample] = field(default_factory=list[EngineSample])

    async def run(self) -> None:
        """Tell at once and from then on, until cancelled."""
        next_s = self.clock.monotonic_s()
        while True:
            self.look()
            if self.clock.monotonic_s() >= next_s:
                await self.note()
                next_s = self.clock.monotonic_s() + NOTE_EVERY_S
            await anyio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Read the engines' meters."""
        stats = self.engine_stats()
        for gone in self._meters.keys() - stats.keys():
            del self._meters[gone]
        pools = {
            name: one.machine
            for one in declared_machines(self.settings(), node=self.node)
            for dated in one.terms
            if dated.terms is not None
            for name in dated.terms.deployments
        }
        for deployment, one in stats.items():
            if deployment in pools:
                self._waiting.append(self._read(deployment, pools[deployment], one))
        if len(self._waiting) > self.samples_max:
            del self._waiting[1::2]

    def take(self, sample: EngineSample) -> None:
        """Tell, too, what a look at a server found."""
        self._waiting.append(sample)

    async def note(self) -> None:
        """Tell the ledger process; what it does not take waits for the next time."""
        told = tuple(self._waiting)
        machines = declared_machines(self.settings(), node=self.node)
        try:
            await self.tell(NoteMachines(node=self.node, machines=machines, samples=told))
        except ChannelError as error:
            logger.warning("machines are told to the ledger later: %s", error)
        else:
            del self._waiting[: len(told)]

    def series(self) -> Iterable[Series]:
        """How busy each engine was since its session began, and what a machine costs an hour."""
        for deployment, meter in self._meters.items():
            if meter.up_us:
                ratio = meter.busy_us / meter.up_us
                yield Series("fareway_machine_busy_ratio", (deployment,), [ratio])
        for one in declared_machines(self.settings(), node=self.node):
            terms = [dated.terms for dated in one.terms if self._holds(dated.from_us)]
            if terms and terms[-1] is not None:
                usd = float(Fraction(terms[-1].gpu_usd_per_hour) * terms[-1].gpus)
                yield Series("fareway_machine_usd_per_hour", (one.machine,), [usd])

    def _holds(self, from_us: int | None) -> bool:
        return from_us is None or from_us <= self.clock.wall_us()

    def _read(self, deployment: str, machine: str, stats: EngineStats) -> EngineSample:
        wall_us = self.clock.wall_us()
        offset_us = wall_us - round(self.clock.monotonic_s() * _US_PER_S)
        up_us, busy_us = round(stats.wall_s * _US_PER_S), round(stats.busy_s * _US_PER_S)
        meter = self._meters.get(deployment)
        if meter is None or up_us < meter.base_up_us + meter.up_us:  # another process by now
            meter = _Meter(
                session=self.random_bytes(16), started_us=wall_us - up_us, offset_us=offset_us
            )
        elif abs(offset_us - meter.offset_us) > CLOCK_SET_US:
            base_up_us, base_busy_us = (
                meter.base_up_us + meter.up_us,
                meter.base_busy_us + meter.busy_us,
            )
            meter = _Meter(
                session=self.random_bytes(16),
                started_us=wall_us - (up_us - base_up_us),
                offset_us=offset_us,
                base_up_us=base_up_us,
                base_busy_us=base_busy_us,
            )
        meter.up_us = up_us - meter.base_up_us
        meter.busy_us = max(0, busy_us - meter.base_busy_us)
        self._meters[deployment] = meter
        return EngineSample(
            session=meter.session,
            machine=machine,
            deployment=deployment,
            started_us=max(0, meter.started_us),
            up_us=meter.up_us,
            busy_us=min(meter.busy_us, meter.up_us),
        )
