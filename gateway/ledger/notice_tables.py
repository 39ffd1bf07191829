"""Tables of notices: what goes out by e-mail and webhook, once each, and to whom it has got."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.columns import JSON_DOCUMENT, ROW_ID, InstantUs
from gateway.ledger.metadata import metadata


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


notice = sa.Table(
    "notice",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _text("kind"),
    _text("name"),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("subject"),
    _text("body"),
    sa.Column("document", JSON_DOCUMENT, nullable=False),
    sa.Column("attachments", JSON_DOCUMENT, nullable=False),
    sa.UniqueConstraint("kind", "name"),
    sa.CheckConstraint("kind IN ('statement', 'anomaly')", "kind"),
)
"""One notice; `name` says what it is about, so that it is made once however many machines look."""

notice_delivery = sa.Table(
    "notice_delivery",
    metadata,
    sa.Column("notice_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("recipient", sa.Text, primary_key=True),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_try_at_us", InstantUs),
    sa.Column("delivered_at_us", InstantUs),
    _text("failure"),
    sa.Index(None, "next_try_at_us"),
)
"""A notice's way to one recipient; without a next try it is over."""

TABLES = (notice, notice_delivery)
"""All of them."""
