"""The small gates refuse what they are there to refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import check_wheel, coverage_gates, run_tests

REPORT = {
    "pricing/money.py": {"missing_lines": [], "missing_branches": []},
    "pricing/quote.py": {"missing_lines": [12], "missing_branches": [[10, 12], [20, -18]]},
    "pricing_other/x.py": {"missing_lines": [1], "missing_branches": []},
}


def test_every_uncovered_line_and_branch_of_a_package_is_named() -> None:
    assert coverage_gates.gaps_of(REPORT, "pricing") == [
        "pricing/quote.py:12 is not run",
        "pricing/quote.py:10 never goes to line 12",
        "pricing/quote.py:20 never goes to the exit",
    ]


def test_a_package_that_is_covered_has_no_gaps() -> None:
    covered = {"pricing/money.py": REPORT["pricing/money.py"]}
    assert coverage_gates.gaps_of(covered, "pricing") == []


@pytest.fixture
def whole_wheel() -> list[str]:
    """Names of a wheel that holds every file of the packages."""
    root = check_wheel.REPOSITORY
    names = [
        path.relative_to(root).as_posix()
        for package in check_wheel.ALLOWED
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [*names, *(pattern.replace("*", "x") for pattern in check_wheel.REQUIRED)]


def test_a_whole_wheel_passes(whole_wheel: list[str]) -> None:
    assert check_wheel.faults_of(whole_wheel) == []


def test_a_wheel_that_lacks_a_data_file_is_refused(whole_wheel: list[str]) -> None:
    whole_wheel.remove("gateway/settings/default.yaml")
    assert check_wheel.faults_of(whole_wheel) == [
        "gateway/settings/default.yaml is in the tree and not in the wheel"
    ]


def test_a_wheel_with_tests_in_it_is_refused(whole_wheel: list[str]) -> None:
    faults = check_wheel.faults_of([*whole_wheel, "tests/conftest.py"])
    assert faults == ["tests/conftest.py does not belong into the wheel"]


def test_a_soak_result_names_commit_seed_machine_and_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "results")
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="b" time="1.5"/>'
        '<testcase classname="tests.a" name="c" time="0.5"><failure message="no"/></testcase>'
        "</testsuite></testsuites>"
    )
    result = json.loads(run_tests.write_result(report, seed=7, status=1).read_text())
    assert (result["seed"], result["status"]) == (7, 1)
    assert result["commit"]
    assert result["machine"]["cores"]
    assert [case["outcome"] for case in result["tests"]] == ["passed", "failure"]


@pytest.mark.parametrize(
    ("tiers", "profiles"),
    [
        (["unit", "slow"], ["dev", "dev"]),
        (["unit", "slow", "ci"], ["ci", "ci", "ci"]),
        (["soak"], ["soak"]),
    ],
)
def test_ci_tries_more_examples_than_a_persons_run(tiers: list[str], profiles: list[str]) -> None:
    assert [run_tests.profile_of(name, tiers) for name in tiers] == profiles


def test_ci_runs_every_part_that_ends_within_minutes() -> None:
    makefile = (run_tests.REPOSITORY / "Makefile").read_text()
    assert "tools/run_tests.py unit slow ci $(ARGS)" in makefile
    assert "make test-all ARGS=--coverage" in (run_tests.REPOSITORY / ".ci/run").read_text()
    assert set(run_tests.TIERS) == {"unit", "slow", "ci", "soak"}
