"""`fareway quickstart`: start everything, send one real request, show its way and its cost.

What `make run` calls. The key that it makes is kept in a 0600 file of the state directory, so that
a second run shows the same one and nobody's copy goes dead.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from gateway.auth.keys import parse_key_id
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.faults import CliFault
from gateway.cli.fitting import larger_model_advice
from gateway.cli.keys import NewKeyOrder, create_key, stored_keys
from gateway.cli.options import ConfigOption
from gateway.clock import system_clock
from gateway.egress.lists import also
from gateway.ledger.recent import RecentRequest
from gateway.policy_proof import PolicyUnproved
from gateway.process import engines
from gateway.process.messages import ServiceStatus
from gateway.process.preflight import ServeError
from gateway.process.serve import Prepared, prepare
from gateway.process.supervisor import Supervisor
from gateway.settings.environment import config_path, process_environ
from gateway.settings.loader import LoadedConfig, load
from gateway.settings.providers import LocalProvider
from gateway.settings.secrets import read_secret_file
from gateway.telemetry.logs import set_up_logging
from pricing.money import format_usd

DEFAULT_PROMPT = "In one sentence: why is the sky blue?"
ANSWER_TOKENS_MAX = 96
ENGINE_TIMEOUT_S = 900.0
BAR_FROM_BYTES = 1_000_000
_engine_log = logging.getLogger(engines.__name__)
KEY_FILE = "quickstart.key"
KEY_NAME = "quickstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    text: str
    deployment: str
    request_id: str
    cost_usd: str


def quickstart(
    once: Annotated[bool, typer.Option("--once", help="Exit after the request.")] = False,
    prompt: Annotated[str, typer.Option("--prompt", help="What to ask.")] = DEFAULT_PROMPT,
    config: ConfigOption = None,
) -> None:
    """Start the gateway, send one real chat request through every layer, keep serving."""
    environ = process_environ()
    path = config or config_path(environ, Path.cwd())
    loaded = load(path, environ=environ, today=datetime.now(UTC).date())
    for what, stated in (("model", loaded.settings.models), ("team", loaded.settings.teams)):
        if not stated:
            raise CliFault(f"the configuration has no {what}; add one under `{what}s:`")
    set_up_logging("fareway", level=logging.WARNING, log_format="text")
    # Until the first answer, why an engine is not there is the sentence that this ends with.
    _engine_log.setLevel(logging.CRITICAL)
    show = _Show(console=Console(file=sys.stdout, highlight=False, soft_wrap=True))
    try:
        prepared = prepare(
            loaded,
            config_path=None if path is None else path.absolute(),
            environ=environ,
            clock=system_clock(),
            on_ready=lambda url: None,
            on_progress=show.download,
        )
        if prepared.admin_key_once is not None:
            show.line(f"Administrator's key, shown only now: {prepared.admin_key_once}\n")
        failure = anyio.run(_run, _Run(prepared=prepared, loaded=loaded, show=show), prompt, once)
    except (ServeError, PolicyUnproved) as error:
        raise CliFault(str(error)) from error
    finally:
        show.end_download()  # a bar that is left running keeps the terminal's cursor
    if failure is not None:
        raise CliFault(failure)


@dataclass(slots=True, kw_only=True)
class _Show:
    """Prints, and shows a bar while a model is fetched."""

    console: Console
    _progress: Progress | None = None
    _task: TaskID | None = None

    def line(self, text: str = "") -> None:
        self.console.print(text, markup=False)

    def download(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        """Called from the thread that fetches."""
        if self._progress is None and total_bytes is None and done_bytes < BAR_FROM_BYTES:
            return  # a search for the file so far, which may end with none
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            self._progress = Progress(*columns, console=self.console)
            self._progress.start()
            self._task = self._progress.add_task(what, total=None)
        assert self._task is not None
        self._progress.update(self._task, description=what, completed=done_bytes, total=total_bytes)

    def end_download(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    prepared: Prepared
    loaded: LoadedConfig
    show: _Show


async def _run(run: _Run, prompt: str, once: bool) -> str | None:
    """Serve and demonstrate; returns why it failed, None when it did not."""
    supervisor = run.prepared.supervisor
    ready = anyio.Event()
    supervisor.on_ready = lambda _url: ready.set()
    failure: str | None = "interrupted before the answer came"
    serve_error: ServeError | None = None

    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            nonlocal serve_error
            try:
                await supervisor.run()
            except ServeError as error:
                serve_error = error
            tasks.cancel_scope.cancel()

        tasks.start_soon(serve)
        await ready.wait()
        with anyio.CancelScope() as asking:
            # An answer that nobody waits for any more shall not hold the end up.
            tasks.start_soon(_cancel_when_stopping, supervisor, asking)
            try:
                await _demonstrate(run, prompt)
                failure = None
                _engine_log.setLevel(logging.NOTSET)
            except (CliFault, NoGateway, ChannelError, aiohttp.ClientError) as error:
                if not supervisor.is_stopping:  # of one that is, nothing else can be expected
                    failure = str(error) or "the gateway ended while it was asked"
        if once or failure is not None:
            supervisor.stop()
        else:
            run.show.line("\nServing until Ctrl-C.")
    if serve_error is not None:
        raise serve_error
    return failure


async def _cancel_when_stopping(supervisor: Supervisor, asking: anyio.CancelScope) -> None:
    await supervisor.wait_until_stopping()
    asking.cancel()


async def _demonstrate(run: _Run, prompt: str) -> None:
    show, supervisor = run.show, run.prepared.supervisor
    show.line(f"Fareway listens on {supervisor.url}")
    address = urlsplit(supervisor.url)
    also(address.hostname or "", address.port or 80)  # this command asks its own gateway
    model = _model_to_ask(run.loaded)
    await _wait_for_engine(run, model)
    key = await _key(run.loaded)
    show.line(f"\n> {prompt}")
    answer = await _ask(supervisor.url, key, model, prompt)
    show.line(answer.text.strip() or "(the model answered with nothing)")
    row = await _ledger_row(run.loaded, answer.request_id)
    show.line(f"\nDecision     {row.model} -> {row.deployment}: {row.reason}")
    tokens = f"{row.input_tokens} in ({row.cached_input_tokens} cached), {row.output_tokens} out"
    cost = "unpriced" if row.cost_pico_usd is None else f"{format_usd(row.cost_pico_usd)} USD"
    ttft = "-" if row.ttft_us is None else f"{row.ttft_us / 1000:.0f} ms"
    show.line(f"Ledger       {row.request_id}  {tokens}  {cost}  TTFT {ttft}  {row.status}")
    if _is_nominal(run.loaded, row.deployment):
        show.line(
            "             (nominally 0.10 USD per machine hour; your rate: providers.local.price)"
        )
    show.line(f"\nBase URL     {supervisor.url}/v1")
    show.line(f"API key      {key}")
    show.line(f"Dashboard    {supervisor.url}/ui   (log in with the API key)")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    show.line(
        f"\ncurl {supervisor.url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'"
    )
    if isinstance(
        run.loaded.settings.providers.get(row.deployment.partition("/")[0]), LocalProvider
    ):
        show.line(f"\n{larger_model_advice()}")


def _model_to_ask(loaded: LoadedConfig) -> str:
    models = loaded.settings.models
    return "demo" if "demo" in models else next(iter(models))


def _is_nominal(loaded: LoadedConfig, deployment: str) -> bool:
    provider = loaded.settings.providers[deployment.partition("/")[0]]
    return isinstance(provider, LocalProvider) and not provider.price


async def _wait_for_engine(run: _Run, model: str) -> None:
    """Wait until a deployment of the model can serve."""
    names = [entry.deployment for entry in run.loaded.settings.models[model].deployments]
    told = False
    with anyio.move_on_after(ENGINE_TIMEOUT_S):
        while True:
            states = await _engine_states(run.loaded)
            waiting = {
                name: states[name]
                for name in names
                if states.get(name) not in (None, engines.READY)
            }
            if len(waiting) < len(names):
                run.show.end_download()
                return
            faults = [
                f"{name}: {state.removesuffix(engines.TRIED_AGAIN)}"
                for name, state in waiting.items()
                if state != engines.STARTING
            ]
            if len(faults) == len(names):
                run.show.end_download()
                raise CliFault("no model can be served: " + "; ".join(faults))
            if not told:
                run.show.line("Loading the model...")
                told = True
            await anyio.sleep(0.1)
    raise CliFault(f"the engine was not ready within {ENGINE_TIMEOUT_S:g} s")


async def _engine_states(loaded: LoadedConfig) -> dict[str, str]:
    return (await call_gateway(loaded, "status", result_type=ServiceStatus)).engines


async def _key(loaded: LoadedConfig) -> str:
    """The key of an earlier run while it is in use, or a new one of the first team."""
    path = loaded.state_dir / KEY_FILE
    in_use = {
        stored.record.key_id: stored.record.name
        for stored in await stored_keys(loaded)
        if not stored.record.disabled
    }
    if path.exists():
        text = read_secret_file(path)
        if parse_key_id(text.encode()) in in_use:
            return text
    team = next(iter(loaded.settings.teams))
    name = next(
        name
        for number in itertools.count(1)
        if (name := KEY_NAME if number == 1 else f"{KEY_NAME}-{number}") not in in_use.values()
    )
    made = await create_key(loaded, NewKeyOrder(team=team, name=name))
    path.touch(mode=0o600)
    path.write_text(made.text + "\n", encoding="ascii")
    return made.text


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Usage(msgspec.Struct):
    cost_usd: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


async def _ask(url: str, key: str, model: str, prompt: str) -> _Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS_MAX,
        "temperature": 0,
    }
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        raw = await response.read()
        if response.status != 200:
            raise CliFault(f"the request failed with {response.status}: {raw.decode()[:500]}")
        completion = msgspec.json.decode(raw, type=_Completion)
        return _Answer(
            text=completion.choices[0].message.content or "",
            deployment=response.headers["x-fareway-deployment"],
            request_id=response.headers["x-fareway-request-id"],
            cost_usd=completion.usage.cost_usd or "",
        )


async def _ledger_row(loaded: LoadedConfig, request_id: str) -> RecentRequest:
    await call_gateway(loaded, "flush", result_type=type(None))
    rows = await call_gateway(loaded, "recent_requests", 50, result_type=list[RecentRequest])
    found = next((row for row in rows if row.request_id == request_id), None)
    if found is None:
        raise CliFault(f"request {request_id} is not in the ledger")
    return found
