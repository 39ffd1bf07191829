"""Refuse uncovered branches where money and privacy are decided, and a falling whole.

Reads the coverage data that `make test` left behind. Packages under `complete` of
`tools/coverage_gates.toml` must have every line and branch covered; the whole may not fall below
`floor_percent`. The floor only ever goes up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
GATES = REPOSITORY / "tools" / "coverage_gates.toml"


def measured() -> dict[str, Any]:
    """Coverage as the `coverage` tool reports it in JSON.

    Raises:
        SystemExit: There is no coverage data.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "coverage.json"
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", str(target)]
        ended = subprocess.run(command, cwd=REPOSITORY, check=False)
        if ended.returncode or not target.exists():
            sys.exit("fareway: there is no coverage data; run make test first")
        return json.loads(target.read_text())


def gaps_of(files: dict[str, Any], package: str) -> list[str]:
    """Every uncovered line and branch of a package, one text each."""
    gaps: list[str] = []
    for name, report in sorted(files.items()):
        if not name.startswith(package.rstrip("/") + "/"):
            continue
        gaps += [f"{name}:{line} is not run" for line in report["missing_lines"]]
        gaps += [
            f"{name}:{start} never goes to {'the exit' if end < 0 else f'line {end}'}"
            for start, end in report["missing_branches"]
        ]
    return gaps


def main() -> int:
    """Check all gates and report every failure."""
    gates = tomllib.loads(GATES.read_text())
    report = measured()
    faults: list[str] = []
    for package in gates["complete"]:
        if not any(name.startswith(package + "/") for name in report["files"]):
            faults.append(f"{package} has no coverage data at all")
        faults += gaps_of(report["files"], package)
    whole = report["totals"]["percent_covered"]
    floor = gates["floor_percent"]
    if whole < floor:
        faults.append(f"coverage of the whole fell to {whole:.2f} %, the floor is {floor} %")
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"coverage of the whole: {whole:.2f} %, floor {floor} %\n")
    if whole > floor + 1:
        sys.stdout.write(f"raise floor_percent in {GATES.name} to {int(whole)}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
