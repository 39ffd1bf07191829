"""Errors of the ledger, named by what the caller should do.

LedgerError
  SpoolError            nothing can be written any more; the worker must stop taking requests
    SpoolFull           no room for a new intent; refuse the request, try again later
    RecordTooLarge      this record can never be written
    SpoolLocked         another process writes in this directory
  DatabaseUnavailable   locked or out of reach; try again later, nothing is lost
  UnsupportedDatabase   change the configuration
  BadQuery              show it to the person who asked
  KeyConflict           choose another key id or name
  UnknownKey            name a key that exists
  BudgetConflict        change the budget where it is set, or choose another name
  BudgetTooLarge        choose a lower limit
  UnknownBudget         name a budget that exists
  UnknownLease          name a worker that has left something reserved
  BadPerson             show it to the person who asked
  PersonConflict        choose another login name
  UnknownPerson         name a person who exists
"""

from __future__ import annotations


class LedgerError(Exception):
    """Root of what the ledger raises."""


class SpoolError(LedgerError):
    """The spool cannot be trusted to keep what is written to it."""


class SpoolFull(SpoolError):
    """The disk has no room for this record; nothing of it was written."""


class RecordTooLarge(SpoolError):
    """The encoded record is over the cap of a frame."""


class SpoolLocked(SpoolError):
    """The directory's lock is held by a living process."""


class DatabaseUnavailable(LedgerError):
    """The database did not answer in time; what is in the spool stays there."""


class UnsupportedDatabase(LedgerError):
    """The database URL names a back end that is not built."""


class UnusableDatabase(LedgerError):
    """What the database holds is no ledger that this release can use; trying again is no help."""


class BadQuery(LedgerError):
    """A report was asked for that has no meaning.

    Attributes:
        param: The part that is wrong, None where it is the whole.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Keep what an answer names."""
        super().__init__(message)
        self.param = param


class KeyConflict(LedgerError):
    """A key of that id or name exists already."""


class UnknownKey(LedgerError):
    """No key of that id was made here."""


class BudgetConflict(LedgerError):
    """A budget of that name is set elsewhere: in the configuration file, or by hand."""


class BudgetTooLarge(LedgerError):
    """The limit is more than this database can hold."""


class UnknownBudget(LedgerError):
    """No budget of that name is in force."""


class UnknownLease(LedgerError):
    """Nothing that is reserved for that worker has expired."""


class BadPerson(LedgerError):
    """A login name, role or password that cannot be taken, or a code that is void."""


class PersonConflict(LedgerError):
    """Somebody has this login name already."""


class UnknownPerson(LedgerError):
    """No person of that id or login name."""
