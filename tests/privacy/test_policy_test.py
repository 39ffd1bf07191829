"""`fareway policy test`: expectations that hold are quiet, and each difference is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gateway.cli import main as cli
from tests.privacy.test_prove_command import CONFIG

Check = Callable[..., tuple[object, str, str]]

HOLDS = """
cases:
  - name: at home
    team: payments
    model: small
    at: 2026-12-01
    allowed: [own/llama]
    denied: {vendor/llama: [self_hosted]}
  - name: the evidence has ended
    team: payments
    model: chat
    at: 2026-12-20
    denied: {own/llama: [self_hosted]}
  - {name: a key, team: payments, key: bot, model: chat, at: 2026-12-01, denied: {own/llama: [baa]}}
  - name: a tool nobody vouches for
    team: payments
    model: chat
    at: 2026-12-01
    tools: [web_search]
    denied: {own/llama: [web_search]}
"""


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(text: str, *arguments: str) -> tuple[object, str, str]:
        (tmp_path / "cases.yaml").write_text(text)
        with pytest.raises(SystemExit) as left:
            cli.main(["policy", "test", "cases.yaml", *arguments])
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def test_what_holds_is_quiet(check: Check) -> None:
    assert check(HOLDS) == (0, "4 cases, 0 differences\n", "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    allowed: [own/llama]\n    denied: {vendor/llama: [self_hosted]}",
            "    denied: {own/llama: []}",
            "at home, own/llama: expected denied, found allowed",
        ),
        (
            "denied: {vendor/llama: [self_hosted]}",
            "denied: {vendor/llama: [baa]}",
            "at home, vendor/llama: expected denied by baa, found denied by self_hosted",
        ),
        (
            "model: small",
            "model: other",
            "at home: expected that it may ask for the model, found none",
        ),
        (
            "key: bot",
            "key: nobody",
            "a key: expected such a team, project or key, found none",
        ),
        (
            "denied: {own/llama: [self_hosted]}",
            "allowed: [own/llama]",
            "the evidence has ended, own/llama: expected allowed, found denied by self_hosted",
        ),
        (
            "denied: {own/llama: [self_hosted]}",
            "allowed: [other/llama]",
            "other/llama: expected allowed, found that chat does not stand for it",
        ),
        (
            "    model: small",
            "    model: small\n    tags: [privat]",
            "at home: expected known tags, found unknown privacy tag 'privat'",
        ),
    ],
)
def test_a_difference_is_exit_1_and_told(check: Check, old: str, new: str, said: str) -> None:
    assert old in HOLDS
    code, out, _ = check(HOLDS.replace(old, new, 1))
    assert code == 1
    assert said in out
    code, out, _ = check(HOLDS.replace(old, new, 1), "--json")
    assert code == 1
    assert cast("dict[str, list[object]]", json.loads(out))["differences"]


def test_what_is_no_expectation_is_refused(check: Check) -> None:
    code, _, err = check(HOLDS.replace("allowed:", "alowed:"))
    assert code == 1
    assert "cases.0.alowed" in err
    code, _, err = check(HOLDS.replace("allowed: [own/llama]", "allowed: [vendor/llama]"))
    assert code == 1
    assert "vendor/llama cannot be both allowed and denied" in err
    code, _, err = check("cases: []")
    assert code == 1
    assert "cases" in err
