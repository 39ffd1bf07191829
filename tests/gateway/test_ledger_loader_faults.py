"""Loading what is broken, from writers that are gone, into databases that do not answer."""

from __future__ import annotations

import sqlite3

import anyio
import msgspec
import pytest
import sqlalchemy as sa

from gateway.ledger import schema, segment
from gateway.ledger.database import Blocking, blocking_twin, sqlite_path
from gateway.ledger.errors import DatabaseUnavailable, UnusableDatabase
from gateway.ledger.loader import Loader
from gateway.ledger.records import encode
from gateway.ledger.rounds import LoaderLimits, Rounds
from gateway.ledger.segment import encode_frame
from pricing.quote import EVENT_PICO_USD_MAX, CostLine
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    fetch,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
    reasons,
    settlement,
    totals,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
def url(tmp_path, request) -> str:
    """An empty ledger on each of the two databases."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_ledger_url")
    return make_database(tmp_path)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def time() -> FakeClock:
    return FakeClock()


def append_raw(directory, payload: bytes) -> None:
    """A frame that no writer of ours would write."""
    number = segment.segment_numbers(directory)[-1]
    with segment.segment_path(directory, number).open("ab") as file:
        file.write(encode_frame(payload))


def odd_line(**changes) -> CostLine:
    return msgspec.structs.replace(settlement(1).lines[0], **changes)


POISON = {
    "no record at all": b"\xc1 not msgpack",
    "a record of an unknown kind": b"\x81\xa4kind\xa5bogus",
    "an unknown status": encode(settlement(1, status="great")),
    "an unknown quality": encode(settlement(1, quality="great")),
    "an unknown meter": encode(settlement(1, usage={"love": 3})),
    "a negative count": encode(settlement(1, usage={"input": -1})),
    "a cost over a million dollars": encode(
        settlement(1, cost_pico_usd=EVENT_PICO_USD_MAX + 1, lines=())
    ),
    "lines that do not add up": encode(settlement(1, cost_pico_usd=3)),
    "a line of an unknown meter": encode(settlement(1, lines=(odd_line(meter="love"),))),
    "a line at a rate for no unit": encode(settlement(1, lines=(odd_line(rate_per_units=0),))),
    "lines without a cost": encode(settlement(1, cost_pico_usd=None)),
    "an HTTP status of millions": encode(settlement(1, http_status=10**6)),
    "a short id": encode(settlement(1, event_id=b"short")),
    "an intent with a short id": encode(intent(1, request_id=b"short")),
    "an intent out of time": encode(intent(1, at_us=-1)),
    "an intent of attempt zero": encode(intent(1, attempt=0)),
    "an intent with a negative exposure": encode(intent(1, exposure_pico_usd=-1)),
    "an intent whose life has no length": encode(intent(1, lifetime_s=float("nan"))),
    "an intent that lives for ever": encode(intent(1, lifetime_s=float("inf"))),
}


@pytest.mark.parametrize("payload", POISON.values(), ids=POISON.keys())
async def test_a_poison_record_goes_to_quarantine_and_blocks_nothing(url, root, time, payload):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(2))
    append_raw(root / "w", payload)
    writer.append(settlement(2))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert (await totals(engine))[0] == 1
        (row,) = await fetch(engine, sa.select(schema.quarantine))
        assert row.payload == payload
        assert row.reason not in ("", "settled without an intent"), "for what is wrong with it"
        assert loader.stats.quarantined == 1
        await holds(engine, root)
    await writer.close()


async def test_a_settlement_without_an_intent_is_kept_aside(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        assert await reasons(engine) == ["settled without an intent"]
    await writer.close()


async def test_what_only_the_database_refuses_is_quarantined_alone(url, root, time):
    """Ten events of a million dollars in one quarter of an hour overflow its cell."""
    writer = open_spool(root / "w", clock=time.clock)
    big = EVENT_PICO_USD_MAX // PRICE_PICO
    for n in range(12):
        writer.append(intent(n, at_us=time.wall))
        writer.append(settlement(n, tokens=big))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert await totals(engine) == (9, 9 * EVENT_PICO_USD_MAX, 0)
        assert await reasons(engine) == ["refused by the database: IntegrityError"] * 3
        await holds(engine, root)
    await writer.close()


async def test_a_refused_batch_of_several_spools_is_taken_apart_too(url, root, time):
    big = EVENT_PICO_USD_MAX // PRICE_PICO
    writers = [
        open_spool(root / name, session=n, clock=time.clock) for n, name in enumerate("abc", 1)
    ]
    for n in range(12):
        writers[n % 3].append(intent(n, at_us=time.wall))
        writers[n % 3].append(settlement(n, tokens=big))
    path = segment.segment_path(root / "c", 1)
    data = bytearray(path.read_bytes())
    data[9] ^= 0xFF
    path.write_bytes(data)
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        assert await totals(engine) == (9, 9 * EVENT_PICO_USD_MAX, 0)
        assert sorted(await reasons(engine)) == [
            "bad_header",
            *["refused by the database: IntegrityError"] * 3,
        ]
        await holds(engine, root)
    for writer in writers:
        await writer.close()


async def test_damage_in_the_middle_is_kept_aside_and_the_rest_booked(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    for n in range(3):
        writer.append(intent(n))
        writer.append(settlement(n))
    path = segment.segment_path(root / "w", 1)
    data = bytearray(path.read_bytes())
    third = list(segment.scan(bytes(data)))[3]
    data[third.end - 1] ^= 1
    path.write_bytes(data)
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        assert (await totals(engine))[0] == 2
        assert await reasons(engine) == ["bad_checksum"]
    await writer.close()


async def test_loaded_segments_and_dead_directories_are_removed(url, root, time):
    writer = open_spool(root / "w", clock=time.clock, segment_bytes=1_000)
    for n in range(20):
        writer.append(intent(n))
        writer.append(settlement(n))
    assert len(segment.segment_numbers(root / "w")) > 5
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        await loader.flush()
        assert len(segment.segment_numbers(root / "w")) == 1
        await writer.close()
        await loader.flush()
        assert not any(path.is_dir() for path in root.iterdir())
        assert await fetch(engine, sa.select(schema.spool_cursor)) == []
        again = open_spool(root / "w", session=2, clock=time.clock)
        again.append(intent(100))
        again.append(settlement(100))
        await loader.flush()
        assert (await totals(engine))[0] == 21
        await again.close()


async def test_a_dead_directory_with_damaged_bytes_stays_and_is_used_again(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1))
    await writer.close()
    (root / "w" / "00000001-80.damaged").write_bytes(b"evidence")
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        await loader.flush()
        assert (root / "w").is_dir()
        again = open_spool(root / "w", session=2, clock=time.clock)
        again.append(intent(2))
        again.append(settlement(2))
        await loader.flush()
        assert (await totals(engine))[0] == 2
        await again.close()


async def test_a_writer_that_came_and_died_between_two_rounds_is_adopted_too(url, root, time):
    (root / "w").mkdir(parents=True)
    first = open_spool(root / "w", session=1, clock=time.clock)
    first.append(intent(1))
    await first.close()
    (root / "w" / "00000001-80.damaged").write_bytes(b"keeps the directory")
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        second = open_spool(root / "w", session=2, clock=time.clock)
        second.append(intent(2))
        await second.close()
        await loader.flush()
        assert await totals(engine) == (2, 0, 14_000_000)


async def test_a_locked_database_only_lets_the_backlog_grow(tmp_path, root, time):
    """GW-091: an outage loses nothing and counts nothing twice."""
    url = make_database(tmp_path)
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    limits = LoaderLimits(poll_s=0.01, retry_s=0.01, retry_s_max=0.02)
    holder = sqlite3.connect(sqlite_path(url), isolation_level=None)
    async with open_engine(url, busy_s=0.01) as engine, anyio.create_task_group() as tasks:
        loader = Loader(engine, root, clock=time.clock, limits=limits)
        holder.execute("BEGIN IMMEDIATE")
        time.pass_s(3)
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await loader.flush()
        assert loader.stats.backlog_records == 2
        assert loader.stats.backlog_age_ms >= 2_900, "told although nothing could be loaded"
        tasks.start_soon(loader.run)
        with anyio.fail_after(10):
            while loader.stats.failed_rounds < 4:
                await anyio.sleep(0.01)
        assert "locked" in loader.stats.failure
        holder.execute("ROLLBACK")
        holder.close()
        with anyio.fail_after(10):
            # The failure is taken back when a whole round went well, just after the events count.
            while loader.stats.events < 1 or loader.stats.failure:
                await anyio.sleep(0.01)
        for n in range(2, 5):
            writer.append(intent(n))
            writer.append(settlement(n))
        with anyio.fail_after(10):
            while loader.stats.events < 4:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    async with open_engine(url) as engine:
        assert await totals(engine) == (4, 4 * 100 * PRICE_PICO, 0)
        await holds(engine, root)
    await writer.close()


async def test_an_outage_in_the_middle_of_a_batch_is_no_poison(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE spend_event RENAME TO away")
        loader = Loader(engine, root, clock=time.clock)
        with pytest.raises((DatabaseUnavailable, UnusableDatabase)):
            await loader.load_round()
        async with engine.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE away RENAME TO spend_event")
        await loader.flush()
        assert (await totals(engine))[0] == 1
        assert await reasons(engine) == []
    await writer.close()


async def test_an_outage_while_booking_one_by_one_is_no_poison(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    big = EVENT_PICO_USD_MAX // PRICE_PICO
    for n in range(10):
        writer.append(intent(n, at_us=time.wall))
        writer.append(settlement(n, tokens=big))
    async with open_engine(url) as engine:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("DROP TABLE rollup_day")
        loader = Loader(engine, root, clock=time.clock)
        with pytest.raises((DatabaseUnavailable, UnusableDatabase)):
            await loader.load_round()
        assert await totals(engine) == (0, 0, 0)
    await writer.close()


async def test_no_spool_root_is_nothing_to_do(url, root, time):
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert loader.stats.events == 0


def flush(database: Blocking, rounds: Rounds) -> None:
    while database.run(rounds.load):
        pass


class DisturbedRounds(Rounds):
    """Rounds with a moment between commit and tidying."""

    def _tidy(self, chunks, cursors) -> None:
        self.disturb()
        super()._tidy(chunks, cursors)


async def test_a_writer_that_comes_before_the_directory_is_removed_keeps_it(url, root, time):
    writer = open_spool(root / "w", session=1, clock=time.clock)
    writer.append(intent(1))
    await writer.close()
    writers = []
    async with open_engine(url) as engine:
        twin = blocking_twin(engine)
        loader = DisturbedRounds(twin, root, clock=time.clock, limits=LoaderLimits())
        loader.disturb = lambda: writers.append(open_spool(root / "w", session=2, clock=time.clock))
        flush(twin, loader)
        loader.disturb = lambda: None
        writers[0].append(intent(2))
        writers[0].append(settlement(2))
        flush(twin, loader)
        assert (await totals(engine))[0] == 2
    await writers[0].close()


async def test_what_a_writer_wrote_and_died_before_the_removal_is_not_removed(url, root, time):
    writer = open_spool(root / "w", session=1, clock=time.clock)
    writer.append(intent(1))
    await writer.close()
    async with open_engine(url) as engine:
        twin = blocking_twin(engine)
        loader = DisturbedRounds(twin, root, clock=time.clock, limits=LoaderLimits())

        def come_and_die() -> None:
            loader.disturb = lambda: None
            other = open_spool(root / "w", session=2, clock=time.clock)
            other.append(intent(2))
            other.append(settlement(2))
            other._lock.release()

        loader.disturb = come_and_die
        flush(twin, loader)
        flush(twin, loader)
        assert (await totals(engine))[0] == 2
        assert not (root / "w").exists()
