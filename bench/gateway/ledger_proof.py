"""After a run: does the ledger hold exactly what the mock upstream counted?

A gateway that drops events under load is fast and worthless, so a mismatch fails the benchmark.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.gateway.fareway import DATABASE, PRICES, run_command
from bench.gateway.mock import MockStats
from gateway.ledger.records import AttemptStatus
from pricing.money import PICO_PER_USD

POLL_S = 0.2
QUIET_S = 15.0
"""Without a new row for so long, what is missing will not come."""
TOKENS_PER_MTOK = 1_000_000

_NOT_SENT = list(AttemptStatus).index(AttemptStatus.NOT_SENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the ledger says.

    Attributes:
        attempts: Attempts booked.
        not_sent: Those of them of which nothing reached the upstream.
        open_attempts: Attempts neither settled nor given up.
        backlog_records: Records that wait in the spools.
        faults: What `ledger verify` found.
        report: The total of `spend report`.
    """

    attempts: int
    not_sent: int
    open_attempts: int
    backlog_records: int
    faults: tuple[str, ...]
    report: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerProof:
    """The books beside the mock's counters.

    Attributes:
        upstream_requests: What the mock counted.
        booked: Attempts in the ledger that reached the upstream.
        not_sent: Attempts in the ledger of which nothing did.
        compares_tokens: Whether tokens and money were compared too: when every answer was taken.
        drained_s: How long the ledger took after the last case.
        problems: What does not hold, one sentence each.
    """

    upstream_requests: int
    booked: int
    not_sent: int
    compares_tokens: bool
    drained_s: float
    problems: tuple[str, ...]


def prove(folder: Path, mock: MockStats) -> LedgerProof:
    """Wait until the spools are drained, then hold the ledger against the mock.

    Args:
        folder: Of a Fareway whose load has ended; it may still run.
        mock: Its upstream's counters, after the load.
    """
    started_s = time.monotonic()
    wait_for_rows(folder / DATABASE, mock.chats)
    books = read_books(folder)
    while (books.open_attempts or books.backlog_records) and _is_early(started_s):
        time.sleep(POLL_S)
        books = read_books(folder)
    return LedgerProof(
        upstream_requests=mock.chats,
        booked=books.attempts - books.not_sent,
        not_sent=books.not_sent,
        compares_tokens=mock.left == 0,
        drained_s=time.monotonic() - started_s,
        problems=tuple(problems(books, mock)),
    )


def _is_early(started_s: float) -> bool:
    return time.monotonic() - started_s < 2 * QUIET_S


def wait_for_rows(database: Path, rows: int) -> None:
    """Wait until the ledger has at least so many attempts, or until it takes no more."""
    last, changed_s = -1, time.monotonic()
    while time.monotonic() - changed_s < QUIET_S:
        found = _query(database, "SELECT count(*), 0 FROM spend_event")
        if (count := next(iter(found), 0)) >= rows:
            return
        if count != last:
            last, changed_s = count, time.monotonic()
        time.sleep(POLL_S)


def read_books(folder: Path) -> Books:
    """Ask the ledger, by its own commands and by a look at its rows."""
    verified = run_command(folder, "ledger", "verify")
    report = run_command(folder, "spend", "report", "--by", "deployment")
    statuses = _statuses(folder / DATABASE)
    return Books(
        attempts=sum(statuses.values()),
        not_sent=statuses.get(_NOT_SENT, 0),
        open_attempts=cast("int", verified["open_intents"]),
        backlog_records=cast("int", verified["backlog_records"]),
        faults=tuple(cast("list[str]", verified["faults"])),
        report=cast("Mapping[str, object]", report["total"]),
    )


def problems(books: Books, mock: MockStats) -> list[str]:
    """What does not hold between the books and the mock's counters, one sentence each."""
    found = [f"ledger verify: {fault}" for fault in books.faults]
    if books.open_attempts or books.backlog_records:
        found.append(
            f"{books.open_attempts} attempts are open and {books.backlog_records} records wait"
        )
    booked = books.attempts - books.not_sent
    if booked != mock.chats:
        found.append(f"the ledger holds {booked} attempts, the upstream counted {mock.chats}")
    if books.report["attempts"] != books.attempts:
        found.append(
            f"spend report says {books.report['attempts']} attempts of {books.attempts} booked"
        )
    if mock.left == 0:
        found += _wrong_sums(books, mock)
    return found


def _wrong_sums(books: Books, mock: MockStats) -> list[str]:
    billed = {
        "input": mock.billed_input_tokens,
        "cached_input": mock.billed_cached_tokens,
        "output": mock.billed_output_tokens,
    }
    expected = {f"{meter}_tokens": tokens for meter, tokens in billed.items()}
    # Exact: the rates are whole picodollars per token, and every answer came from the cheapest.
    expected["cost_pico_usd"] = sum(
        tokens * round(float(PRICES[0][meter]) * PICO_PER_USD / TOKENS_PER_MTOK)
        for meter, tokens in billed.items()
    )
    return [
        f"{name} in the ledger is {books.report[name]}, the upstream bills {want}"
        for name, want in expected.items()
        if books.report[name] != want
    ]


def _statuses(database: Path) -> dict[int, int]:
    """Attempts by the code of their status."""
    # An attempt that was given up and settled later has two entries; the later one counts.
    return _query(
        database,
        "SELECT status, count(*) FROM spend_event AS e WHERE entry ="
        " (SELECT max(entry) FROM spend_event WHERE event_id = e.event_id) GROUP BY status",
    )


def _query(database: Path, statement: str) -> dict[int, int]:
    """The rows of a statement with two whole numbers each; none while there is no ledger."""
    if not database.exists():
        return {}
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        tables = "SELECT 1 FROM sqlite_master WHERE name = 'spend_event'"
        if connection.execute(tables).fetchone() is None:
            return {}
        return dict(cast("Iterable[tuple[int, int]]", connection.execute(statement)))
    finally:
        connection.close()
