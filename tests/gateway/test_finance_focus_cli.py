"""`fareway spend export`, as a person runs it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from gateway.ledger.loader import Loader
from pricing.money import parse_usd
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)
from tests.gateway.test_ledger_cli import run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def config(tmp_path) -> str:
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    for n in (1, 2):
        writer.append(intent(n, cost_tags=(("env", "prod"), ("user", "jane.doe"))))
        writer.append(settlement(n))
    unpriced = {"lines": (), "cost_pico_usd": None}
    unknown = {**unpriced, "cost_pico_usd": 0, "status": "unknown_billing", "quality": "unknown"}
    for n, changes in ((3, unpriced), (4, unknown)):
        writer.append(intent(n))
        writer.append(settlement(n, **changes))
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
    await writer.close()
    path = tmp_path / "fareway.yaml"
    path.write_text(
        "storage: {database: 'sqlite:///ledger.db', spool_dir: spool}\n"
        "finance: {organisation: Acme Platform, cost_tags: [env]}\n"
    )
    return str(path)


def export(capsys, config: str, *arguments: str) -> tuple[int, str, str]:
    return run(capsys, "spend", "export", "--config", config, *arguments)


async def test_csv_on_standard_output_sums_to_the_report(config, capsys) -> None:
    code, out, err = export(capsys, config, "--month", "2026-11")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out, newline="")))
    assert sum(parse_usd(row["BilledCost"]) for row in rows) == 200 * PRICE_PICO
    assert {row["InvoiceIssuerName"] for row in rows} == {"Acme Platform"}
    assert [row["x_PricingState"] for row in rows] == ["Priced", "Unpriced", "UnknownBilling"]
    assert json.loads(rows[0]["Tags"])["env"] == "prod"
    assert "jane.doe" not in out


async def test_a_folder_is_written_and_told(config, capsys, tmp_path) -> None:
    target = tmp_path / "exports" / "november"
    options = ("--from", "2026-11-28", "--to", "2026-11-29", "--grain", "day", "--format")
    code, out, _ = export(capsys, config, *options, "parquet", "--out", str(target))
    assert code == 0
    assert sorted(path.name for path in target.iterdir()) == [
        "billing_period.parquet",
        "cost_and_usage.parquet",
        "manifest.json",
    ]
    assert f"{target / 'cost_and_usage.parquet'}: 3 rows, SHA-256 " in out
    assert "billed 0.00001 USD, effective 0.00001 USD" in out
    assert "unpriced: 1 attempts are not in the cost" in out
    assert "unknown billing: 1 attempts, up to 0.000007 USD more may be billed" in out
    code, _, err = export(capsys, config, *options, "csv", "--out", str(target))
    assert (code, "is there already and not empty" in err) == (1, True)


async def test_json_is_the_manifest(config, capsys, tmp_path) -> None:
    options = ("--month", "2026-11", "--profile", "overlay", "--focus-version", "1.2", "--by-key")
    plain = ("--names", "plain", "--spreadsheet")
    target = tmp_path / "out"
    code, out, _ = export(capsys, config, *options, *plain, "--out", str(target), "--json")
    manifest = json.loads(out)
    assert (code, manifest) == (0, json.loads((target / "manifest.json").read_text()))
    assert manifest["totals"]["billed_cost"] == "0"
    assert manifest["totals"]["effective_cost"] == "0.00001"
    assert [file["dataset"] for file in manifest["files"]] == ["Cost and Usage"]
    text = (target / "cost_and_usage.csv").read_text()
    assert "jane.doe" in text
    assert "abcdefghjkmn" in text


async def test_a_month_without_anything_unknown_says_nothing_of_it(
    config, capsys, tmp_path
) -> None:
    target = str(tmp_path / "out")
    code, out, _ = export(capsys, config, "--month", "2026-10", "--out", target)
    assert (code, out.splitlines()[-1]) == (0, "billed 0 USD, effective 0 USD")


WRONG = {
    "no range": ((), "name a range"),
    "half a range": (("--from", "2026-11-01"), "name a range"),
    "two ranges": (("--month", "2026-11", "--to", "2026-12-01"), "a range of its own"),
    "no month": (("--month", "2026-14"), "is no month"),
    "no day": (("--from", "today", "--to", "2026-12-01"), "no day or instant"),
    "half an hour": (("--from", "2026-11-01T00:30", "--to", "2026-12-01"), "beginning of a UTC"),
    "parquet on standard output": (("--month", "2026-11", "--format", "parquet"), "--out DIR"),
    "json without a folder": (("--month", "2026-11", "--json"), "--out DIR"),
    "half a month of invoices": (
        ("--profile", "reconciled", "--from", "2026-11-01", "--to", "2026-11-02"),
        "begin and end with a month",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG.keys())
async def test_wrong_usage_says_what_is_wrong(config, capsys, arguments, reason) -> None:
    code, out, err = export(capsys, config, *arguments)
    assert (code, out) == (2, "")
    assert reason in " ".join(err.replace("│", " ").split())


async def test_a_missing_ledger_is_a_fault(config, capsys) -> None:
    Path(config).with_name("ledger.db").unlink()
    code, _, err = export(capsys, config, "--month", "2026-11")
    assert (code, "there is no ledger" in err) == (1, True)
