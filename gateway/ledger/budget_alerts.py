"""Thresholds that a budget crosses: each told once, by rows that outlive a restart.

A crossing is a row, written in the transaction that counts what crossed it, with a row for each
webhook that is to hear of it. It stands until use has fallen `CLEAR_POINTS` below the threshold,
for example because the limit was raised; only then can the same threshold be crossed again in the
same window.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.budgets.messages import BudgetState
from gateway.budgets.reports import alert_document
from gateway.ledger import budget_schema
from gateway.ledger.budget_buckets import StoredBudget
from gateway.ledger.budget_deltas import Bucket
from gateway.ledger.budget_state import load_state
from gateway.ledger.dialects import insert_into
from gateway.ledger.facts import load_fact, set_fact

_log = logging.getLogger(__name__)

CLEAR_POINTS = 5
"""By so many points of percent use falls below a threshold before it can be crossed again."""
GIVE_UP_US = 3 * 24 * 3_600 * 1_000_000
"""So long after the crossing a webhook that takes nothing is tried no more."""
_FIRST_RETRY_S = 5
_RETRY_S_MAX = 3_600
_CLAIM_US = 60 * 1_000_000
"""Whoever posts an alert keeps it to itself for so long; whoever dies meanwhile loses nothing."""
_WEBHOOKS = "alert_webhooks"
_NO_BUDGET = 0
"""Budgets are numbered from 1."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that is due at a webhook.

    Attributes:
        alert_id: The alert.
        webhook: Name of the webhook.
        tries: How often it was posted before.
        crossed_at_us: When the threshold was crossed.
        document: What is posted.
    """

    alert_id: int
    webhook: str
    tries: int
    crossed_at_us: int
    document: Mapping[str, object]


def set_webhooks(connection: sa.Connection, names: Sequence[str]) -> None:
    """Say which webhooks hear of crossings from now on; those that are gone hear nothing more."""
    set_fact(connection, _WEBHOOKS, msgspec.json.encode(list(names)).decode())
    table = budget_schema.alert_delivery
    connection.execute(
        sa.update(table)
        .where(table.c.next_try_at_us.is_not(None), table.c.webhook.not_in(names))
        .values(next_try_at_us=None, failure="the webhook is no longer configured")
    )


def note(
    connection: sa.Connection,
    budgets: Mapping[int, StoredBudget],
    buckets: Iterable[Bucket],
    *,
    now_us: int,
) -> None:
    """Write down what buckets have crossed, and what they have fallen well below."""
    for bucket in buckets:
        budget = budgets[bucket[0]]
        if budget.alerts_at:
            _note_one(connection, budget, load_state(connection, bucket), now_us=now_us)


def _note_one(
    connection: sa.Connection, budget: StoredBudget, state: BudgetState, *, now_us: int
) -> None:
    table = budget_schema.budget_alert
    is_here = sa.and_(
        table.c.budget_id == state.budget_id,
        table.c.window_start_us == state.window_start_us,
        table.c.cleared_at_us.is_(None),
    )
    found = connection.execute(sa.select(table.c.percent).where(is_here)).scalars().all()
    standing = set(cast("Sequence[int]", found))
    for percent in standing:
        if not has_reached(state, percent - CLEAR_POINTS):
            is_it = sa.and_(is_here, table.c.percent == percent)
            connection.execute(sa.update(table).where(is_it).values(cleared_at_us=now_us))
    for percent in budget.alerts_at:
        if percent not in standing and has_reached(state, percent):
            _cross(connection, budget, state, percent, now_us=now_us)


def has_reached(state: BudgetState, percent: int) -> bool:
    """Whether what is spent, or may still be billed, is so much of the limit."""
    used = state.spent_pico_usd + state.exposed_pico_usd
    return used > 0 and 100 * used >= percent * state.limit_pico_usd


def _cross(
    connection: sa.Connection,
    budget: StoredBudget,
    state: BudgetState,
    percent: int,
    *,
    now_us: int,
) -> None:
    document = alert_document(budget.rule, state, percent=percent, at_us=now_us)
    _add(
        connection,
        budget_id=state.budget_id,
        window_start_us=state.window_start_us,
        percent=percent,
        document=document,
        now_us=now_us,
    )
    _log.warning("budget %s has reached %d %% of its limit", budget.rule.name, percent)


def tell(connection: sa.Connection, document: Mapping[str, object], *, now_us: int) -> None:
    """Have every webhook hear of something that is no budget's threshold.

    Args:
        connection: In a transaction that may write.
        document: What is posted; no content, no key.
        now_us: Now.
    """
    _add(
        connection,
        budget_id=_NO_BUDGET,
        window_start_us=now_us,
        percent=0,
        cleared_at_us=now_us,
        document=document,
        now_us=now_us,
    )


def _add(
    connection: sa.Connection,
    *,
    budget_id: int,
    window_start_us: int,
    percent: int,
    document: Mapping[str, object],
    now_us: int,
    cleared_at_us: int | None = None,
) -> None:
    """An alert, with a row for each webhook that is to hear of it."""
    table = budget_schema.budget_alert
    added = (
        insert_into(connection.dialect.name, table)
        .values(
            budget_id=budget_id,
            window_start_us=window_start_us,
            percent=percent,
            at_us=now_us,
            cleared_at_us=cleared_at_us,
            document=document,
        )
        .returning(table.c.id)
    )
    alert_id = cast("int", connection.execute(added).scalar_one())
    webhooks = _load_webhooks(connection)
    if webhooks:
        connection.execute(
            sa.insert(budget_schema.alert_delivery),
            [
                {
                    "alert_id": alert_id,
                    "webhook": webhook,
                    "tries": 0,
                    "next_try_at_us": now_us,
                    "delivered_at_us": None,
                    "failure": "",
                }
                for webhook in webhooks
            ],
        )


def _load_webhooks(connection: sa.Connection) -> list[str]:
    value = load_fact(connection, _WEBHOOKS)
    return [] if value is None else msgspec.json.decode(value, type=list[str])


def are_due(connection: sa.Connection, *, now_us: int) -> bool:
    """Whether any alert is due."""
    table = budget_schema.alert_delivery
    due = sa.select(table.c.alert_id).where(table.c.next_try_at_us <= now_us).limit(1)
    return connection.execute(due).first() is not None


def claim_due(connection: sa.Connection, *, now_us: int, count: int) -> list[Delivery]:
    """Take some alerts that are due, so that nobody else posts them meanwhile."""
    table, alert = budget_schema.alert_delivery, budget_schema.budget_alert
    rows = connection.execute(
        sa.select(table.c.alert_id, table.c.webhook, table.c.tries, alert.c.at_us, alert.c.document)
        .join(alert, alert.c.id == table.c.alert_id)
        .where(table.c.next_try_at_us <= now_us)
        .order_by(table.c.next_try_at_us)
        .limit(count)
        .with_for_update(of=table, skip_locked=True)
    ).all()
    claimed = [
        Delivery(
            alert_id=alert_id, webhook=webhook, tries=tries, crossed_at_us=at_us, document=document
        )
        for alert_id, webhook, tries, at_us, document in cast(
            "Sequence[tuple[int, str, int, int, Mapping[str, object]]]", rows
        )
    ]
    for delivery in claimed:
        _set(connection, delivery, next_try_at_us=now_us + _CLAIM_US)
    return claimed


def note_posted(
    connection: sa.Connection, delivery: Delivery, failure: str, *, now_us: int
) -> None:
    """Write down how a try went; an empty failure means that it was taken."""
    tries = delivery.tries + 1
    if not failure:
        _set(connection, delivery, tries=tries, next_try_at_us=None, delivered_at_us=now_us)
        return
    wait_us = min(_FIRST_RETRY_S << min(delivery.tries, 20), _RETRY_S_MAX) * 1_000_000
    is_hopeless = now_us + wait_us > delivery.crossed_at_us + GIVE_UP_US
    next_try_at_us = None if is_hopeless else now_us + wait_us
    _set(connection, delivery, tries=tries, next_try_at_us=next_try_at_us, failure=failure)


def _set(connection: sa.Connection, delivery: Delivery, **values: int | str | None) -> None:
    table = budget_schema.alert_delivery
    is_it = sa.and_(
        table.c.alert_id == delivery.alert_id,
        table.c.webhook == delivery.webhook,
        table.c.next_try_at_us.is_not(None),
    )
    connection.execute(sa.update(table).where(is_it).values(**values))
