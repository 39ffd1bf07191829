"""`fareway spend report` and `fareway ledger verify`, as a person runs them."""

from __future__ import annotations

import csv
import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from gateway.channel import RemoteError, method
from gateway.cli.main import main
from gateway.ledger.loader import Loader
from gateway.process import admin_socket
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)
from tests.gateway.test_ledger_verify import EVENT_1, spoil

pytestmark = pytest.mark.anyio


@pytest.fixture
async def config(tmp_path) -> str:
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    for n in (1, 2):
        writer.append(intent(n))
        writer.append(settlement(n))
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
    await writer.close()
    path = tmp_path / "fareway.yaml"
    path.write_text("storage: {database: 'sqlite:///ledger.db', spool_dir: spool}\n")
    return str(path)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    # In a thread of its own: a command that talks to a gateway runs a loop.
    with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit) as ended:
        pool.submit(main, arguments).result()
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


async def test_report_prints_json_csv_and_a_table_of_the_same_amounts(config, capsys):
    base = ("spend", "report", "--config", config, "--by", "team,model")
    code, out, _ = run(capsys, *base, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["rows"][0]["team"] == "payments"
    assert document["total"]["cost_pico_usd"] == 200 * PRICE_PICO
    code, out, _ = run(capsys, *base, "--format", "csv")
    (row, total) = csv.DictReader(io.StringIO(out, newline=""))
    assert row["cost_usd"] == total["cost_usd"] == "0.00001"
    code, out, _ = run(capsys, *base)
    assert (code, "chat-small" in out, "0.00001" in out) == (0, True, True)


MAIN = "import sys; from gateway.cli.main import main; main(sys.argv[1:])"


async def report_beside(config, folder, answer) -> tuple[list[str], str, str]:
    """What a gateway was asked for while `spend report` ran, its output and its remarks."""
    asked: list[str] = []

    async def flush(_params, _fds) -> None:
        asked.append("flush")
        answer()

    command = [sys.executable, "-c", MAIN, "spend", "report", "--config", config]
    async with anyio.create_task_group() as tasks:
        async with admin_socket.listening(
            folder, {"flush": method(type(None), flush)}, tasks=tasks
        ):
            done = await anyio.run_process([*command, "--json"])
        tasks.cancel_scope.cancel()
    return asked, done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
async def test_report_has_a_running_gateway_load_first(config, tmp_path):
    asked, out, err = await report_beside(config, tmp_path / "spool", lambda: None)
    assert (asked, json.loads(out)["total"]["attempts"], err) == (["flush"], 2, "")


@pytest.mark.slow
async def test_report_says_when_the_running_gateway_cannot_load(config, tmp_path):
    def refuse() -> None:
        raise RemoteError("database_unavailable", "the database did not answer")

    _, out, err = await report_beside(config, tmp_path / "spool", refuse)
    assert json.loads(out)["total"]["attempts"] == 2
    assert err == "note: the running gateway has written more than is loaded yet\n"


BOUNDS = {
    "the day": (("--from", "2026-11-28", "--to", "2026-11-29"), 2),
    "the day before": (("--to", "2026-11-28"), 0),
    "from an instant with a zone": (("--from", "2026-11-28T13:00+01:00"), 2),
    "from a later instant": (("--from", "2026-11-28T12:15"), 0),
    "another team": (("--team", "search"), 0),
    "a project of the team": (("--team", "payments", "--project", "fraud"), 2),
    "a model": (("--model", "chat-small"), 2),
    "a deployment": (("--deployment", "nowhere/x"), 0),
    "a key": (("--key", "abcdefghjkmn"), 2),
}


@pytest.mark.parametrize(("options", "attempts"), BOUNDS.values(), ids=BOUNDS.keys())
async def test_report_counts_only_what_was_asked_for(config, capsys, options, attempts):
    code, out, _ = run(capsys, "spend", "report", "--config", config, "--json", *options)
    assert (code, json.loads(out)["total"]["attempts"]) == (0, attempts)


WRONG = {
    "a grouping that does not exist": (("--by", "day;DROP TABLE spend_event"), "is none of team"),
    "a day that does not exist": (("--from", "2026-02-30"), "is no day such as"),
    "an instant that does not exist": (("--from", "2026-02-30T25:00"), "is no day or instant"),
    "an instant inside a quarter": (("--from", "2026-11-28T12:01"), "quarter of an hour"),
    "a format that does not exist": (("--format", "xml"), "xml"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG.keys())
async def test_wrong_usage_is_told_and_exits_2(config, capsys, options, message):
    code, out, err = run(capsys, "spend", "report", "--config", config, *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [("spend", "report"), ("ledger", "verify")])
async def test_no_ledger_yet_is_one_sentence_and_exit_1(tmp_path, capsys, command):
    path = tmp_path / "fareway.yaml"
    path.write_text("storage: {database: 'sqlite:///none.db'}\n")
    code, out, err = run(capsys, *command, "--config", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "there is no ledger" in err


async def test_verify_says_ok_and_what_it_saw(config, capsys):
    code, out, err = run(capsys, "ledger", "verify", "--config", config)
    assert (code, err) == (0, "")
    assert out == ("ok: 2 entries, 0.00001 USD booked, 0 attempts open, 0 records not loaded yet\n")
    code, out, _ = run(capsys, "ledger", "verify", "--config", config, "--json")
    assert (code, json.loads(out)["faults"]) == (0, [])


async def test_verify_lists_faults_and_exits_1(config, tmp_path, capsys):
    spoil(f"sqlite:///{tmp_path / 'ledger.db'}", f"DELETE FROM spend_event WHERE {EVENT_1}")
    code, out, err = run(capsys, "ledger", "verify", "--config", config)
    assert code == 1
    assert out.startswith("5 faults: ")
    assert err.count("fault: rollup_") == 5
    code, out, _ = run(capsys, "ledger", "verify", "--config", config, "--json")
    assert (code, len(json.loads(out)["faults"])) == (1, 5)


async def test_rebuild_makes_wrong_sums_anew_and_says_so(config, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    spoil(url, "UPDATE rollup_day SET cost_pico_usd = cost_pico_usd + 1")
    assert run(capsys, "ledger", "verify", "--config", config)[0] == 1
    code, out, err = run(capsys, "ledger", "verify", "--rebuild", "--config", config)
    assert (code, err) == (0, "")
    assert out.startswith("rebuilt 2026-11-28: 2 entries, the sums said 0.00001")
    assert "\nok: 2 entries" in out
    code, out, _ = run(capsys, "ledger", "verify", "--rebuild", "--config", config, "--json")
    assert (code, json.loads(out)["rebuilt"]) == (0, [])


async def test_a_report_says_what_no_gateway_has_loaded_yet(config, tmp_path, capsys):
    code, _, err = run(capsys, "spend", "report", "--config", config)
    assert (code, err) == (0, "")
    writer = open_spool(tmp_path / "spool" / "late")
    writer.append(intent(90))
    writer.append(settlement(90))
    await writer.close()
    code, _, err = run(capsys, "spend", "report", "--config", config)
    assert code == 0
    assert "records in" in err
    assert "are not in the ledger yet" in err
