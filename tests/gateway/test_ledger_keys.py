"""Keys in the database, and the audit of who made and revoked them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gateway.auth.directory import KeyRecord, KeySource
from gateway.ledger import keys, schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.database import migrating_engine
from gateway.ledger.errors import KeyConflict, UnknownKey
from gateway.limits.amounts import LimitAmounts
from tests.gateway.ledger_samples import NOON_US, make_database


def record(key_id: str = "abcdefghjkmn", **changes) -> KeyRecord:
    values = {
        "key_id": key_id,
        "digest": b"d" * 32,
        "team": "payments",
        "name": "bot",
        "project": "fraud",
        "models": ("chat-small",),
        "expires_at_us": NOON_US,
        "source": KeySource.DATABASE,
    }
    return KeyRecord(**(values | changes))


@pytest.fixture
def connection(tmp_path):
    engine = migrating_engine(make_database(tmp_path))
    with engine.begin() as connection:
        yield connection


def create(connection, new: KeyRecord, at_us: int = NOON_US) -> None:
    keys.create_key(connection, new, actor="admin", now_us=at_us)


def revoke(connection, key_id: str, at_us: int = NOON_US):
    return keys.revoke_key(connection, key_id, actor="admin", now_us=at_us)


def test_a_key_comes_back_as_it_was_made(connection):
    assert keys.load_all_keys(connection) == (0, ())
    create(connection, record())
    limits = LimitAmounts(rpm=60, concurrency=2)
    more = {"models": None, "tags": ("gdpr", "private"), "expires_at_us": None, "limits": limits}
    other = record("other", name="other", **more)
    create(connection, other, at_us=5)
    assert keys.load_all_keys(connection) == (
        2,
        (record(), other),
    )
    stored = keys.list_keys(connection)
    assert [(key.created_at_us, key.disabled_at_us) for key in stored] == [
        (NOON_US, None),
        (5, None),
    ]


def test_revoking_is_for_ever_and_told_once(connection):
    create(connection, record())
    first = revoke(connection, "abcdefghjkmn", 7)
    again = revoke(connection, "abcdefghjkmn", 8)
    assert first == again
    assert first.disabled_at_us == 7
    revision, (stored,) = keys.load_all_keys(connection)
    assert (revision, stored.disabled) == (2, True)
    lines = connection.execute(sa.select(schema.audit_log.c.action)).scalars().all()
    assert lines == ["key.create", "key.revoke"]


def test_a_name_in_use_or_a_known_id_is_a_conflict_that_changes_nothing(connection):
    create(connection, record())
    for new in (record("another"), record(name="other")):
        with pytest.raises(KeyConflict, match="choose another name"):
            create(connection, new)
    assert keys.load_all_keys(connection) == (1, (record(),))
    create(connection, record("elsewhere", team="search"))


def test_the_name_of_a_revoked_key_may_be_given_again(connection):
    create(connection, record())
    revoke(connection, "abcdefghjkmn")
    create(connection, record("another"), at_us=NOON_US + 1)
    assert [key.record.key_id for key in keys.list_keys(connection)] == ["another", "abcdefghjkmn"]


def test_an_unknown_key_cannot_be_revoked(connection):
    with pytest.raises(UnknownKey, match="nobody"):
        revoke(connection, "nobody")
    assert list(audit_faults(connection)) == []


def test_a_key_is_made_void_from_an_instant_on_and_never_later_than_it_was(connection):
    create(connection, record(expires_at_us=None))
    later = keys.expire_key(connection, "abcdefghjkmn", NOON_US + 5, actor="a", now_us=NOON_US)
    assert later.record.expires_at_us == NOON_US + 5
    revision, _ = keys.load_all_keys(connection)
    again = keys.expire_key(connection, "abcdefghjkmn", NOON_US + 9, actor="a", now_us=NOON_US)
    assert again == later
    assert keys.load_all_keys(connection)[0] == revision
    with pytest.raises(UnknownKey):
        keys.expire_key(connection, "nothing", NOON_US, actor="a", now_us=NOON_US)


def test_the_audit_log_is_a_chain_that_shows_edits(connection):
    create(connection, record())
    create(connection, record("other", name="other"))
    revoke(connection, "other")
    assert list(audit_faults(connection)) == []
    for trigger in ("audit_log_no_update", "audit_log_no_delete"):
        connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
    connection.exec_driver_sql("UPDATE audit_log SET actor = 'me' WHERE seq = 2")
    assert list(audit_faults(connection)) == ["audit line 2 was changed"]
    connection.exec_driver_sql("DELETE FROM audit_log WHERE seq = 2")
    assert list(audit_faults(connection)) == ["audit line 3 does not follow the line before it"]


def test_the_audit_log_cannot_be_edited_with_its_triggers_in_place(connection):
    create(connection, record())
    with pytest.raises(sa.exc.IntegrityError, match="append-only"):
        connection.exec_driver_sql("UPDATE audit_log SET actor = 'me'")


def test_no_secret_reaches_the_audit_log(connection):
    create(connection, record(digest=b"\xab" * 32))
    rows = connection.execute(sa.select(schema.audit_log.c.details)).scalars().all()
    assert "ab" * 32 not in str(rows)
    assert rows == [
        {"team": "payments", "project": "fraud", "name": "bot", "expires_at_us": NOON_US}
    ]
