"""`ledger verify` finds each kind of fault that can be put into a sound ledger."""

from __future__ import annotations

import sqlite3

import pytest

from gateway.ledger import segment
from gateway.ledger.database import migrating_engine, sqlite_path
from gateway.ledger.keys import create_key
from gateway.ledger.loader import Loader
from gateway.ledger.verify import FAULTS_MAX, Verification, verify
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)
from tests.gateway.test_ledger_keys import record

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(tmp_path) -> str:
    """Three settled attempts, one of them after it had been given up; one still open."""
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=clock.clock)
        writer.append(intent(3, lifetime_s=1))
        await loader.flush()
        clock.pass_s(100)
        await loader.flush()
        for n in (1, 2, 3):
            if n < 3:
                writer.append(intent(n))
            writer.append(settlement(n))
        writer.append(intent(4))
        await loader.flush()
    await writer.close()
    with migrating_engine(url).begin() as connection:
        create_key(connection, record(), actor="admin", now_us=1)
    return url


def check(url, tmp_path) -> Verification:
    with migrating_engine(url).begin() as connection:
        return verify(connection, tmp_path / "spool")


def spoil(url: str, *statements: str) -> None:
    """Change the database behind the triggers' back."""
    with sqlite3.connect(sqlite_path(url)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'")
        saved = triggers.fetchall()
        for name, _ in saved:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in saved:
            connection.execute(sql)
    connection.close()


async def test_a_sound_ledger_has_no_faults(url, tmp_path):
    found = check(url, tmp_path)
    assert found == Verification(
        faults=(),
        events=4,
        cost_pico_usd=300 * PRICE_PICO,
        open_intents=1,
        backlog_records=0,
        quarantined=0,
    )


EVENT_1 = "event_id = x'00000000000000000000000000000001'"
SPOILED = {
    "a changed cost": (
        f"UPDATE spend_event SET cost_pico_usd = 1 WHERE {EVENT_1}",
        "the cost is not the sum of its lines",
    ),
    "a cost that became unknown": (
        f"UPDATE spend_event SET cost_pico_usd = NULL WHERE {EVENT_1}",
        "the cost is not the sum of its lines",
    ),
    "a changed rate": (
        f"""UPDATE spend_event SET lines = '[["input",100,7,1,5000000]]' WHERE {EVENT_1}""",
        "the input line is not its units at its rate",
    ),
    "a rate per nothing": (
        f"""UPDATE spend_event SET lines = '[["input",100,50000,0,5000000]]' WHERE {EVENT_1}""",
        "a rate or count that cannot be",
    ),
    "units that were not counted": (
        f"UPDATE spend_event SET input_units = 99 WHERE {EVENT_1}",
        "charges other units than were counted",
    ),
    "a meter that does not exist": (
        f"""UPDATE spend_event SET lines = '[["love",100,50000,1,5000000]]' WHERE {EVENT_1}""",
        "the love line charges other units",
    ),
    "a list cost without public rates": (
        f"UPDATE spend_event SET list_cost_pico_usd = 5000000 WHERE {EVENT_1}",
        "its lines and its list cost do not belong together",
    ),
    "a changed list cost": (
        f"""UPDATE spend_event SET list_cost_pico_usd = 6000001,
        lines = '[["input",100,50000,1,5000000,60000,1,6000000]]' WHERE {EVENT_1}""",
        "the list cost is not the sum of its lines",
    ),
    "a changed public rate": (
        f"""UPDATE spend_event SET list_cost_pico_usd = 6000000,
        lines = '[["input",100,50000,1,5000000,60001,1,6000000]]' WHERE {EVENT_1}""",
        "the input line is not its units at its public rate",
    ),
    "a public rate per nothing": (
        f"""UPDATE spend_event SET list_cost_pico_usd = 6000000,
        lines = '[["input",100,50000,1,5000000,60000,0,6000000]]' WHERE {EVENT_1}""",
        "the input line has a public rate that cannot be",
    ),
    "a removed event": (f"DELETE FROM spend_event WHERE {EVENT_1}", "attempt_count is 3"),
    "a changed roll-up": (
        "UPDATE rollup_day SET output_units = output_units + 1",
        "output_units is 22, the events say 21",
    ),
    "a removed roll-up": ("DELETE FROM rollup_qh", "rollup_qh at 2026-11-28T12:00:00+00:00"),
    "a second settlement": (
        "UPDATE spend_event SET is_lost = 0 WHERE entry = 0",
        "is settled twice",
    ),
    "a correction of nothing": (
        "DELETE FROM spend_event WHERE is_lost",
        "has a later entry without a first one",
    ),
    "an open attempt that is booked": (
        "UPDATE attempt_intent SET event_id = x'00000000000000000000000000000001'",
        "is both open and booked",
    ),
    "a changed audit line": ("UPDATE audit_log SET actor = 'x'", "audit line 1 was changed"),
    "a quarantined record": (
        "INSERT INTO quarantine VALUES (1, 1, 'w', x'00', 3, 80, 'not a record', x'00')",
        "quarantined from spool w, segment 3 at 80: not a record",
    ),
}


@pytest.mark.parametrize(("statement", "fault"), SPOILED.values(), ids=SPOILED.keys())
async def test_what_was_spoiled_is_found(url, tmp_path, statement, fault):
    spoil(url, statement)
    found = check(url, tmp_path)
    assert any(fault in one for one in found.faults), found.faults


async def test_a_damaged_database_file_is_found(url, tmp_path):
    spoil(
        url,
        "PRAGMA ignore_check_constraints = ON",
        "UPDATE spend_event SET reasoning_units = -1 WHERE entry = 1",
    )
    assert any(fault.startswith("database file: ") for fault in check(url, tmp_path).faults)


async def test_what_waits_in_the_spools_is_counted_and_its_damage_found(url, tmp_path):
    writer = open_spool(tmp_path / "spool" / "late", segment_bytes=1_000)
    for n in range(10, 20):
        writer.append(intent(n))
    await writer.close()
    assert check(url, tmp_path).backlog_records == 10
    assert check(url, tmp_path).faults == ()
    path = segment.segment_path(tmp_path / "spool" / "late", 1)
    data = bytearray(path.read_bytes())
    data[segment.HEADER_BYTES + 20] ^= 1
    path.write_bytes(data)
    (tmp_path / "spool" / "late" / "00000009-80.damaged").write_bytes(b"x")
    assert check(url, tmp_path).faults == (
        "spool late: damaged bytes are kept in 00000009-80.damaged",
        f"spool late, segment 1 at {segment.HEADER_BYTES}: bad checksum",
        "spool late, segment 2 at 0: broken chain",
    )


async def test_a_flood_of_faults_is_counted_not_listed(url, tmp_path):
    spoil(
        url,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
        " INSERT INTO quarantine (at_us, directory, session, number, offset_bytes, reason, payload)"
        " SELECT 1, 'w', x'00', 1, i, 'r', x'00' FROM n",
    )
    found = check(url, tmp_path)
    assert len(found.faults) == FAULTS_MAX + 1
    assert found.faults[-1] == "and 400 more faults"
    assert found.quarantined == 500


async def test_no_spool_directory_is_no_fault(url, tmp_path):
    with migrating_engine(url).begin() as connection:
        assert verify(connection, tmp_path / "nowhere").faults == ()
