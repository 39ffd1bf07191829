"""How long the cells of the roll-ups are; for those, too, that load no SQLAlchemy."""

from __future__ import annotations

QUARTER_US = 15 * 60 * 1_000_000
"""A quarter of an hour, in microseconds."""
DAY_US = 24 * 3_600 * 1_000_000
"""A UTC day."""
