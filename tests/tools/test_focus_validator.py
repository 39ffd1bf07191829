"""`focus-validator` over the golden exports of FOCUS 1.2, and what its output is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.focus_validator import (
    ALLOWED,
    CRITERIA,
    ENVIRONMENT,
    GOLDEN,
    NoEnvironment,
    make,
    program,
    pythons,
    read_verdict,
    validate,
)

FILES = sorted(GOLDEN.glob("*-1.2-cost_and_usage.csv"))
OUTPUT = """
=== Validation Results ===
Total: 578 | Pass: 284 | Fail: 3 | Skipped: 291
--- Failures ---
- InvoiceId-C-004-C: violations=6; InvoiceId MUST be NULL.
  MustSatisfy: InvoiceId MUST be null when it is not associated with an invoice.
- InvoiceId-C-003-C: violations=0; InvoiceId-C-003-C: OR failed - all child rules failed: [a, b]
- BilledCost-C-005-C: violations=25; BilledCost MUST equal '0'.
"""


def test_failures_are_rules_of_their_own() -> None:
    verdict = read_verdict(OUTPUT)
    assert (verdict.total, verdict.passed, verdict.skipped) == (578, 284, 291)
    assert verdict.failed == {"InvoiceId-C-004-C", "BilledCost-C-005-C"}


BROKEN = {
    "no total": ("Traceback: no such file", "gave no total"),
    "fewer failures than counted": (OUTPUT.replace("Fail: 3", "Fail: 4"), "counts 4 failures"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_output_that_says_nothing_is_no_pass(text, reason) -> None:
    with pytest.raises(RuntimeError, match=reason):
        read_verdict(text)


def check(environment: Path) -> None:
    assert len(FILES) == 3
    for file in FILES:
        verdict = validate(file, environment)
        assert verdict.failed <= ALLOWED, file.name
        assert verdict.passed > 280, file.name
    # Commitments: the model contradicts itself there and nowhere else.
    verdict = validate(FILES[0], environment, (*CRITERIA, "COMMITMENT_DISCOUNT_SUPPORTED"))
    assert verdict.failed <= ALLOWED | {"CommitmentDiscountStatus-C-004-C"}


@pytest.mark.slow
def test_the_official_validator_passes_exports_of_1_2() -> None:
    if not program(ENVIRONMENT).exists():
        pytest.skip(
            "focus-validator was NOT run: `python tools/focus_validator.py` makes its environment"
        )
    check(ENVIRONMENT)


@pytest.mark.soak
def test_the_official_validator_can_be_had_and_passes(tmp_path) -> None:
    if not list(pythons()):
        pytest.skip("focus-validator was NOT run: there is no Python 3.12 on this machine")
    try:
        make(tmp_path / "environment")
    except NoEnvironment as error:
        pytest.skip(f"focus-validator was NOT run: {error}")
    check(tmp_path / "environment")
