"""Every library that connects, in a process of its own: the place on the list, and no other."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import dedent

import pytest

from tests.gateway.egress_servers import Listener

pytestmark = pytest.mark.slow

SYNC = {
    "a socket": """
        import socket
        def reach(host, port):
            socket.create_connection((host, port), 5).close()
        """,
    "a socket that does not wait": """
        import select, socket
        def reach(host, port):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, port))
            select.select([], [sock], [], 5)
        """,
    "urllib": """
        from urllib.request import urlopen
        def reach(host, port):
            urlopen(f"http://{host}:{port}/", timeout=5).read()
        """,
    "http.client": """
        from http.client import HTTPConnection
        def reach(host, port):
            connection = HTTPConnection(host, port, timeout=5)
            connection.request("GET", "/")
        """,
    "requests, which the exporter of traces uses": """
        import requests
        def reach(host, port):
            requests.Session().get(f"http://{host}:{port}/", timeout=5)
        """,
    "the exporter of traces": """
        from gateway.telemetry.traces import otlp_exporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        def reach(host, port):
            provider = TracerProvider(shutdown_on_exit=False)
            exporter = otlp_exporter(f"http://{host}:{port}", None)
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            exporter._timeout = 1
            provider.get_tracer("t").start_span("s").end()
        """,
    "smtplib": """
        import smtplib
        def reach(host, port):
            smtplib.SMTP(host, port, timeout=5)
        """,
    "httpx": """
        import httpx
        def reach(host, port):
            httpx.get(f"http://{host}:{port}/", timeout=5, trust_env=False)
        """,
    "the hub's library": """
        from huggingface_hub import HfApi
        def reach(host, port):
            HfApi(endpoint=f"http://{host}:{port}").model_info("a/b", timeout=5)
        """,
    "redis": """
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        def reach(host, port):
            once = Retry(NoBackoff(), 0)
            redis.Redis(host=host, port=port, socket_timeout=5, retry=once).ping()
        """,
    "a datagram": """
        import socket
        def reach(host, port):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"x", (host, port))
        """,
}

ASYNC = {
    "streams": """
        async def connect(host, port):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        """,
    "a loop's sockets": """
        import socket
        async def connect(host, port):
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            sock.close()
        """,
    "datagrams": """
        async def connect(host, port):
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(host, port))
            transport.sendto(b"x")
            await asyncio.sleep(0.05)
            transport.close()
        """,
    "anyio": """
        import anyio
        async def connect(host, port):
            await (await anyio.connect_tcp(host, port)).aclose()
        """,
    "aiohttp": """
        import aiohttp
        async def connect(host, port):
            async with aiohttp.ClientSession() as session:
                await (await session.get(f"http://{host}:{port}/")).read()
        """,
    "httpx": """
        import httpx
        async def connect(host, port):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(f"http://{host}:{port}/")
        """,
    "asyncpg": """
        import asyncpg
        async def connect(host, port):
            await asyncpg.connect(f"postgresql://u@{host}:{port}/d", timeout=2, ssl=False)
        """,
    "redis": """
        from redis.asyncio import Redis
        async def connect(host, port):
            await Redis(host=host, port=port, socket_timeout=2, retry=None).ping()
        """,
    "the transport of requests": """
        from providers.contract import AttemptFacts, Deadlines
        from providers.transport import Transport
        from tests.providers.permits import bound_for
        from yarl import URL
        async def connect(host, port):
            url = f"http://{host}:{port}/"
            limits = Deadlines(connect_s=5, first_token_s=5, between_tokens_s=5, total_s=5)
            await Transport([url]).send(URL(url), **bound_for(url), headers={}, body=b"{}",
                                        deadlines=limits, facts=AttemptFacts())
        """,
    "the transport of requests, through a proxy": """
        from providers.contract import AttemptFacts, Deadlines
        from providers.transport import Transport, TransportOptions
        from tests.providers.permits import bound_for
        from yarl import URL
        async def connect(host, port):
            url = "http://example.com/"
            limits = Deadlines(connect_s=5, first_token_s=5, between_tokens_s=5, total_s=5)
            options = TransportOptions(proxy=f"http://{host}:{port}")
            await Transport([url], options).send(URL(url), **bound_for(url), headers={}, body=b"{}",
                                                 deadlines=limits, facts=AttemptFacts())
        """,
}

CHILD = """
import asyncio, json, sys
{imports}
from gateway.egress.guard import Guard
from gateway.egress.installed import install
from gateway.egress.places import Place

work = json.loads(sys.argv[1])
guard = install(Guard([Place(one["host"], one["port"]) for one in work]))
for one in work:
    names = {{"asyncio": asyncio}}
    exec(one["snippet"], names)
    told = []
    for port in (one["port"], one["other"]):
        before = guard.refused
        try:
            if "reach" in names:
                names["reach"](one["host"], port)
            else:
                {run}(names["connect"](one["host"], port))
        except Exception as error:
            print(type(error).__name__, error, file=sys.stderr)
        told.append(guard.refused > before)
    print(json.dumps([one["name"], *told]), flush=True)
"""

LOOPS = {"asyncio": ("", "asyncio.run"), "uvloop": ("import uvloop", "uvloop.run")}
NAMED = ("streams", "aiohttp", "asyncpg")
"""Of these, also with a name in the place of an address."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a library's attempts at the listed place and at another one."""

    is_first_refused: bool
    is_other_refused: bool
    seen: int
    seen_other: int
    errors: str


def run_all(
    snippets: Mapping[str, tuple[str, str]], *, imports: str = "", run: str = ""
) -> dict[str, Told]:
    """Try every library in one process; each has a pair of servers of its own.

    Args:
        snippets: Host and text, by name.
        imports: What comes before the guard.
        run: Runs a coroutine.
    """
    with ExitStack() as stack:
        servers = {
            name: (stack.enter_context(Listener()), stack.enter_context(Listener()))
            for name in snippets
        }
        work = [
            {"name": name, "host": host, "snippet": dedent(text), "port": servers[name][0].port,
             "other": servers[name][1].port}
            for name, (host, text) in snippets.items()
        ]  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-c", CHILD.format(imports=imports, run=run), json.dumps(work)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return {
            name: Told(
                is_first_refused=first, is_other_refused=other, seen=servers[name][0].seen,
                seen_other=servers[name][1].seen, errors=ended.stderr,
            )
            for name, first, other in map(json.loads, ended.stdout.splitlines())
        }  # fmt: skip


@functools.cache
def waiting() -> dict[str, Told]:
    return run_all({name: ("127.0.0.1", text) for name, text in SYNC.items()})


@functools.cache
def looping(loop: str) -> dict[str, Told]:
    imports, run = LOOPS[loop]
    snippets = {name: ("127.0.0.1", text) for name, text in ASYNC.items()}
    snippets |= {f"{name} by name": ("localhost", ASYNC[name]) for name in NAMED}
    return run_all(snippets, imports=imports, run=run)


def check(told: Told) -> None:
    # The hub's library asks its own home for news beside, wherever it was sent.
    assert not told.is_first_refused or "huggingface.co" in told.errors, told.errors
    assert told.is_other_refused, told.errors
    assert told.seen >= 1, told.errors
    assert told.seen_other == 0, told.errors
    assert "egress refused to" in told.errors


@pytest.mark.parametrize("name", SYNC)
def test_a_library_that_waits_reaches_the_listed_place_and_no_other(name):
    check(waiting()[name])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", [*ASYNC, *(f"{name} by name" for name in NAMED)])
def test_a_library_on_a_loop_reaches_the_listed_place_and_no_other(name, loop):
    check(looping(loop)[name])
