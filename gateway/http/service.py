"""What the HTTP layer of a worker works with; one object, replaced as a whole when keys change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio

from gateway.admission.admit import Admission
from gateway.auth.directory import KeyDirectory
from gateway.channel import Channel
from gateway.clock import Clock
from gateway.detect.detection import Detection
from gateway.finance.focus.order import Parties
from gateway.finance.spend_question import Reporting
from gateway.http.guard import Guards
from gateway.http.overload import Overload
from gateway.limits.limiter import Limiter
from gateway.privacy.certificate import Certificate
from gateway.relay.attempts import Relay
from gateway.settings.finance import FinanceSettings
from gateway.settings.login import LoginSettings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.trail import Trails

CUT_S = 1.0
"""How long requests that were cut may take to say so."""


@dataclass(slots=True, kw_only=True)
class Service:
    """A worker's parts.

    Attributes:
        directory: Every key; replaced when the supervisor sends a new one.
        admission: Tags, policy, fleet, decision.
        detection: Finds what adds tags.
        limits: Holds rate limits.
        relay: Runs decisions.
        metrics: What this worker counts.
        scraper: Answers `/metrics` for all workers.
        clock: Time.
        new_id: Makes request ids.
        max_body_bytes: Largest request body.
        supervisor: For what only the ledger process knows; None outside a worker.
        hash_token: What is kept in place of a key that is made here: its HMAC with the pepper.
        pseudonym_key: 32 bytes that names of persons in exports are replaced with.
        parties: Who stands on an export.
        session_key: 32 bytes that the dashboard's cookies are signed with.
        login: How people get to the dashboard.
        oidc_secret: The client secret at the identity provider, empty for none.
        spool_fault: Why the spool takes no record, empty when it does.
        overload: Refuses what there is no time for.
        reporting: How spend is reported.
        trails: For traces and the access log; None when both are off.
        certificate: Of the privacy policy; None where it was proved in this process.
        is_draining: Set once; new requests are refused from then on.
        is_superseded: Set once a newer configuration asks more of a request than this process can
            do: other detectors, sinks or enforced members. New requests are refused from then on;
            its clients connect again, to workers that can.
        in_flight: Requests being served.
        relays: Answers that are being relayed now.
        started_s: Whole seconds since the epoch at which the worker started.
        finance: Zone and fiscal year of budgets that name none.
    """

    directory: KeyDirectory
    admission: Admission
    detection: Detection
    limits: Limiter
    relay: Relay
    metrics: Metrics
    scraper: Scraper
    clock: Clock
    new_id: Callable[[], bytes]
    max_body_bytes: int
    supervisor: Channel | None
    hash_token: Callable[[bytes], bytes]
    session_key: bytes = field(repr=False)
    pseudonym_key: bytes = field(repr=False)
    parties: Parties
    spool_fault: Callable[[], str]
    started_s: int
    finance: FinanceSettings = field(default_factory=FinanceSettings)
    login: LoginSettings = field(default_factory=LoginSettings)
    oidc_secret: str = field(default="", repr=False)
    overload: Overload = field(default_factory=Overload)
    reporting: Reporting = field(default_factory=Reporting)
    trails: Trails | None = None
    certificate: Certificate | None = None
    is_draining: bool = False
    is_superseded: bool = False
    in_flight: int = 0
    relays: Guards = field(default_factory=Guards)
    _idle: asyncio.Event | None = None  # for those who wait for it

    def enter(self) -> None:
        """Count a request in."""
        self.in_flight += 1

    def leave(self) -> None:
        """Count a request out."""
        self.in_flight -= 1
        if self._idle is not None and not self.in_flight:
            self._idle.set()
            self._idle = None

    async def wait_idle(self) -> None:
        """Return once no request is in flight."""
        if self.in_flight:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    async def cut(self) -> None:
        """End what is still being relayed: attempts are settled, clients are told why."""
        self.relays.cut()
        with anyio.move_on_after(CUT_S):
            await self.wait_idle()

    def engine_states(self) -> Mapping[str, str]:
        """`ready`, or why not, per local deployment."""
        states: dict[str, str] = {}
        for name in sorted(self.admission.fleet.local):
            state = self.admission.health.state(name)
            states[name] = "ready" if state.is_available else state.reason
        return states
