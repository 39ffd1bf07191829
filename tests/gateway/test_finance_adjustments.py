"""Adjustments: four eyes, exact moves between teams, closed months, nothing edited."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.finance.adjustments import adjustments, decide, proposal, proposals, propose
from gateway.finance.errors import NotFound, Refused
from gateway.finance.messages import (
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Propose,
)
from gateway.ledger import schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.finance_tables import period_close
from tests.gateway.finance_books import writing
from tests.gateway.ledger_samples import NOON_US, make_database

MONTH = "2026-10"


@pytest.fixture
def engine(tmp_path):
    engine = writing(make_database(tmp_path))
    yield engine
    engine.dispose()


def line(amount: int = 5, team: str = "payments", **changes) -> AdjustmentLine:
    return AdjustmentLine(amount_pico_usd=amount, team=team, **changes)


def wanted(*lines: AdjustmentLine, kind=AdjustmentKind.TRUE_UP, actor="ann") -> Propose:
    return Propose(actor=actor, period=MONTH, kind=kind, reason="the invoice says so", lines=lines)


def approve(number: int, actor: str = "ben", **changes) -> Decide:
    return Decide(**({"actor": actor, "proposal_id": number, "is_approved": True} | changes))


def close(connection, month: str = MONTH) -> None:
    values = {"month": month, "state": "closed", "closed_by": "x", "soft_by": "", "accepted": {}}
    connection.execute(sa.insert(period_close).values(**values, figures={}))


def test_a_proposal_counts_for_nothing_until_it_is_approved(engine):
    with engine.begin() as connection:
        made = propose(connection, wanted(line()), now_us=NOON_US)
        assert (made.state, made.total_pico_usd, made.proposed_by) == ("proposed", 5, "ann")
        assert adjustments(connection, ListAdjustments()) == ()


def test_an_approved_proposal_is_posted_with_both_names_and_everything_it_said(engine):
    said = {
        "project": "fraud",
        "account": "openai",
        "model": "gpt-4o",
        "meter": "input",
        "day": "2026-10-17",
        "event_id": "0" * 31 + "1",
        "invoice_line_id": 4,
    }
    with engine.begin() as connection:
        made = propose(connection, wanted(line(**said)), now_us=NOON_US)
        done = decide(connection, approve(made.proposal_id), now_us=NOON_US + 1)
        assert (done.state, done.decided_by) == ("posted", "ben")
        [posted] = adjustments(connection, ListAdjustments())
    found = msgspec.structs.asdict(posted)
    assert {name: found[name] for name in said} == said
    assert (posted.proposed_by, posted.approved_by, posted.at_us) == ("ann", "ben", NOON_US + 1)
    assert (posted.period, posted.original_period, posted.kind) == (MONTH, "", "true_up")


def test_whoever_proposes_does_not_approve(engine):
    with engine.begin() as connection:
        made = propose(connection, wanted(line()), now_us=NOON_US)
        with pytest.raises(Refused, match="ann proposed this and cannot approve it too"):
            decide(connection, approve(made.proposal_id, "ann"), now_us=NOON_US)
        assert adjustments(connection, ListAdjustments()) == ()


def test_where_nobody_else_exists_the_proposer_may_approve_and_the_audit_says_so(engine):
    with engine.begin() as connection:
        made = propose(connection, wanted(line()), now_us=NOON_US)
        decide(connection, approve(made.proposal_id, "ann", is_alone=True), now_us=NOON_US)
        rows = connection.execute(
            sa.select(schema.audit_log.c.action, schema.audit_log.c.details)
        ).all()
        assert [action for action, _ in rows] == ["adjustment.propose", "adjustment.post"]
        assert rows[1].details["is_alone"] == 1
        assert list(audit_faults(connection)) == []


def test_a_rejected_proposal_is_kept_and_posts_nothing(engine):
    with engine.begin() as connection:
        made = propose(connection, wanted(line()), now_us=NOON_US)
        done = decide(connection, approve(made.proposal_id, is_approved=False), now_us=NOON_US)
        assert done.state == "rejected"
        assert adjustments(connection, ListAdjustments()) == ()


def test_a_proposal_is_decided_once(engine):
    with engine.begin() as connection:
        made = propose(connection, wanted(line()), now_us=NOON_US)
        decide(connection, approve(made.proposal_id), now_us=NOON_US)
        with pytest.raises(Refused, match="was posted by ben already"):
            decide(connection, approve(made.proposal_id), now_us=NOON_US)
        assert len(adjustments(connection, ListAdjustments())) == 1


def test_a_proposal_that_does_not_exist_is_not_found(engine):
    with engine.begin() as connection, pytest.raises(NotFound, match="number 7"):
        proposal(connection, 7)


CLOSED = {
    "a true-up is late": (AdjustmentKind.TRUE_UP, AdjustmentKind.LATE),
    "a tax stays a tax": (AdjustmentKind.TAX, AdjustmentKind.TAX),
}


@pytest.mark.parametrize(("kind", "posted_as"), CLOSED.values(), ids=CLOSED.keys())
def test_what_is_about_a_closed_month_counts_in_the_next_with_its_day_kept(engine, kind, posted_as):
    with engine.begin() as connection:
        made = propose(connection, wanted(line(day="2026-10-17"), kind=kind), now_us=NOON_US)
        close(connection)
        decide(connection, approve(made.proposal_id), now_us=NOON_US)
        [posted] = adjustments(connection, ListAdjustments())
    assert (posted.period, posted.original_period) == ("2026-11", MONTH)
    assert (posted.kind, posted.day) == (posted_as, "2026-10-17")


def test_a_month_has_what_counts_in_it_and_what_is_about_it_and_counts_later(engine):
    with engine.begin() as connection:
        for team in ("before", "late"):
            made = propose(connection, wanted(line(team=team)), now_us=NOON_US)
            if team == "late":
                close(connection)
            decide(connection, approve(made.proposal_id), now_us=NOON_US)
        after = msgspec.structs.replace(wanted(line(team="after")), period="2026-11")
        made = propose(connection, after, now_us=NOON_US)
        decide(connection, approve(made.proposal_id), now_us=NOON_US)
        for month, teams in (
            ("2026-09", []),
            (MONTH, ["before", "late"]),
            ("2026-11", ["late", "after"]),
            ("2026-12", []),
        ):
            posted = adjustments(connection, ListAdjustments(of_month=month))
            assert [one.team for one in posted] == teams


def test_adjustments_are_found_by_period_and_team(engine):
    with engine.begin() as connection:
        for team in ("payments", "search"):
            made = propose(connection, wanted(line(team=team)), now_us=NOON_US)
            decide(connection, approve(made.proposal_id), now_us=NOON_US)
        for query, count in (
            (ListAdjustments(), 2),
            (ListAdjustments(team="search"), 1),
            (ListAdjustments(from_period=MONTH, to_period="2026-11"), 2),
            (ListAdjustments(from_period="2026-11"), 0),
            (ListAdjustments(to_period=MONTH), 0),
        ):
            assert len(adjustments(connection, query)) == count, query


def test_proposals_are_listed_newest_first_and_by_state(engine):
    with engine.begin() as connection:
        first = propose(connection, wanted(line()), now_us=NOON_US)
        second = propose(connection, wanted(line()), now_us=NOON_US)
        decide(connection, approve(first.proposal_id), now_us=NOON_US)
        assert [one.proposal_id for one in proposals(connection, ListProposals())] == [
            second.proposal_id,
            first.proposal_id,
        ]
        waiting = proposals(connection, ListProposals(state="proposed"))
        assert [one.proposal_id for one in waiting] == [second.proposal_id]


WRONG = {
    "no amount": (wanted(line(0)), "is of no amount"),
    "no team": (wanted(line(team="")), "names no team"),
    "a day that never was": (wanted(line(day="2026-02-30")), "is no day of the calendar"),
    "more than the books hold": (wanted(line(9 * 10**18), line(9 * 10**18)), "than the books"),
    "a move that makes money": (
        wanted(line(5), line(-4), kind=AdjustmentKind.REATTRIBUTION),
        "have to sum to 0",
    ),
}


@pytest.mark.parametrize(("order", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_booked_is_refused(engine, order, says):
    with engine.begin() as connection, pytest.raises(Refused, match=says):
        propose(connection, order, now_us=NOON_US)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-(10**15), 10**15).filter(bool), min_size=1, max_size=8))
def test_a_move_between_teams_changes_no_total(engine, amounts):
    lines = [line(amount, f"team-{index}") for index, amount in enumerate(amounts)]
    lines += [line(-amount, "unattributed") for amount in amounts]
    with engine.begin() as connection:
        order = wanted(*lines, kind=AdjustmentKind.REATTRIBUTION)
        made = propose(connection, order, now_us=NOON_US)
        decide(connection, approve(made.proposal_id), now_us=NOON_US)
        posted = adjustments(connection, ListAdjustments())
        connection.rollback()
    assert sum(one.amount_pico_usd for one in posted) == 0
    assert len(posted) == 2 * len(amounts)


def test_proposals_of_a_month_are_found_behind_many_newer_ones(engine, monkeypatch):
    monkeypatch.setattr("gateway.finance.adjustments._LISTED_MAX", 1)
    with engine.begin() as connection:
        propose(connection, wanted(line()), now_us=NOON_US)
        propose(
            connection, msgspec.structs.replace(wanted(line()), period="2026-11"), now_us=NOON_US
        )
        [found] = proposals(connection, ListProposals(period=MONTH, state="proposed"))
    assert found.period == MONTH
