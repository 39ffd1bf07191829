"""The keys of the database, read before the ledger process is there.

A worker needs the keys to begin with and nothing else of the database. The ledger process takes as
long to import as a worker does; with SQLite the supervisor reads the one table itself, so that
clients are answered meanwhile. What the ledger process tells later is what counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import msgspec

from gateway.auth.directory import KeyRecord, KeySource
from gateway.ledger.versions import newest_version
from gateway.limits.amounts import LimitAmounts
from gateway.settings.storage import SQLITE_PREFIX

logger = logging.getLogger(__name__)

BUSY_S = 1.0
_QUERY = """
SELECT key_id, hash, team, project, name, models, expires_at_us, disabled_at_us, limits, tags
FROM api_key
ORDER BY team, name, created_at_us DESC, key_id
"""
_Row = tuple[str, bytes, str, str, str, str | None, int | None, int | None, str | None, str | None]


def read(database_url: str) -> list[KeyRecord] | None:
    """Every key, in the ledger's own order; None when only the ledger process can tell.

    Args:
        database_url: With an absolute path.
    """
    path = Path(database_url.removeprefix(SQLITE_PREFIX))
    if not database_url.startswith(SQLITE_PREFIX):
        return None
    if not path.exists():
        # A first start has no keys; where the file cannot be made there will be no start either.
        return [] if os.access(path.parent, os.W_OK | os.X_OK) else None
    try:
        # For writing, although nothing is written: what a killed gateway left in the log beside the
        # database has to be recovered by whoever comes first. Never made here.
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=BUSY_S)
        ) as connection:
            versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            if versions != [(newest_version(),)]:
                return None
            return [_record(row) for row in cast("Iterable[_Row]", connection.execute(_QUERY))]
    except (sqlite3.Error, ValueError) as error:
        # A new or an old database, a locked or a damaged one: the ledger process knows what to do.
        logger.debug("the keys wait for the ledger process: %s", error)
        return None


def _record(row: _Row) -> KeyRecord:
    key_id, digest, team, project, name, models, expires_at_us, disabled_at_us, limits, tags = row
    return KeyRecord(
        key_id=key_id,
        digest=digest,
        team=team,
        project=project,
        name=name,
        models=None if models is None else _models(models),
        tags=() if tags is None else _tags(tags),
        disabled=disabled_at_us is not None,
        expires_at_us=expires_at_us,
        source=KeySource.DATABASE,
        limits=None if limits is None else _limits(limits),
    )


def _limits(text: str) -> LimitAmounts | None:
    return msgspec.json.decode(text, type=LimitAmounts | None)


def _models(text: str) -> tuple[str, ...] | None:
    return msgspec.json.decode(text, type=tuple[str, ...] | None)


def _tags(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
