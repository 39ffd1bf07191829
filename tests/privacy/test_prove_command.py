"""`fareway policy prove` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gateway.cli import main as cli
from gateway.policy_proof import GatewayRuntime, PolicyUnproved, prove_config, require_holds
from gateway.privacy.certificate import read_certificate
from gateway.privacy.inventory import Holder
from gateway.settings.loader import load
from gateway.settings.secrets import Label, load_master_keys
from tests.privacy.planted import NOW

Fareway = Callable[..., tuple[object, str, str]]
CONFIG = """
providers:
  own:
    kind: openai_compatible
    base_url: http://10.0.0.5:8000/v1
    trust: [{attribute: self_hosted, evidence: inventory, expires: 2026-12-20}]
  vendor:
    kind: openai_compatible
    base_url: http://10.0.0.6:8000/v1
models:
  chat: {deployments: [own/llama, vendor/llama], aliases: [small]}
teams:
  payments:
    tags: [private]
    projects: {fraud: {tags: [health]}}
    keys: [{name: bot, value_env: BOT, tags: [idle], project: fraud}]
privacy:
  tags:
    private: {require: [self_hosted]}
    health: {require: [baa]}
    idle: {}
"""


@pytest.fixture
def fareway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Fareway:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def test_what_holds_is_said_with_warnings_and_their_lines(fareway: Fareway) -> None:
    code, out, _ = fareway("policy", "prove", "--at", "2026-11-30")
    assert code == 0
    lines = out.splitlines()
    assert lines[-1].startswith("the policy holds: ")
    assert (
        "warning: fareway.yaml:20: no deployment can serve a request with tag 'health':"
        " own/llama lacks baa; vendor/llama lacks baa"
    ) in lines
    assert (
        "warning: fareway.yaml:14: nobody can serve chat to team payments from"
        " 2026-12-20T00:00:00+00:00 on: own/llama lacks self_hosted; vendor/llama lacks self_hosted"
    ) in lines
    assert (
        "warning: fareway.yaml:21: tag 'idle' never keeps a request from a deployment that it"
        " could reach"
    ) in lines
    assert "warning: fareway.yaml:7: nobody can reach vendor/llama, by any name" in lines
    ending = "self_hosted of own/llama ends at 2026-12-20T00:00:00+00:00"
    assert f"warning: fareway.yaml:6: {ending}" in lines


def test_json_has_the_same_and_a_certificate_of_the_master_key(
    fareway: Fareway, tmp_path: Path
) -> None:
    code, out, _ = fareway("policy", "prove", "--json", "--certificate", "proof.json")
    assert code == 0
    told = cast("dict[str, object]", json.loads(out))
    assert told["holds"] is True
    assert told["counter_examples"] == []
    config = load(tmp_path / "fareway.yaml", environ={"FAREWAY_STATE_DIR": str(tmp_path / "state")})
    master = load_master_keys(config, environ={}, random_bytes=bytes)
    keys = master.derive_all(Label.CERTIFICATE)
    found = read_certificate((tmp_path / "proof.json").read_bytes(), keys)
    assert found.digest == told["certificate_digest"]
    assert found.policy_digest == told["policy_digest"]
    assert found.cells == told["cells"]


@pytest.mark.parametrize("day", ["2026-13-01", "tomorrow", "2026-11-30T99:00"])
def test_no_day_is_wrong_usage(fareway: Fareway, day: str) -> None:
    code, _, err = fareway("policy", "prove", "--at", day)
    assert code == 2
    assert "is no day" in err


def test_a_counter_example_is_exit_1_with_the_line(
    fareway: Fareway, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = GatewayRuntime.begins_with

    def forgetful(self: GatewayRuntime, holder: Holder, added: frozenset[str]) -> frozenset[str]:
        return honest(self, holder, added) - {"health"}

    monkeypatch.setattr(GatewayRuntime, "begins_with", forgetful)
    code, out, _ = fareway("policy", "prove")
    assert code == 1
    said = "floor_lost: a request with private of team payments, project fraud: health"
    assert f"wrong: fareway.yaml:14: {said}" in out
    assert "the policy does not hold" in out.splitlines()[-1]
    config = load(Path("fareway.yaml"), environ={})
    with pytest.raises(PolicyUnproved, match="floor_lost"):
        require_holds(prove_config(config, at=NOW))


def test_a_lost_floor_of_a_key_or_project_is_seen(
    fareway: Fareway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    honest = GatewayRuntime.begins_with

    def careless(self: GatewayRuntime, holder: Holder, added: frozenset[str]) -> frozenset[str]:
        return honest(self, replace(holder, key=""), added)

    monkeypatch.setattr(GatewayRuntime, "begins_with", careless)
    code, out, _ = fareway("policy", "prove")
    assert code == 1
    assert "team payments, key bot: idle" in out
