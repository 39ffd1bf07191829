"""`fareway spend reconcile` and `fareway spend close`, as a person runs them, without a gateway."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.cli.main import main
from tests.gateway.finance_books import attempt, write
from tests.gateway.test_finance_close import whole_month

pytestmark = pytest.mark.anyio

CONFIG = """
storage: {database: 'sqlite:///ledger.db', spool_dir: spool}
providers:
  openai: {kind: openai_compatible, base_url: "http://127.0.0.1:9"}
"""


@pytest.fixture
async def command(tmp_path, capsys, monkeypatch):
    """Runs a command with the books of October; gives code, output and remarks."""
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    await write(tmp_path, [attempt(1), attempt(2, team="search")])
    config = tmp_path / "fareway.yaml"
    config.write_text(CONFIG)
    (tmp_path / "costs.json").write_bytes(whole_month("6"))

    def run(*arguments: str, of: str = "spend") -> tuple[int, str, str]:
        # In a thread of its own: the command runs a loop.
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit) as ended:
            pool.submit(main, (of, *arguments, "--config", str(config))).result()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    run.folder = tmp_path
    return run


def take(command, *more: str) -> tuple[int, str, str]:
    file = str(command.folder / "costs.json")
    source = ("--source", "openai-costs", "--account", "openai")
    return command("reconcile", "import", file, *source, *more)


@pytest.mark.slow
async def test_a_month_is_closed_from_the_command_line(command):
    code, out, _ = take(command)
    assert (code, out) == (
        0,
        "import 1: 1 rows of openai, 2026-10-01 to 2026-10-31, 6 USD\n",
    )
    assert "nothing was changed" in take(command)[1]
    assert "costs.json" in command("reconcile", "imports")[1]
    code, out, _ = command("reconcile", "run", "--month", "2026-10")
    assert out.startswith("coverage 200.00 % of billed tokens\n")
    assert "differences      1 USD" in out
    assert "proposals 1 wait for approval" in out
    assert command("reconcile", "show", "1")[1] == out
    assert "1  2026-10  read  coverage 200.00 %" in command("reconcile", "runs")[1]
    assert "1  2026-10  true_up  proposed" in command("reconcile", "proposals")[1]
    code, out, err = command("reconcile", "approve", "1")
    assert (code, out) == (0, "proposal 1 is posted\n")
    assert "proposer and approver are the same" in err
    shown = command("reconcile", "adjustments", "--month", "2026-10")[1].splitlines()
    assert len(shown) == 4
    assert command("reconcile", "adjustments", "--month", "2026-09")[1] == ""
    assert "2026-10 is open" in command("close", "--month", "2026-10")[1]
    code, out, _ = command("close", "--month", "2026-10", "--soft")
    assert (code, "2026-10 is soft" in out) == (0, True)
    code, out, err = command("close", "--month", "2026-10", "--hard")
    assert (code, "2026-10 is closed" in out, err) == (0, True, "")
    assert "head of audit chain" in out
    code, out, _ = command("close", "--verify")
    assert (code, out.endswith("holds\n")) == (0, True)
    code, _, err = command("close", "--month", "2026-10", "--hard")
    assert (code, "a close is never undone" in err) == (1, True)


async def test_generations_of_a_bill_are_matched_one_by_one(command):
    entry = {"id": "gen-1", "created_at": "2026-10-17T12:00:00Z", "model": "gpt-4o"}
    counts = {"native_tokens_prompt": 7, "native_tokens_completion": 1, "total_cost": "0.5"}
    (command.folder / "costs.json").write_text(json.dumps({"data": entry | counts}))
    source = ("--source", "openrouter-generations", "--account", "openai")
    file = str(command.folder / "costs.json")
    assert command("reconcile", "import", file, *source)[0] == 0
    asked = ("reconcile", "generations", "--month", "2026-10", "--state", "missing")
    code, out, _ = command(*asked)
    assert (code, "openai/gpt-4o  gen-1  booked -, told -, billed 0.5 USD" in out) == (0, True)
    assert [one["billed_units"] for one in json.loads(command(*asked, "--json")[1])] == [8]


@pytest.mark.slow
async def test_a_close_is_proposed_shown_and_taken_back_and_not_confirmed_by_oneself(command):
    month = ("close", "--month", "2026-10")
    code, out, _ = command(*month, "--propose", "--accept", "reconciliation=no bill comes")
    assert (code, out.splitlines()[0]) == (
        0,
        "the close of 2026-10 waits for somebody else to confirm it:",
    )
    digest = out.split()[-1]
    shown = command(*month)[1]
    assert f"digest as proposed   {digest}" in shown
    assert "accepted as proposed reconciliation: no bill comes" in shown
    code, _, err = command(*month, "--confirm", digest)
    assert (code, "cannot confirm it too" in err) == (1, True)
    assert json.loads(command(*month, "--json")[1])["proposal"]["digest"] == digest
    code, out, _ = command(*month, "--withdraw", "a bill is missing")
    assert (code, "is withdrawn" in out) == (0, True)
    again = json.loads(command(*month, "--propose", "--accept", "reconciliation=x", "--json")[1])
    assert again["digest"] == digest
    code, out, _ = command(*month, "--hard", "--accept", "reconciliation=no bill comes")
    assert (code, "2026-10 is closed" in out) == (0, True)


async def test_a_price_that_a_bill_implies_is_decided(command):
    take(command)
    out = command("reconcile", "run", "--month", "2026-10")[1]
    assert "prices are other than ours: price proposals 1\n" in out
    code, out, _ = command("proposals", of="prices")
    assert (code, "openai/gpt-4o  input_usd_per_mtok: ours 2.5, billed 6  open" in out) == (0, True)
    code, out, _ = command("accept", "1", "--reason", "the new list", of="prices")
    assert (code, out.splitlines()[0]) == (0, "price proposal 1 is accepted")
    assert "price: {input_usd_per_mtok: 6, valid_from: 2026-10-17T00:00:00Z}" in out
    code, _, err = command("reject", "1", "--reason", "x", of="prices")
    assert (code, "was accepted by" in err) == (1, True)
    shown = command("proposals", "--state", "accepted", "--month", "2026-10", "--json", of="prices")
    assert [one["reason"] for one in json.loads(shown[1])] == ["the new list"]
    assert command("reject", "1", "--reason", " ", of="prices")[0] == 2


async def test_json_is_the_whole_answer(command):
    take(command)
    for arguments in (
        ("reconcile", "imports"),
        ("reconcile", "run", "--month", "2026-10", "--no-propose"),
        ("reconcile", "runs"),
        ("reconcile", "proposals"),
        ("reconcile", "adjustments"),
        ("close", "--month", "2026-10", "--status"),
        ("close", "--verify"),
    ):
        code, out, _ = command(*arguments, "--json")
        assert code == 0
        json.loads(out)
    assert json.loads(take(command, "--json")[1])["is_new"] is False


async def test_spend_of_nobody_is_given_to_its_team_by_a_pair(command):
    lines = ("--line", "unattributed=-1.5", "--line", "search/web=1.5")
    proposed = ("reconcile", "propose", "--month", "2026-10", "--kind", "reattribution")
    code, out, _ = command(*proposed, "--reason", "search used it", *lines)
    assert (code, out) == (0, "proposal 1 waits for approval\n")
    assert command("reconcile", "reject", "1")[1] == "proposal 1 is rejected\n"
    code, _, err = command(*proposed, "--reason", "odd", "--line", "search=1")
    assert (code, "have to sum to 0" in err) == (1, True)


async def test_a_file_that_is_no_bill_is_unreadable_and_stays_in_the_list(command):
    (command.folder / "costs.json").write_text("<html>")
    code, out, err = take(command)
    assert (code, out) == (1, "")
    assert err.startswith("UNREADABLE: costs.json: is no JSON")
    assert "UNREADABLE" in command("reconcile", "imports")[1]
    assert "coverage UNREADABLE" in command("reconcile", "run", "--month", "2026-10")[1]


USAGE = {
    "no month": ("close",),
    "a month that is none": ("close", "--month", "2026-13"),
    "a digest that is none": ("close", "--month", "2026-10", "--confirm", "5f0c"),
    "a reason that is none": ("close", "--month", "2026-10", "--withdraw", " "),
    "two steps": ("close", "--month", "2026-10", "--soft", "--hard"),
    "an acceptance without a reason": ("close", "--month", "2026-10", "--accept", "unpriced="),
    "a line without an amount": (
        *("reconcile", "propose", "--month", "2026-10", "--kind", "tax", "--reason", "x"),
        *("--line", "search"),
    ),
    "a line without a team": (
        *("reconcile", "propose", "--month", "2026-10", "--kind", "tax", "--reason", "x"),
        *("--line", "=1"),
    ),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
async def test_wrong_usage_exits_with_2(command, arguments):
    assert command(*arguments)[0] == 2


async def test_a_file_for_an_unknown_provider_or_both_ways_is_wrong_usage(command):
    file = str(command.folder / "costs.json")
    other = ("--source", "openai-costs", "--account", "nobody")
    assert command("reconcile", "import", file, *other)[0] == 2
    assert take(command, "--replace", "--add")[0] == 2
