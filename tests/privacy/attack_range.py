"""A gateway in front of recorders, given one configuration after the other.

What a case costs is its configuration and its requests: the gateway, its socket, its spool and the
recorders stay. Every part that decides or sends is made anew for each configuration.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import msgspec

from gateway.app import narrow_permits
from gateway.egress.destinations import origin
from gateway.http.service import Service
from gateway.privacy.model import PolicySource, TrustClaim
from gateway.privacy.permit import operator_permit
from gateway.privacy.policy import Policy
from gateway.settings.loader import load_text
from providers.contract import EgressPermit
from tests.gateway.gateway_harness import (
    KEY,
    OTHER_KEY,
    UPSTREAM_KEY,
    Gateway,
    make_service,
    running_gateway,
)
from tests.privacy.recorders import Recorder, recording
from tests.privacy.worlds import World

NAMES = ("p0", "p1", "p2", "p3", "p4")
TOKENS = {"apps": KEY, "others": OTHER_KEY}
KEPT = {"in_flight", "_idle", "relays", "overload"}
BODY = {"model": "chat", "messages": [{"role": "user", "content": "the merger is on friday"}]}
SILENCE_S = 0.05
"""How long a recorder that stays silent is waited for."""


@dataclass(frozen=True, kw_only=True)
class Got:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code, empty for none."""
        try:
            return json.loads(self.body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return ""


class Immediately(random.Random):
    """Draws no pause at all, where the relay draws how long it waits before a retry."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class _Anywhere:
    """Permits for every place, whatever is asked."""

    is_narrowed = False

    def __init__(self, places: Mapping[str, str]) -> None:
        self._permit = operator_permit("a test", places)

    def issue(self, *_: object, **__: object) -> EgressPermit:
        return self._permit


@dataclass(kw_only=True)
class Range:
    """Where attacks are tried.

    Attributes:
        gateway: Answers.
        recorders: Every server that a deployment may stand for.
        world: What is served.
    """

    gateway: Gateway
    recorders: Mapping[str, Recorder]
    world: World = field(default_factory=lambda: World(tags={}, trust={}, model=()))

    @property
    def service(self) -> Service:
        """The gateway's parts."""
        return self.gateway.service

    async def load(self, world: World) -> None:
        """Serve another configuration, with nothing left of the one before."""
        self.world = world
        await self.load_text(self.text(world))

    async def load_text(self, text: str) -> None:
        """The same for a file as it is written."""
        await self.gateway.wait_idle()
        service = self.service
        for provider in service.relay.providers.values():
            await provider.close()
        made = make_service(self.gateway.folder, text, {}, service.relay.journal.spool)
        for each in fields(Service):
            if each.name not in KEPT:
                setattr(service, each.name, getattr(made, each.name))
        limits = service.relay.limits
        deadlines = replace(limits.deadlines, first_token_s=SILENCE_S, connect_s=1.0)
        service.relay = replace(
            service.relay, limits=replace(limits, deadlines=deadlines), rng=Immediately()
        )
        for recorder in self.recorders.values():
            recorder.course = "well"
        await self.settle()
        self.forget()

    async def settle(self) -> None:
        """Let what was begun on connections come to its end."""
        for _ in range(3):
            await asyncio.sleep(0)

    def text(self, world: World) -> str:
        """A configuration whose providers are the recorders."""
        return world.text({name: one.url for name, one in self.recorders.items()})

    def narrow(self, newer: World) -> None:
        """Replace the configuration as a worker hears it that still has requests of before."""
        environ = {"APP_KEY": KEY, "OTHER_KEY": OTHER_KEY, "UPSTREAM_KEY": UPSTREAM_KEY}
        loaded = load_text(self.text(newer), environ=environ, base_dir=self.gateway.folder)
        narrow_permits(self.service.admission.permits, loaded.settings)

    def mislead(self) -> None:
        """Take floors and all that tags require from the evaluator, so that permits are alone."""
        admission = self.service.admission
        policy = Policy.of(lenient(admission.policy.source))
        teams = {
            name: replace(
                rules, tags=frozenset(), projects=dict.fromkeys(rules.projects, frozenset())
            )
            for name, rules in admission.teams.items()
        }
        self.service.admission = replace(admission, policy=policy, teams=teams)

    def disarm(self) -> None:
        """Let every permit name every place, so that the evaluator is alone."""
        places = {f"{name}/m": origin(one.url) for name, one in self.recorders.items()}
        places |= {f"{name}/m": origin(url) for name, url in self.world.urls.items()}
        self.service.admission = replace(self.service.admission, permits=_Anywhere(places))

    def forget(self) -> None:
        """Let every recorder note from here on."""
        for recorder in self.recorders.values():
            recorder.forget()

    def touched(self) -> set[str]:
        """Recorders that somebody connected to, or that anything came to."""
        return {name for name, one in self.recorders.items() if not one.is_untouched}

    def refusals(self) -> int:
        """How often a permit had to refuse what the evaluator had allowed."""
        found = self.service.metrics.snapshot().series
        return sum(
            one.values[0]
            for one in found
            if one.family == "fareway_egress_refusals_total" and one.labels == ("permit",)
        )

    async def ask(
        self,
        body: object,
        *,
        team: str = "apps",
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Collection[tuple[str, str]] = (),
    ) -> Got:
        """Send one request on a connection of its own and read the whole answer."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = [
            f"{method} {path} HTTP/1.1", "host: gateway", "connection: close",
            "content-type: application/json", f"authorization: Bearer {TOKENS[team]}",
            f"content-length: {len(content)}", *(f"{name}: {value}" for name, value in headers),
        ]  # fmt: skip
        head = "\r\n".join(lines).encode("latin-1")
        data = await self.gateway.raw(head + b"\r\n\r\n" + content, timeout_s=15)
        return _read(data)


def lenient(source: PolicySource) -> PolicySource:
    """The same policy with tags that require, imply and deny nothing."""
    tags = {
        name: replace(rule, require=frozenset(), implies=frozenset(), deny=False)
        for name, rule in source.tags.items()
    }
    claims = [
        replace(one, claims=tuple(TrustClaim(attribute=each.attribute) for each in one.claims))
        for one in source.deployments
    ]
    return replace(source, tags=tags, floor=frozenset(), deployments=tuple(claims))


def _read(data: bytes) -> Got:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    words = first.split(" ")
    return Got(
        status=int(words[1]) if len(words) > 1 else 0,
        headers={name.lower(): value for name, _, value in pairs},
        body=body,
    )


@asynccontextmanager
async def attack_range(folder: Path) -> AsyncIterator[Range]:
    """A gateway with five recorders; `load` a configuration first."""
    async with (
        recording(*NAMES) as recorders,
        running_gateway(folder, {name: one.url for name, one in recorders.items()}) as gateway,
    ):
        yield Range(gateway=gateway, recorders=recorders)


def is_refused(got: Got, status: int, code: str) -> bool:
    """Whether a request ended in this error."""
    return (got.status, got.code) == (status, code)
