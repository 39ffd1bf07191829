"""Budgets as rows: those of the configuration, those set by hand, and where each stands.

Whom a budget counts and when it starts again never changes in a row. A change of the limit, or of
what happens at it, changes the row and the window under way and keeps what was spent and reserved;
any other change retires the row and makes a new one, which begins with what its window has spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import sqlalchemy as sa

from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclaration,
    BudgetDeclarations,
    BudgetReport,
    BudgetRule,
    BudgetRules,
    BudgetScope,
    BudgetSource,
    BudgetState,
    BudgetWindow,
    OnExceed,
)
from gateway.budgets.rules import by_width, window_of_rule
from gateway.ledger import budget_alerts, budget_buckets, budget_pool, budget_schema, facts
from gateway.ledger.audit import append_audit
from gateway.ledger.budget_buckets import SQLITE_PICO_USD_MAX, StoredBudget, lock_rules
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.errors import BudgetConflict, BudgetTooLarge, UnknownBudget
from gateway.ledger.forms import once

_CONFIGURATION = "configuration"
"""Who declares the budgets of the file, in the audit log."""


def load_budgets(connection: sa.Connection) -> dict[int, StoredBudget]:
    """Every budget in force, by id."""
    table = budget_schema.budget
    rows = connection.execute(
        sa.select(table).where(table.c.retired_at_us.is_(None)).order_by(table.c.id)
    )
    budgets = (_stored(cast("Mapping[str, object]", row)) for row in rows.mappings())
    return {budget.rule.budget_id: budget for budget in budgets}


def load_revision(connection: sa.Connection) -> int:
    """Grows with every change of a budget."""
    return facts.load_revision(connection, facts.BUDGETS_REVISION)


def load_rules(connection: sa.Connection) -> BudgetRules:
    """What workers need to know."""
    budgets = load_budgets(connection)
    return BudgetRules(
        rules=by_width(budget.rule for budget in budgets.values()),
        revision=load_revision(connection),
    )


def declare(
    connection: sa.Connection, declarations: BudgetDeclarations, *, now_us: int
) -> BudgetRules:
    """Make the configuration's budgets those that it names.

    Raises:
        BudgetConflict: One has the name of a budget that was set by hand.
        BudgetTooLarge: The database cannot hold such a limit.
    """
    lock_rules(connection, is_exclusive=True)
    known = {budget.rule.name: budget for budget in load_budgets(connection).values()}
    for declaration in declarations.budgets:
        before = known.pop(declaration.name, None)
        if before is not None and before.source == BudgetSource.DATABASE:
            raise BudgetConflict(
                f"the budget {declaration.name!r} of the configuration has the name of one that"
                " was set with `fareway budgets set`; take that away with"
                " `fareway budgets set NAME --remove`, or give this one another `name`"
            )
        _put(
            connection,
            declaration,
            before,
            source=BudgetSource.FILE,
            actor=_CONFIGURATION,
            now_us=now_us,
        )
    for budget in known.values():
        if budget.source == BudgetSource.FILE:
            _retire(connection, budget, actor=_CONFIGURATION, now_us=now_us)
    budget_alerts.set_webhooks(connection, [webhook.name for webhook in declarations.webhooks])
    return load_rules(connection)


def change(connection: sa.Connection, wanted: BudgetChange, *, now_us: int) -> BudgetRules:
    """Set a budget, or take it away.

    Raises:
        BudgetConflict: The configuration file declares one of that name, or a new one was wanted.
        BudgetTooLarge: The database cannot hold such a limit.
        UnknownBudget: There is none to take away.
        BadQuery: The form asked for something else when it was sent before.
    """
    lock_rules(connection, is_exclusive=True)

    def act() -> str:
        _change(connection, wanted, now_us=now_us)
        return wanted.name

    once(connection, wanted.form, act, actor=wanted.actor, now_us=now_us)
    return load_rules(connection)


def _change(connection: sa.Connection, wanted: BudgetChange, *, now_us: int) -> None:
    known = {budget.rule.name: budget for budget in load_budgets(connection).values()}
    before = known.get(wanted.name)
    if before is not None and wanted.is_new:
        raise BudgetConflict(
            f"there is a budget {wanted.name!r} already; change it in its row, or choose another"
            " name"
        )
    if before is not None and before.source == BudgetSource.FILE:
        raise BudgetConflict(
            f"the budget {wanted.name!r} is declared in the configuration file; change it there"
        )
    if wanted.budget is not None:
        _put(
            connection,
            wanted.budget,
            before,
            source=BudgetSource.DATABASE,
            actor=wanted.actor,
            now_us=now_us,
        )
    elif before is not None:
        _retire(connection, before, actor=wanted.actor, now_us=now_us)
    else:
        raise UnknownBudget(
            f"no budget is called {wanted.name!r}; `fareway budgets list` shows them"
        )


def load_reports(connection: sa.Connection, *, now_us: int) -> tuple[BudgetReport, ...]:
    """Every budget in force with its present window, from the widest scope to the narrowest."""
    budgets = load_budgets(connection)
    buckets = _load_buckets(connection, now_us=now_us)
    expired = load_expired(connection, now_us=now_us)
    reports: list[BudgetReport] = []
    for rule in by_width(budget.rule for budget in budgets.values()):
        window = window_of_rule(rule, now_us)
        spent, reserved, exposed = buckets.get((rule.budget_id, window.start_us), (0, 0, 0))
        budget = budgets[rule.budget_id]
        reports.append(
            BudgetReport(
                rule=rule,
                alerts_at=budget.alerts_at,
                source=BudgetSource(budget.source),
                state=BudgetState(
                    budget_id=rule.budget_id,
                    window_start_us=window.start_us,
                    window_end_us=window.end_us,
                    limit_pico_usd=rule.limit_pico_usd,
                    spent_pico_usd=spent,
                    reserved_pico_usd=reserved,
                    exposed_pico_usd=exposed,
                ),
                expired_pico_usd=expired.get((rule.budget_id, window.start_us), 0),
            )
        )
    return tuple(reports)


def _load_buckets(
    connection: sa.Connection, *, now_us: int
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Spent, reserved and exposed by bucket, of the windows under way."""
    table = budget_schema.budget_bucket
    rows = connection.execute(
        sa.select(
            table.c.budget_id,
            table.c.window_start_us,
            table.c.spent_pico_usd,
            table.c.reserved_pico_usd,
            table.c.exposed_pico_usd,
        ).where(table.c.window_start_us <= now_us, table.c.window_end_us > now_us)
    ).all()
    return {
        (row[0], row[1]): (row[2], row[3], row[4])
        for row in cast("Sequence[tuple[int, int, int, int, int]]", rows)
    }


def load_expired(connection: sa.Connection, *, now_us: int) -> dict[tuple[int, int], int]:
    """What is reserved by bucket for workers that were not heard of for long."""
    table = budget_schema.budget_lease
    rows = connection.execute(
        sa.select(table.c.budget_id, table.c.window_start_us, table.c.amount_pico_usd).where(
            table.c.expires_at_us <= now_us
        )
    ).all()
    expired: dict[tuple[int, int], int] = {}
    for budget_id, start_us, amount_pico_usd in cast("Sequence[tuple[int, int, int]]", rows):
        bucket = (budget_id, start_us)
        expired[bucket] = expired.get(bucket, 0) + amount_pico_usd
    return expired


def _put(
    connection: sa.Connection,
    wanted: BudgetDeclaration,
    before: StoredBudget | None,
    *,
    source: BudgetSource,
    actor: str,
    now_us: int,
) -> None:
    """Make a budget what is wanted; nothing happens when it is that already."""
    _check_limit(connection, wanted)
    if before is not None and _declared(before) == wanted:
        return
    if before is not None:
        budget_pool.take_back(connection, budget_pool.of_budget(before.rule.budget_id))
    if before is not None and _counts(_declared(before)) == _counts(wanted):
        _update(connection, before.rule.budget_id, wanted, now_us=now_us)
    else:
        if before is not None:
            _set_retired(connection, before, now_us=now_us)
        _add(connection, wanted, source=source, now_us=now_us)
    _note_crossings(connection, wanted.name, now_us=now_us)
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action="budget.set",
        subject=wanted.name,
        details=_details(wanted),
    )
    facts.raise_revision(connection, facts.BUDGETS_REVISION)


def _note_crossings(connection: sa.Connection, name: str, *, now_us: int) -> None:
    """Tell what a budget of another limit, or a new one, has crossed already."""
    budgets = load_budgets(connection)
    (budget,) = (budget for budget in budgets.values() if budget.rule.name == name)
    window = window_of_rule(budget.rule, now_us)
    bucket = (budget.rule.budget_id, window.start_us)
    budget_buckets.ensure(connection, budgets, {bucket: window})
    budget_alerts.note(connection, budgets, [bucket], now_us=now_us)


def _check_limit(connection: sa.Connection, wanted: BudgetDeclaration) -> None:
    if not is_postgresql(connection) and wanted.limit_pico_usd > SQLITE_PICO_USD_MAX:
        raise BudgetTooLarge(
            f"the budget {wanted.name!r} is over {SQLITE_PICO_USD_MAX // 10**12:,} USD, which is"
            " the most that SQLite can hold; use PostgreSQL in storage.database, or a lower limit"
        )


def _update(
    connection: sa.Connection, budget_id: int, wanted: BudgetDeclaration, *, now_us: int
) -> None:
    """Change what may change; the windows under way keep what they have counted."""
    table, bucket = budget_schema.budget, budget_schema.budget_bucket
    connection.execute(
        sa.update(table)
        .where(table.c.id == budget_id)
        .values(
            limit_pico_usd=wanted.limit_pico_usd,
            on_exceed=wanted.on_exceed.value,
            alerts_at=list(wanted.alerts_at),
        )
    )
    connection.execute(
        sa.update(bucket)
        .where(bucket.c.budget_id == budget_id, bucket.c.window_end_us > now_us)
        .values(limit_pico_usd=wanted.limit_pico_usd)
    )


def _add(
    connection: sa.Connection, wanted: BudgetDeclaration, *, source: BudgetSource, now_us: int
) -> None:
    """Insert a budget."""
    cost_tag = wanted.cost_tag or (None, None)
    statement = sa.insert(budget_schema.budget).values(
        name=wanted.name,
        scope=wanted.scope.value,
        team=wanted.team,
        project=wanted.project,
        key_id=wanted.key_id,
        cost_tag_name=cost_tag[0],
        cost_tag_value=cost_tag[1],
        limit_pico_usd=wanted.limit_pico_usd,
        time_window=wanted.window.value,
        time_zone=wanted.time_zone,
        fiscal_month=wanted.fiscal_month,
        on_exceed=wanted.on_exceed.value,
        alerts_at=list(wanted.alerts_at),
        source=source.value,
        created_at_us=now_us,
        retired_at_us=None,
    )
    connection.execute(statement)


def _retire(connection: sa.Connection, budget: StoredBudget, *, actor: str, now_us: int) -> None:
    budget_pool.take_back(connection, budget_pool.of_budget(budget.rule.budget_id))
    _set_retired(connection, budget, now_us=now_us)
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action="budget.remove",
        subject=budget.rule.name,
        details={},
    )
    facts.raise_revision(connection, facts.BUDGETS_REVISION)


def _set_retired(connection: sa.Connection, budget: StoredBudget, *, now_us: int) -> None:
    table = budget_schema.budget
    connection.execute(
        sa.update(table)
        .where(table.c.id == budget.rule.budget_id)
        .values(retired_at_us=max(now_us, budget.created_at_us))
    )


def _counts(budget: BudgetDeclaration) -> tuple[object, ...]:
    """Whom and when a budget counts."""
    return (
        budget.scope,
        budget.team,
        budget.project,
        budget.key_id,
        budget.cost_tag,
        budget.window,
        budget.time_zone,
        budget.fiscal_month,
    )


def _declared(budget: StoredBudget) -> BudgetDeclaration:
    rule = budget.rule
    return BudgetDeclaration(
        name=rule.name,
        scope=rule.scope,
        team=rule.team,
        project=rule.project,
        key_id=rule.key_id,
        cost_tag=rule.cost_tag,
        limit_pico_usd=rule.limit_pico_usd,
        window=rule.window,
        time_zone=rule.time_zone,
        fiscal_month=rule.fiscal_month,
        on_exceed=rule.on_exceed,
        alerts_at=budget.alerts_at,
    )


def _details(budget: BudgetDeclaration) -> dict[str, str | int | None]:
    name, value = budget.cost_tag or (None, None)
    return {
        "scope": budget.scope.value,
        "team": budget.team,
        "project": budget.project,
        "key_id": budget.key_id,
        "cost_tag": None if name is None else f"{name}={value}",
        "limit_pico_usd": str(budget.limit_pico_usd),
        "window": budget.window.value,
        "time_zone": budget.time_zone,
        "on_exceed": budget.on_exceed.value,
    }


def _stored(row: Mapping[str, object]) -> StoredBudget:
    tag_name = cast("str | None", row["cost_tag_name"])
    return StoredBudget(
        rule=BudgetRule(
            budget_id=cast("int", row["id"]),
            name=cast("str", row["name"]),
            scope=BudgetScope(cast("str", row["scope"])),
            team=cast("str", row["team"]),
            project=cast("str", row["project"]),
            key_id=cast("str", row["key_id"]),
            cost_tag=None if tag_name is None else (tag_name, cast("str", row["cost_tag_value"])),
            limit_pico_usd=cast("int", row["limit_pico_usd"]),
            window=BudgetWindow(cast("str", row["time_window"])),
            time_zone=cast("str", row["time_zone"]),
            fiscal_month=cast("int", row["fiscal_month"]),
            on_exceed=OnExceed(cast("str", row["on_exceed"])),
        ),
        alerts_at=tuple(cast("Iterable[int]", row["alerts_at"])),
        source=cast("str", row["source"]),
        created_at_us=cast("int", row["created_at_us"]),
    )
