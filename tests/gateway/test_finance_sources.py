"""Vendors' files become checked rows; one wrong value refuses the file, with its place."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.finance.bill_messages import ImportFile, SourceKind
from gateway.finance.errors import UnreadableSource
from gateway.finance.sources import tables
from gateway.finance.sources.catalog import read_source
from gateway.finance.sources.rows import SourceFile, Wrong, to_day, to_decimal, to_text, to_units

WIRE = Path(__file__).parents[1] / "wire" / "finance"
DAY = date(2026, 10, 17)


def _parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"d": ["2026-10-17"] * 20, "n": [1] * 20}), buffer)
    return buffer.getvalue()


PARQUET = _parquet()


def read(source: SourceKind, content: bytes | str, name: str = "f", **changes) -> SourceFile:
    content = content.encode() if isinstance(content, str) else content
    order = ImportFile(
        actor="ann", source=source, account="a", file_name=name, content=content, **changes
    )
    return read_source(order)


def golden(source: SourceKind, name: str, **changes) -> SourceFile:
    return read(source, (WIRE / name).read_bytes(), name, **changes)


def money(file: SourceFile) -> list[tuple]:
    return [(r.kind, r.model, r.meter, r.tier, r.units, r.amount, r.currency) for r in file.money]


def usage(file: SourceFile) -> list[tuple]:
    return [(r.model, r.meter, r.tier, r.units) for r in file.usage]


def test_openai_costs_keep_every_digit_and_tell_model_and_meter():
    file = golden(SourceKind.OPENAI_COSTS, "openai_costs.json")
    model = "gpt-4o-2024-08-06"
    assert money(file) == [
        ("usage", model, "input", "standard", 1_000_000, Decimal("2.5"), "USD"),
        ("usage", model, "cache_read", "standard", None, Decimal("0.12500000000000003"), "USD"),
        ("usage", "web search tool calls", "other", "standard", None, Decimal("0.025"), "USD"),
        ("credit", "", "", "standard", None, Decimal(-1), "USD"),
    ]
    assert file.days == {DAY, date(2026, 10, 18)}  # a day without any cost is covered, too


def test_openai_usage_counts_cached_tokens_once():
    assert usage(golden(SourceKind.OPENAI_USAGE, "openai_usage.json")) == [
        ("gpt-4o-2024-08-06", "input", "standard", 1_000),
        ("gpt-4o-2024-08-06", "cache_read", "standard", 500),
        ("gpt-4o-2024-08-06", "output", "standard", 70),
        ("gpt-4o-mini-2024-07-18", "input", "batch", 10),
        ("gpt-4o-mini-2024-07-18", "output", "batch", 1),
        ("text-embedding-3-small", "input", "standard", 16),
        ("dall-e-3", "images", "standard", 2),
        ("whisper-1", "audio_ms", "standard", 20_000),
    ]


def test_anthropic_costs_are_cents():
    model = "claude-sonnet-4-20250514"
    assert money(golden(SourceKind.ANTHROPIC_COSTS, "anthropic_costs.json")) == [
        ("usage", model, "input", "standard", None, Decimal("1.2345"), "USD"),
        ("usage", model, "cache_write", "batch", None, Decimal("0.075"), "USD"),
        ("usage", "code_execution", "other", "standard", None, Decimal("0.20"), "USD"),
    ]


def test_anthropic_usage_has_disjoint_meters():
    model = "claude-sonnet-4-20250514"
    assert usage(golden(SourceKind.ANTHROPIC_USAGE, "anthropic_usage.json")) == [
        (model, "input", "standard", 1_500),
        (model, "cache_read", "standard", 200),
        (model, "output", "standard", 500),
        (model, "cache_write", "standard", 1_500),
        (model, "web_search_requests", "standard", 10),
    ]


def test_openrouter_activity_leaves_own_keys_to_their_vendor():
    assert money(golden(SourceKind.OPENROUTER_ACTIVITY, "openrouter_activity.json")) == [
        ("usage", "openai/gpt-4.1-2025-04-14", "", "standard", 175, Decimal("0.015"), "USD")
    ]


def test_openrouter_generations_fall_on_utc_days():
    file = golden(SourceKind.OPENROUTER_GENERATIONS, "openrouter_generations.jsonl")
    assert [(row.day, row.units, row.amount) for row in file.money] == [
        (DAY, 35, Decimal("0.0015")),
        (DAY, 3, Decimal("0.0005")),
    ]


def test_an_aws_focus_export_keeps_model_services_only():
    file = golden(SourceKind.AWS_FOCUS, "aws_focus.csv")
    assert money(file) == [
        ("usage", "claude3sonnet", "input", "standard", 1_000_000, Decimal("3.0"), "USD"),
        ("usage", "claude3sonnet", "output", "standard", 100_000, Decimal("1.5"), "USD"),
        ("tax", "", "", "standard", None, Decimal("0.45"), "USD"),
        ("credit", "", "", "standard", None, Decimal("-0.5"), "USD"),
    ]
    assert file.left_out == 1


AZURE = [
    ("usage", "gpt 4o 0806", "input", "standard", 924_000, Decimal("2.31"), "EUR"),
    ("usage", "gpt 4o 0806", "cache_read", "standard", 160_000, Decimal("0.2"), "EUR"),
    ("usage", "gpt 4o 0806", "output", "batch", 80_000, Decimal("0.8"), "EUR"),
    ("rounding", "", "", "standard", None, Decimal("0.01"), "EUR"),
]


def test_an_azure_focus_export_tells_meters_from_its_own_words():
    assert money(golden(SourceKind.AZURE_FOCUS, "azure_focus.csv")) == AZURE


def test_a_focus_export_in_parquet_gives_the_same_rows():
    import csv

    rows = list(csv.DictReader((WIRE / "azure_focus.csv").read_text().splitlines()))
    for row in rows:
        row["BilledCost"] = float(row["BilledCost"])
        row["ConsumedQuantity"] = int(row["ConsumedQuantity"]) if row["ConsumedQuantity"] else None
        row["ChargePeriodStart"] = datetime(2026, 10, 17, tzinfo=UTC)
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    assert money(read(SourceKind.FOCUS, buffer.getvalue())) == AZURE


def test_a_small_file_of_very_many_rows_is_refused_before_it_is_unpacked(monkeypatch):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"ChargePeriodStart": ["2026-10-17"] * 1_000}), buffer)
    monkeypatch.setattr(tables, "ROWS_MAX", 999)
    with pytest.raises(UnreadableSource, match="1,000 rows, .* split it by days"):
        list(tables.read_table(buffer.getvalue(), "f"))


@given(st.lists(st.tuples(st.integers(4, 500), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_a_damaged_parquet_file_is_read_or_unreadable_and_nothing_else(changes):
    content = bytearray(PARQUET)
    for place, value in changes:
        content[min(place, len(content) - 1)] = value
    with suppress(UnreadableSource):
        list(tables.read_table(bytes(content), "f"))


def test_what_pyarrow_cannot_read_yet_is_unreadable(monkeypatch):
    def refuse(*_):
        raise NotImplementedError("an encoding of tomorrow")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(UnreadableSource, match="an encoding of tomorrow"):
        list(tables.read_table(PARQUET, "f"))


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfffx"])
def test_text_that_no_database_keeps_is_wrong(text):
    with pytest.raises(Wrong, match="no text"):
        to_text(text, "model")


@pytest.mark.parametrize("encoding", ["undefined", "utf-8\0", "nobody-knows"])
def test_an_encoding_that_is_none_is_told(encoding):
    with pytest.raises(UnreadableSource, match="text"):
        list(tables.read_table(b"d,a\n1,2\n", "f", encoding=encoding))


def test_a_csv_invoice_is_read_by_its_mapping():
    mapping = (WIRE / "invoice_mapping.yaml").read_text()
    file = golden(SourceKind.CSV, "invoice.csv", mapping=mapping)
    assert money(file) == [
        ("usage", "llama-70b", "input", "standard", 1_500_500, Decimal("1234.50"), "EUR"),
        ("usage", "llama-70b", "output", "standard", 20_000, Decimal("0.07"), "EUR"),
        ("tax", "", "", "standard", None, Decimal("234.57"), "EUR"),
        ("credit", "", "", "standard", None, Decimal("-10.00"), "EUR"),
    ]
    assert (file.number, file.issued_on, file.left_out) == ("R-7", date(2026, 11, 2), 1)


def test_a_csv_of_usage_alone_has_no_money():
    mapping = "columns: {day: d, model: m, meter: k, units: u}\nzone: Europe/Berlin"
    file = read(SourceKind.CSV, "d,m,k,u\n2026-10-17T00:30:00,x,input,5\n", mapping=mapping)
    assert [(row.day, row.units) for row in file.usage] == [(date(2026, 10, 16), 5)]
    assert file.money == []


COST = {"object": "organization.costs.result", "amount": {"value": 1, "currency": "usd"}}
BUCKET = {"start_time": 1792195200, "results": [COST]}


def openai(**changes) -> str:
    return json.dumps({"data": [{**BUCKET, "results": [COST | changes]}]})


def completions(**changes) -> str:
    fields = {"object": "organization.usage.completions.result", "input_tokens": 1}
    result = fields | {"output_tokens": 1} | changes
    return json.dumps({"data": [{**BUCKET, "results": [result]}]})


def anthropic(**changes) -> str:
    fields = {"currency": "USD", "amount": "1", "token_type": None} | changes
    return json.dumps({"data": [{"starting_at": "2026-10-17T00:00:00Z", "results": [fields]}]})


FOCUS_HEAD = "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ServiceName\n"
WRONG = {
    "no JSON": (SourceKind.OPENAI_COSTS, "<html>", "f: is no JSON"),
    "not UTF-8": (SourceKind.OPENAI_COSTS, b"\xff", "is not utf-8"),
    "NaN": (SourceKind.OPENAI_COSTS, '{"data": [NaN]}', "NaN is no number"),
    "a key twice": (SourceKind.OPENAI_COSTS, '{"data": [], "data": []}', "stands twice"),
    "one broken line of many": (
        SourceKind.OPENROUTER_GENERATIONS,
        '{"data": []}\n{"data": [}\n',
        "f:2: is no JSON",
    ),
    "a list of numbers": (SourceKind.OPENAI_COSTS, "[1]", "page 1 is 1, must be an object"),
    "pages that are missing": (
        SourceKind.OPENAI_COSTS,
        '{"data": [], "has_more": true}',
        "fetch the pages",
    ),
    "no data": (SourceKind.OPENAI_COSTS, "{}", "data is missing, must be a list"),
    "nothing at all": (SourceKind.OPENAI_COSTS, '{"data": []}', "holds nothing of openai-costs"),
    "an entry that is none": (SourceKind.OPENAI_COSTS, '{"data": [7]}', r"data\[0\] is 7"),
    "a time that is none": (
        SourceKind.OPENAI_COSTS,
        '{"data": [{"start_time": "x", "results": []}]}',
        "seconds since 1970",
    ),
    "usage for costs": (SourceKind.OPENAI_COSTS, completions(), "must be organization.costs"),
    "an amount that is none": (
        SourceKind.OPENAI_COSTS,
        openai(amount={"value": "many", "currency": "usd"}),
        r"f:data\[0\].results\[0\]: amount.value 'many' is no number",
    ),
    "a missing amount": (SourceKind.OPENAI_COSTS, openai(amount={}), "amount.value is missing"),
    "a currency that is none": (
        SourceKind.OPENAI_COSTS,
        openai(amount={"value": 1, "currency": "dollars"}),
        "is no currency",
    ),
    "half a token": (
        SourceKind.OPENAI_COSTS,
        openai(line_item="m, input", quantity=0.5),
        "no whole number",
    ),
    "more cached than sent": (
        SourceKind.OPENAI_USAGE,
        completions(input_cached_tokens=2),
        "2 is more than input_tokens 1",
    ),
    "a negative count": (SourceKind.OPENAI_USAGE, completions(input_tokens=-1), "below 0"),
    "a truth for a count": (
        SourceKind.OPENAI_USAGE,
        completions(input_tokens=True),
        "is true or false, must be a number",
    ),
    "usage of an unknown kind": (
        SourceKind.OPENAI_USAGE,
        completions(object="organization.usage.dreams.result"),
        "is not known",
    ),
    "an amount as a number": (SourceKind.ANTHROPIC_COSTS, anthropic(amount=1), "must be text"),
    "cents of yen": (SourceKind.ANTHROPIC_COSTS, anthropic(currency="JPY"), "no hundredths"),
    "an unknown token": (SourceKind.ANTHROPIC_COSTS, anthropic(token_type="x"), "not known"),
    "a bucket of no day": (
        SourceKind.ANTHROPIC_COSTS,
        '{"data": [{"starting_at": "soon", "results": []}]}',
        "is no day or instant",
    ),
    "an activity without usage": (
        SourceKind.OPENROUTER_ACTIVITY,
        '{"data": [{"date": "2026-10-17", "model": "m", "prompt_tokens": 1}]}',
        "completion_tokens is missing",
    ),
    "a generation without cost": (
        SourceKind.OPENROUTER_GENERATIONS,
        '{"data": [{"created_at": "2026-10-17"}]}',
        "f:1: native_tokens_prompt is missing",
    ),
    "no FOCUS header": (SourceKind.FOCUS, "a,b\n1,2\n", "f:1: there is no column BilledCost"),
    "an unknown charge": (
        SourceKind.FOCUS,
        FOCUS_HEAD + "1,USD,Gift,2026-10-17,Amazon Bedrock\n",
        "f:2: ChargeCategory 'Gift'",
    ),
    "other services alone": (
        SourceKind.FOCUS,
        FOCUS_HEAD + "1,USD,Usage,2026-10-17,Lambda\n",
        r"holds nothing of focus \(1 rows left out\)",
    ),
    "a row too short": (SourceKind.FOCUS, FOCUS_HEAD + "1,USD\n", "f:2: 2 cells"),
    "an empty file": (SourceKind.FOCUS, "", "f:1: there is no header"),
    "a column twice": (SourceKind.FOCUS, "a,a\n", "'a' stands twice"),
    "a quote that never ends": (SourceKind.FOCUS, 'a,b\n"1,2\n', "unexpected end of data"),
    "no Parquet": (SourceKind.FOCUS, b"PAR1 and no more", "is no Parquet file"),
    "a CSV without a mapping": (SourceKind.CSV, "a\n", "needs a mapping file"),
}


@pytest.mark.parametrize(("source", "content", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_told_and_nothing_is_taken(source, content, says):
    with pytest.raises(UnreadableSource, match=f"UNREADABLE: .*{says}"):
        read(source, content)


def test_a_mapping_for_a_file_that_needs_none_is_refused():
    with pytest.raises(UnreadableSource, match="only the source csv takes a mapping"):
        read(SourceKind.FOCUS, "a\n", mapping="columns: {day: a}")


MAPPINGS = {
    "an unknown key": ("columns: {day: d}\ncolour: red", "colour"),
    "a column unknown to us": ("columns: {day: d, week: w}", "week"),
    "no YAML": ("columns: [", "mapping: "),
    "a zone that is none": ("columns: {day: d}\nzone: Mars/Base", "zone: "),
    "a fraction of units": ("columns: {day: d}\nunits_per: 0.5", "units_per"),
    "far too long": ("# " + "x" * 70_000, "is over 65536 bytes"),
}


@pytest.mark.parametrize(("mapping", "says"), MAPPINGS.values(), ids=MAPPINGS.keys())
def test_a_wrong_mapping_is_told(mapping, says):
    with pytest.raises(UnreadableSource, match=says):
        read(SourceKind.CSV, "d\n2026-10-17\n", mapping=mapping)


ROWS = {
    "a column that is missing": ("columns: {day: x}", "d\n1\n", "there is no column 'x'"),
    "a day of another form": (
        'columns: {day: d, units: u}\nday_format: "%d.%m.%Y"',
        "d,u\n2026-10-17,1\n",
        "f:2: d '2026-10-17' is not of the form",
    ),
    "neither units nor amount": ("columns: {day: d}", "d\n2026-10-17\n", "neither units nor"),
    "a kind that the mapping lacks": (
        "columns: {day: d, amount: a, kind: k}",
        "d,a,k\n2026-10-17,1,Fee\n",
        "'Fee' is not among `kinds`",
    ),
    "two bills in one file": (
        "columns: {day: d, amount: a, number: n}",
        "d,a,n\n2026-10-17,1,A\n2026-10-17,1,B\n",
        "f:3: n is 'B' after 'A'",
    ),
    "two days of issue": (
        "columns: {day: d, amount: a, issued_on: i}",
        "d,a,i\n2026-10-17,1,2026-11-01\n2026-10-17,1,2026-11-02\n",
        "f:3: i is 2026-11-02 after 2026-11-01",
    ),
    "a point where no thousands end": (
        "columns: {day: d, amount: a}\ndecimal: comma",
        "d;a\n2026-10-17;12.50\n",
        "no thousands end",
    ),
}


@pytest.mark.parametrize(("mapping", "content", "says"), ROWS.values(), ids=ROWS.keys())
def test_a_wrong_row_of_a_mapped_file_is_told(mapping, content, says):
    with pytest.raises(UnreadableSource, match=says):
        read(SourceKind.CSV, content, mapping=mapping)


NUMBERS = {
    "1,234.50": ("1,234.50", False, "1234.50"),
    "1.234,50 with a comma": ("1.234,50", True, "1234.50"),
    "1.234 with a comma is a thousand": ("1.234", True, "1234"),
    "-0,07 with a comma": ("-0,07", True, "-0.07"),
    "1e-7": ("1e-7", False, "1E-7"),
}


@pytest.mark.parametrize(("text", "is_comma", "value"), NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_of_both_worlds_are_exact(text, is_comma, value):
    assert to_decimal(text, "x", has_decimal_comma=is_comma) == Decimal(value)


def test_a_float_is_never_taken():
    with pytest.raises(Wrong, match="x is a float, must be a number"):
        to_decimal(1.5, "x")


def test_a_vendors_noise_below_a_thousandth_of_a_unit_is_forgiven():
    assert to_units("12.3449999999", "x", times=Decimal(1000)) == 12345


def test_an_instant_falls_on_its_utc_day():
    assert to_day("2026-10-17T23:30:00-05:00", "x") == date(2026, 10, 18)
