"""Column types that keep their meaning on both databases, and the codes stored in them.

Python sees integers and bytes; PostgreSQL gets its native types, SQLite the plainest ones.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from gateway.ledger.records import AttemptStatus
from pricing.usage import Quality

STATUS_CODES = {status: code for code, status in enumerate(AttemptStatus)}
"""Code of each attempt status; codes are stored, so the enum may only grow at its end."""
STATUSES = tuple(AttemptStatus)
QUALITY_CODES = {quality: code for code, quality in enumerate(Quality)}
"""Code of each quality; the enum may only grow at its end."""
QUALITIES = tuple(Quality)


class InstantUs(TypeDecorator[int]):
    """Microseconds since the epoch: `timestamptz` on PostgreSQL, INTEGER on SQLite.

    Connections of `postgres` speak to the driver in microseconds too, so nothing is converted here.
    """

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the stored type."""
        is_native = dialect.name == "postgresql"
        return dialect.type_descriptor(
            sa.TIMESTAMP(timezone=True) if is_native else sa.BigInteger()
        )


class Id16(TypeDecorator[bytes]):
    """16 bytes: `uuid` on PostgreSQL, also there bytes to the driver; BLOB on SQLite."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the stored type."""
        is_native = dialect.name == "postgresql"
        return dialect.type_descriptor(
            postgresql.UUID(as_uuid=True) if is_native else sa.LargeBinary(16)
        )


class PicoTotal(TypeDecorator[int]):
    """A sum of picodollars: NUMERIC(38, 0) on PostgreSQL, INTEGER on SQLite."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the stored type."""
        is_native = dialect.name == "postgresql"
        return dialect.type_descriptor(sa.Numeric(38, 0) if is_native else sa.BigInteger())

    def process_result_value(self, value: Decimal | int | None, dialect: Dialect) -> int | None:
        """Give Python an integer, not a Decimal."""
        return None if value is None else int(value)


JSON_DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
"""A small document: `jsonb` on PostgreSQL, text on SQLite."""
ROW_ID = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
"""A generated key: SQLite generates only for INTEGER."""
