"""`fareway bench`: measurements that print ratios against peers or against this machine's limits.

The benchmarks are a package of their own; nothing of it is loaded until one of them runs.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.faults import CliFault

app = typer.Typer(help="Measure this machine.", rich_markup_mode=None)

JsonFileOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the figures too.", show_default=False),
]

_ENGINE_BENCH_NEEDS = ("torch", "tokenizers", "transformers", "gguf")


@app.callback()
def bench() -> None:
    """Measure Fareway on this machine, beside its peers or the machine's limits."""


@app.command("gateway", short_help="Fareway and installed peers under one load.")
def bench_gateway(
    quick: Annotated[
        bool, typer.Option("--quick", help="One short repetition, for a first look.")
    ] = False,
    cases: Annotated[
        str, typer.Option(help="Only these, separated by commas.", show_default=False)
    ] = "",
    only: Annotated[
        str,
        typer.Option(help="Only these targets, separated by commas.", show_default=False),
    ] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Where a peer is installed.", show_default=False),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with a peer under each name.", show_default=False),
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Medians are shown.")] = 3,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.2, max=100, help="Measured time of a case.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="On the disk to be measured.", show_default=False),
    ] = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="Only the time of each part inside the worker.")
    ] = False,
    soak: Annotated[
        bool, typer.Option("--soak", help="Memory over many requests, a tenth of them left.")
    ] = False,
    requests: Annotated[int, typer.Option(min=100, help="Of the soak.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Of the soak's choice who leaves.")] = 1,
    json_file: JsonFileOption = None,
) -> None:
    """Run Fareway and installed peers on a mock upstream; exit 1 when the ledger is wrong."""
    from bench.gateway.command import run_bench, run_soak, run_stages
    from bench.gateway.faults import BenchFault
    from bench.gateway.run import Options

    options = Options(
        peers=_peers(peer or []),
        peer_folder=peers,
        only=_names(only),
        cases=_names(cases),
        repetitions=repetitions,
        seconds=seconds,
        is_quick=quick,
        state=state,
        json_file=json_file,
    )
    try:
        if stages:
            run_stages(options)
        elif soak:
            run_soak(options, requests=requests, seed=seed)
        else:
            run_bench(options)
    except BenchFault as fault:
        raise CliFault(str(fault)) from fault


@app.command("routing", short_help="Admission and decision beside a plain sort.")
def bench_routing(json_file: JsonFileOption = None) -> None:
    """Time admission and decision with 3, 10 and 30 candidates."""
    _run_module("bench.bench_routing", json_file)


@app.command("detect", short_help="Detectors beside a plain loop over their patterns.")
def bench_detect(json_file: JsonFileOption = None) -> None:
    """Time the detectors on requests of several kinds of text and lengths."""
    _run_module("bench.bench_detect", json_file)


@app.command("policy", short_help="A proof of a large privacy policy.")
def bench_policy(json_file: JsonFileOption = None) -> None:
    """Time the proof of a policy with 10 tags, 100 models and 300 deployments."""
    _run_module("bench.bench_policy", json_file)


@app.command("ledger", short_help="Journal, loader and reports beside this disk and the databases.")
def bench_ledger(
    only: Annotated[
        str,
        typer.Option(metavar="PARTS", help="journal, postgres, reports; all when empty."),
    ] = "",
    json_file: JsonFileOption = None,
) -> None:
    """Time journal, loader and reports beside what this disk and the databases can do."""
    _run_module("bench.bench_ledger", json_file, *(("--only", only) if only else ()))


@app.command("engine", short_help="The embedded engine beside transformers.")
def bench_engine(json_file: JsonFileOption = None) -> None:
    """Time the embedded engine beside transformers on the same model; needs transformers."""
    missing = [name for name in _ENGINE_BENCH_NEEDS if find_spec(name) is None]
    if missing:
        raise CliFault(
            f"{' and '.join(missing)} cannot be imported;"
            " run pip install 'fareway[local]' transformers gguf"
        )
    _run_module("bench.bench_engine", json_file)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _peers(given: list[str]) -> dict[str, Path]:
    """Paths by name; anything that is no `NAME=PATH` is wrong usage."""
    found: dict[str, Path] = {}
    for each in given:
        name, _, path = each.partition("=")
        if not name or not path:
            raise typer.BadParameter(f"{each!r} is not NAME=PATH", param_hint="--peer")
        found[name] = Path(path)
    return found


def _run_module(module: str, json_file: Path | None, *options: str) -> None:
    """Run a benchmark in a process of its own, as it may set up threads for all of a process."""
    arguments = [] if json_file is None else ["--json", str(json_file.absolute())]
    ended = subprocess.run([sys.executable, "-m", module, *options, *arguments], check=False)
    if ended.returncode:
        raise CliFault(f"the benchmark ended with status {ended.returncode}")
