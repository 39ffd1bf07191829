"""A day or an instant that a user writes."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import typer

from gateway.clock import from_microseconds, system_clock


def instant_of(text: str) -> datetime:
    """A day or an instant that a user wrote, as an aware instant; now where nothing is said.

    Raises:
        BadParameter: It is neither.
    """
    if not text:
        return from_microseconds(system_clock().wall_us())
    try:
        if len(text) == len("2026-01-31"):
            return datetime.combine(date.fromisoformat(text), time.min, tzinfo=UTC)
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no day such as 2026-01-31, nor an instant"
        ) from error
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)
