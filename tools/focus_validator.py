"""Check exports of FOCUS 1.2 with `focus-validator`, in an environment of its own.

    python tools/focus_validator.py             the golden exports of every kind of row
    python tools/focus_validator.py FILE ...    other CSV files

The validator needs Python 3.12 (its numpy has no wheels for later ones) and a pyarrow that ours is
too new for, so it lives in `.focus-validator/`, which is made on first use. It exits with 0
whatever it finds, and looks for its list of currencies from the working directory; both is dealt
with here.

Exit status: 0 nothing but the allowed rules fail, 1 others do, 2 the environment cannot be made.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENT = REPOSITORY / ".focus-validator"
GOLDEN = REPOSITORY / "tests" / "gateway" / "focus_golden"
REQUIREMENTS = ("focus-validator==2.2.1", "pyarrow==22.0.0")

CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PRICING_BILLING_CURRENCY_DIFFERENCES_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
"""What holds for us; rules of other criteria are skipped, not passed. COMMITMENT_DISCOUNT_SUPPORTED
is left out: two rules of the model contradict each other on every row without a commitment
(CommitmentDiscountStatus-C-003-C wants null there, -C-004-C forbids it)."""
ALLOWED = frozenset({"InvoiceId-C-004-C", "InvoiceId-C-005-C"})
"""One wants InvoiceId null and the other forbids it, on every row of a file."""

_TOTAL = re.compile(r"^Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)$", re.MULTILINE)
_FAILURE = re.compile(r"^- (?P<rule>[\w-]+): violations=\d+; (?P<message>.*)$", re.MULTILINE)
_COMPOSITE = re.compile(r"(?:AND|OR) failed - (?:failed child rules|all child rules failed): ")


class NoEnvironment(Exception):
    """The validator's environment is not there and cannot be made; says why."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the validator found in a file.

    Attributes:
        failed: Rules that failed themselves; those that only hold others that failed are left out.
    """

    total: int
    passed: int
    skipped: int
    failed: frozenset[str]


def pythons() -> Iterator[Path]:
    """Interpreters of Python 3.12 that may be there."""
    found = shutil.which("python3.12")
    if found is not None:
        yield Path(found)
    yield from sorted(Path.home().glob(".pyenv/versions/3.12*/bin/python3.12"))


def program(environment: Path) -> Path:
    """The validator's program in an environment."""
    return environment / "bin" / "focus-validator"


def make(environment: Path) -> None:
    """Make the environment.

    Raises:
        NoEnvironment: There is no Python 3.12, or its packages cannot be had.
    """
    for python in pythons():
        made = subprocess.run(
            [python, "-m", "venv", environment], capture_output=True, text=True, check=False
        )
        if made.returncode:  # a launcher without a version behind it, for example
            continue
        install = [environment / "bin" / "pip", "install", "-q", *REQUIREMENTS]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        shutil.rmtree(environment, ignore_errors=True)
        raise NoEnvironment(f"its packages cannot be had: {done.stderr.strip()[-300:]}")
    raise NoEnvironment("there is no Python 3.12 on this machine")


def validate(
    file: Path, environment: Path = ENVIRONMENT, criteria: Sequence[str] = CRITERIA
) -> Verdict:
    """Run the validator over a CSV file.

    Raises:
        RuntimeError: It did not say what it found.
    """
    command = [
        program(environment),
        *("--data-file", file.resolve()),
        *("--validate-version", "1.2.0.1", "--focus-dataset", "CostAndUsage"),
        *("--applicability-criteria", ",".join(criteria)),
        "--block-download",
    ]
    packages = next(environment.glob("lib/python3*/site-packages"))
    ended = subprocess.run(command, cwd=packages, capture_output=True, text=True, check=False)
    return read_verdict(ended.stdout + ended.stderr)


def read_verdict(text: str) -> Verdict:
    """What the validator printed.

    Raises:
        RuntimeError: There is no total in it, or it does not go with the failures.
    """
    total = _TOTAL.search(text)
    if total is None:
        raise RuntimeError(f"the validator gave no total: {text.strip()[-500:]}")
    counted, passed, failed, skipped = map(int, total.groups())
    failures = {found["rule"]: found["message"] for found in _FAILURE.finditer(text)}
    if len(failures) != failed:
        raise RuntimeError(f"the validator counts {failed} failures and names {sorted(failures)}")
    own = {rule for rule, message in failures.items() if not _COMPOSITE.search(message)}
    return Verdict(total=counted, passed=passed, skipped=skipped, failed=frozenset(own))


def main(arguments: Sequence[str]) -> int:
    """Check files, making the environment first where it is missing."""
    files = [Path(one) for one in arguments] or sorted(GOLDEN.glob("*-1.2-cost_and_usage.csv"))
    if not program(ENVIRONMENT).exists():
        try:
            make(ENVIRONMENT)
        except NoEnvironment as error:
            sys.stderr.write(f"fareway: focus-validator was not run: {error}\n")
            return 2
    is_clean = True
    for file in files:
        verdict = validate(file)
        others = sorted(verdict.failed - ALLOWED)
        is_clean &= not others
        sys.stdout.write(
            f"{file.name}: {verdict.passed} rules passed, {verdict.skipped} not applicable, "
            f"{len(verdict.failed)} failed ({', '.join(others) or 'allowed ones only'})\n"
        )
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
