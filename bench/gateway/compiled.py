"""The load generator and the mock upstream: C programs, compiled when first needed.

They are in C so that the load is never what is measured: on one core together they carry several
times what any gateway here can. The programs are kept in the user's cache folder under a digest of
their source, so that a changed source is compiled anew and nothing is written into the tree.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs

from bench.gateway.faults import BenchFault

SOURCES = Path(__file__).resolve().parent / "native"
FLAGS = ("-O2", "-Wall", "-Wextra", "-std=gnu11")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 120.0


def cache_folder() -> Path:
    """Where compiled programs and peers are kept on this machine."""
    return platformdirs.user_cache_path("fareway", appauthor=False) / "bench"


def program(name: str, *, cache: Path | None = None, path: str | None = None) -> Path:
    """A compiled program, made now when it is not there yet.

    Args:
        name: `loadgen` or `mock_upstream`.
        cache: Where it is kept; the user's cache folder when None.
        path: Where a compiler is looked for; `PATH` when None.

    Raises:
        BenchFault: This is not Linux, there is no compiler, or the source does not compile with it.
    """
    if sys.platform != "linux":
        raise BenchFault("the benchmark reads Linux's /proc; run it in a container elsewhere")
    source = SOURCES / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    folder = (cache or cache_folder()) / "bin" / digest[:16]
    target = folder / name
    if target.exists():
        return target
    compiler = _compiler(path)
    folder.mkdir(parents=True, exist_ok=True)
    # Two benchmarks may compile at once: each its own file, the rename is atomic.
    unfinished = folder / f"{name}.{os.getpid()}"
    ended = subprocess.run(
        [compiler, *FLAGS, "-o", str(unfinished), str(source)],
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise BenchFault(f"{compiler} cannot compile {source.name}: {ended.stderr.strip()[:500]}")
    unfinished.rename(target)
    return target


def _compiler(path: str | None) -> str:
    for name in COMPILERS:
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    raise BenchFault(
        "the benchmark's load generator is a C program and there is no C compiler here;"
        " install one (Debian: apt-get install gcc libc6-dev) and run this again"
    )
