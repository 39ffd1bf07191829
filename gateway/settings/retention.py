"""Section `retention`: what is kept for how long."""

from __future__ import annotations

from pydantic import Field

from gateway.settings.scalars import Section


class RetentionSettings(Section):
    """What is deleted, and when; nothing unless it is said here."""

    events_months: int | None = Field(default=None, ge=1, le=1_200)
    """Whole months of single entries kept beside the present one, on PostgreSQL; unset keeps all.
    A month that is not closed is never dropped, and sums of dropped months stay."""
