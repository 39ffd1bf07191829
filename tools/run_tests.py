"""Run the test suite in its tiers and say how long each took.

`unit`   everything unmarked: no server, no browser, nothing that takes a second
`slow`   what starts processes and databases, and what takes seconds
`ci`     what takes many seconds and fails seldom: loops of kills, attacks by the thousand, every
         page at every width, every client; `.ci/run` runs it, `make test` does not
`soak`   full counts; writes a result file with commit, seed and machine to `bench/results/`

`--coverage` measures branches in all but the last, for `tools/coverage_gates.py`; it doubles
their time. Properties are tried with 50 examples where `ci` is among the tiers, else with 20.
Every tier of a run shares one seed. It is drawn anew each time, printed first and last,
and `FAREWAY_SEED` repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "bench" / "results"

UNIT_BUDGET_S = 90
NO_TESTS = 5
"""pytest's exit status when a selection is empty."""

NEVER_HERE = "not gpu and not live"


@dataclass(frozen=True, kw_only=True)
class Tier:
    """How one part of the suite is run.

    Attributes:
        selection: pytest's marker expression.
        arguments: Further arguments.
    """

    selection: str
    arguments: tuple[str, ...]


COVERAGE = ("--cov", "--cov-report=")
TIERS = {
    "unit": Tier(
        selection=f"not slow and not ci and not soak and {NEVER_HERE}",
        # Three processes for two cores: about a third of the part's time is waiting, for sockets,
        # disks and deadlines, and what waits leaves its core to the others.
        arguments=("-n3", "--dist=worksteal"),
    ),
    "slow": Tier(
        selection=f"slow and not ci and not soak and {NEVER_HERE}",
        # A file stays with one process, and what serves its tests is started once. Three processes
        # for two cores: two fifths of this part is waiting, for processes to start, for deadlines
        # and for disks.
        arguments=("--timeout=400", "-n3", "--dist=loadfile"),
    ),
    "ci": Tier(
        selection=f"ci and not soak and {NEVER_HERE}",
        # Two: most of these load every core by themselves.
        arguments=("--timeout=400", "-n2", "--dist=loadfile"),
    ),
    "soak": Tier(
        selection=f"(slow or ci or soak) and {NEVER_HERE}",
        arguments=("--timeout=14400",),
    ),
}


def say(text: str) -> None:
    """Print one line at once, so that it stands where it belongs in a log."""
    sys.stdout.write(f"fareway: {text}\n")
    sys.stdout.flush()


def run_tier(name: str, *, seed: int, more: list[str], report: Path | None = None) -> int:
    """Run one tier and return pytest's status, an empty selection counting as passed."""
    tier = TIERS[name]
    command = [sys.executable, "-m", "pytest", "-q", "--durations=10", "-m", tier.selection]
    command += [*tier.arguments, *more]
    if report is not None:
        command.append(f"--junit-xml={report}")
    started = time.monotonic()
    environment = {**os.environ, "FAREWAY_SEED": str(seed)}
    # Hundreds of the tests' children import our packages; a machine that keeps no compiled modules
    # would compile them in each.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    status = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
    took_s = time.monotonic() - started
    verdict = "passed" if status in (0, NO_TESTS) else f"failed with status {status}"
    say(f"{name} tests {verdict} in {took_s:.0f} s")
    if name == "unit" and took_s > UNIT_BUDGET_S:
        say(f"that is over the unit part's budget of {UNIT_BUDGET_S} s; see the durations above")
    return 0 if status == NO_TESTS else status


def profile_of(name: str, tiers: list[str]) -> str:
    """How many examples a tier's properties are tried with, as hypothesis names it."""
    if name == "soak":
        return "soak"
    return "ci" if "ci" in tiers else "dev"


def commit_of(repository: Path) -> str:
    """The commit that is checked out, `+changes` when files differ, `unknown` outside git."""
    head = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return head.stdout.strip() or "unknown"


def machine() -> dict[str, str | int | None]:
    """What a figure has to name beside itself."""
    model = "unknown"
    cpu_file = Path("/proc/cpuinfo")
    if cpu_file.exists():
        names = [
            line for line in cpu_file.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def write_result(report: Path, *, seed: int, status: int) -> Path:
    """Turn pytest's report into a result file and return its path."""
    cases = [
        {
            "test": f"{case.get('classname')}::{case.get('name')}",
            "took_s": float(case.get("time", "0")),
            "outcome": next((child.tag for child in case if child.tag != "properties"), "passed"),
            "figures": {item.get("name"): item.get("value") for item in case.iter("property")},
        }
        for case in ET.parse(report).getroot().iter("testcase")
    ]
    now = datetime.now(UTC)
    result = {
        "kind": "soak",
        "at": now.isoformat(timespec="seconds"),
        "commit": commit_of(REPOSITORY),
        "seed": seed,
        "machine": machine(),
        "status": status,
        "tests": cases,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"soak-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def main() -> int:
    """Run the named tiers in order; stop at the first that fails."""
    parser = argparse.ArgumentParser(description="Run the test suite in tiers.")
    parser.add_argument("tiers", nargs="+", choices=TIERS)
    parser.add_argument("--coverage", action="store_true", help="measure branches; twice the time")
    options, more = parser.parse_known_args()
    seed = int(os.environ.get("FAREWAY_SEED") or secrets.randbelow(2**31))
    say(f"seed {seed}; FAREWAY_SEED={seed} make test repeats this run")
    status = 0
    measured = False
    for name in options.tiers:
        report = REPOSITORY / "bench" / "soak-report.tmp.xml" if name == "soak" else None
        arguments = [f"--hypothesis-profile={profile_of(name, options.tiers)}"]
        if options.coverage and name != "soak":
            arguments += [*COVERAGE, *(["--cov-append"] if measured else [])]
            measured = True
        status = run_tier(name, seed=seed, more=[*arguments, *more], report=report)
        if report is not None and report.exists():
            say(f"result: {write_result(report, seed=seed, status=status)}")
            report.unlink()
        if status:
            break
    say(f"seed was {seed}")
    return status


if __name__ == "__main__":
    sys.exit(main())
