"""What an error of the database means: a refused row, an outage, or a wrong setting.

On SQLite an `OperationalError` is an outage and everything else is the row's fault, as it was
written. A PostgreSQL server says what happened with five letters, its SQLSTATE, of which the first
two are the class; only errors of the data itself are a row's fault, so that nothing an
administrator does to a server can bring rows into quarantine.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from gateway.ledger.errors import DatabaseUnavailable, LedgerError, UnusableDatabase
from gateway.ledger.postgres import sqlstate_of

_ROW_CLASSES = frozenset({"22", "23", "54"})
"""Data exception, integrity constraint, program limit: of a row, not of the server."""
_SETTINGS = {
    "28": "the server does not let this user in",
    "3D": "there is no such database on the server",
    "3F": "the database has no schema to work in",
    "42": "the database's tables are not those of this ledger, or the user may not use them",
}
"""What waiting does not mend, by class."""
_MENDS = {
    "28": "check the user in storage.database and storage.database_password_env or _file",
    "3D": "create it, or name another one in storage.database",
    "3F": "let the user create tables in its schema, or set its search_path",
    "42": "let the user of storage.database own the tables, or name another database",
}


def is_refusal(error: Exception) -> bool:
    """Whether the database refused what it was given, and would refuse it again."""
    if not isinstance(error, SQLAlchemyError):
        return isinstance(error, ArithmeticError | ValueError)
    if isinstance(error, OperationalError):
        return False
    origin = error.orig if isinstance(error, DBAPIError) else None
    state = sqlstate_of(error)
    if state is not None:
        return state[:2] in _ROW_CLASSES
    if type(origin).__module__.startswith("sqlite3"):
        return True
    # The driver could not turn a value into the column's type; or the connection is closed.
    cause = getattr(origin, "__cause__", None) or origin
    return isinstance(cause, ValueError | ArithmeticError | TypeError) or origin is None


def explained(error: Exception) -> LedgerError:
    """A database's error as one sentence for who can mend it."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    reason = str(origin).strip() or "it took too long"
    setting = (sqlstate_of(error) or "")[:2]
    if setting in _SETTINGS:
        return UnusableDatabase(f"{_SETTINGS[setting]} ({reason}): {_MENDS[setting]}")
    return DatabaseUnavailable(f"the database did not answer: {reason}")


@contextmanager
def explaining() -> Generator[None]:
    """Let errors of the database inside be told as `DatabaseUnavailable` or `UnusableDatabase`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise explained(error) from error
