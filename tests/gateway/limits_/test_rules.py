"""Which limits a request counts against."""

from __future__ import annotations

from gateway.limits import rules
from gateway.limits.amounts import LimitAmounts
from gateway.limits.gcra import Bucket
from gateway.limits.rules import LimitBook, LimitScope, TeamLimits

BOOK = {
    "teams": {
        "red": TeamLimits(
            own=LimitAmounts(rpm=10),
            projects={"search": LimitAmounts(concurrency=2)},
            models={"chat": LimitAmounts(tpm=1000, tpm_burst=50)},
        ),
        "blue": TeamLimits(projects={"search": LimitAmounts(rpm=1)}),
    },
    "models": {"chat": LimitAmounts(rpm=7), "other": LimitAmounts(rpm=8), "free": LimitAmounts()},
    "names": {"up/m": ("chat", "other"), "up/n": ("free",)},
}


def asked(book, *, team="red", project="", key_id="k1", key=None, model="chat"):
    return book.rules(team=team, project=project, key_id=key_id, key=key, model=model)


def test_all_limits_of_a_request_are_found():
    found = asked(LimitBook(**BOOK), project="search", key=LimitAmounts(rpm=3, rpm_burst=1))
    assert [(rule.scope, rule.name) for rule in found] == [
        (LimitScope.TEAM, "team 'red'"),
        (LimitScope.PROJECT, "project 'search' of team 'red'"),
        (LimitScope.TEAM_MODEL, "team 'red' for model 'chat'"),
        (LimitScope.KEY, "this key"),
        (LimitScope.MODEL, "model 'chat'"),
    ]
    assert [rule.requests for rule in found] == [
        Bucket(10, 10), None, None, Bucket(3, 1), Bucket(7, 7),
    ]  # fmt: skip
    assert found[2].tokens == Bucket(1000, 50)
    assert found[1].concurrency == 2


def test_who_asks_for_a_deployment_counts_against_every_model_that_lists_it():
    found = asked(LimitBook(**BOOK), model="up/m")
    assert [rule.name for rule in found] == [
        "team 'red'", "team 'red' for model 'chat'", "model 'chat'", "model 'other'",
    ]  # fmt: skip
    assert asked(LimitBook(**BOOK), model="chat")[-1].digest == found[2].digest


def test_a_request_without_limits_has_no_rules():
    book = LimitBook(**BOOK)
    assert asked(book, team="", model="up/n") == ()
    assert asked(book, team="green", model="free", key=LimitAmounts()) == ()
    assert not book.is_empty
    assert LimitBook(teams={}, models={}, names={}).is_empty


def test_every_limit_has_a_state_of_its_own():
    book = LimitBook(**BOOK)
    key = LimitAmounts(rpm=1)
    found = {
        *(rule.digest for rule in asked(book, project="search", key=key)),
        *(rule.digest for rule in asked(book, team="blue", project="search", key=key)),
        *(rule.digest for rule in asked(book, key_id="k2", key=key)),
    }
    # red: team, project, team's model, two keys; blue: project, key of the same id; the model
    assert len(found) == 8
    tenants = {rule.tenant for rule in asked(book, project="search", key=key)}
    assert len(tenants) == 2, "the team's, and the model's that everybody shares"


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(rules, "KNOWN_MAX", 2)
    book = LimitBook(**BOOK)
    for model in "abcabc":
        assert [rule.name for rule in asked(book, model=model)] == ["team 'red'"]
        assert len(book._known) <= 2


def test_a_share_of_a_limit_is_at_least_one():
    (rule,) = asked(
        LimitBook(teams=BOOK["teams"], models={}, names={}), team="blue", project="search"
    )
    assert rule.shared(3).requests == Bucket(1, 1)
    book = LimitBook(teams={}, models={"m": LimitAmounts(concurrency=5, tpm=10)}, names={})
    (rule,) = asked(book, model="m")
    assert (rule.shared(2).concurrency, rule.shared(9).concurrency) == (2, 1)
    assert rule.shared(2).tokens == Bucket(5, 5)
