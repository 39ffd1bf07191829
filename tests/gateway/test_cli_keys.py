"""`fareway keys` with a stopped gateway: the database is written and read directly."""

import json
from pathlib import Path

import anyio
import pytest

from gateway.auth.directory import KeyDirectory, KeySnapshot, Principal
from gateway.auth.keys import parse_key_id
from gateway.cli.main import main
from gateway.clock import system_clock
from gateway.ledger.service import LedgerService
from gateway.settings.environment import process_environ
from gateway.settings.loader import load
from gateway.settings.secrets import Label, load_master_keys

CONFIG = """
storage: {database: "sqlite:///fareway.db", spool_dir: spool}
models: {chat: {deployments: [local/m]}}
providers: {local: {kind: local, models: [{id: m, source: "pypi:p==1"}]}}
teams:
  payments:
    projects: {fraud: {}}
    keys: [{name: bot, value_env: BOT_KEY, project: fraud}]
  open: {}
"""
BOT_KEY = "a-key-brought-along-from-elsewhere"


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder with a configuration; gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BOT_KEY", BOT_KEY)
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def create(fareway):
    def run(*arguments, team="open", name="k"):
        status, out, _ = fareway(
            "keys", "create", "--team", team, "--name", name, "--json", *arguments
        )
        assert status == 0
        return json.loads(out)

    return run


def rows(fareway):
    status, out, _ = fareway("keys", "list", "--json")
    assert status == 0
    return {row["name"]: row for row in json.loads(out)}


def who(key):
    """Whom a worker would take the bearer for, with what the database and the secrets hold now."""
    config = load(None, environ=process_environ())

    async def records():
        service = LedgerService(config.database_url, config.spool_dir, clock=system_clock())
        try:
            return await service.load_all_keys()
        finally:
            await service.stop(drain=False)

    revision, kept = anyio.run(records)
    master = load_master_keys(config, environ=process_environ(), random_bytes=bytes)
    directory = KeyDirectory(
        KeySnapshot(revision=revision, records=tuple(kept)),
        peppers=master.derive_all(Label.KEY_PEPPER),
        namespace_key=bytes(32),
    )
    return directory.identify(key.encode(), now_us=system_clock().wall_us())


def test_a_key_that_was_made_opens_the_gateway_as_ordered(create):
    made = create(
        "--project", "fraud", "--model", "chat", "--model", "local/m", team="payments", name="ci"
    )
    assert made["team"] == "payments"
    assert parse_key_id(made["key"].encode()) == made["key_id"]
    assert who(made["key"]) == Principal(
        key_id=made["key_id"],
        team="payments",
        project="fraud",
        key_name="ci",
        models=frozenset({"chat", "local/m"}),
    )


def test_the_key_itself_is_nowhere_but_on_the_screen(create, fareway, tmp_path):
    made = create()
    secret = made["key"].encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret in path.read_bytes()] == []
    assert made["key"] not in fareway("keys", "list")[1]
    assert made["key"] not in fareway("keys", "list", "--json")[1]


def test_the_plain_form_prints_the_key_alone_on_standard_output(fareway):
    status, out, err = fareway("keys", "create", "--team", "open", "--name", "k")
    assert status == 0
    assert parse_key_id(out.strip().encode()) is not None
    assert "only now" in err


@pytest.mark.parametrize("environment", ["live", "test"])
def test_the_environment_shows_in_the_key(create, environment):
    assert create("--environment", environment)["key"].startswith(f"fw_{environment}_")


def test_the_list_holds_keys_of_file_and_database_with_their_state(create, fareway):
    create("--expires-days", "7", name="a")
    create("--model", "chat", name="b")
    found = rows(fareway)
    assert set(found) == {"bot", "a", "b"}
    assert (found["bot"]["source"], found["a"]["source"]) == ("file", "database")
    assert (found["bot"]["project"], found["a"]["project"]) == ("fraud", None)
    assert (found["a"]["models"], found["b"]["models"]) == (None, ["chat"])
    assert found["b"]["expires_at"] is None
    assert found["a"]["expires_at"] > "2026"
    assert {row["state"] for row in found.values()} == {"active"}
    text = fareway("keys", "list")[1]
    assert all(row["key_id"] in text for row in found.values())
    assert BOT_KEY not in text


def test_without_any_key_the_list_says_how_to_make_one(fareway):
    Path("fareway.yaml").write_text(CONFIG.replace(CONFIG[CONFIG.index("    keys:") :], ""))
    status, out, err = fareway("keys", "list")
    assert (status, out) == (0, "")
    assert "fareway keys create" in err


def test_a_revoked_key_opens_nothing_and_stays_in_the_list(create, fareway):
    made, other = create(name="a"), create(name="b")
    status, out, err = fareway("keys", "revoke", made["key_id"])
    assert (status, out) == (0, "")
    assert made["key_id"] in err
    assert rows(fareway)["a"]["state"] == "revoked"
    assert not isinstance(who(made["key"]), Principal)
    assert isinstance(who(other["key"]), Principal)


def test_a_name_is_free_again_once_its_key_is_revoked(create, fareway):
    first = create(name="a")
    status, _, err = fareway("keys", "create", "--team", "open", "--name", "a")
    assert status == 1
    assert "has a key named 'a' in use" in err
    fareway("keys", "revoke", first["key_id"])
    assert create(name="a")["key_id"] != first["key_id"]


FAULTS = {
    "an unknown team": (("create", "--team", "nobody", "--name", "k"), "no team 'nobody'"),
    "an unknown project": (
        ("create", "--team", "open", "--name", "k", "--project", "golf"),
        "no project 'golf'",
    ),
    "a name that the file has": (
        ("create", "--team", "payments", "--name", "bot"),
        "the configuration file has a key named 'bot'",
    ),
    "an unknown key": (("revoke", "nothing"), "nothing"),
}


@pytest.mark.parametrize(("arguments", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_done_is_one_sentence(fareway, arguments, said):
    status, out, err = fareway("keys", *arguments)
    assert (status, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_key_of_the_file_is_revoked_in_the_file(fareway):
    key_id = rows(fareway)["bot"]["key_id"]
    status, _, err = fareway("keys", "revoke", key_id)
    assert status == 1
    assert "configuration file" in err
    assert rows(fareway)["bot"]["state"] == "active"


USAGE = {
    "no team": ("create", "--name", "k"),
    "no name": ("create", "--team", "open"),
    "another environment": ("create", "--team", "open", "--name", "k", "--environment", "beta"),
    "no days at all": ("create", "--team", "open", "--name", "k", "--expires-days", "0"),
    "no key": ("revoke",),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
def test_half_an_order_is_wrong_usage(fareway, tmp_path, arguments):
    assert fareway("keys", *arguments)[0] == 2
    assert not (tmp_path / "fareway.db").exists()


NO_KEYS = {
    "a model that nobody offers": (["--model", "chatt"], "no model is called 'chatt'; did you mean `chat`?"),
    "a model outside the team's": (["--model", "other"], "team 'narrow' may not use 'other'"),
    "a name of nothing": (["--name", ""], "the key's name '' does not fit: a name has 1 to 128 characters"),
    "a name with a line break": (["--name", "a\nb"], r"the key's name 'a\nb' does not fit"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), NO_KEYS.values(), ids=NO_KEYS.keys())
def test_a_key_that_could_never_be_used_is_not_made(fareway, tmp_path, arguments, said):
    narrow = CONFIG.replace("models: {chat", "models: {other: {deployments: [local/m]}, chat")
    (tmp_path / "fareway.yaml").write_text(narrow + "  narrow: {models: [chat]}\n")
    status, _, err = fareway("keys", "create", "--team", "narrow", "--name", "k", *arguments)
    assert (status, err.startswith(said)) == (1, True), err
    assert rows(fareway).keys() == {"bot"}


def test_keys_are_listed_in_columns_under_their_names(fareway, create):
    create("--model", "chat", name="short")
    create(name="a much longer name")
    _, out, _ = fareway("keys", "list")
    head, *lines = out.splitlines()
    assert head.split() == [
        "key_id", "team", "project", "name", "state", "models", "tags", "limits", "expires_at",
        "source",
    ]  # fmt: skip
    place = head.index("state")
    assert {line[place:].split()[0] for line in lines} == {"active"}


def test_a_key_may_have_tags_of_its_own_and_its_successor_has_them_too(fareway, create, tmp_path):
    (tmp_path / "fareway.yaml").write_text(CONFIG + "privacy: {tags: {gdpr: {}, private: {}}}\n")
    made = create("--tags", "private, gdpr", name="tagged")
    assert who(made["key"]).tags == {"gdpr", "private"}
    assert rows(fareway)["tagged"]["tags"] == ["gdpr", "private"]
    status, out, _ = fareway("keys", "rotate", made["key_id"], "--json")
    assert status == 0
    assert who(json.loads(out)["key"]).tags == {"gdpr", "private"}
    status, _, err = fareway("keys", "create", "--team", "open", "--name", "k", "--tags", "privat")
    assert (status, "no privacy tag 'privat'" in err) == (1, True)


def test_a_key_may_have_limits_of_its_own(fareway, create):
    create("--rpm", "60", "--tpm", "9000", "--concurrency", "2", name="limited")
    create(name="free")
    found = rows(fareway)
    assert found["limited"]["limits"] == {"rpm": 60, "tpm": 9000, "concurrency": 2}
    assert found["free"]["limits"] is None
    _, out, _ = fareway("keys", "list")
    assert "rpm=60,tpm=9000,concurrency=2" in out


def test_a_key_is_replaced_and_goes_on_for_a_while(create, fareway):
    old = create("--rpm", "60", "--budget-usd", "1.50", "--budget-window", "day", name="ci")
    status, out, err = fareway("keys", "rotate", old["key_id"], "--grace-hours", "24", "--json")
    assert (status, err) == (0, "")
    new = json.loads(out)
    assert (new["team"], new["name"], new["replaces"]) == ("open", "ci 2", old["key_id"])
    listed = rows(fareway)
    assert listed["ci"]["state"] == listed["ci 2"]["state"] == "active"
    assert listed["ci"]["expires_at"] == new["replaced_until"]
    assert listed["ci 2"]["expires_at"] is None
    assert listed["ci 2"]["limits"] == listed["ci"]["limits"]
    budgets = json.loads(fareway("budgets", "list", "--json")[1])["budgets"]
    assert {one["key_id"]: one["limit_usd"] for one in budgets} == {
        old["key_id"]: "1.5",
        new["key_id"]: "1.5",
    }


def test_a_key_replaced_without_grace_is_void(create, fareway):
    old = create(name="ci")
    status, out, err = fareway("keys", "rotate", old["key_id"], "--grace-hours", "0")
    assert (status, out[:8]) == (0, "fw_live_")
    assert f"key {old['key_id']} is void" in err
    assert {name: row["state"] for name, row in rows(fareway).items()} == {
        "bot": "active",
        "ci": "revoked",
        "ci 2": "active",
    }
    status, out, err = fareway("keys", "rotate", old["key_id"])
    assert (status, out, "is void; make a new one" in err) == (1, "", True)


def test_only_keys_made_here_are_replaced(fareway):
    fixed = rows(fareway)["bot"]
    _, _, err = fareway("keys", "rotate", fixed["key_id"])
    assert "declared in the configuration file; change its value there" in err
    _, _, err = fareway("keys", "rotate", "abcdefghjkmn")
    assert "no key with the id 'abcdefghjkmn'" in err
