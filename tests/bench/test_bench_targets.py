"""What is measured: Fareway's configuration, the peers that are found, the command line's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.gateway import fareway
from bench.gateway.cases import MODELS
from bench.gateway.faults import BenchFault
from bench.gateway.peers.found import NAMES, find
from bench.gateway.run import Options, cases_of, targets_of
from bench.gateway.targets import KEY, Place
from gateway.cli.main import build
from gateway.settings.loader import load


def run_command(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(build(["bench"]), ["bench", *words])
    return ended.exit_code, ended.output + str(ended.exception or "")


@pytest.mark.parametrize("durability", ["group", "strict"])
def test_the_configuration_is_one_that_fareway_takes(tmp_path: Path, durability: str) -> None:
    place = Place(folder=tmp_path, mock_url="http://127.0.0.1:9", port=8642)
    path = tmp_path / fareway.CONFIGURATION
    path.write_text(fareway.configuration(place, durability))
    settings = load(path, environ=fareway.environment(tmp_path)).settings
    assert settings.storage.durability == durability
    assert sorted(settings.models) == sorted(MODELS)
    assert all(len(model.deployments) == 3 for model in settings.models.values())
    assert settings.teams["bench"].tags == ("internal",)


def test_what_is_limited_has_budgets_and_limits_of_everything(tmp_path: Path) -> None:
    place = Place(folder=tmp_path, mock_url="http://127.0.0.1:9", port=8642)
    path = tmp_path / fareway.CONFIGURATION
    path.write_text(fareway.configuration(place, "group", is_limited=True))
    settings = load(path, environ=fareway.environment(tmp_path)).settings
    team = settings.teams["bench"]
    for limited in (team, team.keys[0], *settings.models.values()):
        assert limited.limits is not None
        assert limited.limits.rpm == fareway.LIMITS["rpm"]
    assert all(one.budget for one in (settings.organisation, team, team.keys[0]))


def test_peers_are_found_in_their_folder(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
    assert [target.name for target in find({}, folder=tmp_path)] == list(NAMES)


def test_a_given_path_is_taken(tmp_path: Path) -> None:
    found = find({"portkey": tmp_path}, folder=tmp_path / "none")
    place = Place(folder=tmp_path, mock_url="http://127.0.0.1:9", port=81)
    target = next(target for target in found if target.name == "portkey")
    assert target.prepare is not None
    launch = target.prepare(place)
    assert str(tmp_path) in launch.command[1]
    assert launch.headers["x-portkey-custom-host"] == "http://127.0.0.1:9/v1"


def test_every_peer_is_told_its_upstream_and_its_models(tmp_path: Path) -> None:
    place = Place(folder=tmp_path, mock_url="http://127.0.0.1:9471", port=82)
    for name in ("litellm", "tensorzero", "nginx"):
        (tmp_path / name).mkdir()
        target = next(t for t in find({}, folder=tmp_path) if t.name == name)
        assert target.prepare is not None
        target.prepare(place)
    litellm = json.loads((tmp_path / "litellm.yaml").read_text())
    assert [each["model_name"] for each in litellm["model_list"]] == list(MODELS)
    assert KEY in litellm["general_settings"]["master_key"]
    for file in ("tensorzero.toml", "nginx.conf"):
        assert "127.0.0.1:9471" in (tmp_path / file).read_text()


WRONG = {
    "a peer that is none": {"peers": {"nobody": Path("/")}},
    "a peer that is not there": {"peers": {"litellm": Path("/nowhere/at/all")}},
    "a target that is none": {"only": ("nobody",)},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_target_is_one_sentence(change: dict[str, object]) -> None:
    with pytest.raises(BenchFault, match="nobody|nothing is there"):
        targets_of(Options(**change))


def test_an_unknown_case_names_the_known_ones() -> None:
    with pytest.raises(BenchFault, match="no case 'c2'; known are c1, max"):
        cases_of(Options(cases=("c2",)))


def test_quick_leaves_out_what_takes_long() -> None:
    assert len(cases_of(Options(is_quick=True))) < len(cases_of(Options()))


def test_a_peer_without_a_path_is_wrong_usage() -> None:
    code, said = run_command("gateway", "--peer", "litellm")
    assert code == 2
    assert "is not NAME=PATH" in said


def test_a_fault_of_the_benchmark_is_a_fault_of_the_command() -> None:
    code, said = run_command("gateway", "--cases", "c2")
    assert code == 1
    assert "there is no case 'c2'" in said
