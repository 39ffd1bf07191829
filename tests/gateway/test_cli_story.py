"""`fareway spend journal`, `report` by cost centre and with adjustments, as a person runs them."""

from __future__ import annotations

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.cli.main import main
from tests.gateway.finance_books import attempt, write

pytestmark = pytest.mark.anyio

CONFIG = """
storage: {database: 'sqlite:///ledger.db', spool_dir: spool}
providers:
  openai: {kind: openai_compatible, base_url: "http://127.0.0.1:9"}
teams:
  payments: {cost_centre: "4711", projects: {fraud: {cost_centre: 4711-F}}}
  search: {cost_centre: "4712"}
"""
JOURNAL = """
finance:
  currency: CURRENCY
  rates_file: rates.csv
  journal:
    entity: DE01
    accounts: {expense: "6815", clearing: "3300", providers: {openai: "3310"}, rounding: "6899"}
"""
RATES = "day,base,quote,rate,source\n2026-10-30,USD,EUR,0.5,ecb\n"


@pytest.fixture
async def command(tmp_path, capsys, monkeypatch):
    """Runs a command with the books of October; gives code, output and remarks."""
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    await write(tmp_path, [attempt(1), attempt(2, team="search"), attempt(3, project="")])
    config = tmp_path / "fareway.yaml"
    (tmp_path / "rates.csv").write_text(RATES)

    def run(*arguments: str, currency: str = "USD", more: str = JOURNAL) -> tuple[int, str, str]:
        config.write_text(CONFIG + more.replace("CURRENCY", currency))
        # In a thread of its own: the command runs a loop.
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit) as ended:
            pool.submit(main, ("spend", *arguments, "--config", str(config))).result()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    run.folder = tmp_path
    return run


def close(command) -> None:
    accepted = ("--accept", "reconciliation=no bill comes")
    assert command("close", "--month", "2026-10", "--hard", *accepted)[0] == 0


OCTOBER = ("--month", "2026-10")


async def test_a_closed_month_is_issued_once_as_csv_json_and_text(command):
    code, _, err = command("journal", *OCTOBER)
    assert (code, "2026-10 is not closed" in err) == (1, True)
    code, out, _ = command("journal", *OCTOBER, "--draft")
    assert (code, out.startswith("DRAFT-FW-2026-10  DE01  2026-10-31  USD\n")) == (0, True)
    close(command)
    code, out, _ = command("journal", *OCTOBER, "--csv")
    rows = list(csv.DictReader(io.StringIO(out, newline="")))
    assert [(row["account"], row["cost_centre"], row["debit"], row["credit"]) for row in rows] == [
        ("6815", "4711", "2.50", "0.00"),
        ("6815", "4711-F", "2.50", "0.00"),
        ("6815", "4712", "2.50", "0.00"),
        ("3310", "", "0.00", "7.50"),
    ]
    assert {(row["document_number"], row["state"]) for row in rows} == {("FW-2026-10", "issued")}
    document = json.loads(command("journal", *OCTOBER, "--json")[1])
    assert document["total_pico_usd"] == 7_500_000_000_000
    file = command.folder / "journal.csv"
    assert command("journal", *OCTOBER, "--out", str(file))[:2] == (
        0,
        f"{file}: FW-2026-10, 4 lines\n",
    )
    assert file.read_bytes().decode().splitlines() == out.splitlines()
    other = JOURNAL.replace("6815", "6816")
    code, out, err = command("journal", *OCTOBER, more=other)
    assert ("6815" in out, "--revise issues another one" in err) == (True, True)
    code, out, err = command("journal", *OCTOBER, "--revise", more=other)
    assert (out.startswith("FW-2026-10-2  "), "6816" in out, err) == (True, True, "")
    assert document["digest"] not in out


async def test_another_currency_takes_the_rate_of_the_last_day(command):
    close(command)
    out = command("journal", *OCTOBER, currency="EUR")[1]
    assert "total                                 3.75             3.75" in out
    assert "rate 1/2 EUR per USD of 2026-10-30, ecb" in out
    (command.folder / "rates.csv").write_text("day,base,quote,rate,source\n")
    code, _, err = command("journal", *OCTOBER, currency="EUR")
    assert (code, "no exchange rate from USD to EUR for 2026-10-31" in err) == (1, True)


async def test_without_a_journal_configured_there_is_none(command):
    code, _, err = command("journal", *OCTOBER, more="")
    assert (code, "name its accounts in finance.journal" in err) == (1, True)


async def test_reports_are_by_cost_centre_and_with_adjustments(command):
    code, out, _ = command("report", *OCTOBER, "--by", "cost_centre", "--json")
    rows = {row["cost_centre"]: row["cost_usd"] for row in json.loads(out)["rows"]}
    assert (code, rows) == (0, {"4711": "2.5", "4711-F": "2.5", "4712": "2.5"})
    line = ("--line", "payments/fraud=-1", "--line", "search=1")
    kind = ("--kind", "allocation", "--reason", "search used it")
    assert command("reconcile", "propose", *OCTOBER, *kind, *line)[0] == 0
    assert command("reconcile", "approve", "1")[0] == 0
    asked = ("report", *OCTOBER, "--with-adjustments", "--json")
    document = json.loads(command(*asked)[1])
    assert {row["team"]: row["charged_usd"] for row in document["rows"]} == {
        "payments": "4",
        "search": "3.5",
    }
    assert document["total"]["charged_usd"] == document["total"]["cost_usd"] == "7.5"
    only = json.loads(command(*asked, "--cost-centre", "4711-F")[1])
    assert only["total"]["charged_usd"] == "1.5"
    assert command(*asked, "--zone", "Asia/Kathmandu")[0] == 2


async def test_a_statement_is_shown_in_every_form(command):
    asked = ("statement", "--team", "payments", *OCTOBER)
    code, out, _ = command(*asked)
    assert (code, out.splitlines()[0]) == (0, "statement of payments, 2026-10 (open)")
    assert "  charged                      5 USD" in out
    rows = list(csv.DictReader(io.StringIO(command(*asked, "--csv")[1], newline="")))
    assert [row["cost_centre"] for row in rows if row["kind"] == "usage"] == ["4711", "4711-F"]
    assert rows[-1]["amount_usd"] == "5"
    document = json.loads(command(*asked, "--json")[1])
    assert document["total"]["charged_usd"] == "5"
    page = command.folder / "page.html"
    assert command(*asked, "--html", str(page))[:2] == (0, f"{page}: 5 USD\n")
    assert "4711-F" in page.read_text()
    week = ("statement", "--team", "payments", "--week", "2026-W42")
    assert "(week)" in command(*week)[1]
    code, _, err = command(*asked, "--send")
    assert (code, "no gateway runs" in err) == (1, True)
    assert command("statement", "--sent")[0] == 1


async def test_the_story_of_a_month_is_told(command):
    code, out, _ = command("bridge", *OCTOBER)
    assert (code, "  mix                                 7.5 USD" in out) == (0, True)
    found = json.loads(command("bridge", *OCTOBER, "--team", "search", "--json")[1])
    assert (found["before"], found["after_pico_usd"]) == ("2026-09", 2_500_000_000_000)
    code, out, err = command("anomalies", *OCTOBER)
    assert (code, out, err) == (0, "", "no day stood out\n")
    assert json.loads(command("anomalies", "--excess-usd", "1", "--json")[1]) == []


USAGE = {
    "no month": ("journal",),
    "two forms": ("journal", *OCTOBER, "--csv", "--json"),
    "a statement of nobody": ("statement", *OCTOBER),
    "a statement of no period": ("statement", "--team", "payments"),
    "a month that is a week": ("statement", "--team", "payments", "--month", "2026-W42"),
    "a week that is none": ("statement", "--team", "payments", "--week", "2026-W99"),
    "two forms of a statement": ("statement", "--team", "x", *OCTOBER, "--csv", "--json"),
    "a draft that is a revision": ("journal", *OCTOBER, "--draft", "--revise"),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
async def test_wrong_usage_exits_with_2(command, arguments):
    assert command(*arguments)[0] == 2


async def test_rates_are_read_beside_the_configuration_wherever_a_command_runs(
    command, monkeypatch
) -> None:
    (command.folder / "elsewhere").mkdir()
    monkeypatch.chdir(command.folder / "elsewhere")
    days = ("--from", "2026-10-30", "--to", "2026-12-31")
    deal = ("--kind", "credit", "--provider", "openai", "--amount", "3", "--currency", "EUR")
    code, out, err = command("commitments", "record", "d", *deal, *days)
    assert (code, err) == (0, "")
    assert "6 USD" in out
