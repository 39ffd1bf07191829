"""From files to settings: every problem at once, includes, defaults, and no crash on anything."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.settings.environment import state_dir
from gateway.settings.errors import ConfigError
from gateway.settings.loader import load, load_text, template
from gateway.settings.unbuilt import unbuilt
from tests.gateway.settings_text import EXAMPLE, load_settings, problems_of

HERE = Path("/nowhere")

PROBLEMS = {
    "a misspelt key names the nearest": (
        "server:\n  prot: 1\n",
        "f.yaml:2: server.prot: unknown key; did you mean `port`?",
    ),
    "a misspelt section names the nearest": (
        "servr: {}\n",
        "f.yaml:1: servr: unknown key; did you mean `server`?",
    ),
    "a key like no other lists what there is": (
        "routing: {zzz: 1}\n",
        "f.yaml:1: routing.zzz: unknown key; known here: hedge, retries, strategy",
    ),
    "a misspelt key of a kind names that kind's keys": (
        "providers:\n  l:\n    kind: local\n    base_url: http://x\n",
        "f.yaml:4: providers.l.base_url: unknown key; known here: device, kind, models, price, trust",
    ),
    "an unknown kind names the nearest": (
        "providers: {g: {kind: grok}}\n",
        "f.yaml:1: providers.g.kind: is not a kind of provider; did you mean `groq`?",
    ),
    "a provider without a kind": (
        "providers: {g: {}}\n",
        "f.yaml:1: providers.g: needs a `kind`",
    ),
    "a secret in the file is refused and not repeated": (
        "providers: {g: {kind: groq, api_key: not-to-be-shown}}\n",
        (
            "f.yaml:1: providers.g.api_key: unknown key; a secret is never in the file, use "
            "`api_key_env` or `api_key_file`"
        ),
    ),
    "a secret in place of a variable's name is refused and not repeated": (
        "providers: {g: {kind: groq, api_key_env: not-to-be-shown}}\n",
        (
            "f.yaml:1: providers.g.api_key_env: must name an environment variable in capitals, "
            "never hold the secret itself"
        ),
    ),
    "a password in the database's address is refused and not repeated": (
        "storage: {database: 'postgresql://u:not-to-be-shown@h/d'}\n",
        (
            "f.yaml:1: storage.database: must not hold a password; use database_password_env or "
            "_file"
        ),
    ),
    "a password in a base URL is refused and not repeated": (
        "providers: {s: {kind: vllm, base_url: 'http://u:not-to-be-shown@h/v1'}}\n",
        (
            "f.yaml:1: providers.s.base_url: must not hold a user name or password; use "
            "api_key_env or api_key_file"
        ),
    ),
    "two sources of one secret": (
        "admin: {key_env: A, key_file: b}\n",
        "f.yaml:1: admin: give only one of key_env, key_file and key_ref",
    ),
    "a quoted number": (
        "server: {port: '1'}\n",
        "f.yaml:1: server.port: must be a whole number",
    ),
    "a fraction where whole numbers count": (
        "server: {workers: 1.5}\n",
        "f.yaml:1: server.workers: must be a whole number",
    ),
    "a truth where a number counts": (
        "server: {heartbeat_s: true}\n",
        "f.yaml:1: server.heartbeat_s: must be a number",
    ),
    "a duration of zero": (
        "server: {timeouts: {connect_s: 0}}\n",
        "f.yaml:1: server.timeouts.connect_s: must be greater than 0",
    ),
    "a word out of a closed set names the nearest": (
        "storage: {durability: strickt}\n",
        "f.yaml:1: storage.durability: must be group or strict; did you mean `strict`?",
    ),
    "a scalar where a section belongs": (
        "server: 5\n",
        "f.yaml:1: server: must be a mapping of `key: value`",
    ),
    "a scalar where a list belongs": (
        "privacy: {floor: private}\n",
        "f.yaml:1: privacy.floor: must be a list",
    ),
    "a deployment without a slash": (
        "models:\n  m:\n    deployments:\n      - gpt\n",
        "f.yaml:4: models.m.deployments[0]: must be provider/model-id",
    ),
    "a model without deployments": (
        "models: {m: {}}\n",
        "f.yaml:1: models.m.deployments: is required",
    ),
    "a tag that no header could carry": (
        "privacy: {tags: {'a,b': {}}}\n",
        (
            "f.yaml:1: privacy.tags.a,b: a tag or attribute has no spaces, quotes, commas, "
            "semicolons or `=`"
        ),
    ),
    "a name with a line end": (
        'teams: {"a\\nb": {}}\n',
        (
            "f.yaml:1: teams.a\\nb: a name has no control characters and no space at its ends"
        ),
    ),
    "a name not in composed form": (
        "teams: {'E\u0301': {}}\n",
        "f.yaml:1: teams.E\u0301: a name must be in Unicode's composed form (NFC)",
    ),
    "a date that does not exist": (
        "providers: {g: {kind: groq, trust: [{attribute: dpa, evidence: x, expires: 2027-02-30}]}}\n",
        "f.yaml:1: providers.g.trust[0].expires: day is out of range for month",
    ),
    "an SLA without a target": (
        (
            "providers: {g: {kind: groq}}\n"
            "models: {m: {deployments: [g/x], routing: {sla: {percentile: 95}}}}\n"
        ),
        "f.yaml:2: models.m.routing.sla: needs ttft_ms or tps",
    ),
    "a price of both kinds": (
        "providers: {g: {kind: groq, price: {input_usd_per_mtok: 1, gpu_usd_per_hour: 1}}}\n",
        "f.yaml:1: providers.g.price: has rates by usage and by hour; give only one kind",
    ),
    "a negative price": (
        "providers: {g: {kind: groq, price: {input_usd_per_mtok: -1}}}\n",
        "f.yaml:1: providers.g.price.input_usd_per_mtok: must be greater than or equal to 0",
    ),
    "two prices from the same moment": (
        "providers: {g: {kind: groq, price: [{request_usd: 1}, {request_usd: 2}]}}\n",
        (
            "f.yaml:1: providers.g.price: two prices hold from the same moment; give each its "
            "valid_from"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_fault_is_said_with_line_and_key(text, problem):
    assert problems_of(text) == [problem]
    assert "not-to-be-shown" not in problem


def test_all_problems_are_reported_at_once_in_the_order_of_the_file():
    lines = [
        problem.split(":")[1]
        for problem in problems_of(
            """\
            servr: {}
            server: {port: x}
            server: {}
            storage: {durability: never}
            providers: {g: {kind: groq, trust: [self_hosted]}}
            models: {m: {deployments: [nowhere/x]}}
            privacy: {floor: [unknown]}
            """
        )
    ]
    assert lines == ["1", "2", "3", "4", "5", "6", "7"]


def test_the_example_is_accepted_without_a_warning():
    loaded = load(EXAMPLE, environ={}, today=datetime(2026, 12, 1, tzinfo=UTC).date())
    assert loaded.warnings == ()
    assert loaded.files == (EXAMPLE,)


def test_every_file_that_is_shipped_can_be_served():
    for name in ("default.yaml", "starter.yaml"):
        assert unbuilt(load_text(template(name), environ={}, base_dir=HERE)) == ()


def test_money_keeps_its_digits():
    text = "providers: {g: {kind: groq, price: {input_usd_per_mtok: %s}}}"
    for written in ("0.10", '"0.10"'):
        (price,) = load_settings(text % written).settings.providers["g"].price
        assert price.input_usd_per_mtok == Decimal("0.10")
        assert str(price.input_usd_per_mtok) == "0.10"


def test_prices_are_ordered_by_the_moment_from_which_they_hold():
    text = """\
    providers:
      g:
        kind: groq
        price:
          - {request_usd: 3, valid_from: 2027-02-01T01:00:00+01:00}
          - {request_usd: 2, valid_from: 2027-01-01}
          - {request_usd: 1}
    """
    prices = load_settings(text).settings.providers["g"].price
    assert [price.request_usd for price in prices] == [1, 2, 3]
    assert prices[2].valid_from == datetime(2027, 2, 1, tzinfo=UTC)


def test_without_a_file_the_embedded_engine_is_reachable_under_its_own_names(tmp_path):
    environ = {"FAREWAY_STATE_DIR": str(tmp_path / "state")}
    loaded = load(None, environ=environ, folder=tmp_path)
    assert loaded.files == ()
    assert list(loaded.settings.models) == ["demo"]
    assert loaded.settings.models["demo"].deployments[0].deployment == "local/smollm2-135m-instruct"
    assert loaded.base_dir == tmp_path / "state"
    assert loaded.database_url == f"sqlite:///{tmp_path}/state/fareway.db"


def test_without_a_file_vendors_of_the_environment_are_named_as_not_used(tmp_path):
    environ = {"FAREWAY_STATE_DIR": str(tmp_path), "GROQ_API_KEY": "not-to-be-shown"}
    (warning,) = load(None, environ=environ, folder=tmp_path).warnings
    assert str(warning) == (
        "built-in defaults: GROQ_API_KEY: is set, but providers of kind groq are not built yet; "
        "it is not used"
    )


def test_the_file_in_the_folder_is_found_and_the_variable_wins(tmp_path):
    (tmp_path / "fareway.yaml").write_text("server: {port: 1}")
    (tmp_path / "other.yaml").write_text("server: {port: 2}")
    environ = {"FAREWAY_CONFIG": str(tmp_path / "other.yaml")}
    assert load(None, environ={}, folder=tmp_path).settings.server.port == 1
    assert load(None, environ=environ, folder=tmp_path).settings.server.port == 2


def test_a_named_file_that_is_missing_is_a_problem(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(None, environ={"FAREWAY_CONFIG": "/nowhere/x.yaml"}, folder=tmp_path)


def test_relative_paths_begin_at_the_files_folder(tmp_path):
    (tmp_path / "fareway.yaml").write_text("storage: {spool_dir: here/spool}")
    loaded = load(tmp_path / "fareway.yaml", environ={})
    assert loaded.spool_dir == tmp_path / "here/spool"
    assert loaded.database_url == f"sqlite:///{tmp_path}/fareway.db"


def test_an_absolute_database_path_stays(tmp_path):
    loaded = load_settings("storage: {database: 'sqlite:////var/lib/f.db'}")
    assert loaded.database_url == "sqlite:////var/lib/f.db"


def test_the_device_variable_decides_only_where_the_file_says_auto():
    text = "providers: {a: {kind: local}, b: {kind: local, device: cuda}}"
    loaded = load_text(text, environ={"FAREWAY_DEVICE": "cpu"}, base_dir=HERE)
    assert [provider.device for provider in loaded.settings.providers.values()] == ["cpu", "cuda"]


def test_an_unknown_device_in_the_variable_is_a_problem():
    with pytest.raises(ConfigError, match="FAREWAY_DEVICE: must be auto, cpu or cuda"):
        load_text("", environ={"FAREWAY_DEVICE": "gpu"}, base_dir=HERE)


def test_equal_settings_have_equal_digests_however_they_are_written():
    left = load_settings("server: {port: 1, workers: 1}\n")
    right = load_settings("# same\nserver:\n  workers: 1\n  port: 1\n")
    assert left.digest == right.digest
    assert left.digest != load_settings("server: {port: 2}\n").digest


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_settings("").settings.server.port = 1


def write_files(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "fareway.yaml"


def test_included_files_add_sections_and_named_entries(tmp_path):
    path = write_files(
        tmp_path,
        {
            "fareway.yaml": "include: [conf.d/*.yaml]\nteams: {a: {}}\nprivacy: {tags: {x: {}}}\n",
            "conf.d/1.yaml": "teams: {b: {tags: [x, y]}}\n",
            "conf.d/2.yaml": "privacy: {tags: {y: {}}, floor: [x]}\nserver: {port: 7}\n",
        },
    )
    loaded = load(path, environ={})
    assert sorted(loaded.settings.teams) == ["a", "b"]
    assert sorted(loaded.settings.privacy.tags) == ["x", "y"]
    assert loaded.settings.server.port == 7
    assert [file.name for file in loaded.files] == ["fareway.yaml", "1.yaml", "2.yaml"]
    assert loaded.locate("teams", "b").file.endswith("conf.d/1.yaml")


CONFLICTS = {
    "a name in two files": (
        {"fareway.yaml": "teams: {a: {}}", "x.yaml": "teams: {a: {}}"},
        "teams.a",
    ),
    "a setting in two files": (
        {"fareway.yaml": "server: {port: 1}", "x.yaml": "server: {port: 1}"},
        "server.port",
    ),
    "a list in two files": (
        {"fareway.yaml": "privacy: {floor: []}", "x.yaml": "privacy: {floor: []}"},
        "privacy.floor",
    ),
}


@pytest.mark.parametrize(("files", "key"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_what_two_files_both_say_is_a_conflict_naming_both(tmp_path, files, key):
    files["fareway.yaml"] = f"include: [x.yaml]\n{files['fareway.yaml']}"
    path = write_files(tmp_path, files)
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    assert str(caught.value) == f"{tmp_path}/x.yaml:1: {key}: is also set in {path}:2"


INCLUDE_FAULTS = {
    "a file that is not there": ({"fareway.yaml": "include: [x.yaml]"}, "there is no such file"),
    "an absolute glob": ({"fareway.yaml": "include: [/etc/*.yaml]"}, "must be a glob below"),
    "an included file that includes": (
        {"fareway.yaml": "include: [x.yaml]", "x.yaml": "include: [y.yaml]"},
        "an included file cannot include others",
    ),
    "an included file with a syntax error": (
        {"fareway.yaml": "include: [x.yaml]", "x.yaml": "a: ["},
        "x.yaml:2: not valid YAML",
    ),
    "an included file with an unknown key": (
        {"fareway.yaml": "include: [x.yaml]", "x.yaml": "server:\n  prot: 1"},
        "x.yaml:2: server.prot: unknown key",
    ),
}


@pytest.mark.parametrize(("files", "message"), INCLUDE_FAULTS.values(), ids=INCLUDE_FAULTS.keys())
def test_a_fault_in_an_include_is_reported(tmp_path, files, message):
    with pytest.raises(ConfigError) as caught:
        load(write_files(tmp_path, files), environ={})
    assert message in str(caught.value)


def test_a_glob_that_finds_the_file_itself_passes_it_over(tmp_path):
    files = {"fareway.yaml": "include: ['*.yaml']\nteams: {a: {}}", "x.yaml": "teams: {b: {}}"}
    path = write_files(tmp_path, files)
    assert sorted(load(path, environ={}).settings.teams) == ["a", "b"]


def test_a_glob_that_finds_nothing_is_fine(tmp_path):
    path = write_files(tmp_path, {"fareway.yaml": "include: [conf.d/*.yaml]"})
    assert load(path, environ={}).files == (path,)


def test_the_state_directory_is_the_platforms_unless_it_is_given():
    assert state_dir({"FAREWAY_STATE_DIR": "/x"}) == Path("/x")
    assert state_dir({}).name == "fareway"
