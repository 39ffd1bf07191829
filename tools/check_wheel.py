"""Check that a built wheel holds what a user needs and nothing else, and that it starts alone.

`python tools/check_wheel.py dist/fareway-*.whl` looks into the file. With `--install` it also makes
an environment of its own, installs the wheel without any extra, and starts the command: the gateway
alone must run without torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# At least one file of the wheel matches each.
REQUIRED = (
    "gateway/cli/main.py",
    "providers/contract.py",
    "local_engine/api.py",
    "pricing/money.py",
    "migrations/env.py",
    "migrations/versions/*.py",
    "bench/gateway/native/*.c",
    "fareway-*.dist-info/entry_points.txt",
    "fareway-*.dist-info/licenses/LICENSE",
)

ALLOWED = ("gateway", "providers", "local_engine", "pricing", "migrations", "bench")

LEFT_OUT = "bench/results/"
"""What was measured belongs to the repository."""

STARTS = (
    ("--help",),
    ("config", "schema"),
    ("bench", "gateway", "--help"),
)

PROBE = "import sys, gateway.cli.main; sys.exit('torch' in sys.modules)"


def faults_of(names: list[str]) -> list[str]:
    """What is missing from a list of a wheel's files, and what should not be there."""
    faults = [
        f"nothing in the wheel matches {pattern}"
        for pattern in REQUIRED
        if not any(fnmatch(name, pattern) for name in names)
    ]
    faults += [
        f"{name} does not belong into the wheel"
        for name in names
        if name.split("/")[0] not in ALLOWED and ".dist-info/" not in name
    ]
    # A data file that the tree has and the wheel lacks breaks only at the user's.
    for package in ALLOWED:
        for path in sorted((REPOSITORY / package).rglob("*")):
            name = path.relative_to(REPOSITORY).as_posix()
            is_meant = "__pycache__" not in name and not name.startswith(LEFT_OUT)
            if path.is_file() and is_meant and name not in names:
                faults.append(f"{name} is in the tree and not in the wheel")
    return faults


def start_alone(wheel: Path) -> list[str]:
    """Install the wheel into an environment of its own and start its command."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python = environment / "bin" / "python"
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command += ["-c", str(REPOSITORY / "constraints.txt"), str(wheel)]
        subprocess.run(command, check=True, cwd=folder)
        checks = [[str(environment / "bin" / "fareway"), *arguments] for arguments in STARTS]
        checks.append([str(python), "-c", PROBE])
        for check in checks:
            ended = subprocess.run(check, check=False, capture_output=True, text=True, cwd=folder)
            if ended.returncode:
                faults.append(f"{' '.join(check[1:])} failed: {ended.stderr.strip()[-400:]}")
    return faults


def main() -> int:
    """Check one wheel."""
    parser = argparse.ArgumentParser(description="Check a built wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as archive:
        names = archive.namelist()
    faults = faults_of(names)
    if options.install and not faults:
        faults = start_alone(options.wheel.absolute())
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"{options.wheel.name}: {len(names)} files, {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
