"""Errors of an export, named by what the caller should do.

ExportError (a FinanceError)
  BadOrder         show it to the person who asked; the order has no meaning
  MissingExtra     install what the message names
  TargetTaken      name another folder
  Inconsistent     do not use the export; what it was made from contradicts itself
"""

from __future__ import annotations

from gateway.finance.errors import FinanceError


class ExportError(FinanceError):
    """Root of what an export raises."""


class BadOrder(ExportError):
    """An export was asked for that has no meaning."""


class MissingExtra(ExportError):
    """A library of the extra `exports` is not installed."""


class TargetTaken(ExportError):
    """There is something already where the export should go."""


class Inconsistent(ExportError):
    """Amounts that must agree do not."""
