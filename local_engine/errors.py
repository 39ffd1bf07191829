"""Errors that the embedded engine may raise.

EngineError
  ModelFileError   the model file cannot be used: replace it or choose another
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything that the embedded engine raises on purpose."""


class ModelFileError(EngineError):
    """A model file is damaged, hostile or of a kind that the engine cannot run; the message says the mend."""
