"""Create `.venv` and install Fareway into it, once.

Run by `make` under the machine's own Python with nothing installed, so only the standard library is
used here. Dependencies are pinned with hashes (`requirements/`), torch alone by version, since its
build depends on the machine. A stamp in `.venv` keeps what the installation was made from (a digest
of `pyproject.toml`, the pins and the Python version) and which extras it holds; when both still
fit, nothing is done. What goes wrong ends in one sentence that says how to mend it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RUN_LOCK = "requirements/run.txt"
TEST_LOCK = "requirements/test.txt"
SOURCES = ("pyproject.toml", "constraints.txt", RUN_LOCK, TEST_LOCK)
RUN_EXTRAS = frozenset({"local"})
TORCH_EXTRAS = frozenset({"local", "torch"})
STAMP = "fareway-installed.json"
GIB = 1 << 30

DISK_MIN_BYTES = 3 * GIB
"""With less, no selection of extras that `make` uses fits."""

DISK_CUDA_BYTES = 12 * GIB
"""What the CUDA build of torch needs while it is downloaded and unpacked."""

# What pip writes to its log, and what a person should do about it. The first match counts.
FAULTS = {
    r"No space left on device|Errno 28": (
        "the disk is full: free at least 12 GiB in this folder and in the temporary folder"
        " (TMPDIR), then run make again"
    ),
    r"SSLError|CERTIFICATE_VERIFY_FAILED": (
        "the package index has a certificate that this machine does not trust: name the"
        " certificate file (PIP_CERT), then run make again"
    ),
    r"name resolution|NewConnectionError|Failed to establish|ConnectTimeout|ReadTimeout"
    r"|Network is unreachable|ProxyError|Connection refused|Max retries exceeded"
    r"|from versions: none": (
        "the Python package index cannot be reached: check the network and the proxy"
        " (HTTPS_PROXY), or name a mirror (PIP_INDEX_URL), then run make again; it goes on where"
        " it stopped"
    ),
    r"THESE PACKAGES DO NOT MATCH THE HASHES": (
        "a package is not the one that was pinned (the lines above name it): the index or a proxy"
        " hands out something else; use another index (PIP_INDEX_URL), then run make again"
    ),
    r"No matching distribution found": (
        "the package index has no build of a pinned package for this machine (the lines above name"
        " it): Fareway is made for CPython 3.11 and later on Linux x86-64"
    ),
}


class SetUpError(Exception):
    """The environment cannot be made; the message says why and how to mend it."""


def stamp_of(repository: Path, version: Sequence[int]) -> str:
    """Digest of everything that decides what gets installed, extras aside."""
    digest = hashlib.sha256(repr(tuple(version)).encode())
    for name in SOURCES:
        digest.update((repository / name).read_bytes())
    return digest.hexdigest()


def installed_extras(venv: Path, digest: str) -> frozenset[str]:
    """Extras that a finished installation of this digest holds; empty when there is none."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return frozenset()
    is_current = stamp.get("digest") == digest and (venv / "bin" / "python").exists()
    return frozenset(stamp["extras"]) if is_current else frozenset()


def stale_extras(venv: Path) -> frozenset[str]:
    """Extras of whatever was installed before, so that an update does not leave them behind."""
    try:
        return frozenset(json.loads((venv / STAMP).read_text())["extras"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return frozenset()


def check_disk(folder: Path) -> None:
    """Refuse a disk on which nothing fits; warn about one that may be too small for CUDA.

    Raises:
        SetUpError: Less than `DISK_MIN_BYTES` are free.
    """
    for place in {folder, Path(tempfile.gettempdir())}:
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < DISK_MIN_BYTES:
            raise SetUpError(
                f"{place} has {free_bytes / GIB:.1f} GiB free and at least"
                f" {DISK_MIN_BYTES // GIB} are needed: free some, or set TMPDIR to a larger disk"
                " when it is the temporary folder"
            )
    if shutil.disk_usage(folder).free < DISK_CUDA_BYTES:
        say(
            f"less than {DISK_CUDA_BYTES // GIB} GiB are free; the CUDA build of torch would not"
            " fit, a CPU build does"
        )


def create(venv: Path) -> None:
    """Create the environment, anew when the one that is there does not run.

    Raises:
        SetUpError: This Python cannot make environments.
    """
    python = venv / "bin" / "python"
    if python.exists() and runs([str(python), "-m", "pip", "--version"]):
        return
    if venv.exists():
        say(f"{venv.name} does not run (moved, or half made); making it anew")
        shutil.rmtree(venv)
    for module in ("venv", "ensurepip"):
        if not runs([sys.executable, "-c", f"import {module}"]):
            short = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise SetUpError(
                f"{sys.executable} has no module {module}: install it (Debian and Ubuntu:"
                f" apt install python{short}-venv), then run make again"
            )
    say(f"creating {venv.name} with {sys.executable}")
    made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
    if made.returncode:
        raise SetUpError(f"{sys.executable} -m venv {venv} failed; the lines above say why")


def runs(command: Sequence[str]) -> bool:
    """Whether a command exists and ends with 0; its output is not shown."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def install(venv: Path, extras: frozenset[str]) -> None:
    """Install this tree with its pinned dependencies; pip shows its own progress.

    Raises:
        SetUpError: pip failed.
    """
    say(f"installing fareway[{','.join(sorted(extras))}] with the pins of requirements/")
    lock = RUN_LOCK if extras <= RUN_EXTRAS else TEST_LOCK
    pip(venv, "--require-hashes", "-r", lock)
    if extras & TORCH_EXTRAS:
        say("torch is next: 200 MB as a CPU build, gigabytes as Linux's default; once only")
        pip(venv, "-c", "constraints.txt", pinned("torch"))
    # Everything that it needs is there, its build tools included.
    pip(venv, "--no-deps", "--no-build-isolation", "-e", ".")


def pip(venv: Path, *arguments: str) -> None:
    """Run `pip install`.

    Raises:
        SetUpError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "pip.log"
        command = [
            str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check",
            "--log", str(log), *arguments,
        ]  # fmt: skip
        ended = subprocess.run(command, cwd=REPOSITORY, check=False)
        if ended.returncode:
            text = log.read_text(errors="replace") if log.exists() else ""
            raise SetUpError(explain(text))


def pinned(package: str) -> str:
    """The line of constraints.txt that pins a package."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def explain(pip_log: str) -> str:
    """What a failed installation means and how to mend it, from pip's log.

    Shows what a failed build wrote when the fault is none of those known.
    """
    for pattern, sentence in FAULTS.items():
        if re.search(pattern, pip_log):
            return sentence
    # With a log, pip keeps the output of a failed build out of the terminal.
    failed = re.search(r"subprocess-exited-with-error|\[present-rich\]", pip_log)
    if failed:
        lines = [line.partition(" ")[2] for line in pip_log[: failed.start()].splitlines()[-20:-1]]
        sys.stderr.write("\n".join(lines) + "\n")
    return "pip could not install the dependencies; the lines above say why"


def say(text: str) -> None:
    """Tell the person at the terminal what happens."""
    sys.stdout.write(f"fareway: {text}\n")
    sys.stdout.flush()


def prepare(venv: Path, wanted: frozenset[str]) -> None:
    """Bring the environment to where it holds this tree and the wanted extras.

    Raises:
        SetUpError: It cannot be done on this machine as it is.
    """
    digest = stamp_of(REPOSITORY, sys.version_info[:2])
    present = installed_extras(venv, digest)
    if present and wanted <= present:
        return
    extras = wanted | stale_extras(venv)
    check_disk(venv.parent)
    create(venv)
    (venv / STAMP).unlink(missing_ok=True)
    install(venv, extras)
    # Written last and in one step: an interrupted installation leaves no stamp.
    half = venv / f"{STAMP}.{os.getpid()}"
    half.write_text(json.dumps({"digest": digest, "extras": sorted(extras)}))
    half.replace(venv / STAMP)
    say(f"{venv.name} is ready")


def main() -> int:
    """Parse the command line; 0 when the environment is ready."""
    parser = argparse.ArgumentParser(description="Create .venv and install Fareway into it.")
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv")
    parser.add_argument("--extras", default="", help="comma-separated extras of pyproject.toml")
    options = parser.parse_args()
    wanted = frozenset(filter(None, options.extras.split(",")))
    try:
        prepare(options.venv.absolute(), wanted)
    except SetUpError as error:
        sys.stderr.write(f"fareway: {error}.\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("fareway: interrupted; run make again and it goes on.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
