"""Errors of the detectors.

DetectError
  BadPattern     a custom detector's pattern cannot be used: change it
  Unfinished     the text was not looked through to its end: add the tags of `on_error`
    OutOfTime      it took longer than `timeout_ms`
    BeyondBounds   it is larger, or nested deeper, than is looked through
    ScanFailed     the prefilter did not run
"""

from __future__ import annotations


class DetectError(Exception):
    """Root of this package's errors; no message holds anything of a request."""


class BadPattern(DetectError):
    """A custom detector's pattern cannot be used."""


class Unfinished(DetectError):
    """The text was not looked through to its end.

    Attributes:
        reason: One word for metrics.
    """

    reason = "error"


class OutOfTime(Unfinished):
    """Looking took longer than it may."""

    reason = "timeout"


class BeyondBounds(Unfinished):
    """There is more than is looked through."""

    reason = "bounds"


class ScanFailed(Unfinished):
    """The prefilter did not run; RE2 reports nothing then, which must not look like no hit."""
