"""Roll-ups by quarter-hour and day, of everything, of keys and of listed cost tags."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command

from gateway.ledger import cost_tags, meters, migrate, schema, tag_sums
from gateway.ledger.database import migrating_engine, writing_engine
from gateway.ledger.loader import Loader
from gateway.ledger.records import CostLine, decode, encode
from gateway.ledger.roll_ups import ROLL_UPS
from gateway.ledger.tag_sums import list_cost_tags
from gateway.ledger.verify import verify
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
)

pytestmark = pytest.mark.anyio

BEFORE = "0003"
"""The schema before these sums."""
EXAMPLE_TAGS = (("env", "prod"), ("feature", "search"))
# An intent and a settlement as the first release wrote them, on 2026-11-30.
INTENT_BYTES = bytes.fromhex(
    "de0014a46b696e64a6696e74656e74a86576656e745f6964c41000000000000000000000000000000001a561745f"
    "7573cf00066154ea8513e8aa726571756573745f6964c410000000000000000000000000000f4241a7617474656d"
    "707401aa6465706c6f796d656e74b967726f712f6c6c616d612d332e312d38622d696e7374616e74a870726f7669"
    "646572a467726f71ae757073747265616d5f6d6f64656cb46c6c616d612d332e312d38622d696e7374616e74a56d"
    "6f64656caa636861742d736d616c6ca47465616da87061796d656e7473a770726f6a656374a56672617564a66b65"
    "795f6964ac61626364656667686a6b6d6ea47461677391a8696e7465726e616ca9636f73745f746167739192a365"
    "6e76a470726f64a6726561736f6ea86368656170657374ad70726963655f76657273696f6ea27631b16578706f73"
    "7572655f7069636f5f757364ce006acfc0a969735f73747265616dc3a5726f757465b0636861742e636f6d706c65"
    "74696f6e73aa6c69666574696d655f73cb408c200000000000"
)
SETTLEMENT_BYTES = bytes.fromhex(
    "8fa46b696e64aa736574746c656d656e74a86576656e745f6964c41000000000000000000000000000000001ad73"
    "6574746c65645f61745f7573cf00066154ea8515dca6737461747573a26f6ba77175616c697479a56578616374a5"
    "757361676582a5696e70757464a66f757470757407a56c696e65739185a56d65746572a5696e707574a5756e6974"
    "7364ad726174655f7069636f5f757364cdc350ae726174655f7065725f756e69747301ad636f73745f7069636f5f"
    "757364ce004c4b40ad636f73745f7069636f5f757364ce004c4b40b670726f76696465725f636f73745f7069636f"
    "5f757364c0ab687474705f737461747573ccc8aa6572726f725f636f6465a0b3757073747265616d5f7265717565"
    "73745f6964b163686174636d706c2d7374617469632d31ad66696e6973685f726561736f6ea473746f70a7747466"
    "745f7573ce0001d4c0ab6475726174696f6e5f7573ce000c3500"
)


def test_spools_of_the_first_release_are_read_as_they_were_meant():
    assert decode(INTENT_BYTES) == intent(1)
    assert decode(SETTLEMENT_BYTES) == settlement(1)


def test_a_settlement_that_says_nothing_of_public_prices_is_as_short_as_it_was():
    # But for the length of the map, which takes three bytes instead of one.
    assert encode(settlement(1))[3:] == SETTLEMENT_BYTES[1:]


def listed_settlement(n: int, *, tokens: int = 100, **changes):
    """One with a public price of twice what is charged, and cache savings."""
    line = CostLine(
        meter="input",
        units=tokens,
        rate_pico_usd=PRICE_PICO,
        rate_per_units=1,
        cost_pico_usd=tokens * PRICE_PICO,
        list_rate_pico_usd=2 * PRICE_PICO,
        list_cost_pico_usd=2 * tokens * PRICE_PICO,
    )
    values = {
        "lines": (line,),
        "list_cost_pico_usd": 2 * tokens * PRICE_PICO,
        "cache_saved_pico_usd": 77,
        "provider_cost_pico_usd": 5,
    }
    return settlement(n, tokens=tokens, **(values | changes))


async def booked(tmp_path, records, *, tags=()) -> str:
    """A ledger of the records, checked in full; cost tags are listed before they are loaded."""
    url, clock = make_database(tmp_path), FakeClock()
    with migrating_engine(url).begin() as connection:
        list_cost_tags(connection, tags)
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    for record in records:
        writer.append(record)
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
        await holds(engine, tmp_path / "spool")
    await writer.close()
    return url


async def everything(url: str) -> dict[str, list]:
    """Every row of every table of sums."""
    async with open_engine(url) as engine, engine.connect() as connection:
        return await connection.run_sync(all_sums)


def all_sums(connection: sa.Connection) -> dict[str, list]:
    found = {
        one.table.name: sorted(
            tuple(map(int, row)) for row in connection.execute(sa.select(one.table))
        )
        for one in ROLL_UPS
    }
    # The ids of rates are given in the order in which they came.
    found["rollup_meter_day"] = sorted(meters._stored_cells(connection).items(), key=repr)
    return found


async def column_sums(url: str, table: sa.Table) -> dict[str, int]:
    async with open_engine(url) as engine:
        rows = [row._mapping for row in await fetch(engine, sa.select(table))]
    return {
        name: sum(row[name] for row in rows) for name in (*schema.COUNTS, *schema.AMOUNTS) if rows
    }


async def test_each_family_holds_what_each_event_adds(tmp_path):
    url = await booked(
        tmp_path,
        [
            intent(1, cost_tags=EXAMPLE_TAGS),
            listed_settlement(1),
            intent(2, cost_tags=(("env", "prod"),)),
            settlement(2, tokens=50, baseline="b/m@1", baseline_cost_pico_usd=70 * PRICE_PICO),
            intent(3, cost_tags=(("team", "x"),), exposure_pico_usd=None),
            settlement(
                3, tokens=0, status="unknown_billing", quality="unknown", usage={}, lines=(), cost_pico_usd=0
            ),
            intent(4, cost_tags=()),
            settlement(4, tokens=0, lines=(), cost_pico_usd=None, baseline="b/m@1"),
        ],
        tags=("env", "feature"),
    )  # fmt: skip
    expected = {
        "request_count": 4,
        "attempt_count": 4,
        "unpriced_count": 1,
        "list_cost_count": 1,
        "provider_cost_count": 1,
        "exposure_unknown_count": 1,
        "compared_count": 1,
        "uncompared_count": 1,
        "cost_pico_usd": 150 * PRICE_PICO,
        "list_cost_pico_usd": 250 * PRICE_PICO,
        "provider_cost_pico_usd": 5,
        "estimated_pico_usd": 0,
        "nominal_pico_usd": 0,
        "exposure_pico_usd": 0,
        "cache_saved_pico_usd": 77,
        "baseline_cost_pico_usd": 70 * PRICE_PICO,
        "compared_cost_pico_usd": 50 * PRICE_PICO,
    }
    for table in (
        schema.rollup_qh, schema.rollup_day, schema.rollup_key_qh, schema.rollup_key_day
    ):  # fmt: skip
        assert await column_sums(url, table) == expected, table.name
    for table in (schema.rollup_tag_qh, schema.rollup_tag_day):
        found = await column_sums(url, table)
        # env of two requests, feature of one; the name that is not listed is in none.
        assert found["request_count"] == 3
        assert found["cost_pico_usd"] == 250 * PRICE_PICO


async def test_listing_other_tags_gives_the_sums_of_a_ledger_that_had_them_from_the_beginning(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tag_sums, "_PAGE_ROWS", 3)
    monkeypatch.setattr(tag_sums, "_CELLS_MAX", 2)
    records = [
        record
        for n in range(1, 12)
        for record in (
            # Every fourth has no tag of the name that is listed later.
            intent(
                n,
                cost_tags=(("env", f"e{n % 3}"), ("feature", f"f{n}"))[: 2 if n % 4 else 1],
                key_id=f"k{n % 2}",
            ),
            listed_settlement(n, tokens=n),
        )
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = await booked(tmp_path / "a", records, tags=("env", "other"))
    wanted = await booked(tmp_path / "b", records, tags=("feature", "other"))
    with migrating_engine(before).begin() as connection:
        assert list_cost_tags(connection, ("other", "feature", "feature"))
        assert not list_cost_tags(connection, ("feature", "other"))
        assert cost_tags.load_listed(connection) == ("feature", "other")
        assert verify(connection, tmp_path / "a" / "spool").faults == ()
    for name in ("rollup_tag_qh", "rollup_tag_day"):
        found, expected = (await everything(before))[name], (await everything(wanted))[name]
        # The ids of tags are given in the order in which they came.
        assert [row[:1] + row[2:] for row in found] == [row[:1] + row[2:] for row in expected]
        assert found


async def test_an_attempt_that_was_given_up_counts_once_in_its_tags_when_it_settles(tmp_path):
    url, clock = make_database(tmp_path), FakeClock()
    with migrating_engine(url).begin() as connection:
        list_cost_tags(connection, ("env",))
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=clock.clock)
        writer.append(intent(1, lifetime_s=1, exposure_pico_usd=None))
        await loader.flush()
        clock.pass_s(200)
        await loader.flush()
        assert (await column_sums(url, schema.rollup_tag_day))["exposure_unknown_count"] == 1
        writer.append(listed_settlement(1))
        await loader.flush()
        found = await column_sums(url, schema.rollup_tag_day)
        assert (found["exposure_unknown_count"], found["attempt_count"]) == (0, 1)
        assert found["cost_pico_usd"] == 100 * PRICE_PICO
        await holds(engine, tmp_path / "spool")
        # What was given up is taken out of the sums of a name that is listed later, too.
        async with engine.begin() as connection:
            await connection.run_sync(list_cost_tags, ("env", "team"))
            await connection.run_sync(list_cost_tags, ())
            await connection.run_sync(list_cost_tags, ("env",))
        assert await column_sums(url, schema.rollup_tag_day) == found
        await holds(engine, tmp_path / "spool")
    await writer.close()


REFUSED = {
    "a line with a public price, the entry without": {"list_cost_pico_usd": None},
    "a public price that is not the lines'": {"list_cost_pico_usd": 1},
    "an entry with a public price, its line without": {"lines": settlement(1).lines},
    "a cost at a baseline that is not named": {"baseline_cost_pico_usd": 1},
    "a cost at a baseline beside no cost": {
        "baseline": "b",
        "baseline_cost_pico_usd": 1,
        "cost_pico_usd": None,
        "lines": (),
        "list_cost_pico_usd": None,
    },
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED.keys())
async def test_a_public_price_that_does_not_add_up_is_kept_aside(tmp_path, changes):
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    writer.append(intent(1))
    writer.append(listed_settlement(1, **changes))
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
        assert len(await reasons(engine)) == 1
    await writer.close()


async def test_a_sum_that_would_overflow_refuses_the_event_and_stays_whole(tmp_path):
    """SQLite would turn an overflowing sum into a float."""
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=clock.clock)
        writer.append(intent(1))
        writer.append(settlement(1))
        await loader.flush()
        full = 9 * 10**18 - 6
        async with engine.begin() as connection:
            await connection.execute(sa.update(schema.rollup_qh).values(output_units=full))
        for n in (2, 3):
            writer.append(intent(n))
            writer.append(
                settlement(n, usage={"output": 7 - 2 * (n - 1)}, lines=(), cost_pico_usd=0)
            )
        await loader.flush()
        (row,) = await fetch(engine, sa.select(schema.rollup_qh))
        assert (row.output_units, type(row.output_units)) == (full + 5, int)
        assert await reasons(engine) == ["refused by the database: IntegrityError"]
    await writer.close()


SAMPLES = [
    record
    for n in range(1, 30)
    for record in (
        intent(
            n,
            at_us=intent(0).at_us + n * 3_000_000_000,
            attempt=1 + n % 2,
            team=f"t{n % 3}",
            key_id=f"k{n % 4}",
            exposure_pico_usd=None if n % 5 else 9,
            price_version="nominal:v" if n % 7 == 0 else "v",
        ),
        settlement(n, tokens=n)
        if n % 4
        else settlement(n, status="client_left", quality="unknown", lines=(), usage={}, cost_pico_usd=0),
    )
]  # fmt: skip


async def test_sums_of_an_older_schema_are_converted_exactly(tmp_path):
    url = await booked(tmp_path, SAMPLES)
    before = await everything(url)
    migrate.downgrade(url, BEFORE)
    with migrating_engine(url).begin() as connection:
        columns = sa.table("rollup_qh", sa.column("attempt_count"), sa.column("exposure_pico_usd"))
        old = connection.execute(
            sa.select(
                sa.func.sum(columns.c.attempt_count), sa.func.sum(columns.c.exposure_pico_usd)
            )
        ).one()
        assert old == (29, 9)
    migrate.upgrade(url)
    assert await everything(url) == before
    with migrating_engine(url).begin() as connection:
        assert verify(connection, tmp_path / "spool").faults == ()


async def test_sums_of_an_older_schema_are_converted_exactly_on_postgresql(tmp_path, postgres_url):
    url = await booked(tmp_path, SAMPLES)
    engine = writing_engine(postgres_url)

    def move(connection, run, revision):
        config = migrate._config(connection)
        run(config, revision)

    async with engine.begin() as connection:
        await connection.run_sync(move, command.upgrade, "head")
        async with open_engine(url) as source:
            for table in schema.metadata.sorted_tables:
                rows = [dict(row._mapping) for row in await fetch(source, sa.select(table))]
                if rows:
                    await connection.execute(sa.insert(table), rows)
        before = await connection.run_sync(all_sums)
        await connection.run_sync(move, command.downgrade, BEFORE)
        await connection.run_sync(move, command.upgrade, "head")
        assert await connection.run_sync(all_sums) == before
    await engine.dispose()
    assert before == await everything(url)


def test_the_first_name_of_a_repeated_tag_counts():
    tags = [["env", "a"], ["env", "b"], ["x", "y"]]
    assert list(cost_tags.of_names(tags, {"env"})) == [("env", "a")]
    assert msgspec.json.decode(msgspec.json.encode(tags)) == tags
