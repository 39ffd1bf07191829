"""Where a request's time goes inside the worker: each part called by itself, in a loop.

The parts are the worker's own, made by its composition root from the benchmark's configuration, and
called in the order of a request. What the parts do not cover (server, client, relay, the event
loop) is the rest of the CPU that the `max` case measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import anyio
from rich.console import Console
from rich.table import Table

from bench.gateway import fareway, proc
from bench.gateway.cases import FOUR_KIB, ONE_KIB, PLAIN, Case
from bench.gateway.targets import KEY, Place
from gateway.admission.admit import Admitted
from gateway.app import build_service, load_credentials
from gateway.auth.directory import Principal
from gateway.budgets.holds import NO_HOLD
from gateway.clock import system_clock
from gateway.dialects import openai_chat
from gateway.dialects.controls import CONTROL_MARK, NO_CONTROLS
from gateway.health import HealthBoard
from gateway.http.chat import ROUTE
from gateway.http.messages import Headers
from gateway.http.service import Service
from gateway.ledger.records import AttemptStatus
from gateway.ledger.spool import Durability, SpoolWriter
from gateway.process.budget_link import no_budgets
from gateway.process.provider_setup import set_up_providers
from gateway.relay.journal import Booking, Outcome
from gateway.routing.plan import Plan
from gateway.settings.loader import load
from pricing.usage import Usage
from providers.contract import UsageReport

P = ParamSpec("P")
T = TypeVar("T")

ROUNDS = 2_000
BREATHE_EVERY = 16
"""The loop gets its turn so often, for the journal's group sync."""

BUDGET_US: Mapping[str, float] = {
    "key": 5,
    "body": 8,
    "admission": 5,
    "decision": 15,
    "ledger": 10,
    "metrics": 5,
}
"""For a body of 1 KiB and three candidates. Detectors have 10 and are not built yet; server and
client have 135, see the worker's CPU of the `max` case."""

BODIES: Mapping[str, Case] = {
    size: Case(name=size, about="", connections=1, messages=messages)
    for size, messages in (("1 KiB", ONE_KIB), ("4 KiB", FOUR_KIB))
}

Stages = Mapping[str, float]
"""Microseconds per request by stage."""


class Stopwatch:
    """Sums what the parts of a request take, in nanoseconds."""

    def __init__(self) -> None:
        self.total_ns: dict[str, int] = dict.fromkeys(BUDGET_US, 0)

    def lap(self, name: str, started_ns: int) -> int:
        """Book the time since an instant on a stage; the instant now."""
        now_ns = time.perf_counter_ns()
        self.total_ns[name] += now_ns - started_ns
        return now_ns

    def timed(self, name: str, function: Callable[P, T], *, inside: str) -> Callable[P, T]:
        """A function that is timed by itself and not as a part of another stage."""

        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            started_ns = time.perf_counter_ns()
            try:
                return function(*arguments, **keywords)
            finally:
                took_ns = time.perf_counter_ns() - started_ns
                self.total_ns[name] += took_ns
                self.total_ns[inside] -= took_ns

        return call

    def reset(self) -> None:
        """Forget everything."""
        self.total_ns = dict.fromkeys(self.total_ns, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a worker's server would hand over.

    Attributes:
        headers: Raw.
        body: The JSON.
    """

    headers: Headers
    body: bytes


def measure(*, core: int | None, rounds: int = ROUNDS) -> dict[str, Stages]:
    """Time the parts for each body.

    Args:
        core: Where; None leaves it to the kernel.
        rounds: Requests per body, after a tenth more to warm up.

    Returns:
        Microseconds by stage, by body.
    """
    with proc.on_core(core), TemporaryDirectory(prefix="fareway-stages-") as name:
        return anyio.run(_measure, Path(name), rounds)


async def _measure(folder: Path, rounds: int) -> dict[str, Stages]:
    service, spool = _service(folder)
    watch, found = Stopwatch(), dict[str, Stages]()
    real_decide = Plan.decide
    # Inside `admit`, and to be told apart from it.
    Plan.decide = watch.timed("decision", real_decide, inside="admission")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spool.run)
            for size, case in BODIES.items():
                found[size] = await _body_stages(service, _request(case), watch, rounds)
            tasks.cancel_scope.cancel()
    finally:
        Plan.decide = real_decide
        with anyio.CancelScope(shield=True):
            await spool.close()
            for provider in service.relay.providers.values():
                await provider.close()
    return found


def _service(folder: Path) -> tuple[Service, SpoolWriter]:
    """A worker's service with a real journal, as the composition root makes it."""
    place = Place(folder=folder, mock_url="http://127.0.0.1:9", port=1)
    path = folder / fareway.CONFIGURATION
    path.write_text(fareway.configuration(place, Durability.GROUP.value))
    environ = fareway.environment(folder)
    config = load(path, environ=environ)
    clock = system_clock()
    health = HealthBoard(monotonic_s=clock.monotonic_s)
    config.spool_dir.mkdir(parents=True, exist_ok=True)
    spool = SpoolWriter(
        config.spool_dir / "worker-0",
        durability=Durability.GROUP,
        clock=clock,
        session=bytes(16),
    )
    service = build_service(
        config=config,
        credentials=load_credentials(config, environ),
        database_keys=(),
        revision=0,
        providers=set_up_providers(config, environ=environ, links={}),
        health=health,
        spool=spool,
        clock=clock,
        supervisor=None,
        holds=no_budgets(clock),
    )
    return service, spool


def _request(case: Case) -> Request:
    body = case.body(PLAIN)
    headers = [
        (b"host", b"127.0.0.1:8642"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {KEY}".encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    return Request(headers=headers, body=body)


async def _body_stages(service: Service, request: Request, watch: Stopwatch, rounds: int) -> Stages:
    for index in range(rounds // 10):
        _one(service, request, watch)
        if index % BREATHE_EVERY == 0:
            await anyio.sleep(0)
    watch.reset()
    for index in range(rounds):
        _one(service, request, watch)
        if index % BREATHE_EVERY == 0:
            await anyio.sleep(0)
    return {name: total_ns / rounds / 1e3 for name, total_ns in watch.total_ns.items()}


def _one(service: Service, request: Request, watch: Stopwatch) -> None:
    """The parts of one request, in order."""
    now_ns = time.perf_counter_ns()
    # As `ChatCall` does where each header comes once and the key as a bearer's.
    first = dict(reversed(request.headers))
    principal = service.directory.authenticate_bearer(
        first[b"authorization"], now_us=service.clock.wall_us()
    )
    assert isinstance(principal, Principal), "the benchmark's key is known"
    now_ns = watch.lap("key", now_ns)
    parsed = openai_chat.parse(request.body)
    assert not parsed.metadata, "the benchmark asks for nothing"
    assert CONTROL_MARK not in b"\n".join(first), "nor by a header"
    now_ns = watch.lap("body", now_ns)
    admitted = service.admission.admit(
        principal, parsed, NO_CONTROLS, wall_us=service.clock.wall_us()
    )
    watch.lap("admission", now_ns)
    booking = _booking(service, principal, admitted)
    best = admitted.decision.candidates[0]
    outcome = _outcome()
    now_ns = time.perf_counter_ns()
    opened = service.relay.journal.open(
        booking,
        attempt=1,
        deployment=best.deployment,
        reason=best.reason,
        price=best.price,
        exposure_pico_usd=None,
        lifetime_s=960.0,
        hold=NO_HOLD,
    )
    settlement = service.relay.journal.settle(opened, outcome)
    now_ns = watch.lap("ledger", now_ns)
    service.metrics.note_attempt(best.deployment, principal.team, settlement, None)
    service.metrics.note_request(ROUTE, 200, 0.001, 0.0002)
    watch.lap("metrics", now_ns)


def _booking(service: Service, principal: Principal, admitted: Admitted) -> Booking:
    return Booking(
        request_id=service.new_id(),
        model=admitted.decision.model or admitted.decision.asked,
        team=principal.team,
        project=admitted.project,
        key_id=principal.key_id,
        tags=admitted.tags,
        cost_tags=(),
        route=ROUTE,
        is_stream=False,
    )


def _outcome() -> Outcome:
    return Outcome(
        status=AttemptStatus.OK,
        usage=UsageReport(usage=Usage(input_tokens=8, cache_read_tokens=16, output_tokens=28)),
        is_usage_final=True,
        http_status=200,
        upstream_request_id="req_mock_1",
        finish_reason="stop",
        ttft_us=400,
    )


def show(measured: Mapping[str, Stages], *, console: Console) -> None:
    """Print a row per body beside the budget."""
    table = Table(title="Inside the worker, µs per request")
    table.add_column("body")
    for name in BUDGET_US:
        table.add_column(name, justify="right")
    table.add_column("sum", justify="right")
    for size, stages in measured.items():
        table.add_row(size, *_cells(stages))
    table.add_section()
    table.add_row("budget, 1 KiB", *_cells(BUDGET_US))
    console.print(table)


def _cells(stages: Stages) -> Sequence[str]:
    return [f"{stages[name]:.1f}" for name in BUDGET_US] + [f"{sum(stages.values()):.1f}"]


def plain(measured: Mapping[str, Stages]) -> dict[str, dict[str, float]]:
    """For the result file."""
    return {
        size: {name: round(value, 2) for name, value in stages.items()}
        for size, stages in measured.items()
    }
