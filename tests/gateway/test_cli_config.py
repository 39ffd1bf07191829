"""The `fareway` command: exit statuses, one sentence per fault, and a fast start."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
import yaml

from gateway.cli import main as cli
from tests.gateway.settings_text import EXAMPLE

START = "import sys; from gateway.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own and give exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def test_help_is_fast_because_it_imports_no_command():
    code = (
        "import sys\nfrom gateway.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "Commands:" in done.stdout
    assert not loaded & {"pydantic", "yaml", "sqlalchemy", "torch", "fastapi", "rich"}
    assert {name for name in loaded if name.startswith("gateway.cli.")} <= {
        "gateway.cli.main",
        "gateway.cli.faults",
    }


def test_every_row_of_the_table_leads_to_a_command():
    for row in cli.COMMANDS:
        loaded = row.load()
        assert isinstance(loaded, typer.Typer) or callable(loaded)
    names = [row.name for row in cli.COMMANDS]
    assert len(set(names)) == len(names)


def test_the_version_is_the_distributions(fareway):
    assert fareway("--version") == (0, f"fareway {version('fareway')}\n", "")


USAGE = {
    "an unknown command": ("nonsense",),
    "an unknown subcommand": ("config", "nonsense"),
    "an unknown option": ("config", "check", "--nonsense"),
    "an option without its value": ("config", "check", "--config"),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
def test_wrong_usage_exits_with_2(fareway, arguments):
    status, out, err = fareway(*arguments)
    assert (status, out) == (2, "")
    assert "Error: " in err
    assert "Traceback" not in err


def test_a_sound_file_is_ok_and_what_serve_refuses_is_noted(fareway):
    status, out, err = fareway("config", "check", "--config", str(EXAMPLE))
    assert status == 0
    assert out.startswith(f"{EXAMPLE}: ok, 6 providers, 2 models, 2 teams, digest ")
    assert "providers.groq.kind: kind groq: not built yet" in err


def test_a_wrong_file_exits_with_1_and_names_every_problem_on_a_line(fareway, tmp_path):
    (tmp_path / "fareway.yaml").write_text("servr: {}\nstorage: {durability: never}\n")
    status, out, err = fareway("config", "check")
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "fareway.yaml:1: servr: unknown key; did you mean `server`?",
        "fareway.yaml:2: storage.durability: must be group or strict",
    ]


def test_problems_come_as_json_too(fareway, tmp_path):
    (tmp_path / "fareway.yaml").write_text("servr: {}\n")
    status, out, err = fareway("config", "check", "--json")
    assert (status, err) == (1, "")
    assert json.loads(out) == {
        "ok": False,
        "problems": [
            {
                "file": "fareway.yaml",
                "line": 1,
                "key_path": "servr",
                "message": "unknown key; did you mean `server`?",
            }
        ],
    }


def test_a_good_check_comes_as_json_too(fareway):
    status, out, _ = fareway("config", "check", "--json", "--config", str(EXAMPLE))
    answer = json.loads(out)
    assert (status, answer["ok"], answer["files"]) == (0, True, [str(EXAMPLE)])
    assert len(answer["digest"]) == 64
    assert answer["unbuilt"][0]["key_path"] == "providers.groq.kind"


def test_a_missing_file_is_one_sentence(fareway):
    status, out, err = fareway("config", "check", "--config", "nowhere.yaml")
    assert (status, out, err) == (
        1,
        "",
        "nowhere.yaml: cannot be read: No such file or directory\n",
    )


def test_without_a_file_the_defaults_are_checked(fareway):
    assert fareway("config", "check")[1].startswith("built-in defaults: ok, 1 providers, 1 models")


def test_the_variable_names_the_file(fareway, tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text("server: {port: 7}\n")
    monkeypatch.setenv("FAREWAY_CONFIG", "other.yaml")
    assert json.loads(fareway("config", "show", "--json")[1])["server"]["port"] == 7


def test_show_fills_in_defaults_and_shows_no_secret(fareway, tmp_path, monkeypatch):
    monkeypatch.setenv("GROQ_API_KEY", "not-to-be-shown")
    (tmp_path / "fareway.yaml").write_text(
        "providers: {g: {kind: groq, api_key_env: GROQ_API_KEY, price: {request_usd: 0.10}}}\n"
        "storage: {database: 'postgresql://not-to-be-shown@host/d'}\n"
    )
    status, out, _ = fareway("config", "show")
    document = yaml.safe_load(out)
    assert status == 0
    assert "not-to-be-shown" not in out
    assert document["server"]["port"] == 8642
    assert document["storage"]["database"] == "postgresql://***@host/d"
    assert document["providers"]["g"]["api_key_env"] == "GROQ_API_KEY"
    assert document["providers"]["g"]["price"][0]["request_usd"] == "0.10"


def test_what_show_prints_is_a_configuration_again(fareway, tmp_path):
    text = EXAMPLE.read_text().replace("gpu_usd_per_hour: 0.10", "gpu_usd_per_hour: 0.00000005")
    (tmp_path / "fareway.yaml").write_text(text)
    (tmp_path / "again.yaml").write_text(fareway("config", "show")[1])
    digest = json.loads(fareway("config", "check", "--json")[1])["digest"]
    again = fareway("config", "check", "--json", "--config", "again.yaml")[1]
    assert json.loads(again)["digest"] == digest


def test_the_schema_is_json(fareway):
    status, out, _ = fareway("config", "schema")
    assert status == 0
    assert json.loads(out)["properties"]["server"]


def test_init_writes_a_file_that_passes_and_never_replaces_one(fareway, tmp_path):
    assert fareway("init")[:2] == (
        0,
        "wrote fareway.yaml; next: fareway config check --config fareway.yaml\n",
    )
    status, out, err = fareway("config", "check")
    assert (status, err) == (0, "")
    assert out.startswith("fareway.yaml: ok, 1 providers, 1 models, 1 teams")
    (tmp_path / "fareway.yaml").write_text("server: {port: 7}\n")
    status, _, err = fareway("init")
    assert (status, err.count("\n")) == (1, 1)
    assert "already there" in err
    assert (tmp_path / "fareway.yaml").read_text() == "server: {port: 7}\n"


def test_init_into_a_folder_that_is_not_there_is_one_sentence(fareway):
    status, _, err = fareway("init", "--config", "nowhere/f.yaml")
    assert (status, err) == (1, "nowhere/f.yaml cannot be written: No such file or directory\n")


@pytest.mark.slow
def test_a_closed_output_is_no_traceback(tmp_path):
    command = f'"{sys.executable}" -c "{START}" config schema | head -c 1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_no_line_of_an_overview_is_cut_off(fareway):
    groups = [row.name for row in cli.COMMANDS if isinstance(row.load(), typer.Typer)]
    for arguments in ((), *((name,) for name in groups)):
        usage, *lines = fareway(*arguments, "--help")[1].splitlines()
        assert usage.startswith("Usage:")
        assert [line for line in lines if line.endswith("...")] == []
