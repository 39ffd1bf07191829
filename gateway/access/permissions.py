"""The one table of permissions: action by role, and every route of pages and API by action.

`gateway.http.entrance` enforces it for `/ui` and `/admin/v1` alike, before a body is read. A route
that is not in `ROUTES` refuses to start, so a new route is entered here with its action. What a
role may do is one row of `PERMISSIONS`; everything that is not said there is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.access.restriction import EVERYTHING, NOTHING, Restriction
from gateway.access.roles import TEAM_ROLES, Role, Viewer


class Reach(StrEnum):
    """On which rows a role may act."""

    ALL = "all"
    TEAMS = "own teams"
    KEYS = "own keys"
    """Of the own teams, only what the person made or is."""


class Action(StrEnum):
    """What somebody wants to do."""

    PUBLIC = "public"
    """What needs no login: the login itself, the style sheet, the API's description."""
    HOME = "home"
    """The first page, one's own account."""
    READ_SPEND = "read_spend"
    READ_REQUESTS = "read_requests"
    READ_KEYS = "read_keys"
    CHANGE_KEYS = "change_keys"
    READ_TEAMS = "read_teams"
    READ_STATUS = "read_status"
    READ_BUDGETS = "read_budgets"
    CHANGE_BUDGETS = "change_budgets"
    READ_EXPIRED = "read_expired"
    """What is reserved for workers that are gone; each may hold parts of every team's budgets."""
    WRITE_OFF = "write_off"
    """Letting go of it."""
    READ_FINANCE = "read_finance"
    """Exports, reconciliations, adjustments, the state of a month."""
    READ_STORY = "read_story"
    """Why a month cost what it did, days that stood out; the owner of a team sees its own."""
    CHANGE_FINANCE = "change_finance"
    """Prices, imports, adjustments, closing a month."""
    READ_MACHINES = "read_machines"
    """What machines of our own cost; a team sees its own share only."""
    VERIFY_LEDGER = "verify_ledger"
    """Having all sums recomputed, which changes nothing and reads every team's entries."""
    READ_PEOPLE = "read_people"
    CHANGE_PEOPLE = "change_people"
    READ_AUDIT = "read_audit"
    READ_POLICY = "read_policy"
    """Which privacy policy decides, and its proof."""


_R = Role
_EVERYBODY: Final = dict.fromkeys(Role, Reach.ALL)
_OF_TEAMS: Final = dict.fromkeys((_R.TEAM_OWNER, _R.TEAM_MEMBER), Reach.TEAMS)


def _all(*roles: Role) -> dict[Role, Reach]:
    """The administrator and these, for all rows."""
    return dict.fromkeys((_R.ADMINISTRATOR, *roles), Reach.ALL)


_FINANCE: Final = (_R.FINANCE_VIEWER, _R.FINANCE_ADMIN)

PERMISSIONS: Final[Mapping[Action, Mapping[Role, Reach]]] = {
    Action.HOME: _EVERYBODY,
    Action.READ_SPEND: _all(_R.PLATFORM_ADMIN, *_FINANCE)
    | _OF_TEAMS
    | {_R.KEY_HOLDER: Reach.TEAMS},
    Action.READ_REQUESTS: _all(_R.PLATFORM_ADMIN, *_FINANCE, _R.AUDITOR)
    | _OF_TEAMS
    | {_R.KEY_HOLDER: Reach.TEAMS},
    Action.READ_KEYS: _all(_R.PLATFORM_ADMIN, _R.AUDITOR)
    | {_R.TEAM_OWNER: Reach.TEAMS, _R.TEAM_MEMBER: Reach.KEYS},
    Action.CHANGE_KEYS: _all(_R.PLATFORM_ADMIN)
    | {_R.TEAM_OWNER: Reach.TEAMS, _R.TEAM_MEMBER: Reach.KEYS},
    Action.READ_TEAMS: _all(_R.PLATFORM_ADMIN, _R.POLICY_APPROVER, *_FINANCE, _R.AUDITOR)
    | _OF_TEAMS,
    Action.READ_STATUS: _all(_R.PLATFORM_ADMIN, _R.AUDITOR),
    Action.READ_BUDGETS: _all(_R.PLATFORM_ADMIN, *_FINANCE, _R.AUDITOR) | _OF_TEAMS,
    Action.CHANGE_BUDGETS: _all(_R.PLATFORM_ADMIN, _R.FINANCE_ADMIN) | {_R.TEAM_OWNER: Reach.TEAMS},
    Action.READ_EXPIRED: _all(_R.PLATFORM_ADMIN, *_FINANCE, _R.AUDITOR),
    Action.WRITE_OFF: _all(_R.PLATFORM_ADMIN, _R.FINANCE_ADMIN),
    Action.READ_FINANCE: _all(*_FINANCE, _R.AUDITOR),
    Action.READ_STORY: _all(*_FINANCE, _R.AUDITOR) | {_R.TEAM_OWNER: Reach.TEAMS},
    Action.CHANGE_FINANCE: _all(_R.FINANCE_ADMIN),
    Action.READ_MACHINES: _all(_R.PLATFORM_ADMIN, *_FINANCE, _R.AUDITOR)
    | {_R.TEAM_OWNER: Reach.TEAMS},
    Action.VERIFY_LEDGER: _all(_R.PLATFORM_ADMIN, *_FINANCE, _R.AUDITOR),
    Action.READ_PEOPLE: _all(_R.PLATFORM_ADMIN, _R.AUDITOR),
    Action.CHANGE_PEOPLE: _all(_R.PLATFORM_ADMIN),
    Action.READ_AUDIT: _all(_R.AUDITOR),
    Action.READ_POLICY: _all(_R.PLATFORM_ADMIN, _R.POLICY_APPROVER, _R.AUDITOR),
}
"""What each role may do, and on which rows; what is not here is refused."""

ROUTES: Final[Mapping[tuple[str, str], Action]] = {
    ("GET", "/openapi.json"): Action.PUBLIC,
    ("GET", "/ui"): Action.HOME,
    ("GET", "/ui/"): Action.HOME,
    ("GET", "/ui/login"): Action.PUBLIC,
    ("POST", "/ui/login"): Action.PUBLIC,
    ("POST", "/ui/logout"): Action.PUBLIC,
    ("GET", "/ui/static/{name:path}"): Action.PUBLIC,
    ("GET", "/ui/login/oidc"): Action.PUBLIC,
    ("GET", "/ui/login/oidc/callback"): Action.PUBLIC,
    ("GET", "/ui/set-password"): Action.PUBLIC,
    ("POST", "/ui/set-password"): Action.PUBLIC,
    ("GET", "/ui/month"): Action.READ_SPEND,
    ("GET", "/ui/spend"): Action.READ_SPEND,
    ("GET", "/ui/spend.csv"): Action.READ_SPEND,
    ("GET", "/ui/statement"): Action.READ_SPEND,
    ("GET", "/ui/savings"): Action.READ_SPEND,
    ("GET", "/ui/commitments"): Action.READ_FINANCE,
    ("GET", "/ui/story"): Action.READ_STORY,
    ("GET", "/ui/budgets"): Action.READ_BUDGETS,
    ("POST", "/ui/budgets"): Action.CHANGE_BUDGETS,
    ("GET", "/ui/keys"): Action.READ_KEYS,
    ("POST", "/ui/keys"): Action.CHANGE_KEYS,
    ("POST", "/ui/keys/{key_id}"): Action.CHANGE_KEYS,
    ("GET", "/ui/machines"): Action.READ_MACHINES,
    ("GET", "/ui/machines.csv"): Action.READ_MACHINES,
    ("GET", "/ui/exports"): Action.READ_SPEND,
    ("GET", "/ui/requests"): Action.READ_REQUESTS,
    ("GET", "/ui/requests/{request_id}"): Action.READ_REQUESTS,
    ("GET", "/ui/close"): Action.READ_FINANCE,
    ("POST", "/ui/close/{month}"): Action.CHANGE_FINANCE,
    ("GET", "/ui/imports"): Action.READ_FINANCE,
    ("POST", "/ui/imports"): Action.CHANGE_FINANCE,
    ("POST", "/ui/imports/{held}"): Action.CHANGE_FINANCE,
    ("GET", "/ui/reconciliation"): Action.READ_FINANCE,
    ("POST", "/ui/reconciliation"): Action.CHANGE_FINANCE,
    ("GET", "/ui/reconciliation/{run}/{number}"): Action.READ_FINANCE,
    ("GET", "/ui/adjustments"): Action.READ_FINANCE,
    ("GET", "/ui/adjustments/new"): Action.CHANGE_FINANCE,
    ("POST", "/ui/adjustments"): Action.CHANGE_FINANCE,
    ("GET", "/ui/adjustments/{proposal}"): Action.READ_FINANCE,
    ("POST", "/ui/adjustments/{proposal}"): Action.CHANGE_FINANCE,
    ("GET", "/ui/unattributed"): Action.READ_FINANCE,
    ("POST", "/ui/unattributed"): Action.CHANGE_FINANCE,
    ("GET", "/ui/acts"): Action.READ_FINANCE,
    ("GET", "/ui/statement.csv"): Action.READ_SPEND,
    ("GET", "/ui/account"): Action.HOME,
    ("POST", "/ui/account/password"): Action.HOME,
    ("GET", "/ui/users"): Action.READ_PEOPLE,
    ("POST", "/ui/users"): Action.CHANGE_PEOPLE,
    ("POST", "/ui/users/{person_id}"): Action.CHANGE_PEOPLE,
    ("GET", "/admin/v1/session"): Action.HOME,
    ("GET", "/admin/v1/users"): Action.READ_PEOPLE,
    ("POST", "/admin/v1/users"): Action.CHANGE_PEOPLE,
    ("PATCH", "/admin/v1/users/{person}"): Action.CHANGE_PEOPLE,
    ("GET", "/admin/v1/audit"): Action.READ_AUDIT,
    ("GET", "/admin/v1/audit/verification"): Action.READ_AUDIT,
    ("GET", "/admin/v1/keys"): Action.READ_KEYS,
    ("POST", "/admin/v1/keys"): Action.CHANGE_KEYS,
    ("DELETE", "/admin/v1/keys/{key_id}"): Action.CHANGE_KEYS,
    ("POST", "/admin/v1/keys/{key_id}/rotation"): Action.CHANGE_KEYS,
    ("GET", "/admin/v1/teams"): Action.READ_TEAMS,
    ("GET", "/admin/v1/budgets"): Action.READ_BUDGETS,
    ("GET", "/admin/v1/budgets/expired"): Action.READ_EXPIRED,
    ("POST", "/admin/v1/budgets/write-off"): Action.WRITE_OFF,
    ("PUT", "/admin/v1/budgets/{name:path}"): Action.CHANGE_BUDGETS,
    ("DELETE", "/admin/v1/budgets/{name:path}"): Action.CHANGE_BUDGETS,
    ("GET", "/admin/v1/spend"): Action.READ_SPEND,
    ("GET", "/admin/v1/spend/export"): Action.READ_FINANCE,
    ("GET", "/admin/v1/spend/machines"): Action.READ_MACHINES,
    ("POST", "/admin/v1/finance/machines/proposals"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/imports"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/imports"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/reconciliations"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/reconciliations"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/reconciliations/{run_id}"): Action.READ_FINANCE,
    ("GET", "/admin/v1/finance/generations"): Action.READ_FINANCE,
    ("GET", "/admin/v1/finance/proposals"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/proposals"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/proposals/{proposal_id}/approve"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/proposals/{proposal_id}/reject"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/adjustments"): Action.READ_FINANCE,
    ("GET", "/admin/v1/finance/months/{month}"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/months/{month}/close"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/months/{month}/close-proposal"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/months/{month}/close-proposal/withdraw"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/months/{month}/journal"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/months/{month}/journal"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/months/{month}/bridge"): Action.READ_STORY,
    ("GET", "/admin/v1/finance/anomalies"): Action.READ_STORY,
    ("GET", "/admin/v1/finance/closed-months"): Action.READ_FINANCE,
    ("GET", "/admin/v1/ledger/verification"): Action.VERIFY_LEDGER,
    ("GET", "/admin/v1/finance/statements/{period}"): Action.READ_SPEND,
    ("POST", "/admin/v1/finance/statements/{period}/send"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/price-proposals"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/price-proposals/{proposal_id}/accept"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/price-proposals/{proposal_id}/reject"): Action.CHANGE_FINANCE,
    ("POST", "/ui/reconciliation/prices/{proposal}"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/finance/notices"): Action.READ_FINANCE,
    ("GET", "/admin/v1/finance/commitments"): Action.READ_FINANCE,
    ("POST", "/admin/v1/finance/commitments"): Action.CHANGE_FINANCE,
    ("POST", "/admin/v1/finance/commitments/{name}/withdraw"): Action.CHANGE_FINANCE,
    ("GET", "/admin/v1/requests"): Action.READ_REQUESTS,
    ("GET", "/admin/v1/status"): Action.READ_STATUS,
    ("GET", "/admin/v1/policy"): Action.READ_POLICY,
}
"""The action of every route, by method and path as the router has it."""


def restriction_for(viewer: Viewer, action: Action) -> Restriction:
    """The rows on which a viewer may act; `NOTHING` where the action is not theirs at all."""
    allowed = PERMISSIONS[action]
    teams: set[str] = set()
    teams_of_own: set[str] = set()
    for grant in viewer.grants:
        reach = allowed.get(grant.role)
        if reach is Reach.ALL:
            return EVERYTHING
        if reach is Reach.TEAMS:
            teams.add(grant.team)
        elif reach is Reach.KEYS:
            teams_of_own.add(grant.team)
    if not teams and not teams_of_own:
        return NOTHING
    return Restriction(
        teams=frozenset(teams),
        own_teams=frozenset(teams_of_own - teams),
        owner=viewer.person_id,
    )


def has_narrow_reach(action: Action) -> bool:
    """Whether some role may act on some rows only, so that the route has to ask which."""
    return any(reach is not Reach.ALL for reach in PERMISSIONS.get(action, {}).values())


assert all(
    reach is Reach.ALL or role in TEAM_ROLES
    for allowed in PERMISSIONS.values()
    for role, reach in allowed.items()
), "only a team's role has teams of its own"
