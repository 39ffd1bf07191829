"""A worker's application on a loopback port: real sockets, real providers, a real spool.

Everything runs in one event loop, so that a test sees both ends: what the client's socket got, what
the scripted upstream was asked and bills, and what the spool holds afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import uvicorn
from uvicorn.server import ServerState

from gateway.app import build_service, load_credentials
from gateway.clock import system_clock
from gateway.health import HealthBoard
from gateway.http.asgi import Application
from gateway.http.protocol import BoundedProtocol
from gateway.http.service import Service
from gateway.ledger import records
from gateway.ledger.records import Intent, Settlement
from gateway.ledger.spool import Durability, SpoolFiles, SpoolLimits, SpoolWriter
from gateway.ledger.spool_reader import Cursor, SpoolReader, SpoolRecord
from gateway.process.budget_link import no_budgets
from gateway.process.provider_setup import engine_links, set_up_providers
from gateway.settings.loader import load_text
from providers.contract import Provider
from tests.gateway.fake_provider import FakeProvider, answer

KEY = "app-fixed-key-0123456789abcdef"
OTHER_KEY = "other-fixed-key-0123456789abcdef"
OTHER_MODEL = "中文模型"
UPSTREAM_KEY = "sk-upstream-canary-9f8e7d6c5b4a"
PRICE = {"input_usd_per_mtok": 1, "cached_input_usd_per_mtok": 0.1, "output_usd_per_mtok": 2}
NOWHERE = "http://127.0.0.1:9"


def config_text(upstreams: Mapping[str, str], *, more: str = "", server: str = "{}") -> str:
    """A configuration whose model `chat` lists one deployment `<name>/m` per upstream."""
    providers = {
        name: {"kind": "openai_compatible", "base_url": url, "api_key_env": "UPSTREAM_KEY"}
        for name, url in upstreams.items()
    }
    # Equal prices would be ordered by name; the order of the mapping is the order of the route.
    deployments = [
        {
            "deployment": f"{name}/m",
            "price": {**PRICE, "output_usd_per_mtok": 2 + position},
        }
        for position, name in enumerate(upstreams)
    ]
    models = {
        "chat": {"aliases": ["small"], "deployments": deployments},
        OTHER_MODEL: {"deployments": [one["deployment"] for one in deployments]},
    }
    return "\n".join(
        [
            f"server: {server}",
            f"providers: {json.dumps(providers)}",
            f"models: {json.dumps(models)}",
            "teams:",
            "  apps: {keys: [{name: app, value_env: APP_KEY}]}",
            f"  Équipe-β: {{keys: [{{name: other, value_env: OTHER_KEY}}], models: [{OTHER_MODEL}]}}",
            more,
        ]
    )


class ShortPauses(random.Random):
    """Draws a thousandth of every pause, where the relay draws between a half and all of it."""

    def uniform(self, a: float, b: float) -> float:
        return b / 1000


@dataclass(kw_only=True)
class Gateway:
    """What a test works with."""

    service: Service
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def client(self, key: str | None = KEY) -> AsyncIterator[httpx.AsyncClient]:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=20, trust_env=False, verify=False
        ) as client:
            yield client

    async def post(self, body: object, *, key: str | None = KEY, **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client(key) as client:
            return await client.post("/v1/chat/completions", json=body, headers=names)

    @asynccontextmanager
    async def stream(self, body: object) -> AsyncIterator[httpx.Response]:
        async with (
            self.client() as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            yield answer

    async def raw(self, data: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Send bytes on a socket of its own and read until the other side closes or falls silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        got = b""
        try:
            writer.write(data)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(timeout_s):
                    while part := await reader.read(65536):
                        got += part
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        return got

    async def wait_idle(self) -> None:
        """Until the last request is over."""
        with anyio.fail_after(10):
            await self.service.wait_idle()

    def set_limits(self, **changes: object) -> None:
        """Change the relay's settings; `deadlines` by its members."""
        limits = self.service.relay.limits
        names = {"connect_s", "first_token_s", "between_tokens_s", "total_s"}
        moved = {name: value for name, value in changes.items() if name in names}
        rest = {name: value for name, value in changes.items() if name not in names}
        self.service.relay = replace(
            self.service.relay,
            limits=replace(limits, deadlines=replace(limits.deadlines, **moved), **rest),
        )

    def hurry(self) -> None:
        """Let retries follow after hardly any pause, for tests of what comes after it."""
        self.service.relay = replace(self.service.relay, rng=ShortPauses())

    def attempts(self) -> list[tuple[Intent, Settlement]]:
        """Every attempt in the spool, in order; each settled exactly once, or this fails."""
        return attempts_in(self.folder / "spool")

    async def settled(self) -> list[tuple[Intent, Settlement]]:
        """The attempts once no request is in flight."""
        await self.wait_idle()
        return self.attempts()


def attempts_in(spool_dir: Path) -> list[tuple[Intent, Settlement]]:
    """Pair the intents of a spool with their settlements."""
    entries = [entry for entry, _ in SpoolReader(spool_dir, Cursor())]
    assert all(isinstance(entry, SpoolRecord) for entry in entries), entries
    found = [records.decode(entry.payload) for entry in entries if isinstance(entry, SpoolRecord)]
    intents = [record for record in found if isinstance(record, Intent)]
    settlements: dict[bytes, list[Settlement]] = {}
    for record in found:
        if isinstance(record, Settlement):
            settlements.setdefault(record.event_id, []).append(record)
    assert sorted(settlements) == sorted({intent.event_id for intent in intents})
    assert all(len(found) == 1 for found in settlements.values()), "an attempt settled twice"
    return [(intent, settlements[intent.event_id][0]) for intent in intents]


@asynccontextmanager
async def _listening(
    service: Service, listener: socket.socket, http: type[asyncio.Protocol]
) -> AsyncIterator[None]:
    """uvicorn's protocol without uvicorn's server, which looks only ten times a second for its end."""
    config = uvicorn.Config(
        Application(service, _no_pages), http=http, ws="none", lifespan="off", log_config=None,
        access_log=False, proxy_headers=False,
    )  # fmt: skip
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),
        sock=listener,
    )
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.move_on_after(5, shield=True):
            while state.tasks or state.connections:
                await anyio.sleep(0.001)
        assert not state.tasks, "a request is still being served"


@asynccontextmanager
async def running_gateway(
    folder: Path,
    upstreams: Mapping[str, str],
    *,
    providers: Mapping[str, Provider] | None = None,
    text: str | None = None,
    durability: Durability = Durability.GROUP,
    files: SpoolFiles | None = None,
    http: type[asyncio.Protocol] = BoundedProtocol,
) -> AsyncIterator[Gateway]:
    """Run a gateway until the context is left.

    Args:
        folder: For state and spool.
        upstreams: Base URL per provider; the model `chat` lists them in this order.
        providers: Put in the place of configured ones.
        text: The configuration, `config_text(upstreams)` by default.
        durability: Of the spool.
        files: The spool's system calls.
        http: uvicorn's protocol.
    """
    spool = SpoolWriter(
        folder / "spool",
        durability=durability,
        clock=system_clock(),
        session=b"s" * 16,
        limits=SpoolLimits(reserve_bytes=65_536),
        files=files,
    )
    service = make_service(folder, text or config_text(upstreams), providers or {}, spool)
    listener = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as tasks, _listening(service, listener, http):
        tasks.start_soon(spool.run)
        try:
            gateway = Gateway(service=service, port=listener.getsockname()[1], folder=folder)
            yield gateway
            await gateway.wait_idle()
        finally:
            for provider in service.relay.providers.values():
                await provider.close()
            await spool.close()
            tasks.cancel_scope.cancel()


def make_service(
    folder: Path, text: str, providers: Mapping[str, Provider], spool: SpoolWriter
) -> Service:
    """A worker's parts under a configuration, with the keys of this module."""
    environ = {
        "FAREWAY_STATE_DIR": str(folder / "state"),
        "APP_KEY": KEY,
        "OTHER_KEY": OTHER_KEY,
        "UPSTREAM_KEY": UPSTREAM_KEY,
    }
    config = load_text(text, environ=environ, base_dir=folder)
    clock = system_clock()
    return build_service(
        config=config,
        credentials=load_credentials(config, environ),
        database_keys=[],
        revision=1,
        providers={
            **set_up_providers(config, environ=environ, links=engine_links(config)),
            **providers,
        },
        health=HealthBoard(monotonic_s=clock.monotonic_s),
        spool=spool,
        clock=clock,
        supervisor=None,
        holds=no_budgets(clock),
    )


def serving(folder: Path, *texts: str, **options: Any):
    """A gateway whose one provider, `a`, answers without a wire."""
    provider = FakeProvider(name="a", scripts=[answer(*(texts or ("hello",)))])
    return running_gateway(folder, {"a": NOWHERE}, providers={"a": provider}, **options)


def _no_pages(service: Service):
    raise AssertionError("no page is asked for here")


def body(*, stream: bool = False, usage: bool = False, **changes: object) -> dict[str, object]:
    """A chat body for the model `chat`."""
    made: dict[str, object] = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
        **changes,
    }
    if usage:
        made["stream_options"] = {"include_usage": True}
    return made


def request_bytes(
    content: bytes,
    *,
    path: str = "/v1/chat/completions",
    headers: Sequence[str] = (),
    is_last: bool = True,
) -> bytes:
    """A raw HTTP/1.1 request with our key; the last one asks the server to close afterwards."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: gateway",
        f"authorization: Bearer {KEY}",
        *(["connection: close"] if is_last else []),
        *headers,
    ]
    if not any(
        line.lower().startswith(("content-length", "transfer-encoding")) for line in headers
    ):
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def error_of(answer: httpx.Response) -> dict:
    """The error of an OpenAI-shaped body; complains about any other shape."""
    envelope = msgspec.json.decode(answer.content)
    assert set(envelope) == {"error"}, envelope
    assert set(envelope["error"]) == {"message", "type", "param", "code"}
    return envelope["error"]
