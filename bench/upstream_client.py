"""What a call upstream costs in CPU: `providers.transport` beside the clients it could be.

Run as `python -m bench.upstream_client [--connections N] [--body-bytes N] [--json FILE]`.
The upstream (`bench.canned_upstream`) runs in a process of its own on the other core. Each client
POSTs JSON, of 1 KiB unless said, over kept connections, so many at a time as `--connections` says,
and reads the whole answer; the rounds of the clients alternate, so that a noisy neighbour meets all
of them. Printed: median CPU time per request (user and system, this process alone), and its ratio
to aiohttp's own client. `bare loop` is the least that Python can do: a protocol that looks for the
end of the head by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop
from yarl import URL

from gateway.privacy.permit import operator_permit
from providers.contract import AttemptFacts, Deadlines
from providers.transport import Transport, header_lines
from providers.transport.head import place_of

REPOSITORY = Path(__file__).resolve().parents[1]
HEADERS = {
    "content-type": "application/json",
    "user-agent": "fareway",
    "authorization": "Bearer " + "k" * 40,
    "accept": "application/json",
    "accept-encoding": "identity",
    "x-client-request-id": "0" * 32,
}
LIMITS = Deadlines(connect_s=5, first_token_s=30, between_tokens_s=30, total_s=60)
Post = Callable[[bytes], Awaitable[int]]


class _BareProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.waiter: asyncio.Future[bytes] | None = None
        self._unread = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._unread += data
        end = self._unread.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._unread.find(b"content-length: ") + 16
        size = int(self._unread[start : self._unread.find(b"\r\n", start)])
        if len(self._unread) >= end + 4 + size and self.waiter is not None:
            body, self._unread = self._unread[end + 4 :], b""
            self.waiter.set_result(body)


@asynccontextmanager
async def bare_loop(url: URL):
    """The least: one write, one search for the end of the head."""
    loop = asyncio.get_running_loop()
    idle: list[_BareProtocol] = []
    text = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    start = f"POST {url.raw_path} HTTP/1.1\r\nhost: {url.host}\r\n{text}content-length: "

    async def post(body: bytes) -> int:
        if idle:
            protocol = idle.pop()
        else:
            _, protocol = await loop.create_connection(_BareProtocol, url.host, url.port)
        protocol.waiter = loop.create_future()
        protocol.transport.write(f"{start}{len(body)}\r\n\r\n".encode() + body)
        answer = await protocol.waiter
        idle.append(protocol)
        return len(answer)

    yield post
    for protocol in idle:
        protocol.transport.close()


@asynccontextmanager
async def aiohttp_client(url: URL):
    """aiohttp's own session, as its documentation says."""
    timeout = aiohttp.ClientTimeout(total=60, connect=5, sock_read=30)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def post(body: bytes) -> int:
            async with session.post(url, data=body, headers=HEADERS, timeout=timeout) as answer:
                return len(await answer.read())

        yield post


@asynccontextmanager
async def fareway_transport(url: URL):
    """What the gateway uses."""
    transport = Transport([str(url)])
    lines = header_lines(HEADERS)
    permit = operator_permit("benchmark", {"bench/m": place_of(url)})

    async def post(body: bytes) -> int:
        exchange = await transport.send(
            url,
            permit=permit,
            deployment="bench/m",
            headers=lines,
            body=body,
            deadlines=LIMITS,
            facts=AttemptFacts(),
        )
        async with exchange:
            exchange.headers.get("content-type", "")
            return len(await exchange.read_all(max_bytes=1_000_000))

    yield post
    await transport.close()


CLIENTS = {
    "aiohttp.ClientSession": aiohttp_client,
    "providers.transport": fareway_transport,
    "bare loop": bare_loop,
}


def body_of(size_bytes: int) -> bytes:
    """A chat request of about this size."""
    text = "x" * max(0, size_bytes - 60)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


async def many(post: Post, body: bytes, *, requests: int, connections: int) -> None:
    """Send requests, so many at a time."""

    async def some() -> None:
        for _ in range(requests // connections):
            await post(body)

    await asyncio.gather(*(some() for _ in range(connections)))


async def measure(
    url: URL, body: bytes, *, requests: int, rounds: int, connections: int
) -> dict[str, list[float]]:
    """CPU microseconds per request, by client, one figure per round."""
    found: dict[str, list[float]] = {name: [] for name in CLIENTS}
    for _ in range(rounds):
        for name, client in CLIENTS.items():
            async with client(url) as post:
                await many(post, body, requests=10 * connections, connections=connections)
                before = time.process_time()
                await many(post, body, requests=requests, connections=connections)
                spent_s = time.process_time() - before
                found[name].append(spent_s / (requests // connections * connections) * 1e6)
    return found


def main() -> None:
    """Start the upstream, measure, print."""
    parser = argparse.ArgumentParser(description="Measure clients for upstream calls.")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    upstream = subprocess.Popen(
        [sys.executable, "-m", "bench.canned_upstream"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        os.sched_setaffinity(upstream.pid, {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        url = URL(f"http://127.0.0.1:{int(upstream.stdout.readline())}/v1/chat/completions")
        found = uvloop.run(
            measure(
                url,
                body_of(options.body_bytes),
                requests=options.requests,
                rounds=options.rounds,
                connections=options.connections,
            )
        )
    finally:
        upstream.terminate()
        upstream.wait()
    medians = {name: statistics.median(rounds) for name, rounds in found.items()}
    base = medians["aiohttp.ClientSession"]
    print("| client | CPU µs per request | of aiohttp's |\n|---|--:|--:|")
    for name, rounds in found.items():
        spread = f"{medians[name]:.1f} [{min(rounds):.1f}-{max(rounds):.1f}]"
        print(f"| {name} | {spread} | {medians[name] / base:.2f} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
