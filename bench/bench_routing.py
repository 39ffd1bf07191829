"""What admission and decision cost as candidates grow, beside a plain sort of as many prices.

    .venv/bin/python -m bench.bench_routing [--rounds N] [--json FILE]

The sort is the limit: somebody has to order the candidates. Everything above it is what tags,
trust, capabilities, prices and reasons cost. Decisions come from the same parts that a worker uses,
made by its composition root from a configuration with so many deployments.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.gateway.cases import ONE_KIB, PLAIN, Case
from bench.gateway.fareway import KEY_VARIABLE
from bench.gateway.provenance import heading
from bench.gateway.targets import KEY
from gateway.admission.admit import Admission
from gateway.app import build_admission, load_credentials
from gateway.auth.directory import Principal
from gateway.clock import Clock, system_clock
from gateway.dialects import openai_chat
from gateway.dialects.controls import read_controls
from gateway.health import HealthBoard
from gateway.http.messages import Headers
from gateway.process.provider_setup import set_up_providers
from gateway.settings.loader import LoadedConfig, load

COUNTS = (3, 10, 30)
ROUNDS = 2_000
PROVIDERS = 3


def settings(count: int) -> dict[str, object]:
    """A configuration whose model has so many priced deployments at three providers."""
    return {
        "providers": {
            f"p{index}": {
                "kind": "openai_compatible",
                "base_url": f"http://127.0.0.1:{9 + index}/v1",
                "trust": ["no_train"],
            }
            for index in range(PROVIDERS)
        },
        "models": {
            PLAIN: {
                "deployments": [
                    {
                        "deployment": f"p{index % PROVIDERS}/m{index}",
                        "price": {
                            "input_usd_per_mtok": f"0.{index + 100}",
                            "output_usd_per_mtok": f"0.{index + 200}",
                        },
                    }
                    for index in range(count)
                ]
            }
        },
        "teams": {
            "bench": {
                "tags": ["internal"],
                "keys": [{"name": "bench", "value_env": KEY_VARIABLE}],
            }
        },
        "privacy": {"tags": {"internal": {"require": ["no_train"]}}},
    }


def parts(folder: Path, count: int) -> tuple[Admission, Principal, Clock]:
    """A worker's admission, and the key's principal."""
    path = folder / f"{count}.yaml"
    path.write_text(json.dumps(settings(count)))
    environ = {KEY_VARIABLE: KEY, "FAREWAY_STATE_DIR": str(folder)}
    clock = system_clock()
    config: LoadedConfig = load(path, environ=environ)
    admission = build_admission(
        config.settings,
        providers=set_up_providers(config, environ=environ, links={}),
        health=HealthBoard(monotonic_s=clock.monotonic_s),
        clock=clock,
    )
    directory = load_credentials(config, environ).directory((), 0)
    headers: Headers = [(b"authorization", f"Bearer {KEY}".encode())]
    principal = directory.authenticate(headers, now_us=clock.wall_us())
    assert isinstance(principal, Principal)
    return admission, principal, clock


def microseconds(call: Callable[[], object], rounds: int) -> float:
    """The mean of many calls, after a tenth more."""
    for _ in range(rounds // 10):
        call()
    started_ns = time.perf_counter_ns()
    for _ in range(rounds):
        call()
    return (time.perf_counter_ns() - started_ns) / rounds / 1e3


def measure(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Admission with decision, and a plain sort, for so many candidates."""
    admission, principal, clock = parts(folder, count)
    body = Case(name="routing", about="", connections=1, messages=ONE_KIB).body(PLAIN)
    parsed = openai_chat.parse(body)
    controls = read_controls([], parsed.metadata)
    prices = [random.Random(count).random() for _ in range(count)]

    def admit() -> object:
        return admission.admit(principal, parsed, controls, wall_us=clock.wall_us())

    decided_us = microseconds(admit, max(20, rounds * 3 // count))
    sorted_us = microseconds(lambda: sorted(prices), rounds)
    return {
        "admit_us": round(decided_us, 2),
        "admit_us_per_candidate": round(decided_us / count, 2),
        "sort_us": round(sorted_us, 3),
        "ratio": round(decided_us / sorted_us, 1),
    }


class _Arguments(argparse.Namespace):
    rounds: int
    json: Path | None


def main() -> None:
    """Measure each count and print it."""
    parser = argparse.ArgumentParser(description="Admission and decision beside a plain sort.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(namespace=_Arguments())
    found: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="fareway-routing-") as folder:
        for count in COUNTS:
            found[str(count)] = figures = measure(Path(folder), count, given.rounds)
            print(
                f"{count:4d} candidates: admission and decision {figures['admit_us']:9.1f} µs"
                f" ({figures['admit_us_per_candidate']:.2f} each), a plain sort"
                f" {figures['sort_us']:7.2f} µs, ratio {figures['ratio']:.0f}"
            )
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**heading("routing"), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
