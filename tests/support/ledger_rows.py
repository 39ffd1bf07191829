"""The ledger as its database holds it, read by tests beside the gateway's own reports."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.database import blocking_reader
from gateway.ledger.schema import METERS
from tests.support.upstream_scripts import BillLine

_STATUSES = {code: status.value for status, code in STATUS_CODES.items()}
_QUALITIES = {code: quality.value for quality, code in QUALITY_CODES.items()}
_QUERY = """
select e.*, team.name as team, project.name as project, k.key_id as key, model.name as model,
       deployment.name as deployment, t.tags as tags, c.tags as cost_tags
from spend_event e
join team on team.id = e.team_id join project on project.id = e.project_id
join api_key_name k on k.id = e.key_id join model on model.id = e.model_id
join deployment on deployment.id = e.deployment_id
join tag_set t on t.id = e.tags_id join tag_set c on c.id = e.cost_tags_id
where e.entry = (select max(entry) from spend_event o where o.event_id = e.event_id)
order by e.at_us
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """The entry of one attempt that counts; ids in hex, `usage` without zeros."""

    event_id: str
    request_id: str
    attempt: int
    team: str
    project: str
    key: str
    model: str
    deployment: str
    tags: list[str]
    cost_tags: list[list[str]]
    reason: str
    is_stream: bool
    status: str
    is_lost: bool
    quality: str
    usage: dict[str, int]
    cost_pico_usd: int | None
    exposure_pico_usd: int | None
    http_status: int
    error_code: str
    upstream_request_id: str
    finish_reason: str
    ttft_us: int | None
    duration_us: int


def ledger_rows(database: Path | str) -> list[LedgerRow]:
    """Every attempt's counting entry, oldest first, of a file or of a `postgresql://` URL."""
    if isinstance(database, str):
        return [_row(values) for values in _read(database, _QUERY)]
    with contextlib.closing(_connect(database)) as connection:
        return [_row(dict(values)) for values in connection.execute(_QUERY)]


def open_intents(database: Path | str) -> int:
    """Attempts that are neither settled nor given up."""
    if isinstance(database, str):
        return len(_read(database, "select event_id from attempt_intent"))
    with contextlib.closing(_connect(database)) as connection:
        return connection.execute("select count(*) from attempt_intent").fetchone()[0]


def wait_for_rows(
    database: Path | str, count: int, *, where: Callable[[LedgerRow], bool] = lambda _: True,
    timeout_s: float = 20.0,
) -> list[LedgerRow]:  # fmt: skip
    """The rows that match, once there are `count` of them.

    Raises:
        AssertionError: There were fewer at the end of the time, or more at any time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        rows = [row for row in ledger_rows(database) if where(row)]
        if len(rows) >= count or time.monotonic() > deadline:
            assert len(rows) == count, rows
            return rows
        time.sleep(0.05)


def billed_pico_usd(line: BillLine, price: Mapping[str, str]) -> int:
    """What a line of an upstream's bill costs at a configured token price.

    Each meter rounded once, half-even, with Python's fractions and none of our own arithmetic.
    """
    cached_price = price.get("cached_input_usd_per_mtok", price["input_usd_per_mtok"])
    amounts = (
        (line.prompt_tokens - line.cached_tokens, price["input_usd_per_mtok"]),
        (line.cached_tokens, cached_price),
        (line.completion_tokens, price["output_usd_per_mtok"]),
    )
    # Dollars per million tokens are millionths of a dollar per token: 10**6 picodollars.
    return sum(round(tokens * Fraction(usd) * 10**6) for tokens, usd in amounts)


def _read(database_url: str, query: str) -> list[dict]:
    database = blocking_reader(database_url)

    def run() -> list[dict]:
        with database.engine.begin() as connection:
            return [dict(row) for row in connection.exec_driver_sql(query).mappings()]

    try:
        return database.run(run)
    finally:
        database.dispose()


def _connect(database: Path) -> sqlite3.Connection:
    """The database once it is there: a gateway that is ready may still be making it."""
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(sqlite3.OperationalError):
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
            connection.row_factory = sqlite3.Row
            if connection.execute(
                "select 1 from sqlite_master where name = 'spend_event'"
            ).fetchone():
                return connection
            connection.close()
        assert time.monotonic() < deadline, f"no ledger in {database}"
        time.sleep(0.05)


def _row(values: dict) -> LedgerRow:
    taken = {
        name: values[name]
        for name in LedgerRow.__dataclass_fields__
        if name in values and name not in {"status", "quality", "tags", "cost_tags"}
    }
    return LedgerRow(
        **{
            **taken,
            "event_id": bytes(values["event_id"]).hex(),
            "request_id": bytes(values["request_id"]).hex(),
            "is_stream": bool(values["is_stream"]),
            "is_lost": bool(values["is_lost"]),
        },
        status=_STATUSES[values["status"]],
        quality=_QUALITIES[values["quality"]],
        tags=_document(values["tags"]),
        cost_tags=_document(values["cost_tags"]),
        usage={meter: values[f"{meter}_units"] for meter in METERS if values[f"{meter}_units"]},
    )


def _document(value: str | list) -> list:
    """A JSON column: text on SQLite, decoded by the driver on PostgreSQL."""
    return json.loads(value) if isinstance(value, str) else value
