"""Fareway as its users run it: `fareway serve` with a configuration file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.gateway.cases import MODELS
from bench.gateway.faults import BenchFault
from bench.gateway.targets import KEY, Launch, Place, Target

CONFIGURATION = "fareway.yaml"
DATABASE = "bench.db"
SPOOL = "spool"
KEY_VARIABLE = "BENCH_KEY"
READY_WITHIN_S = 60.0

PRICES: tuple[Mapping[str, str], ...] = (
    {"input": "0.05", "cached_input": "0.01", "output": "0.08"},
    {"input": "0.06", "cached_input": "0.01", "output": "0.09"},
    {"input": "0.07", "cached_input": "0.02", "output": "0.10"},
)
"""USD per million tokens of the three deployments; they differ, so that routing has to choose."""
LIMITS: Mapping[str, int] = {"rpm": 10_000_000, "tpm": 10_000_000_000, "concurrency": 10_000}
"""Of the key, the team and each model, where there are any; no load reaches them."""
SUFFIXES = ("", "-b", "-c")
"""Words that the mock ignores, so that the three deployments answer alike."""


def command_line() -> tuple[str, ...]:
    """The `fareway` command of this environment.

    Raises:
        BenchFault: It is not installed.
    """
    beside = Path(sys.executable).parent / "fareway"
    found = str(beside) if beside.exists() else shutil.which("fareway")
    if found is None:
        raise BenchFault("there is no fareway command in this environment")
    return (found,)


def environment(folder: Path) -> Mapping[str, str]:
    """What every `fareway` command of a run needs."""
    return {KEY_VARIABLE: KEY, "FAREWAY_STATE_DIR": str(folder)}


def configuration(place: Place, durability: str, *, is_limited: bool = False) -> str:
    """The file: one key, one team with a tag, three priced deployments of each model.

    JSON is YAML; nothing here needs quoting rules of its own.

    Args:
        place: Where it runs.
        durability: `storage.durability`.
        is_limited: With budgets and rate limits in force that the load never reaches.
    """
    limits = {"limits": dict(LIMITS)} if is_limited else {}
    budget = {"budget": {"usd": 1_000_000, "window": "month"}} if is_limited else {}
    key = {"name": "bench", "value_env": KEY_VARIABLE, **limits, **budget}
    models: dict[str, object] = {}
    for model in MODELS:
        models[model] = {
            **limits,
            "deployments": [
                {"deployment": f"up/{model}{suffix}", "price": _price(rates)}
                for suffix, rates in zip(SUFFIXES, PRICES, strict=True)
            ],
        }
    settings: dict[str, object] = {
        "server": {"port": place.port},
        "storage": {
            "database": f"sqlite:///{place.folder / DATABASE}",
            "spool_dir": str(place.folder / SPOOL),
            "durability": durability,
        },
        "providers": {
            "up": {
                "kind": "openai_compatible",
                "base_url": f"{place.mock_url}/v1",
                "trust": ["no_train"],
            }
        },
        "models": models,
        "teams": {"bench": {"tags": ["internal"], "keys": [key], **limits, **budget}},
        **({"organisation": budget} if is_limited else {}),
        "privacy": {"tags": {"internal": {"require": ["no_train"]}}},
    }
    return json.dumps(settings, indent=1)


def _price(rates: Mapping[str, str]) -> dict[str, str]:
    return {f"{meter}_usd_per_mtok": rate for meter, rate in rates.items()}


def target(durability: str = "group", *, name: str = "fareway", is_limited: bool = False) -> Target:
    """Fareway with one worker, everything on.

    Args:
        durability: `storage.durability`.
        name: What the table calls it.
        is_limited: With budgets and rate limits.
    """
    is_beside = is_limited or durability == "strict"
    more = ", budgets and rate limits" if is_limited else ""

    def prepare(place: Place) -> Launch:
        path = place.folder / CONFIGURATION
        path.write_text(configuration(place, durability, is_limited=is_limited))
        return Launch(
            command=(*command_line(), "serve", "--config", str(path)),
            environment=environment(place.folder),
            headers={"Authorization": f"Bearer {KEY}"},
            ready_within_s=READY_WITHIN_S,
        )

    return Target(
        name=name,
        about=f"fareway serve, one worker, durability {durability}, key, policy, metrics{more}",
        prepare=prepare,
        is_fareway=True,
        durability=durability,
        cases=("c1", "max") if is_beside else None,
    )


def run_command(folder: Path, *words: str, timeout_s: float = 600.0) -> dict[str, object]:
    """Run a reading `fareway` command on the configuration of a folder; its JSON.

    Raises:
        BenchFault: It prints none.
    """
    ended = subprocess.run(
        [*command_line(), *words, "--json", "--config", str(folder / CONFIGURATION)],
        cwd=folder,
        env={**os.environ, **environment(folder)},
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    try:
        return msgspec.json.decode(ended.stdout, type=dict[str, object])
    except msgspec.DecodeError as error:
        said = ended.stderr.decode(errors="replace").strip()[-500:]
        raise BenchFault(f"fareway {' '.join(words)} printed no JSON: {said}") from error
