"""The schema: up, down, up; the same on paper and on disk; append-only."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateTable

from gateway.clock import from_microseconds, to_microseconds
from gateway.ledger import migrate, schema
from gateway.ledger.columns import PicoTotal
from gateway.ledger.database import (
    blocking_writer,
    migrating_engine,
    reading_engine,
    sqlite_path,
    writing_engine,
)
from gateway.ledger.errors import DatabaseUnavailable, UnsupportedDatabase, UnusableDatabase
from gateway.ledger.loader import Loader
from tests.gateway.ledger_samples import (
    NOON_US,
    FakeClock,
    fetch,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)
from tests.support.postgres import fetch as fetch_rows


def tables(url: str) -> set[str]:
    engine = migrating_engine(url)
    with engine.connect() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_the_schema_goes_up_and_down_and_up_again(tmp_path):
    url = f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert migrate.current(url) == migrate.head()
    assert tables(url) == {*schema.metadata.tables, "alembic_version"}
    migrate.downgrade(url, "base")
    assert migrate.current(url) is None
    assert tables(url) == {"alembic_version"}
    migrate.upgrade(url)
    migrate.upgrade(url)
    assert tables(url) == {*schema.metadata.tables, "alembic_version"}


def test_the_newest_version_by_file_name_is_alembics_head():
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("path_separator", "os")
    assert migrate.head() == ScriptDirectory.from_config(config).get_current_head()


@pytest.mark.slow
def test_a_schema_that_is_up_to_date_loads_no_alembic(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    look = (
        "import sys; from gateway.ledger import migrate; migrate.upgrade(sys.argv[1]);"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", look, url], check=False).returncode == 0


def test_the_migrations_make_exactly_the_tables_of_the_code(tmp_path):
    engine = migrating_engine(make_database(tmp_path))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def test_check_constraints_of_the_migrations_are_those_of_the_code(tmp_path):
    engine = migrating_engine(make_database(tmp_path))
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        for table in schema.metadata.sorted_tables:
            stored = {check["name"] for check in inspector.get_check_constraints(table.name)}
            declared = {
                check.name for check in table.constraints if isinstance(check, sa.CheckConstraint)
            }
            assert stored == declared, table.name


def test_a_failed_migration_leaves_nothing_behind(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = migrating_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE meta (name TEXT)")
    with pytest.raises(DatabaseUnavailable, match="already exists"):
        migrate.upgrade(url)
    assert tables(url) == {"meta"}


def test_a_version_of_a_later_release_is_refused_and_left_alone(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    engine = migrating_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    before = tables(url)
    with pytest.raises(UnusableDatabase, match="version 9999, which this release does not know"):
        migrate.upgrade(url)
    assert (migrate.current(url), tables(url)) == ("9999", before)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"notes of a meeting, long enough for a page" * 100)
    kept = path.read_bytes()
    with pytest.raises(UnusableDatabase, match="file is not a database"):
        migrate.upgrade(f"sqlite:///{path}")
    assert path.read_bytes() == kept


def test_the_database_file_is_for_its_owner_only(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    assert sqlite_path(url).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "statement", ["UPDATE spend_event SET cost_pico_usd = 0", "DELETE FROM spend_event"]
)
@pytest.mark.anyio
async def test_events_can_be_neither_changed_nor_deleted(tmp_path, statement):
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
        with pytest.raises(IntegrityError, match="append-only"):
            async with engine.begin() as connection:
                await connection.exec_driver_sql(statement)
        assert len(await fetch(engine, sa.select(schema.spend_event))) == 1
    await writer.close()


@pytest.mark.anyio
async def test_connections_are_as_durable_as_promised_and_readers_cannot_write(tmp_path):
    url = make_database(tmp_path)
    writer, reader = writing_engine(url), reading_engine(url)
    async with writer.connect() as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2)):
            found = (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar_one()
            assert found == value
    async with reader.connect() as connection:
        with pytest.raises(sa.exc.OperationalError, match="readonly"):
            await connection.exec_driver_sql("DELETE FROM meta")
    await writer.dispose()
    await reader.dispose()


@pytest.mark.parametrize(
    "url", ["postgresql://user@host/db", "sqlite://", "sqlite:///", "sqlite:///a?mode=ro", "x"]
)
def test_other_databases_are_refused_with_a_sentence(url):
    with pytest.raises(UnsupportedDatabase, match="sqlite:///path"):
        sqlite_path(url)


def test_postgresql_gets_its_native_types():
    events = str(CreateTable(schema.spend_event).compile(dialect=postgresql.dialect()))
    for column in (
        "event_id UUID NOT NULL",
        "at_us TIMESTAMP WITH TIME ZONE NOT NULL",
        "lines JSONB NOT NULL",
        "cost_pico_usd BIGINT,",
    ):
        assert column in events
    sums = str(CreateTable(schema.rollup_qh).compile(dialect=postgresql.dialect()))
    assert "cost_pico_usd NUMERIC(38, 0) NOT NULL" in sums


@given(st.integers(0, 2**53 - 1))
def test_instants_keep_their_microseconds(at_us):
    assert to_microseconds(from_microseconds(at_us)) == at_us


@pytest.mark.parametrize("at_us", [0, 1, NOON_US, 2**53 - 1, 4_102_444_799_999_999])
def test_postgresql_gives_back_exactly_the_instants_and_ids_that_it_got(postgres_ledger_url, at_us):
    database = blocking_writer(postgres_ledger_url)
    table = schema.attempt_intent
    row = {
        "event_id": bytes(range(16)),
        "directory": "w",
        "session": b"",
        "at_us": at_us,
        "expires_at_us": at_us,
        "payload": b"",
    }

    def write_and_read() -> tuple[object, ...]:
        with database.engine.begin() as connection:
            connection.execute(sa.insert(table), row)
            found = sa.select(table.c.at_us, table.c.event_id).where(table.c.at_us == at_us)
            return tuple(connection.execute(found).one())

    try:
        assert database.run(write_and_read) == (at_us, bytes(range(16)))
    finally:
        database.dispose()
    stored = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    found = fetch_rows(postgres_ledger_url, "SELECT at_us, event_id::text FROM attempt_intent")
    assert found == [(stored, str(uuid.UUID(bytes=bytes(range(16)))))]


def test_unknown_totals_stay_unknown():
    assert PicoTotal().process_result_value(None, postgresql.dialect()) is None


def test_totals_are_integers_whatever_the_database_gives():
    total = PicoTotal().process_result_value(Decimal(10**30), postgresql.dialect())
    assert (total, type(total)) == (10**30, int)


def test_the_epoch_is_the_epoch():
    assert to_microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
