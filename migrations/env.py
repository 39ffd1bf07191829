"""How Alembic runs here: on a connection that the caller opened, in one transaction."""

from __future__ import annotations

from typing import cast

import sqlalchemy as sa
from alembic import context

connection = cast("sa.Connection", context.config.attributes["connection"])
# SQLite can roll schema changes back once the driver leaves transactions to us.
context.configure(connection=connection, render_as_batch=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
