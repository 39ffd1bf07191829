"""The whole way: Fareway is started, loaded, and its ledger held against the mock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gateway import fareway, ledger_proof
from bench.gateway.compiled import COMPILERS
from bench.gateway.ledger_proof import prove
from bench.gateway.measure import Conditions
from bench.gateway.processes import ask
from bench.gateway.session import started
from bench.gateway.soak import soak
from bench.gateway.stages import BUDGET_US, measure
from bench.gateway.targets import first_question

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        all(shutil.which(name) is None for name in COMPILERS), reason="there is no C compiler"
    ),
]

CONDITIONS = Conditions(seconds=0.5, gateway_core=None, load_core=None, tries_max=1)


def test_the_command_measures_proves_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--quick", "--seconds", "0.4", "--only", "direct,fareway", "--cases", "c1,max"]
    ended = subprocess.run(
        [str(Path(sys.executable).parent / "fareway"), "bench", "gateway", *words]
        + ["--state", str(tmp_path / "state"), "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "attempts that the upstream counted in 1 runs are booked" in " ".join(
        ended.stdout.split()
    )
    found = json.loads(file.read_text())
    assert found["ledger_problems"] == []
    fareway_figures = found["summaries"]["fareway"]
    assert fareway_figures["cases"]["max"]["failed"] == 0
    assert {"worker", "ledger_process", "supervisor"} <= set(fareway_figures["rss_after_mb"])
    assert fareway_figures["startup_s"] > 0
    assert found["stages_us"]["1 KiB"]["ledger"] > 0
    assert list((tmp_path / "state").iterdir()) == [], "a run that succeeds leaves no files"


def test_a_request_that_went_past_the_gateway_is_missed_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What never comes need not be waited for as long as what may come late.
    monkeypatch.setattr(ledger_proof, "QUIET_S", 2.0)
    with started(fareway.target(), CONDITIONS, state=tmp_path) as (subject, startup_s):
        assert startup_s is not None
        status, _ = ask(subject.mock.port, "/v1/chat/completions", first_question("mock"), {})
        assert status == 200
        stats = subject.mock.stats()
        # What the gateway was asked while it started is booked; the one past it is not.
        proof = prove(subject.folder, stats)
    assert proof.upstream_requests == proof.booked + 1
    assert any("the upstream counted" in problem for problem in proof.problems)


def test_a_short_soak_books_every_request_that_clients_left(tmp_path: Path) -> None:
    result = soak(CONDITIONS, state=tmp_path, requests=1_000, seed=3, say=lambda _: None)
    assert (result.requests, result.failed) == (1_000, 0)
    assert 50 < result.hung_up < 200
    assert result.proof.problems == ()
    assert len(result.rss_mb) == 11


def test_the_stages_cover_the_budget() -> None:
    found = measure(core=None, rounds=50)
    assert set(found) == {"1 KiB", "4 KiB"}
    assert all(set(stages) == set(BUDGET_US) for stages in found.values())
    assert all(value > 0 for stages in found.values() for value in stages.values())
