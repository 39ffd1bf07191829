"""Buckets: the rows on which budgets are decided, and the one statement that decides.

A reservation is one conditional UPDATE: it adds to `reserved` where spent, reserved and exposed
leave room, and whether it changed a row is the answer. The row is locked and read anew by the
statement itself, so that no two reservations see the same room, on SQLite and on PostgreSQL. A
statement that reads the room first, or locks a row and re-reads the table in a sub-select, admits
too much; `tests/gateway/test_budget_controls.py` keeps both as failing controls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import sqlalchemy as sa

from gateway.budgets.messages import BudgetRule, BudgetScope
from gateway.budgets.windows import Window
from gateway.ledger import budget_schema, schema
from gateway.ledger.budget_deltas import Bucket
from gateway.ledger.dialects import insert_into, is_postgresql
from gateway.ledger.report_sources import exact_sums
from gateway.ledger.roll_ups import QUARTER_US

SQLITE_PICO_USD_MAX = 9 * 10**18
"""Up to here SQLite's integers hold sums; about 9 million USD."""
_ROWS = 1_000
"""So many entries are read at a time."""
_RULES_LOCK = 0x6661_7265_6275_6467
"""Key of PostgreSQL's advisory lock that keeps budgets as they are while entries are booked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBudget:
    """A budget as the database has it.

    Attributes:
        rule: What workers need.
        alerts_at: Percent of the limit at which alerts go out.
        source: A `BudgetSource` value.
        created_at_us: What was spent before was not counted as it was booked.
    """

    rule: BudgetRule
    alerts_at: tuple[int, ...]
    source: str
    created_at_us: int


def lock_rules(connection: sa.Connection, *, is_exclusive: bool) -> None:
    """Keep budgets from changing until the transaction ends, or others from booking meanwhile.

    SQLite's transactions have the whole database to themselves.
    """
    if is_postgresql(connection):
        name = "pg_advisory_xact_lock" + ("" if is_exclusive else "_shared")
        connection.execute(sa.text(f"SELECT {name}({_RULES_LOCK})"))


def ensure(
    connection: sa.Connection,
    budgets: Mapping[int, StoredBudget],
    windows: Mapping[Bucket, Window],
) -> None:
    """Make the buckets that do not exist yet; before the entries that they shall count are booked.

    A budget that was made in the middle of the window begins with what the window has spent.
    """
    if not windows:
        return
    table = budget_schema.budget_bucket
    existing = _existing(connection, windows)
    for bucket in sorted(windows.keys() - existing):
        budget, window = budgets[bucket[0]], windows[bucket]
        spent, exposed = (0, 0)
        if window.start_us < budget.created_at_us:
            spent, exposed = spent_in(connection, budget.rule, window)
        row = {
            "budget_id": bucket[0],
            "window_start_us": window.start_us,
            "window_end_us": window.end_us,
            "limit_pico_usd": budget.rule.limit_pico_usd,
            "spent_pico_usd": bounded(connection, spent),
            "reserved_pico_usd": 0,
            "exposed_pico_usd": bounded(connection, exposed),
        }
        connection.execute(
            insert_into(connection.dialect.name, table).values(row).on_conflict_do_nothing()
        )


def _existing(connection: sa.Connection, buckets: Iterable[Bucket]) -> set[Bucket]:
    table = budget_schema.budget_bucket
    wanted = set(buckets)
    found = connection.execute(
        sa.select(table.c.budget_id, table.c.window_start_us).where(
            table.c.budget_id.in_(sorted({budget_id for budget_id, _ in wanted})),
            table.c.window_start_us.in_(sorted({start_us for _, start_us in wanted})),
        )
    ).all()
    return {(row[0], row[1]) for row in cast("Sequence[Bucket]", found)} & wanted


def reserve(connection: sa.Connection, bucket: Bucket, amount_pico_usd: int) -> bool:
    """Reserve an amount; False, and nothing changed, where there is no room for it."""
    table = budget_schema.budget_bucket
    used = table.c.spent_pico_usd + table.c.reserved_pico_usd + table.c.exposed_pico_usd
    changed = connection.execute(
        sa.update(table)
        .where(_is(bucket), used + amount_pico_usd <= table.c.limit_pico_usd)
        .values(reserved_pico_usd=table.c.reserved_pico_usd + amount_pico_usd)
    )
    return changed.rowcount == 1


def change(
    connection: sa.Connection,
    bucket: Bucket,
    *,
    spent_pico_usd: int = 0,
    exposed_pico_usd: int = 0,
    released_pico_usd: int = 0,
) -> None:
    """Count what was booked, and give back what was reserved for it."""
    table = budget_schema.budget_bucket
    connection.execute(
        sa.update(table)
        .where(_is(bucket))
        .values(
            spent_pico_usd=_plus(connection, table.c.spent_pico_usd, spent_pico_usd),
            exposed_pico_usd=_plus(connection, table.c.exposed_pico_usd, exposed_pico_usd),
            reserved_pico_usd=table.c.reserved_pico_usd - released_pico_usd,
        )
    )


def _is(bucket: Bucket) -> sa.ColumnElement[bool]:
    table = budget_schema.budget_bucket
    return sa.and_(table.c.budget_id == bucket[0], table.c.window_start_us == bucket[1])


def bounded(connection: sa.Connection, amount_pico_usd: int) -> int:
    """An amount that the database can hold: a sum over all limits of SQLite stays over them."""
    if is_postgresql(connection):
        return amount_pico_usd
    return max(min(amount_pico_usd, SQLITE_PICO_USD_MAX), -SQLITE_PICO_USD_MAX)


def _plus(
    connection: sa.Connection, column: sa.Column[int], amount_pico_usd: int
) -> sa.ColumnElement[int]:
    total = column + bounded(connection, amount_pico_usd)
    if is_postgresql(connection):
        return total
    # SQLite makes a sum that is too large for an integer a float; the lesser of the two is none.
    return cast("sa.ColumnElement[int]", sa.func.min(total, SQLITE_PICO_USD_MAX))


def spent_in(
    connection: sa.Connection, rule: BudgetRule, window: Window, *, is_from_events: bool = False
) -> tuple[int, int]:
    """What a budget's scope has spent in a window, and what its open bills may still cost.

    Args:
        connection: In a transaction.
        rule: Says whose spend.
        window: From when to when.
        is_from_events: Read each event, also where roll-ups would do.
    """
    are_quarters = window.start_us % QUARTER_US == 0 and window.end_us % QUARTER_US == 0
    if are_quarters and not is_from_events and rule.scope is not BudgetScope.COST_TAG:
        return _rolled_up(connection, rule, window)
    return _added_up(connection, rule, window)


def _rolled_up(connection: sa.Connection, rule: BudgetRule, window: Window) -> tuple[int, int]:
    """Read sums, which are there also where the entries of old months were dropped."""
    table = schema.rollup_key_qh if rule.scope is BudgetScope.KEY else schema.rollup_qh
    within = (table.c.bucket_us >= window.start_us, table.c.bucket_us < window.end_us)
    amounts = (table.c.cost_pico_usd, table.c.exposure_pico_usd)
    [(spent, exposed)] = exact_sums(connection, (), amounts, (*within, *_owned(table, rule)))
    return int(spent or 0), int(exposed or 0)


def _added_up(connection: sa.Connection, rule: BudgetRule, window: Window) -> tuple[int, int]:
    """Sum an event's highest entry, which counts alone; entries are not all held in memory."""
    table = schema.spend_event
    cost_tags = None if rule.cost_tag is None else _tag_sets(connection, rule.cost_tag)
    rows = connection.execute(
        sa.select(
            table.c.event_id,
            table.c.cost_tags_id,
            table.c.cost_pico_usd,
            table.c.exposure_pico_usd,
        )
        .where(
            table.c.at_us >= window.start_us,
            table.c.at_us < window.end_us,
            *_owned(table, rule),
        )
        .order_by(table.c.event_id, table.c.entry)
        .execution_options(yield_per=_ROWS)
    )
    spent = exposed = 0
    previous: tuple[bytes, int, int] = (b"", 0, 0)
    for event_id, tags_id, cost_pico_usd, exposure_pico_usd in cast(
        "Iterable[tuple[bytes, int, int | None, int | None]]", rows
    ):
        if cost_tags is not None and tags_id not in cost_tags:
            continue
        if event_id == previous[0]:
            spent, exposed = spent - previous[1], exposed - previous[2]
        previous = (event_id, cost_pico_usd or 0, exposure_pico_usd or 0)
        spent, exposed = spent + previous[1], exposed + previous[2]
    return spent, exposed


def _owned(table: sa.Table, rule: BudgetRule) -> list[sa.ColumnElement[bool]]:
    """The conditions that a budget puts on a table with interned names."""
    conditions: list[sa.ColumnElement[bool]] = []
    if rule.scope is BudgetScope.PROJECT:
        project = schema.project
        named = sa.and_(project.c.team == rule.team, project.c.name == rule.project)
        conditions.append(table.c.project_id.in_(sa.select(project.c.id).where(named)))
    elif rule.scope is BudgetScope.KEY:
        key = schema.api_key_name
        ids = sa.select(key.c.id).where(key.c.key_id == rule.key_id)
        conditions.append(table.c.key_id.in_(ids))
    elif rule.team:  # a team's, or a team's cost tag
        team = schema.team
        conditions.append(table.c.team_id.in_(sa.select(team.c.id).where(team.c.name == rule.team)))
    return conditions


def _tag_sets(connection: sa.Connection, cost_tag: tuple[str, str]) -> set[int]:
    """Ids of the sets that hold a cost tag; read here, for the databases' JSON differs."""
    table = schema.tag_set
    rows = connection.execute(sa.select(table.c.id, table.c.tags)).all()
    return {
        set_id
        for set_id, tags in cast("Sequence[tuple[int, Sequence[object]]]", rows)
        if list(cost_tag) in tags
    }
