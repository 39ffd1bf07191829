"""Whether there are budgets at all, told before the ledger process is there.

Without any, workers need not wait for it: as with keys (`stored_keys`), clients are answered while
it starts. With some, only the ledger process can say where they stand.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import cast

from gateway.settings.storage import SQLITE_PREFIX

logger = logging.getLogger(__name__)

BUSY_S = 1.0
_QUERY = "SELECT EXISTS (SELECT 1 FROM budget WHERE retired_at_us IS NULL)"


def are_none(database_url: str) -> bool:
    """Whether the database certainly holds no budget that is in force.

    Args:
        database_url: With an absolute path; a database whose keys were read (`stored_keys.read`).
    """
    path = Path(database_url.removeprefix(SQLITE_PREFIX))
    if not database_url.startswith(SQLITE_PREFIX):
        return False
    if not path.exists():
        return True
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=BUSY_S)
        ) as connection:
            return cast("tuple[int]", connection.execute(_QUERY).fetchone()) == (0,)
    except sqlite3.Error as error:
        logger.debug("budgets wait for the ledger process: %s", error)
        return False
