"""What Fareway costs per request, beside the least gateway of the same parts, in one run.

`make bench` or `python -m bench.gateway_overhead [--requests N] [--json FILE]`.

Three targets take the same load one after another, in several rounds: the upstream directly (the
limit), the least gateway (the peer), and `fareway serve` with one worker. Compare the ratios and
the CPU time, not the rates: load, upstream and gateway share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from tools.run_tests import commit_of, machine

REPOSITORY = Path(__file__).resolve().parents[1]
KEY = "bench-key-of-twenty-characters"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_UP_REQUESTS = 200
ENDS_STREAM = b"0\r\n\r\n"

CONFIGURATION = """\
server: {{port: {port}}}
storage: {{database: "sqlite:///{folder}/bench.db", spool_dir: "{folder}/spool"}}
providers:
  up:
    kind: openai_compatible
    base_url: {base_url}
models:
  m:
    deployments:
      - {{deployment: up/m, price: {{input_usd_per_mtok: 0.05, output_usd_per_mtok: 0.08}}}}
teams:
  bench:
    keys: [{{name: bench, value_env: BENCH_KEY}}]
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One kind of load.

    Attributes:
        name: For the table.
        connections: Requests in flight.
        is_stream: Whether answers are streamed.
    """

    name: str
    connections: int
    is_stream: bool


LOADS = (
    Load(name="whole, 1 connection", connections=1, is_stream=False),
    Load(name="whole, 16 connections", connections=16, is_stream=False),
    Load(name="stream, 1 connection", connections=1, is_stream=True),
    Load(name="stream, 16 connections", connections=16, is_stream=True),
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one round measured.

    Attributes:
        requests_per_s: Throughput.
        p50_ms: Median latency of the whole answer.
        p99_ms: 99th percentile.
        cpu_ms: CPU time of the target's processes per request, user and system.
        ledger_cpu_ms: The part of it that the ledger process takes; it may run on another core.
    """

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    ledger_cpu_ms: float


def cpu_s_of(root_pid: int) -> tuple[float, float]:
    """CPU seconds of a process and all its descendants that run, and of its ledger process."""
    parents: dict[int, list[int]] = {}
    used_s: dict[int, float] = {}
    ledgers: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int(entry.name)
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(pid)
            used_s[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            if b"gateway.process.ledger_process" in (entry / "cmdline").read_bytes():
                ledgers.add(pid)
    waiting, total_s, ledger_s = [root_pid], 0.0, 0.0
    while waiting:
        pid = waiting.pop()
        total_s += used_s.get(pid, 0.0)
        ledger_s += used_s.get(pid, 0.0) if pid in ledgers else 0.0
        waiting += parents.get(pid, [])
    return total_s, ledger_s


def request_bytes(load: Load) -> bytes:
    """A whole HTTP request with a 3 KB chat body."""
    words = "Summarise the following text in one sentence. " + "lorem ipsum dolor " * 160
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": words}]}
    if load.is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def read_answer(reader: asyncio.StreamReader) -> None:
    """Read one answer to its end.

    Raises:
        RuntimeError: It is not a 200.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, length = head.partition(b"content-length:")
    if length:
        body = await reader.readexactly(int(length.split(b"\r\n", 1)[0]))
    else:
        body = await reader.readuntil(ENDS_STREAM)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"a target refused the load: {head[:80]!r} {body[:400]!r}")


async def drive(port: int, load: Load, requests: int) -> list[float]:
    """Send requests over a fixed number of connections; seconds per request."""
    request = request_bytes(load)
    remaining = iter(range(requests))
    latencies_s: list[float] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in remaining:
            sent_s = time.perf_counter()
            writer.write(request)
            await read_answer(reader)
            latencies_s.append(time.perf_counter() - sent_s)
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.connections):
            tasks.create_task(connection())
    return latencies_s


def measure(port: int, pid: int, *, load: Load, requests: int) -> Figures:
    """One round of one load against one target."""
    uvloop.run(drive(port, load, min(WARM_UP_REQUESTS, requests)))
    (cpu_before_s, ledger_before_s), started_s = cpu_s_of(pid), time.perf_counter()
    latencies_s = sorted(uvloop.run(drive(port, load, requests)))
    took_s = time.perf_counter() - started_s
    cpu_s, ledger_s = cpu_s_of(pid)
    return Figures(
        requests_per_s=requests / took_s,
        p50_ms=latencies_s[len(latencies_s) // 2] * 1e3,
        p99_ms=latencies_s[len(latencies_s) * 99 // 100] * 1e3,
        cpu_ms=(cpu_s - cpu_before_s) * 1e3 / requests,
        ledger_cpu_ms=(ledger_s - ledger_before_s) * 1e3 / requests,
    )


@contextlib.contextmanager
def started(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def port_of(process: subprocess.Popen[str]) -> int:
    """The port that a helper prints first."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_until_ready(port: int, process: subprocess.Popen[str]) -> None:
    """Wait for `/readyz`.

    Raises:
        RuntimeError: The gateway ended or is not ready within a minute.
    """
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).close()
            return
        time.sleep(0.1)
    raise RuntimeError("fareway serve did not become ready; its log is above")


@contextlib.contextmanager
def targets() -> Iterator[dict[str, tuple[int, int]]]:
    """Port and process id of each target."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        upstream = stack.enter_context(started([sys.executable, "-m", "bench.canned_upstream"]))
        upstream_port = port_of(upstream)
        base_url = f"http://127.0.0.1:{upstream_port}/v1"
        least = stack.enter_context(
            started([sys.executable, "-m", "bench.least_gateway", base_url])
        )
        port = free_port()
        configuration = Path(folder) / "fareway.yaml"
        configuration.write_text(CONFIGURATION.format(port=port, folder=folder, base_url=base_url))
        fareway = stack.enter_context(
            started(
                [
                    str(Path(sys.executable).parent / "fareway"),
                    "serve",
                    "--config",
                    str(configuration),
                ],
                BENCH_KEY=KEY,
                FAREWAY_STATE_DIR=folder,
            )
        )
        wait_until_ready(port, fareway)
        yield {
            "upstream directly": (upstream_port, upstream.pid),
            "least gateway": (port_of(least), least.pid),
            "fareway": (port, fareway.pid),
        }


def median_of(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    names = Figures.__dataclass_fields__
    return Figures(
        **{name: statistics.median(getattr(each, name) for each in rounds) for name in names}
    )


def show(results: dict[str, dict[str, Figures]]) -> None:
    """Print the figures and what they mean against the peer and the limit."""
    for load, by_target in results.items():
        print(f"\n{load}")
        for target, each in by_target.items():
            print(
                f"  {target:18} {each.requests_per_s:8.0f} req/s  p50 {each.p50_ms:7.3f} ms"
                f"  p99 {each.p99_ms:7.3f} ms  CPU {each.cpu_ms:6.3f} ms/req"
            )
        ours, peer, limit = (
            by_target[name] for name in ("fareway", "least gateway", "upstream directly")
        )
        added_ratio = (ours.p50_ms - limit.p50_ms) / max(peer.p50_ms - limit.p50_ms, 1e-3)
        print(
            f"  fareway / least gateway: CPU x{ours.cpu_ms / max(peer.cpu_ms, 1e-3):.2f},"
            f" added p50 x{added_ratio:.2f}; added to the upstream at p50:"
            f" {ours.p50_ms - limit.p50_ms:.3f} ms; ledger process: {ours.ledger_cpu_ms:.3f} ms/req"
        )


def main() -> None:
    """Measure every load against every target, round by round, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000, help="per round, load and target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures, with commit and machine")
    options = parser.parse_args()
    rounds: dict[tuple[str, str], list[Figures]] = {}
    with targets() as places:
        # Targets take turns inside a round, so that a slow minute of the machine hits them all.
        for _ in range(options.rounds):
            for load in LOADS:
                for target, (port, pid) in places.items():
                    figures = measure(port, pid, load=load, requests=options.requests)
                    rounds.setdefault((load.name, target), []).append(figures)
    results: dict[str, dict[str, Figures]] = {}
    for (load, target), each in rounds.items():
        results.setdefault(load, {})[target] = median_of(each)
    show(results)
    if options.json is not None:
        record = {
            "kind": "gateway overhead",
            "commit": commit_of(REPOSITORY),
            "machine": machine(),
            "durability": "group",
            "requests": options.requests,
            "rounds": options.rounds,
            "results": {
                load: {target: asdict(each) for target, each in by_target.items()}
                for load, by_target in results.items()
            },
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
