"""Who may use which route, on which rows: the whole matrix, written down a second time."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.asking import Within
from gateway.access.permissions import (
    PERMISSIONS,
    ROUTES,
    Action,
    Reach,
    has_narrow_reach,
    restriction_for,
)
from gateway.access.restriction import EVERYTHING, NOTHING, Restriction
from gateway.access.roles import (
    ADMINISTRATOR,
    GRANTABLE,
    TEAM_ROLES,
    Grant,
    Role,
    Viewer,
    key_holder,
    parse_grant,
)
from gateway.http.entrance import UnknownRoute, check_routes

# a: every row; t: rows of the own teams; k: own rows in the own teams; -: refused; *: no login.
MATRIX = """
                                  administrator platform_admin policy_approver finance_viewer finance_admin team_owner team_member auditor key_holder
GET /openapi.json                       *             *               *              *              *           *           *         *        *
GET /ui                                 a             a               a              a              a           a           a         a        a
GET /ui/                                a             a               a              a              a           a           a         a        a
GET /ui/login                           *             *               *              *              *           *           *         *        *
POST /ui/login                          *             *               *              *              *           *           *         *        *
POST /ui/logout                         *             *               *              *              *           *           *         *        *
GET /ui/static/{name:path}              *             *               *              *              *           *           *         *        *
GET /admin/v1/keys                      a             a               -              -              -           t           k         a        -
POST /admin/v1/keys                     a             a               -              -              -           t           k         -        -
DELETE /admin/v1/keys/{key_id}          a             a               -              -              -           t           k         -        -
GET /admin/v1/teams                     a             a               a              a              a           t           t         a        -
GET /admin/v1/spend                     a             a               -              a              a           t           t         -        t
GET /ui/month                           a             a               -              a              a           t           t         -        t
GET /ui/spend                           a             a               -              a              a           t           t         -        t
GET /ui/spend.csv                       a             a               -              a              a           t           t         -        t
GET /ui/statement                       a             a               -              a              a           t           t         -        t
POST /admin/v1/keys/{key_id}/rotation   a             a               -              -              -           t           k         -        -
GET /ui/budgets                         a             a               -              a              a           t           t         a        -
POST /ui/budgets                        a             a               -              -              a           t           -         -        -
GET /ui/keys                            a             a               -              -              -           t           k         a        -
POST /ui/keys                           a             a               -              -              -           t           k         -        -
POST /ui/keys/{key_id}                  a             a               -              -              -           t           k         -        -
GET /ui/exports                         a             a               -              a              a           t           t         -        t
GET /ui/requests                        a             a               -              a              a           t           t         a        t
GET /ui/requests/{request_id}           a             a               -              a              a           t           t         a        t
GET /ui/statement.csv                       a             a               -              a              a           t           t         -        t
GET /admin/v1/requests                  a             a               -              a              a           t           t         a        t
GET /admin/v1/status                    a             a               -              -              -           -           -         a        -
GET /admin/v1/policy                    a             a               a              -              -           -           -         a        -
GET /ui/login/oidc                      *             *               *              *              *           *           *         *        *
GET /ui/login/oidc/callback             *             *               *              *              *           *           *         *        *
GET /ui/set-password                    *             *               *              *              *           *           *         *        *
POST /ui/set-password                   *             *               *              *              *           *           *         *        *
GET /ui/account                         a             a               a              a              a           a           a         a        a
POST /ui/account/password               a             a               a              a              a           a           a         a        a
GET /ui/users                           a             a               -              -              -           -           -         a        -
POST /ui/users                          a             a               -              -              -           -           -         -        -
POST /ui/users/{person_id}              a             a               -              -              -           -           -         -        -
GET /admin/v1/session                   a             a               a              a              a           a           a         a        a
GET /admin/v1/users                     a             a               -              -              -           -           -         a        -
POST /admin/v1/users                    a             a               -              -              -           -           -         -        -
PATCH /admin/v1/users/{person}          a             a               -              -              -           -           -         -        -
GET /admin/v1/audit                     a             -               -              -              -           -           -         a        -
GET /admin/v1/audit/verification        a             -               -              -              -           -           -         a        -
GET /admin/v1/budgets             a             a              -               a              a            t          t         a        -
GET /admin/v1/budgets/expired     a             a              -               a              a            -          -         a        -
POST /admin/v1/budgets/write-off  a             a              -               -              a            -          -         -        -
PUT /admin/v1/budgets/{name:path}     a             a              -               -              a            t          -         -        -
DELETE /admin/v1/budgets/{name:path}  a             a              -               -              a            t          -         -        -
GET /ui/close  a  -  -  a  a  -  -  a  -
POST /ui/close/{month}  a  -  -  -  a  -  -  -  -
GET /ui/imports  a  -  -  a  a  -  -  a  -
POST /ui/imports  a  -  -  -  a  -  -  -  -
POST /ui/imports/{held}  a  -  -  -  a  -  -  -  -
GET /ui/reconciliation  a  -  -  a  a  -  -  a  -
POST /ui/reconciliation  a  -  -  -  a  -  -  -  -
GET /ui/reconciliation/{run}/{number}  a  -  -  a  a  -  -  a  -
GET /ui/adjustments  a  -  -  a  a  -  -  a  -
GET /ui/adjustments/new  a  -  -  -  a  -  -  -  -
POST /ui/adjustments  a  -  -  -  a  -  -  -  -
GET /ui/adjustments/{proposal}  a  -  -  a  a  -  -  a  -
POST /ui/adjustments/{proposal}  a  -  -  -  a  -  -  -  -
GET /ui/unattributed  a  -  -  a  a  -  -  a  -
POST /ui/unattributed  a  -  -  -  a  -  -  -  -
GET /ui/acts  a  -  -  a  a  -  -  a  -
GET /admin/v1/finance/imports  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/imports  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/reconciliations  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/reconciliations  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/reconciliations/{run_id}  a  -  -  a  a  -  -  a  -
GET /admin/v1/finance/proposals  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/proposals  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/proposals/{proposal_id}/approve  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/proposals/{proposal_id}/reject  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/adjustments  a  -  -  a  a  -  -  a  -
GET /admin/v1/finance/months/{month}  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/months/{month}/close  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/months/{month}/close-proposal  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/months/{month}/close-proposal/withdraw  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/months/{month}/journal  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/months/{month}/journal  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/months/{month}/bridge  a  -  -  a  a  t  -  a  -
GET /admin/v1/finance/anomalies  a  -  -  a  a  t  -  a  -
GET /admin/v1/finance/closed-months  a  -  -  a  a  -  -  a  -
GET /admin/v1/ledger/verification  a  a  -  a  a  -  -  a  -
GET /admin/v1/finance/statements/{period}  a  a  -  a  a  t  t  -  t
POST /admin/v1/finance/statements/{period}/send  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/price-proposals  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/price-proposals/{proposal_id}/accept  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/price-proposals/{proposal_id}/reject  a  -  -  -  a  -  -  -  -
POST /ui/reconciliation/prices/{proposal}  a  -  -  -  a  -  -  -  -
GET /admin/v1/finance/generations  a  -  -  a  a  -  -  a  -
GET /admin/v1/finance/notices  a  -  -  a  a  -  -  a  -
GET /ui/savings  a  a  -  a  a  t  t  -  t
GET /ui/story  a  -  -  a  a  t  -  a  -
GET /ui/commitments  a  -  -  a  a  -  -  a  -
GET /admin/v1/finance/commitments  a  -  -  a  a  -  -  a  -
POST /admin/v1/finance/commitments  a  -  -  -  a  -  -  -  -
POST /admin/v1/finance/commitments/{name}/withdraw  a  -  -  -  a  -  -  -  -
GET /admin/v1/spend/export        a             -              -               a              a            -          -         a        -
GET /ui/machines  a  a  -  a  a  t  -  a  -
GET /ui/machines.csv  a  a  -  a  a  t  -  a  -
GET /admin/v1/spend/machines  a  a  -  a  a  t  -  a  -
POST /admin/v1/finance/machines/proposals  a  -  -  -  a  -  -  -  -
"""
REACHES = {"a": Reach.ALL, "t": Reach.TEAMS, "k": Reach.KEYS, "-": None}


def matrix() -> dict[tuple[str, str], dict[Role, str]]:
    """The letters by route and role."""
    header, *lines = MATRIX.strip().splitlines()
    roles = [Role(name) for name in header.split()]
    table = {}
    for line in lines:
        method, path, *letters = line.split()
        table[method, path] = dict(zip(roles, letters, strict=True))
    return table


CELLS = [(route, role, letter) for route, row in matrix().items() for role, letter in row.items()]


def viewer(*grants: Grant, person: str = "anna") -> Viewer:
    return Viewer(actor=f"person:{person}", name=person, grants=grants, person_id=person)


def test_every_route_and_every_role_is_in_the_matrix() -> None:
    assert set(matrix()) == set(ROUTES)
    assert all(set(row) == set(Role) for row in matrix().values())
    assert len(CELLS) == len(ROUTES) * len(Role)


@pytest.mark.parametrize(
    ("route", "role", "letter"), CELLS, ids=[f"{r[0]} {r[1]} {role}" for r, role, _ in CELLS]
)
def test_a_role_reaches_what_the_matrix_says(route, role, letter) -> None:
    action = ROUTES[route]
    if letter == "*":
        assert action is Action.PUBLIC
        return
    assert PERMISSIONS[action].get(role) is REACHES[letter]
    grant = Grant(role=role, team="payments" if role in TEAM_ROLES else "")
    found = restriction_for(viewer(grant), action)
    expected = {
        "a": EVERYTHING,
        "t": Restriction(teams=frozenset({"payments"}), owner="anna"),
        "k": Restriction(teams=frozenset(), own_teams=frozenset({"payments"}), owner="anna"),
        "-": NOTHING,
    }
    assert found == expected[letter]
    assert found.is_nothing is (letter == "-")


def test_every_action_has_a_row_and_the_administrator_may_do_all() -> None:
    assert set(PERMISSIONS) == set(Action) - {Action.PUBLIC}
    for action in PERMISSIONS:
        assert restriction_for(ADMINISTRATOR, action) == EVERYTHING
        assert restriction_for(viewer(), action) == NOTHING


grants = st.lists(
    st.builds(
        lambda role, team: Grant(role=role, team=team if role in TEAM_ROLES else ""),
        st.sampled_from(sorted(GRANTABLE)),
        st.sampled_from(["payments", "search", "ops"]),
    ),
    max_size=5,
)


@given(grants, grants, st.sampled_from(sorted(PERMISSIONS)), st.sampled_from(["payments", "", "x"]))
def test_further_roles_never_take_a_row_away_and_nobody_sees_a_team_without_a_role_for_it(
    some, more, action, team
) -> None:
    fewer, all_ = (restriction_for(viewer(*given), action) for given in (some, [*some, *more]))
    for owner in ("", "anna", "bert"):
        assert all_.has(team, owner) or not fewer.has(team, owner)
        if fewer.has(team, owner) and fewer is not EVERYTHING:
            assert team in {grant.team for grant in some}
    assert all_.has_team(team) or not fewer.has_team(team)


def test_own_rows_are_the_owners_only() -> None:
    within = restriction_for(viewer(Grant(role=Role.TEAM_MEMBER, team="ops")), Action.READ_KEYS)
    assert within.has("ops", "anna")
    assert within.has_team("ops")
    assert not within.has("ops", "")
    assert not within.has("ops", "bert")
    assert not within.has("payments", "anna")
    assert within.sums == ()
    nobody = Restriction(teams=frozenset(), own_teams=frozenset({"ops"}))
    assert not nobody.has("ops", "")


def test_a_key_holder_is_nobody_else() -> None:
    holder = key_holder("abc", "ci", "ops")
    assert holder.is_key_holder
    assert holder.actor == "key:abc"
    assert not ADMINISTRATOR.is_key_holder


GRANTS = {
    "a role of the organisation": ("auditor", Grant(role=Role.AUDITOR)),
    "a role of a team": ("team_owner@payments", Grant(role=Role.TEAM_OWNER, team="payments")),
    "a team with an at sign": ("team_member@a@b", Grant(role=Role.TEAM_MEMBER, team="a@b")),
}


@pytest.mark.parametrize(("text", "grant"), GRANTS.values(), ids=GRANTS.keys())
def test_a_grant_is_written_as_role_and_team(text, grant) -> None:
    assert parse_grant(text) == grant
    assert grant.text == text


BAD_GRANTS = {
    "an unknown role": ("root", "is no role"),
    "what nobody is given": ("administrator", "is no role"),
    "the holder of a key": ("key_holder@payments", "is no role"),
    "a team's role without a team": ("team_owner", "needs a team"),
    "a team for a role of the organisation": ("auditor@payments", "takes no team"),
}


@pytest.mark.parametrize(("text", "message"), BAD_GRANTS.values(), ids=BAD_GRANTS.keys())
def test_a_wrong_grant_says_what_is_wrong(text, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grant(text)
    assert "not a role that a person" in Grant(role=Role.ADMINISTRATOR).fault()


def test_a_route_without_an_entry_does_not_start() -> None:
    router = APIRouter()
    router.add_api_route("/admin/v1/new", lambda: None, methods=["GET"])
    with pytest.raises(UnknownRoute, match=r"GET /admin/v1/new has no entry"):
        check_routes(router.routes)


def test_a_route_with_rows_has_to_ask_for_them() -> None:
    async def all_rows() -> None:
        """Forget the restriction."""

    async def rows(within: Within) -> None:
        """Ask for it."""

    assert has_narrow_reach(Action.READ_SPEND)
    assert not has_narrow_reach(Action.READ_STATUS)
    router = APIRouter()
    router.add_api_route("/admin/v1/spend", all_rows, methods=["GET"])
    with pytest.raises(UnknownRoute, match="takes no `Within`"):
        check_routes(router.routes)
    router = APIRouter()
    router.add_api_route("/admin/v1/spend", rows, methods=["GET"])
    with pytest.raises(UnknownRoute, match="is no route"):
        check_routes(router.routes)
