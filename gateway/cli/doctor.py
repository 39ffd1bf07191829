"""`fareway doctor`: what works on this machine, what does not, and the mend.

Every check measures or asks the thing itself: the overview is timed in a process of its own, a
worker's imports are listed by a process that imports it, the database is read, the running gateway
is asked.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import anyio
import msgspec
import typer

from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.configured import load_guarded
from gateway.cli.fitting import (
    BYTES_PER_WEIGHT,
    OVERHEAD_BYTES,
    USABLE_RATIO,
    largest_that_fits,
    memory_bytes,
)
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import Clock, from_microseconds, system_clock
from gateway.process.engines import READY, STARTING
from gateway.process.messages import ServiceStatus
from gateway.process.preflight import require_collector, require_provider_keys
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.errors import ConfigError, SettingsError
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider
from gateway.settings.unbuilt import unbuilt

HELP_S_MAX = 0.5
HELP_RUNS = 3
KEPT_OUT = ("torch", "transformers", "litellm", "sqlalchemy", "fastapi", "typer", "alembic")
"""What a worker must not load to start and to serve chat (contract 10)."""

PACKAGES = ("fareway", "torch", "tokenizers", "aiohttp", "uvicorn", "msgspec", "sqlalchemy")
SPOOL_FREE_BYTES_MIN = 256 * 1024**2
"""About a million attempts; below it, days of traffic could fill the disk during an outage."""

PROBE_TIMEOUT_S = 120.0

_SHOW_HELP = ("-c", "from gateway.cli.main import main; main(['--help'])")
_LIST_IMPORTS = """
import sys, gateway.process.worker
print(*[name for name in sys.argv[1:] if name in sys.modules])
"""
_NO_TORCH = "No module named 'torch'"
_PROBE_DEVICE = """
import json, torch
found = torch.cuda.is_available()
card = torch.cuda.get_device_properties(0) if found else None
print(json.dumps({
    "device": "cuda" if found else "cpu",
    "name": card.name if card else "",
    "memory_bytes": card.total_memory if card else 0,
    "threads": torch.get_num_threads(),
}))
"""


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    NOTE = "note"
    """Nothing is broken, and something is worth knowing."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding.

    Attributes:
        name: What was checked.
        verdict: How it came out.
        detail: What was found, and the mend where something is broken.
        facts: The same for programs.
    """

    name: str
    verdict: Verdict
    detail: str
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's back end computes on.

    Attributes:
        device: `cpu` or `cuda`.
        name: Of the GPU, empty for a CPU.
        memory_bytes: Of the GPU, 0 for a CPU.
        threads: That the back end uses on a CPU.
    """

    device: str
    name: str
    memory_bytes: int
    threads: int


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check this machine and this installation; exit 1 when something is broken."""
    checks = list(examine(config, clock=system_clock()))
    is_sound = all(check.verdict is not Verdict.BROKEN for check in checks)
    if as_json:
        document = {"ok": is_sound, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for check in checks:
            typer.echo(f"{check.verdict:<7} {check.name}: {check.detail}")
    if not is_sound:
        raise typer.Exit(1)


def examine(config: Path | None, *, clock: Clock) -> Iterator[Check]:
    """Run every check; those that need a sound configuration are left out without one.

    Args:
        config: The configuration file, None for the usual places.
        clock: For durations.
    """
    yield check_help(clock)
    yield check_imports()
    yield check_versions()
    loaded: LoadedConfig | None = None
    try:
        loaded = load_guarded(config, environ=process_environ(), today=datetime.now(UTC).date())
    except ConfigError as error:
        yield Check(name="configuration", verdict=Verdict.BROKEN, detail=str(error))
    else:
        yield check_configuration(loaded)
    yield from check_engine(needs_engine=loaded is not None and _has_local(loaded))
    if loaded is not None:
        yield check_spool(loaded)
        yield check_database(loaded)
        yield from check_daily(loaded)
        yield anyio.run(check_gateway, loaded)


def check_help(clock: Clock, arguments: Sequence[str] = _SHOW_HELP) -> Check:
    """Time the overview of commands in a process of its own, median of three.

    Args:
        clock: For durations.
        arguments: Of the Python that is timed.
    """
    durations_s: list[float] = []
    for _ in range(HELP_RUNS):
        started_s = clock.monotonic_s()
        done = _python(*arguments)
        durations_s.append(clock.monotonic_s() - started_s)
        if done.returncode:
            detail = f"it fails: {_last_line(done.stderr)}"
            return Check(name="fareway --help", verdict=Verdict.BROKEN, detail=detail)
    median_s = statistics.median(durations_s)
    is_quick = median_s < HELP_S_MAX
    return Check(
        name="fareway --help",
        verdict=Verdict.OK if is_quick else Verdict.BROKEN,
        detail=f"{median_s:.2f} s, median of {HELP_RUNS}; under {HELP_S_MAX:g} s is expected",
        facts={"median_s": round(median_s, 3), "limit_s": HELP_S_MAX},
    )


def check_imports(kept_out: Sequence[str] = KEPT_OUT) -> Check:
    """List what a worker loads of the packages that it must do without.

    Args:
        kept_out: Top-level packages.
    """
    done = _python("-c", _LIST_IMPORTS, *kept_out)
    leaks = done.stdout.split()
    if done.returncode:
        return Check(
            name="worker imports",
            verdict=Verdict.BROKEN,
            detail=f"a worker cannot be imported: {_last_line(done.stderr)}",
        )
    return Check(
        name="worker imports",
        verdict=Verdict.BROKEN if leaks else Verdict.OK,
        detail=f"loads {', '.join(leaks)}" if leaks else f"none of {', '.join(kept_out)}",
        facts={"leaks": leaks},
    )


def check_versions() -> Check:
    """Python and the packages that matter; nothing is judged, pip has checked the ranges."""
    found: dict[str, str] = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    return Check(name="versions", verdict=Verdict.OK, detail=text, facts=found)


def check_configuration(loaded: LoadedConfig) -> Check:
    """Whether the configuration can be served."""
    name = str(loaded.files[0]) if loaded.files else "built-in defaults"
    pending = unbuilt(loaded)
    if pending:
        return Check(
            name="configuration",
            verdict=Verdict.NOTE,
            detail=f"{name}: `fareway serve` refuses {len(pending)} settings that are not built "
            f"yet, first {pending[0]}",
        )
    environ = process_environ()
    try:
        require_provider_keys(loaded, environ)
        require_collector(loaded, environ)
    except ConfigError as error:
        # No fault: the service may have variables and rights that this shell lacks.
        return Check(
            name="configuration",
            verdict=Verdict.NOTE,
            detail=f"{name}: `fareway serve`, run from this shell, refuses: {error}",
        )
    return Check(name="configuration", verdict=Verdict.OK, detail=name)


def check_engine(*, needs_engine: bool) -> Iterator[Check]:
    """The device, the back end that computes on it, and the model that would fit.

    Args:
        needs_engine: Whether the configuration has a local provider.
    """
    done = _python("-c", _PROBE_DEVICE)
    try:
        device = msgspec.json.decode(done.stdout.strip() or b"null", type=Device)
    except msgspec.DecodeError:
        said = _last_line(done.stderr)
        mend = ": pip install 'fareway[local]'" if _NO_TORCH in said else ""
        yield Check(
            name="engine",
            verdict=Verdict.BROKEN if needs_engine else Verdict.NOTE,
            detail=f"no local model runs, torch cannot be used ({said}){mend}",
        )
        return
    where = f"{device.name} (cuda)" if device.name else f"cpu, {device.threads} threads"
    yield Check(
        name="engine",
        verdict=Verdict.OK,
        detail=f"torch back end on {where}",
        facts=msgspec.structs.asdict(device),
    )
    yield fitting_model(device.memory_bytes or memory_bytes())


def fitting_model(total_bytes: int) -> Check:
    """Which larger model this memory holds, with the arithmetic.

    Args:
        total_bytes: Memory of the device.
    """
    formula = (
        f"parameters x {BYTES_PER_WEIGHT} B + {OVERHEAD_BYTES / 1e9:.1f} GB within "
        f"{USABLE_RATIO:.0%} of {total_bytes / 1e9:.1f} GB"
    )
    model = largest_that_fits(total_bytes)
    if model is None:
        detail = f"none larger than the demonstration model ({formula})"
        return Check(name="fitting model", verdict=Verdict.NOTE, detail=detail)
    return Check(
        name="fitting model",
        verdict=Verdict.OK,
        detail=f"{model.name} needs {model.needed_bytes / 1e9:.1f} GB ({formula}); "
        f"source {model.source}",
        facts={"model": model.name, "source": model.source, "needed_bytes": model.needed_bytes},
    )


def check_spool(loaded: LoadedConfig, *, free_bytes_min: int = SPOOL_FREE_BYTES_MIN) -> Check:
    """Free disk where the journal lies, or will.

    Args:
        loaded: The configuration.
        free_bytes_min: What must be free.
    """
    folder = loaded.spool_dir
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    free_bytes = shutil.disk_usage(existing).free
    is_enough = free_bytes >= free_bytes_min
    mend = "" if is_enough else "; free some, or move storage.spool_dir"
    return Check(
        name="spool",
        verdict=Verdict.OK if is_enough else Verdict.BROKEN,
        detail=f"{free_bytes / 1e9:.1f} GB free for {folder}{mend}",
        facts={"path": str(folder), "free_bytes": free_bytes},
    )


def check_database(loaded: LoadedConfig) -> Check:
    """Whether the ledger's database answers and has this release's schema."""
    from sqlalchemy.exc import DatabaseError  # heavy, and only this check needs it

    from gateway.ledger.database import is_postgresql, sqlite_path
    from gateway.ledger.errors import LedgerError
    from gateway.ledger.keys import list_keys
    from gateway.ledger.reading import read_ledger

    shown = loaded.database_url
    try:
        url = connection_url(loaded, environ=process_environ())
        if not is_postgresql(url) and not sqlite_path(url).exists():
            return Check(
                name="database",
                verdict=Verdict.NOTE,
                detail=f"none at {sqlite_path(url)} yet; `fareway serve` makes it",
            )
        keys = read_ledger(url, list_keys)
    except (LedgerError, SettingsError) as error:
        return Check(name="database", verdict=Verdict.BROKEN, detail=str(error))
    except DatabaseError as error:
        detail = f"{shown} cannot be read: {error.orig}"
        return Check(name="database", verdict=Verdict.BROKEN, detail=detail)
    detail = f"{shown.removeprefix('sqlite:///')} answers, {len(keys)} keys made here"
    return Check(name="database", verdict=Verdict.OK, detail=detail)


def check_daily(loaded: LoadedConfig) -> Iterator[Check]:
    """What the last daily check of the ledger found; nothing while there was none."""
    from gateway.ledger.check_plan import load_state  # heavy, like the check before
    from gateway.ledger.errors import LedgerError
    from gateway.ledger.reading import read_ledger

    try:
        state = read_ledger(connection_url(loaded, environ=process_environ()), load_state)
    except (LedgerError, SettingsError):
        return  # told by the check of the database
    if not state.finished_at_us:
        return
    at = from_microseconds(state.finished_at_us)
    detail = f"{at:%Y-%m-%d %H:%M} UTC, {state.days} days, {state.findings} findings"
    if state.told:
        detail += f": {'; '.join(state.told)}"
    if state.faulty_days:
        detail += ". Sums are made anew by `fareway ledger verify --rebuild`"
    yield Check(
        name="daily check",
        verdict=Verdict.BROKEN if state.findings else Verdict.OK,
        detail=detail,
        facts={"finished_at_us": state.finished_at_us, "findings": state.findings},
    )


async def check_gateway(loaded: LoadedConfig) -> Check:
    """What the running gateway of this configuration says of itself."""
    try:
        status = await call_gateway(loaded, "status", result_type=ServiceStatus)
    except NoGateway:
        detail = "not running; `fareway serve` starts it"
        return Check(name="gateway", verdict=Verdict.NOTE, detail=detail)
    except ChannelError as error:
        detail = f"it is there and does not answer: {error}"
        return Check(name="gateway", verdict=Verdict.BROKEN, detail=detail)
    news_fault, pool_fault = await _ledger_faults(loaded)
    return judge_status(status, news_fault=news_fault, pool_fault=pool_fault)


async def _ledger_faults(loaded: LoadedConfig) -> tuple[str, str]:
    """Why other machines' changes are not heard of, and why Redis does not help with budgets.

    Empty where it is so.
    """
    try:
        stats = await call_gateway(loaded, "stats", result_type=dict[str, object])
    except (NoGateway, ChannelError):
        return "", ""  # the ledger process is being started, and hears of everything then
    return str(stats["news_fault"]), str(stats["pool_fault"])


def judge_status(status: ServiceStatus, *, news_fault: str = "", pool_fault: str = "") -> Check:
    """Broken when an engine is neither ready nor on its way, or files or news were not taken.

    Budgets without the help of Redis are as right, and slower.
    """
    faults = [
        f"{name}: {state}"
        for name, state in status.engines.items()
        if state not in (READY, STARTING)
    ]
    processes = ", ".join(f"{name} {pid}" for name, pid in status.pids.items())
    engines = "; ".join(faults) or ", ".join(f"{n} {s}" for n, s in status.engines.items())
    detail = f"{status.url}; processes {processes}; engines: {engines or 'none'}"
    if status.reload_fault:
        detail += f"; the configuration on disk was not taken: {status.reload_fault}"
    if news_fault:
        detail += f"; keys and budgets that other machines change are not heard of: {news_fault}"
    if pool_fault:
        detail += f"; budgets are granted by the database alone, without Redis: {pool_fault}"
    is_broken = faults or status.reload_fault or news_fault
    sound = Verdict.NOTE if pool_fault else Verdict.OK
    return Check(
        name="gateway",
        verdict=Verdict.BROKEN if is_broken else sound,
        detail=detail,
        facts=msgspec.structs.asdict(status),
    )


def _has_local(loaded: LoadedConfig) -> bool:
    providers = loaded.settings.providers.values()
    return any(isinstance(one, LocalProvider) and one.models for one in providers)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, returncode=124, stdout="", stderr=f"it took over {PROBE_TIMEOUT_S:g} s"
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
