"""`fareway budgets` with a stopped gateway: the database is written and read directly."""

from __future__ import annotations

import json

import anyio
import pytest

from gateway.auth.directory import fixed_key_record
from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclaration,
    BudgetScope,
    BudgetWindow,
    LeaseRequest,
    LeaseWant,
)
from gateway.cli.main import main
from gateway.clock import system_clock
from gateway.ledger.service import LedgerService
from gateway.settings.declared_budgets import declared_budgets
from gateway.settings.environment import process_environ
from gateway.settings.loader import load
from tests.gateway.ledger_samples import FakeClock, make_database

CONFIG = """
storage: {database: "sqlite:///fareway.db", spool_dir: spool}
models: {chat: {deployments: [local/m]}}
providers: {local: {kind: local, models: [{id: m, source: "pypi:p==1"}]}}
finance: {time_zone: Asia/Seoul, fiscal_year_start_month: 4}
teams:
  payments:
    budget: {usd: 500, window: month}
    projects: {fraud: {}}
    keys: [{name: bot, value_env: BOT_KEY, project: fraud}]
  open: {}
"""
BOT_KEY = "a-key-brought-along-from-elsewhere"
KEY_ID = fixed_key_record(BOT_KEY, pepper=bytes(32), team="payments", name="bot").key_id


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder with a configuration; gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BOT_KEY", BOT_KEY)
    (tmp_path / "fareway.yaml").write_text(CONFIG)
    make_database(tmp_path, "fareway.db")

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def listed(fareway):
    status, out, _ = fareway("budgets", "list", "--json")
    assert status == 0
    return {budget["name"]: budget for budget in json.loads(out)["budgets"]}


def serve_once():
    """What a start of the gateway does with the budgets of the file."""

    async def run():
        config = load(None, environ=process_environ())
        service = LedgerService(config.database_url, config.spool_dir, clock=system_clock())
        await service.start()
        await service.set_budgets(declared_budgets(config, environ=process_environ()))
        await service.stop(drain=False)

    anyio.run(run)


def test_a_budget_is_set_listed_changed_and_taken_away(fareway):
    assert fareway("budgets", "list") == (0, "", "no budgets are in force\n")
    status, _, err = fareway("budgets", "set", "mine", "--usd", "0.05", "--team", "open")
    assert (status, err) == (0, "budget mine is set\n")
    budget = listed(fareway)["mine"]
    assert budget["limit_pico_usd"] == 50_000_000_000
    assert (budget["scope"], budget["team"], budget["source"]) == ("team", "open", "database")
    assert (budget["window"], budget["time_zone"]) == ("month", "Asia/Seoul")
    assert (budget["on_exceed"], budget["alerts_at"]) == ("block", [50, 80, 100])
    status, _, _ = fareway("budgets", "set", "mine", "--usd", "7", "--alert-at", "90")
    assert status == 0
    changed = listed(fareway)["mine"]
    assert changed | {"limit_usd": "", "limit_pico_usd": 0, "alerts_at": []} == budget | {
        "room_usd": "7",
        "room_pico_usd": 7 * 10**12,
        "limit_usd": "",
        "limit_pico_usd": 0,
        "alerts_at": [],
    }
    assert changed["alerts_at"] == [90]
    status, out, _ = fareway("budgets", "list")
    assert status == 0
    assert out.splitlines()[1].split() == [
        *("mine", "month", "7", "0", "0", "0", "7", changed["resets_at"], "block", "database")
    ]
    assert fareway("budgets", "set", "mine", "--remove")[0] == 0
    assert listed(fareway) == {}


def test_a_budget_can_cap_each_scope(fareway):
    scopes = {
        "all": ("--organisation", "--window", "fiscal"),
        "team": ("--team", "payments"),
        "project": ("--team", "payments", "--project", "fraud"),
        "key": ("--key", KEY_ID),
        "tag": ("--cost-tag", "feature=search"),
        "team's tag": ("--cost-tag", "feature=search", "--team", "open"),
    }
    for name, options in scopes.items():
        assert fareway("budgets", "set", name, "--usd", "1", *options)[0] == 0
    found = listed(fareway)
    assert list(found) == ["all", "team", "project", "key", "tag", "team's tag"]
    assert [one["scope"] for one in found.values()] == [
        *("organisation", "team", "project", "key", "cost_tag", "cost_tag")
    ]
    assert (found["key"]["key_id"], found["key"]["team"]) == (KEY_ID, "payments")
    assert found["team's tag"]["cost_tag"] == "feature=search"
    # Another amount for a key's budget needs no second naming of the key.
    assert fareway("budgets", "set", "key", "--usd", "2")[0] == 0
    assert listed(fareway)["key"]["limit_usd"] == "2"


REFUSED = {
    "a new budget of nobody": (("x", "--usd", "1"), "say whom it caps"),
    "no amount": (("x", "--team", "open"), "say the amount with --usd"),
    "no number": (("x", "--team", "open", "--usd", "much"), "usd: must be an amount"),
    "a negative amount": (("x", "--team", "open", "--usd", "-1"), "usd: "),
    "an unknown team": (("x", "--team", "opne", "--usd", "1"), "did you mean `open`"),
    "an unknown project": (
        ("x", "--team", "open", "--project", "p", "--usd", "1"),
        "has no project 'p'",
    ),
    "a project of no team": (("x", "--project", "p", "--usd", "1"), "needs `team`"),
    "an unknown key": (("x", "--key", "nobody", "--usd", "1"), "no key with the id 'nobody'"),
    "a tag without a value": (("x", "--cost-tag", "a", "--usd", "1"), "such as feature=search"),
    "two scopes": (("x", "--organisation", "--team", "open", "--usd", "1"), "takes no `team`"),
    "an unknown window": (
        ("x", "--team", "open", "--usd", "1", "--window", "hour"),
        "window: Input should be 'day'",
    ),
    "more than SQLite can hold": (
        ("x", "--team", "open", "--usd", "9000001"),
        "most that SQLite can hold",
    ),
    "removing what is not there": (("x", "--remove"), "no budget is called 'x'"),
}


@pytest.mark.parametrize(("options", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_set_is_told(fareway, options, expected):
    status, _, err = fareway("budgets", "set", *options)
    assert status == 1
    assert expected in err
    assert listed(fareway) == {}


def test_removing_takes_no_other_option(fareway):
    assert fareway("budgets", "set", "x", "--remove", "--usd", "1")[0] == 2


def test_budgets_of_the_file_are_listed_and_changed_only_there(fareway):
    serve_once()
    name = "team payments, month"
    assert listed(fareway)[name]["source"] == "file"
    for options in (("--usd", "1"), ("--remove",), ("--usd", "1", "--team", "payments")):
        status, _, err = fareway("budgets", "set", name, *options)
        assert status == 1
        assert "declared in the configuration file; change it there" in err


def test_a_key_is_made_together_with_its_budget(fareway):
    options = ("keys", "create", "--team", "open", "--name", "k", "--budget-usd")
    status, out, _ = fareway(*options, "0.5", "--budget-window", "day", "--json")
    assert status == 0
    key_id = json.loads(out)["key_id"]
    (budget,) = listed(fareway).values()
    assert (budget["scope"], budget["key_id"], budget["team"]) == ("key", key_id, "open")
    assert (budget["limit_usd"], budget["window"]) == ("0.5", "day")
    # What cannot be made leaves nothing behind.
    assert fareway(*options, "0.5")[0] == 1
    assert fareway(*options, "much")[0] == 1
    assert list(listed(fareway).values()) == [budget]


def test_what_a_machine_that_is_gone_had_reserved_is_shown_and_written_off(fareway, tmp_path):
    async def leave() -> None:
        url = f"sqlite:///{tmp_path / 'fareway.db'}"
        service = LedgerService(url, tmp_path / "spool", clock=FakeClock().clock)
        await service.start()
        everything = BudgetDeclaration(
            name="all",
            scope=BudgetScope.ORGANISATION,
            limit_pico_usd=10**12,
            window=BudgetWindow.TOTAL,
        )
        await service.change_budget(BudgetChange(name="all", budget=everything, actor="cli"))
        want = LeaseWant(
            budget_id=1, window_start_us=0, at_least_pico_usd=10**11, wanted_pico_usd=10**11
        )
        request = LeaseRequest(directory="worker-0", session=bytes(16), wants=(want,))
        assert len((await service.lease_budgets(request)).leases) == 1
        await service.stop(drain=False)

    anyio.run(leave)
    status, out, _ = fareway("budgets", "expired", "--json")
    (one,) = json.loads(out)["expired"]
    assert (status, one["budget"], one["worker"], one["amount_usd"]) == (
        0,
        "all",
        "worker-0",
        "0.1",
    )
    assert one["heard_of_at"] == "2026-11-28T12:00:00+00:00"
    status, out, _ = fareway("budgets", "expired")
    assert "0.1 USD for worker-0, last heard of at 2026-11-28" in out
    status, out, _ = fareway("budgets", "write-off", "worker-0")
    assert (status, out.startswith("written off: all, window of 1970-01-01")) == (0, True)
    status, out, err = fareway("budgets", "expired")
    assert (status, out, "nothing is reserved for a worker that is gone" in err) == (0, "", True)
    status, _, err = fareway("budgets", "write-off", "worker-0")
    assert status == 1
    assert "`fareway budgets expired` shows what has" in err
