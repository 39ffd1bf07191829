"""What a figure has to name beside itself: the code, the machine, the moment."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]


def code() -> str:
    """The commit of the checkout, `+changes` when files differ; the version of an installation."""
    ended = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout.strip() or f"fareway {metadata.version('fareway')}"


def machine() -> dict[str, object]:
    """Processor, cores, memory, system, Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def heading(kind: str) -> dict[str, object]:
    """The first members of a result file."""
    return {
        "kind": kind,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": code(),
        "machine": machine(),
    }


def result_path(kind: str) -> Path:
    """Where a result file of this moment goes: `bench/results` of a checkout, else where one is."""
    is_checkout = (CHECKOUT / "pyproject.toml").exists()
    folder = CHECKOUT / "bench" / "results" if is_checkout else Path.cwd()
    return folder / f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
