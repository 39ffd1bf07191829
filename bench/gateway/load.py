"""One run of the load generator: what it is asked to do and what it measured."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.gateway import proc
from bench.gateway.compiled import program
from bench.gateway.faults import BenchFault

GRACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What the load generator does.

    Attributes:
        url: Of the chat route.
        body: File with the request's body.
        headers: Further request headers.
        connections: Keep-alive connections; the most requests in flight.
        duration_s: Measured time.
        warmup_s: Time before it whose requests are not counted.
        is_stream: Whether answers are event streams.
        rate: Requests per second, due at equal distances; None for a closed loop.
        stagger_s: Time over which the first requests are spread.
        requests: A number of requests instead of a time, None for a time.
        hangup_percent: Share of the requests that the client leaves.
        hangup_events: Content events after which it leaves at the latest.
        seed: Of the choice who leaves, and when.
    """

    url: str
    body: Path
    connections: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    duration_s: float = 3.0
    warmup_s: float = 0.5
    is_stream: bool = False
    rate: float | None = None
    stagger_s: float = 0.0
    requests: int | None = None
    hangup_percent: int = 0
    hangup_events: int = 0
    seed: int = 0

    def arguments(self) -> list[str]:
        """The command line without the program."""
        given: list[tuple[str, object]] = [
            ("--url", self.url),
            ("--body", self.body),
            ("--conns", self.connections),
            ("--duration", self.duration_s),
            ("--warmup", self.warmup_s),
        ]
        given += [("--header", f"{name}: {value}") for name, value in self.headers.items()]
        optional: tuple[tuple[str, object], ...] = (
            ("--rate", self.rate),
            ("--stagger", self.stagger_s),
            ("--requests", self.requests),
            ("--hangup", self.hangup_percent),
            ("--hangup-events", self.hangup_events),
            ("--seed", self.seed),
        )
        given += [(option, value) for option, value in optional if value]
        flat = [str(part) for pair in given for part in pair]
        return [*flat, "--stream"] if self.is_stream else flat


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of microseconds; zeros when nothing was measured."""

    n: int
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator measured; see `native/loadgen.c`.

    Attributes:
        seconds: Measured time.
        ok: Answers with status 2xx, streams to their end.
        refused: Answers with status 429 or 503.
        non2xx: Answers with any other status.
        last_bad_status: The last of them.
        socket_errors: Connections that broke.
        hung_up: Requests that the client left on purpose.
        incomplete_streams: Streams with neither a finish nor `[DONE]`.
        stalled_conns: Connections whose request is older than the whole measured time.
        undrained: Requests without an answer 15 s after the end.
        unissued: Requests that were due and never sent.
        rps: Answers `ok` per second.
        mb_per_s: Body bytes received.
        chunks: Content events of streams.
        latency_us: Of buffered answers.
        ttft_us: Of streams, to the first content event.
        gap_us: Between the content events of a stream.
        transit_us: From the mock's write of an event to its arrival.
        total_us: Of whole streams.
        refused_us: Of refused requests.
        error_sample: The first body of an answer that is no 2xx.
    """

    seconds: float
    ok: int
    refused: int
    non2xx: int
    last_bad_status: int
    socket_errors: int
    hung_up: int
    incomplete_streams: int
    stalled_conns: int
    undrained: int
    unissued: int
    rps: float
    mb_per_s: float
    chunks: int = 0
    chunks_per_s: float = 0.0
    latency_us: Spread | None = None
    ttft_us: Spread | None = None
    gap_us: Spread | None = None
    transit_us: Spread | None = None
    total_us: Spread | None = None
    refused_us: Spread | None = None
    error_sample: str = ""

    @property
    def failed(self) -> int:
        """Requests that should have been answered and were not; refusals are not among them."""
        return self.non2xx + self.socket_errors + self.incomplete_streams + self.undrained


def run_load(plan: LoadPlan, *, core: int | None) -> tuple[LoadReport, float]:
    """Run the load generator on a core.

    Returns:
        What it measured, and the CPU seconds that it took itself.

    Raises:
        BenchFault: It does not run.
    """
    limit_s = 3_700.0 if plan.requests else plan.duration_s + plan.warmup_s + GRACE_S
    before_s = _children_s()
    with proc.on_core(core):
        ended = subprocess.run(
            [str(program("loadgen")), *plan.arguments()],
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    if ended.returncode:
        raise BenchFault(f"the load generator failed: {ended.stderr.decode().strip()[:500]}")
    return msgspec.json.decode(ended.stdout, type=LoadReport), _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
