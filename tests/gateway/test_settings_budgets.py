"""Budgets in the configuration: every way to set one, and what is refused."""

from __future__ import annotations

import pytest

from gateway.auth.directory import fixed_key_record
from gateway.budgets.messages import BudgetScope, BudgetWindow, OnExceed
from gateway.settings.budget_scopes import budgets_of
from gateway.settings.declared_budgets import declared_budgets
from gateway.settings.errors import ConfigError
from tests.gateway.settings_text import load_settings, problems_of

BOT = "a-key-brought-along-from-elsewhere"
ENVIRON = {"BOT": BOT, "SIGN": "s3cret-that-signs"}
KEY_ID = fixed_key_record(BOT, pepper=bytes(32), team="payments", name="bot").key_id

EVERYWHERE = """
    finance: {time_zone: Asia/Seoul, fiscal_year_start_month: 4}
    organisation:
      budget: [{usd: 9, window: total}, {usd: 8, window: fiscal}]
      cost_tag_budgets: {"feature=search": {usd: 7}}
    teams:
      payments:
        keys: [{name: bot, value_env: BOT, budget: {usd: 3, window: day}}]
        budget: {usd: 6, window: week, time_zone: Europe/Berlin, on_exceed: cheapest_only}
        cost_tag_budgets: {"env=prod / eu": [{usd: 5, on_exceed: alert, alerts_at: [10, 99]}]}
        projects: {fraud: {budget: {usd: "4.000000000001", name: fraud's own}}}
"""


# GW-094: every way to attach a budget gives one that is enforced like any other.
def test_every_way_to_set_a_budget_declares_one():
    declared = declared_budgets(load_settings(EVERYWHERE), environ=ENVIRON).budgets
    assert [
        (b.name, b.scope, b.team, b.project, b.key_id, b.cost_tag, b.limit_pico_usd)
        for b in declared
    ] == [
        ("organisation, total", BudgetScope.ORGANISATION, "", "", "", None, 9 * 10**12),
        ("organisation, fiscal", BudgetScope.ORGANISATION, "", "", "", None, 8 * 10**12),
        (
            "cost tag feature=search, month",
            BudgetScope.COST_TAG,
            "",
            "",
            "",
            ("feature", "search"),
            7 * 10**12,
        ),
        ("team payments, week", BudgetScope.TEAM, "payments", "", "", None, 6 * 10**12),
        ("fraud's own", BudgetScope.PROJECT, "payments", "fraud", "", None, 4 * 10**12 + 1),
        ("key payments/bot, day", BudgetScope.KEY, "payments", "", KEY_ID, None, 3 * 10**12),
        (
            "cost tag env=prod / eu of team payments, month",
            BudgetScope.COST_TAG,
            "payments",
            "",
            "",
            ("env", "prod / eu"),
            5 * 10**12,
        ),
    ]
    by_name = {budget.name: budget for budget in declared}
    week = by_name["team payments, week"]
    assert (week.window, week.time_zone) == (BudgetWindow.WEEK, "Europe/Berlin")
    assert week.on_exceed is OnExceed.CHEAPEST_ONLY
    fiscal = by_name["organisation, fiscal"]
    assert (fiscal.time_zone, fiscal.fiscal_month) == ("Asia/Seoul", 4)
    assert fiscal.alerts_at == (50, 80, 100)
    tag = by_name["cost tag env=prod / eu of team payments, month"]
    assert (tag.on_exceed, tag.alerts_at) == (OnExceed.ALERT, (10, 99))


def test_each_budget_knows_where_it_stands_in_the_file():
    loaded = load_settings(EVERYWHERE)
    places = [loaded.locate(*path).key_path for path, _ in budgets_of(loaded.settings, {})]
    assert places == [
        "organisation.budget[0]",
        "organisation.budget[1]",
        "organisation.cost_tag_budgets.feature=search",
        "teams.payments.budget",
        "teams.payments.projects.fraud.budget",
        "teams.payments.keys[0].budget",
        "teams.payments.cost_tag_budgets.env=prod / eu[0]",
    ]


T = "teams: {t: {"
# GW-095: an old or misspelt name is an error, never a key without a limit.
REFUSED = {
    "a misspelt field": (T + "budgett: {usd: 1}}}", "did you mean `budget`"),
    "another product's field": (T + "budget: {max_usd: 1}}}", "unknown key; did you mean `usd`"),
    "another product's field beside ours": (
        T + "budget: {usd: 1, duration: 30d}}}",
        "unknown key; known here: alerts_at, name, on_exceed, time_zone, usd, window",
    ),
    "a misspelt field in a list": (T + "budget: [{usd: 1}, {usdd: 2}]}}", "did you mean `usd`"),
    "no amount": (T + "budget: {window: day}}}", "is required"),
    "an amount below zero": (T + "budget: {usd: -1}}}", "greater than or equal to 0"),
    "a window that there is not": (
        T + "budget: {usd: 1, window: hour}}}",
        "must be day, week, month, fiscal or total",
    ),
    "an outcome that there is not": (
        T + "budget: {usd: 1, on_exceed: stop}}}",
        "must be block, cheapest_only or alert",
    ),
    "a zone that there is not": (T + "budget: {usd: 1, time_zone: Mars/Base}}}", "IANA name"),
    "a threshold of nothing": (T + "budget: {usd: 1, alerts_at: [0]}}}", "1 to 1000"),
    "thresholds that fall": (T + "budget: {usd: 1, alerts_at: [80, 50]}}}", "must rise"),
    "a threshold with a fraction": (T + "budget: {usd: 1, alerts_at: [0.5]}}}", "whole number"),
    "two budgets of one name": (
        T + "budget: [{usd: 1}, {usd: 2}]}}",
        "another budget is called `team t, month` too",
    ),
    "more than SQLite can hold": (T + "budget: {usd: 9000001}}}", "up to 9,000,000 USD"),
    "a cost tag without a value": (
        T + "cost_tag_budgets: {feature: {usd: 1}}}}",
        "such as feature=search",
    ),
    "an amount for nothing": (T + "budget: 5}}", "must be a list"),
    "a webhook without a secret": (
        """
        alerts:
          webhooks:
            - {name: a, url: "https://h/x", secret_env: SIGN}
            - {name: a, url: "https://h/y", secret_env: SIGN}
        """,
        "two webhooks have the same name",
    ),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_budget_is_refused(text: str, expected: str):
    problems = problems_of(text)
    assert any(expected in problem for problem in problems), problems


def test_postgresql_holds_what_sqlite_does_not():
    text = "storage: {database: 'postgresql://u@h/d'}\nteams: {t: {budget: {usd: 1000000000}}}"
    ((_, budget),) = budgets_of(load_settings(text).settings, {})
    assert budget.limit_pico_usd == 10**21


def test_less_than_a_picodollar_buys_nothing():
    text = "teams: {t: {budget: {usd: '0.000000000001999'}}}"
    ((_, budget),) = budgets_of(load_settings(text).settings, {})
    assert budget.limit_pico_usd == 1


WEBHOOKS = """
    alerts:
      webhooks:
        - {name: finance, url: "https://hooks.example.com/a", secret_env: SIGN}
"""


def test_webhooks_come_with_their_secrets_and_never_show_them():
    (webhook,) = declared_budgets(load_settings(WEBHOOKS), environ=ENVIRON).webhooks
    assert (webhook.name, webhook.secret) == ("finance", b"s3cret-that-signs")
    assert "s3cret" not in repr(webhook)


def test_a_secret_that_is_missing_is_named_with_its_line():
    with pytest.raises(ConfigError, match="SIGN is not set") as caught:
        declared_budgets(load_settings(WEBHOOKS), environ={})
    (problem,) = caught.value.problems
    assert (problem.key_path, problem.line) == ("alerts.webhooks[0]", 4)
