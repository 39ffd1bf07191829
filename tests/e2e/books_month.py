"""A month to be closed: what the gateway metered, what two vendors bill for it, and why they differ."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from gateway.ledger.records import CostLine
from tests.gateway.ledger_samples import FakeClock, intent, open_spool, settlement

GPT_INPUT, GPT_OUTPUT = 2_500_000, 10_000_000
NORD_INPUT = 1_200_000
"""Prices per token in picodollars."""
TEAMS = ("payments", "search", "support")
DAY_US = 86_400_000_000
CONFIG = {
    "providers": {
        "openai": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9"},
        "nord": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9"},
    },
    "models": {
        "chat": {"deployments": ["openai/gpt-4o"]},
        "draft": {"deployments": ["nord/nord-70b"]},
    },
    "teams": {name: {"cost_centre": f"CC-{name}"} for name in TEAMS},
    "finance": {
        "organisation": "Acme Platform",
        "rates_file": "rates.csv",
        "journal": {
            "entity": "DE01",
            "accounts": {"expense": "6815", "clearing": "3300", "rounding": "6899"},
            "unattributed_cost_centre": "CC-nobody",
        },
    },
    "storage": {"spool_dir": "spool"},
}
MAPPING = {
    "column-day": "Datum",
    "column-model": "Modell",
    "column-meter": "Art",
    "column-units": "Menge",
    "column-amount": "Betrag",
    "column-number": "Rechnung",
    "column-issued_on": "Ausgestellt",
    "day_format": "%d.%m.%Y",
    "decimal": "comma",
    "currency": "EUR",
    "units_per": "1000",
    "meters": "Eingabe = input",
    "kinds": "MwSt = tax",
    "skip": "Art = Summe",
}


def month_before_last(today: date) -> date:
    """The first day of a month that ended long enough ago to be closed."""
    last = today.replace(day=1) - timedelta(days=1)
    return (last.replace(day=1) - timedelta(days=1)).replace(day=1)


def days_of(first: date) -> list[date]:
    following = (first + timedelta(days=31)).replace(day=1)
    return [first + timedelta(days=place) for place in range((following - first).days)]


def noon_us(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()) * 10**6


async def seed(folder: Path, first: date) -> None:
    """Leave the journal of a worker that is gone: three teams, keys of no team, and odd attempts."""
    spool = open_spool(
        folder / "spool" / "worker-before", clock=FakeClock(wall=noon_us(first)).clock
    )
    number = 0

    def book(day: date, lines: dict[str, tuple[int, int]] | None, **fields) -> None:
        nonlocal number
        number += 1
        at_us = noon_us(day) + number * 1_000
        changes = fields.pop("changes", {})
        spool.append(intent(number, at_us=at_us, **fields))
        made = tuple(
            CostLine(
                meter=meter,
                units=units,
                rate_pico_usd=rate,
                rate_per_units=1,
                cost_pico_usd=units * rate,
            )
            for meter, (units, rate) in (lines or {}).items()
        )
        values = {
            "usage": {meter: units for meter, (units, _) in (lines or {}).items()},
            "lines": made,
            "cost_pico_usd": sum(line.cost_pico_usd for line in made),
            "settled_at_us": at_us + 500,
        }
        spool.append(settlement(number, **(values | changes)))

    gpt = {"provider": "openai", "upstream_model": "gpt-4o", "deployment": "openai/gpt-4o",
           "model": "chat", "project": ""}  # fmt: skip
    nord = {"provider": "nord", "upstream_model": "nord-70b", "deployment": "nord/nord-70b",
            "model": "draft", "project": ""}  # fmt: skip
    for day in days_of(first):
        for place, team in enumerate(TEAMS):
            tokens = 400_000 // (place + 1)
            lines = {"input": (tokens, GPT_INPUT), "output": (tokens // 10, GPT_OUTPUT)}
            book(day, lines, team=team, **gpt)
        book(day, {"input": (250_000, NORD_INPUT)}, team="search", **nord)
    nobody = {"input": (300_000, GPT_INPUT), "output": (30_000, GPT_OUTPUT)}
    book(first + timedelta(days=7), nobody, team="", **gpt)
    cut = {"quality": "estimated", "status": "interrupted"}
    book(first + timedelta(days=9), {"input": (50_000, GPT_INPUT)}, team="support", **gpt,
         changes=cut)  # fmt: skip
    unknown = {
        "quality": "unknown",
        "status": "unknown_billing",
        "error_code": "upstream_timeout",
    }
    book(first + timedelta(days=11), None, team="payments", **gpt, changes=unknown,
         exposure_pico_usd=600_000 * GPT_INPUT)  # fmt: skip
    book(first + timedelta(days=13), {}, team="support", **nord,
         changes={"usage": {"input": 5}, "cost_pico_usd": None})  # fmt: skip
    await spool.close()


def openai_costs(first: date) -> bytes:
    """OpenAI's costs of the month: of every class of difference that it can have."""
    buckets = []
    for day in days_of(first):
        place = (day - first).days
        tokens = sum(400_000 // (number + 1) for number in range(len(TEAMS)))
        output = sum(400_000 // (number + 1) // 10 for number in range(len(TEAMS)))
        tokens += {7: 300_000, 9: 50_000, 4: 2_000_000, 11: 500_000}.get(place, 0)
        output += {7: 30_000, 15: -20_000}.get(place, 0)
        input_usd = Decimal(tokens * GPT_INPUT) / 10**12
        if place == 19:
            input_usd *= Decimal("1.2")  # somebody's discount is gone
        output_usd = Decimal(output * GPT_OUTPUT) / 10**12
        results = [
            _cost("gpt-4o-2024-08-06, input", tokens, input_usd),
            _cost("gpt-4o-2024-08-06, output", output, output_usd),
        ]
        if place == 22:
            results.append(_cost("promotional credit", None, Decimal("-5.25")))
        start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        buckets.append({"start_time": start, "results": results})
    return json.dumps({"data": buckets}).encode()


def _cost(item: str, quantity: int | None, value: Decimal) -> dict:
    found = {
        "object": "organization.costs.result",
        "amount": {"value": f"{value:f}", "currency": "usd"},
        "line_item": item,
    }
    return found if quantity is None else {**found, "quantity": quantity}


def nord_invoice(first: date) -> bytes:
    """An invoice in euros with German headings, tax and a line that repeats the sum."""
    text = io.StringIO(newline="")
    table = csv.writer(text, delimiter=";")
    table.writerow(["Rechnung", "Ausgestellt", "Datum", "Modell", "Art", "Menge", "Betrag"])
    days = days_of(first)
    issued = (days[-1] + timedelta(days=1)).strftime("%d.%m.%Y")
    total = Decimal(0)
    for day in days:
        amount = (Decimal(250_000 * NORD_INPUT) / 10**12 / Decimal("1.20")).quantize(
            Decimal("0.0001")
        )
        total += amount
        table.writerow(["R-77", issued, f"{day:%d.%m.%Y}", "nord-70b", "Eingabe", "250",
                        f"{amount:f}".replace(".", ",")])  # fmt: skip
    last = f"{days[-1]:%d.%m.%Y}"
    table.writerow(["R-77", issued, last, "", "MwSt", "", "1,42"])
    table.writerow(["R-77", issued, last, "", "Summe", "", f"{total:f}".replace(".", ",")])
    return text.getvalue().encode()


def rates(first: date) -> str:
    """Rates of the euro: another one on the day of the invoice."""
    days = days_of(first)
    issued = days[-1] + timedelta(days=1)
    lines = ["day,base,quote,rate,source"]
    lines += [f"{day},EUR,USD,1.20,central bank" for day in days]
    return "\n".join([*lines, f"{issued},EUR,USD,1.22,central bank"]) + "\n"
