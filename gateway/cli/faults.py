"""How a command fails: one sentence on standard error and exit status 1."""

from __future__ import annotations


class CliFault(Exception):
    """A command cannot do what it was asked; the message is all that the user sees."""
