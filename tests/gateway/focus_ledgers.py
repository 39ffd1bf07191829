"""Ledgers for exports: events as tests think of them, in a database of their own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.finance.focus.columns import Value
from gateway.finance.focus.export import Export
from gateway.finance.focus.versions import COST_AND_USAGE
from gateway.ledger import schema
from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.database import prepare
from gateway.ledger.finance_tables import late_entry
from gateway.ledger.price_label import price_label
from gateway.ledger.records import AttemptStatus
from pricing.money import Rate, line_cost
from pricing.usage import Meter, Quality
from tests.gateway.focus_samples import FROM_US, RATES

TEAMS = ("", "payments", "search")
DEPLOYMENTS = (("groq", "groq/llama"), ("local", "local/smollm2"))
TAGS = ([], ["gdpr", "private"])
COST_TAGS = ([], [["env", "prod"]], [["env", "prod"], ["user", "jane"]])
TOKENS = ("input", "cache_read", "cache_write", "output", "reasoning")


@dataclass(frozen=True, kw_only=True)
class Event:
    """An entry of the ledger as these tests think of it."""

    number: int = 1
    entry: int = 0
    at_us: int = FROM_US
    attempt: int = 1
    team: int = 1
    deployment: int = 0
    tags: int = 0
    cost_tags: int = 0
    quality: Quality = Quality.EXACT
    status: AttemptStatus = AttemptStatus.OK
    units: tuple[tuple[str, int], ...] = (("input", 100),)
    price: str = "v1"
    is_nominal: bool = False
    is_priced: bool = True
    exposure: int | None = None
    has_list: bool = False
    is_late: bool = False

    @property
    def charged(self) -> list[tuple[str, int]]:
        """Meters with a line: time alone where a machine is priced by time."""
        if not self.is_priced:
            return []
        is_machine = any(meter == "gpu_us" for meter, _ in self.units)
        return [one for one in self.units if (one[0] == "gpu_us") == is_machine]

    @property
    def lines(self) -> list[list[str | int]]:
        rates = [(meter, units, self.rate(meter)) for meter, units in self.charged]
        lines = [
            [meter, units, rate.pico_usd, rate.per_units, line_cost(units, rate)]
            for meter, units, rate in rates
        ]
        if not self.has_list:
            return lines
        dear = [Rate(pico_usd=2 * rate.pico_usd, per_units=rate.per_units) for _, _, rate in rates]
        return [
            [*line, rate.pico_usd, rate.per_units, line_cost(int(line[1]), rate)]
            for line, rate in zip(lines, dear, strict=True)
        ]

    @property
    def cost(self) -> int | None:
        return sum(int(line[4]) for line in self.lines) if self.is_priced else None

    @property
    def list_cost(self) -> int:
        return sum(int(line[7] if len(line) > 5 else line[4]) for line in self.lines)

    def rate(self, meter: str) -> Rate:
        """Each price version has rates of its own; one of them does not divide."""
        base = RATES[meter]
        factor = {"v1": 1, "v2": 2, "odd": 1}[self.price]
        per = base.per_units * (7 if self.price == "odd" else 1)
        return Rate(pico_usd=base.pico_usd * factor, per_units=per)

    def row(self) -> dict[str, object]:
        units = dict(self.units)
        return {
            "event_id": self.number.to_bytes(16, "big"),
            "entry": self.entry,
            "at_us": self.at_us,
            "settled_at_us": self.at_us + 500,
            "request_id": (10**9 + self.number).to_bytes(16, "big"),
            "attempt": self.attempt,
            "team_id": self.team + 1,
            "project_id": self.team + 1,
            "key_id": 1,
            "model_id": 1,
            "deployment_id": self.deployment + 1,
            "tags_id": self.tags + 1,
            "cost_tags_id": self.cost_tags + 10,
            "route": "chat.completions",
            "is_stream": True,
            "reason": "cheapest",
            "status": STATUS_CODES[self.status],
            "is_lost": False,
            "quality": QUALITY_CODES[self.quality],
            **{f"{meter}_units": units.get(meter, 0) for meter in Meter},
            "price_version": price_label(self.price, is_nominal=self.is_nominal),
            "lines": self.lines,
            "cost_pico_usd": self.cost,
            "provider_cost_pico_usd": None,
            "exposure_pico_usd": self.exposure,
            "list_cost_pico_usd": None,
            "cache_saved_pico_usd": None,
            "http_status": 200,
            "error_code": "",
            "upstream_request_id": "",
            "finish_reason": "stop",
            "ttft_us": None,
            "duration_us": 1,
        }


def fill(connection: sa.Connection, events: Sequence[Event]) -> None:
    """Put names and events into an empty ledger."""
    projects = [
        {"id": n + 1, "team": team, "name": "fraud" if n == 1 else ""}
        for n, team in enumerate(TEAMS)
    ]
    sets = [
        {"id": first + n, "sha256": bytes([first + n]) * 32, "tags": tags}
        for first, known in ((1, TAGS), (10, COST_TAGS))
        for n, tags in enumerate(known)
    ]
    deployments = [
        {"id": n + 1, "name": name, "provider": provider, "upstream_model": name.split("/")[1]}
        for n, (provider, name) in enumerate(DEPLOYMENTS)
    ]
    names = [{"id": n + 1, "name": team} for n, team in enumerate(TEAMS)]
    connection.execute(sa.insert(schema.team), names)
    connection.execute(sa.insert(schema.project), projects)
    connection.execute(sa.insert(schema.api_key_name), [{"id": 1, "key_id": "key-of-jane"}])
    connection.execute(sa.insert(schema.model), [{"id": 1, "name": "chat"}])
    connection.execute(sa.insert(schema.deployment), deployments)
    connection.execute(sa.insert(schema.tag_set), sets)
    if events:
        connection.execute(sa.insert(schema.spend_event), [event.row() for event in events])
    late = [
        {name: event.row()[name] for name in ("event_id", "entry", "at_us")}
        | {"booked_period": "2026-12"}
        for event in events
        if event.is_late
    ]
    if late:
        connection.execute(sa.insert(late_entry), late)


def told(connection: sa.Connection, export: Export) -> list[dict[str, Value]]:
    """Rows of an export by column name, numbers scaled."""
    columns = COST_AND_USAGE[export.order.version]
    return [
        {column.name: column.value(line) for column in columns}
        for lines in export.pieces(connection)
        for line in lines
    ]


@functools.cache
def _memory() -> sa.Engine:
    """One empty database for all tests; what they put in is rolled back."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    prepare(engine, begin="BEGIN")
    schema.metadata.create_all(engine)
    return engine


@contextlib.contextmanager
def ledger_of(events: Sequence[Event]):
    """A connection to a ledger with just these events."""
    with _memory().connect() as connection:
        fill(connection, events)
        yield connection
        connection.rollback()


def column_sum(rows: Sequence[dict[str, Value]], name: str) -> int:
    return sum(int(row[name] or 0) for row in rows)
