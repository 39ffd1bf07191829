"""Loading: exactly once, whatever comes twice, late, broken or not at all."""

from __future__ import annotations

import anyio
import pytest
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.columns import STATUS_CODES
from gateway.ledger.dimensions import Dimensions
from gateway.ledger.loader import Loader
from gateway.ledger.records import AttemptStatus
from gateway.ledger.rounds import LoaderLimits
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    event_id,
    fetch,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
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


async def test_what_was_written_is_booked_and_rolled_up(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    for n in range(50):
        writer.append(intent(n))
        writer.append(settlement(n, tokens=n))
    writer.append(intent(50))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert await totals(engine) == (50, sum(range(50)) * PRICE_PICO, 0)
        (open_id,) = await fetch(engine, sa.select(schema.attempt_intent.c.event_id))
        assert open_id.event_id == event_id(50)
        assert loader.stats.events == 50
        assert loader.stats.backlog_bytes == 0
        await holds(engine, root)
    await writer.close()


async def test_many_rounds_of_one_record_are_as_good_as_one_round(url, root, time):
    writers = [
        open_spool(root / name, session=n, clock=time.clock) for n, name in enumerate("abc", 1)
    ]
    for n in range(15):
        writers[n % 3].append(intent(n))
        writers[n % 3].append(settlement(n))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock, limits=LoaderLimits(batch_records=1))
        behind = await loader.load_round()
        assert behind == {"a", "b", "c"}
        assert loader.stats.backlog_bytes > 0
        await loader.flush()
        assert (await totals(engine))[0] == 15
        await holds(engine, root)
    for writer in writers:
        await writer.close()


async def test_the_next_loader_goes_on_where_the_last_one_was(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        writer.append(intent(2))
        writer.append(settlement(2))
        following = Loader(engine, root, clock=time.clock)
        await following.flush()
        assert (following.stats.events, following.stats.replays) == (1, 0)
    await writer.close()


async def test_reading_everything_again_changes_nothing(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    for n in range(20):
        writer.append(intent(n))
        writer.append(settlement(n))
    writer.append(intent(20))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        before = await totals(engine)
        async with engine.begin() as connection:
            await connection.execute(sa.delete(schema.spool_cursor))
        again = Loader(engine, root, clock=time.clock)
        await again.flush()
        assert await totals(engine) == before
        assert again.stats.replays == 20
        assert again.stats.events == 0
        assert len(await fetch(engine, sa.select(schema.attempt_intent))) == 1
        await holds(engine, root)
    await writer.close()


async def test_the_same_settlement_twice_in_a_batch_counts_once(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    for record in (intent(1), intent(1), settlement(1), settlement(1, tokens=9)):
        writer.append(record)
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        assert await totals(engine) == (1, 100 * PRICE_PICO, 0)
        await holds(engine, root)
    await writer.close()


async def test_equal_upstream_ids_are_three_events(url, root, time):
    """GW-086: providers repeat their ids."""
    writer = open_spool(root / "w", clock=time.clock)
    for n in range(3):
        writer.append(intent(n))
        writer.append(settlement(n, upstream_request_id="chatcmpl-static-1"))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        rows = await fetch(engine, sa.select(schema.spend_event.c.upstream_request_id))
        assert [row[0] for row in rows] == ["chatcmpl-static-1"] * 3
    await writer.close()


async def test_two_loaders_at_once_book_everything_once(url, root, time):
    writer = open_spool(root / "w", clock=time.clock, segment_bytes=20_000)
    limits = LoaderLimits(batch_records=17)
    async with open_engine(url) as one, open_engine(url) as other:
        loaders = [Loader(engine, root, clock=time.clock, limits=limits) for engine in (one, other)]
        for part in range(4):
            for n in range(part * 50, part * 50 + 50):
                writer.append(intent(n))
                writer.append(settlement(n))
            async with anyio.create_task_group() as tasks:
                for loader in loaders:
                    tasks.start_soon(loader.flush)
        assert await totals(one) == (200, 200 * 100 * PRICE_PICO, 0)
        assert sum(loader.stats.events for loader in loaders) == 200
        assert sum(loader.stats.replays for loader in loaders) == 0, "the cursor is compared"
        await holds(one, root)
    await writer.close()


async def test_an_intent_of_a_dead_writer_becomes_unknown_billing(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, exposure_pico_usd=12_345))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert await totals(engine) == (0, 0, 0), "its writer lives"
        await writer.close()
        await loader.flush()
        assert await totals(engine) == (1, 0, 12_345)
        (row,) = await fetch(engine, sa.select(schema.spend_event))
        assert row.status == STATUS_CODES[AttemptStatus.UNKNOWN_BILLING]
        assert row.is_lost
        assert loader.stats.lost == 1
        assert await fetch(engine, sa.select(schema.attempt_intent)) == []
        await holds(engine, root)


async def test_a_new_writer_in_the_same_directory_ends_the_old_ones_attempts(url, root, time):
    old = open_spool(root / "w", session=1, clock=time.clock)
    old.append(intent(1))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        await old.close()
        new = open_spool(root / "w", session=2, clock=time.clock)
        new.append(intent(2))
        await loader.flush()
        (left,) = await fetch(engine, sa.select(schema.attempt_intent.c.event_id))
        assert left.event_id == event_id(2)
        assert (await totals(engine))[0] == 1
        await Loader(engine, root, clock=time.clock).flush()
        assert (await totals(engine))[0] == 1
        await new.close()


async def test_an_expired_intent_is_given_up_although_its_writer_lives(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, at_us=time.wall, lifetime_s=30))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock, limits=LoaderLimits(grace_s=10))
        await loader.flush()
        time.pass_s(40)
        await loader.flush()
        assert (await totals(engine))[0] == 0
        time.pass_s(1.1)
        await loader.flush()
        assert (await totals(engine))[0] == 1
    await writer.close()


async def test_a_settlement_after_the_intent_was_given_up_still_wins_once(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, at_us=time.wall, lifetime_s=30, exposure_pico_usd=999))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        time.pass_s(3_600)
        await loader.flush()
        assert await totals(engine) == (1, 0, 999)
        writer.append(settlement(1))
        writer.append(settlement(1))
        await loader.flush()
        writer.append(settlement(1, tokens=5))
        await loader.flush()
        assert await totals(engine) == (1, 100 * PRICE_PICO, 0)
        rows = await fetch(engine, sa.select(schema.spend_event).order_by(sa.column("entry")))
        assert [(row.entry, row.is_lost, row.cost_pico_usd) for row in rows] == [
            (0, True, 0),
            (1, False, 100 * PRICE_PICO),
        ]
        assert rows[0].at_us == rows[1].at_us
        assert loader.stats.replays == 2
        await holds(engine, root)
    await writer.close()


async def test_a_late_word_that_nothing_is_known_keeps_the_exposure(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, at_us=time.wall, lifetime_s=1, exposure_pico_usd=None))
    writer.append(intent(2, at_us=time.wall, lifetime_s=1, exposure_pico_usd=50))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        time.pass_s(100)
        await loader.flush()
        for n in (1, 2):
            unknown = {"status": "unknown_billing", "quality": "unknown", "usage": {}}
            writer.append(settlement(n, **unknown, lines=(), cost_pico_usd=0))
        await loader.flush()
        assert await totals(engine) == (2, 0, 50)
        await holds(engine, root)
    await writer.close()


async def test_a_clock_that_goes_back_books_what_was_written(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, at_us=time.wall))
    time.wall -= 7_200_000_000
    writer.append(intent(2, at_us=time.wall))
    writer.append(settlement(1, settled_at_us=time.wall))
    writer.append(settlement(2, settled_at_us=time.wall))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        assert (await totals(engine))[0] == 2
        buckets = await fetch(engine, sa.select(schema.rollup_qh.c.bucket_us))
        assert len({row.bucket_us for row in buckets}) == 2
        await holds(engine, root)
    await writer.close()


async def test_stopping_ends_the_run_after_its_round(url, root, time):
    async with open_engine(url) as engine, anyio.create_task_group() as tasks:
        loader = Loader(engine, root, clock=time.clock, limits=LoaderLimits(poll_s=60))
        tasks.start_soon(loader.run)
        await anyio.sleep(0.05)
        loader.stop()


async def test_an_open_intent_of_a_booked_event_is_not_booked_again(url, root, time):
    """A state that no load leaves; the database may have been edited."""
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1, lifetime_s=1))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time.clock)
        await loader.flush()
        saved = await fetch(engine, sa.select(schema.attempt_intent))
        writer.append(settlement(1))
        await loader.flush()
        async with engine.begin() as connection:
            await connection.execute(sa.insert(schema.attempt_intent), [dict(saved[0]._mapping)])
        time.pass_s(1_000)
        await loader.flush()
        assert await totals(engine) == (1, 100 * PRICE_PICO, 0)
        assert await fetch(engine, sa.select(schema.attempt_intent)) == []
        await holds(engine, root)
    await writer.close()


async def test_an_open_intent_that_is_read_again_with_its_settlement_is_booked_once(
    url, root, time
):
    writer = open_spool(root / "w", clock=time.clock)
    writer.append(intent(1))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        writer.append(settlement(1))
        async with engine.begin() as connection:
            await connection.execute(sa.delete(schema.spool_cursor))
        await Loader(engine, root, clock=time.clock).flush()
        assert await totals(engine) == (1, 100 * PRICE_PICO, 0)
        assert await fetch(engine, sa.select(schema.attempt_intent)) == []
        await holds(engine, root)
    await writer.close()


async def test_a_busy_loader_gathers_and_an_idle_one_loads_at_once(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    limits = LoaderLimits(busy_records=10, gather_s=600, poll_s=0.01)
    async with open_engine(url) as engine, anyio.create_task_group() as tasks:
        loader = Loader(engine, root, clock=time.clock, limits=limits)
        tasks.start_soon(loader.run)
        with anyio.fail_after(10):
            for count in (1, 2):
                writer.append(intent(count))
                writer.append(settlement(count))
                while loader.stats.events < count:
                    await anyio.sleep(0.005)
            for n in range(10, 20):
                writer.append(intent(n))
                writer.append(settlement(n))
            while loader.stats.events < 3:
                await anyio.sleep(0.005)
        await anyio.sleep(0.05)
        loaded = loader.stats.events
        writer.append(intent(30))
        writer.append(settlement(30))
        await anyio.sleep(0.1)
        assert loader.stats.events == loaded, "it waits for more"
        await loader.flush()
        assert loader.stats.events == 13, "who must see everything does not wait"
        loader.stop()
    await writer.close()


async def test_combinations_of_few_names_are_forgotten_too(url, root, time):
    async with open_engine(url) as engine:
        dimensions = Dimensions(cached_max=20)
        places = [(n % 5, n // 5) for n in range(25)] * 2

        def intern(connection) -> list[tuple[int, int]]:
            found = [
                dimensions.of_intent(connection, intent(1, key_id=f"key-{key}", model=f"m-{model}"))
                for key, model in places
            ]
            return [(ids.key_id - 1, ids.model_id - 1) for ids in found]

        async with engine.begin() as connection:
            assert await connection.run_sync(intern) == places
        assert len(dimensions._known) <= 20


async def test_names_are_interned_once_also_when_not_all_are_remembered(url, root, time):
    async with open_engine(url) as engine:
        dimensions = Dimensions(cached_max=2)

        def intern(connection) -> list[int]:
            return [
                dimensions.of_intent(connection, intent(n, team=f"team-{n % 3}")).team_id
                for n in range(9)
            ]

        async with engine.begin() as connection:
            ids = await connection.run_sync(intern)
        assert ids == [1, 2, 3] * 3
        names = await fetch(engine, sa.select(schema.team.c.name))
        assert [row.name for row in names] == ["team-0", "team-1", "team-2"]


class CountingLoader(Loader):
    """Counts its rounds."""

    rounds = 0

    async def load_round(self) -> set[str]:
        self.rounds += 1
        return await super().load_round()


async def test_a_loader_at_rest_looks_ever_more_seldom_and_wakes_up_again(url, root, time):
    writer = open_spool(root / "w", clock=time.clock)
    limits = LoaderLimits(poll_s=0.001, poll_s_max=2.0)
    async with open_engine(url) as engine, anyio.create_task_group() as tasks:
        loader = CountingLoader(engine, root, clock=time.clock, limits=limits)
        tasks.start_soon(loader.run)
        await anyio.sleep(0.8)
        # After 1, 2, 4 ms and so on.
        assert 1 <= loader.rounds <= 12
        writer.append(intent(1))
        writer.append(settlement(1))
        with anyio.fail_after(10):
            while loader.stats.events < 1:
                await anyio.sleep(0.005)
        at_rest, loader.rounds = loader.rounds, 0
        assert at_rest <= 13
        with anyio.fail_after(6):  # at rest two rounds would take that long
            while loader.rounds < 5:
                await anyio.sleep(0.001)
        loader.stop()
    await writer.close()
