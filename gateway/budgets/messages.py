"""What workers, supervisor and ledger process say to each other about budgets.

A budget caps what its scope spends in a window of time. For each window the database has a bucket
with what was spent, what is reserved, and what is exposed (attempts whose bill is unknown); the sum
of the three never passes the limit by a reservation. A worker takes **leases** on a bucket: durable
reservations of a slab, out of which it makes the **holds** of its requests in memory. A hold stays
in its lease until the ledger has booked the attempt, and is then given up whole while the cost is
counted as spent; so a bucket's reserved amount is always the sum of its leases, and each lease
covers everything that its worker has in flight, in its spool, and in hand.

Workers import this module and never the ones that query: they load no SQLAlchemy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.forms import FormSent

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class BudgetScope(StrEnum):
    """Whose spend a budget caps, from the widest to the narrowest."""

    ORGANISATION = "organisation"
    TEAM = "team"
    PROJECT = "project"
    KEY = "key"
    COST_TAG = "cost_tag"


class BudgetWindow(StrEnum):
    """When a budget starts again, in its time zone."""

    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"
    FISCAL = "fiscal"
    """From the first day of the fiscal year."""
    TOTAL = "total"
    """Never."""


class OnExceed(StrEnum):
    """What a budget without room does to a request."""

    BLOCK = "block"
    CHEAPEST_ONLY = "cheapest_only"
    ALERT = "alert"


class BudgetRule(msgspec.Struct, frozen=True, kw_only=True):
    """One budget as workers need it.

    Attributes:
        budget_id: Its row in the database; the same on every machine.
        name: For messages, for example `team payments, month`.
        scope: What the following four name; the others are empty.
        team: Of a team, a project, a key or a team's cost tag.
        project: Of a project.
        key_id: Public id of a key.
        cost_tag: Name and value of a cost tag, None for other scopes; `team` narrows it to one.
        limit_pico_usd: At least 0.
        window: When it starts again.
        time_zone: IANA name.
        fiscal_month: Month in which the fiscal year begins, 1 to 12.
        on_exceed: What happens when it has no room.
    """

    budget_id: int
    name: str
    scope: BudgetScope
    team: str = ""
    project: str = ""
    key_id: str = ""
    cost_tag: tuple[str, str] | None = None
    limit_pico_usd: int
    window: BudgetWindow
    time_zone: str = "UTC"
    fiscal_month: int = 1
    on_exceed: OnExceed = OnExceed.BLOCK


class BudgetRules(msgspec.Struct, frozen=True, kw_only=True):
    """Every budget in force; replaces what a worker has.

    Attributes:
        rules: By falling width of their scope.
        revision: Grows with every change.
    """

    rules: tuple[BudgetRule, ...] = ()
    revision: int = 0


class LeaseWant(msgspec.Struct, frozen=True, kw_only=True):
    """A slab that a worker would like to have on one bucket.

    Attributes:
        budget_id: The budget.
        window_start_us: Of the window, microseconds since the epoch.
        at_least_pico_usd: The upper bound of the request that waits for it; 0 where none waits.
        wanted_pico_usd: What it would use soon. The ledger grants at most 1 % of what remains, but
            at least `at_least_pico_usd`, or nothing.
    """

    budget_id: int
    window_start_us: int
    at_least_pico_usd: int
    wanted_pico_usd: int


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for slabs; all of its leases are renewed by it.

    Attributes:
        directory: Name of the worker's spool directory.
        session: Of the worker's spool writer; leases die with it, once all it wrote is booked.
        wants: One per bucket; none only renews.
        returns: Unused parts that are given back, by lease, of whatever worker. They are given back
            once: when the answer is lost, they may be said again only under the same number.
        is_last_try: Whether what waits in spools and in other workers' hands was asked for before;
            what does not fit now is refused.
        number: Of the session's requests, each its own; a last try has that of what it follows.
            None for one that is never said again.
        is_repeat: Whether it was said before under this number and has had no answer: what was done
            then is answered, and not done again.
    """

    directory: str
    session: Id
    wants: tuple[LeaseWant, ...] = ()
    returns: dict[Id, int] = {}
    is_last_try: bool = False
    number: int | None = None
    is_repeat: bool = False


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A granted slab.

    Attributes:
        lease_id: 16 bytes; intents name it.
        budget_id: The budget.
        window_start_us: Of the window that it may be spent in.
        window_end_us: First microsecond after it.
        amount_pico_usd: Above 0.
    """

    lease_id: Id
    budget_id: int
    window_start_us: int
    window_end_us: int
    amount_pico_usd: int


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """Where one bucket stands.

    Attributes:
        budget_id: The budget.
        window_start_us: Of the window.
        window_end_us: First microsecond after it: when the budget starts again.
        limit_pico_usd: Of the budget now.
        spent_pico_usd: Booked in the window.
        reserved_pico_usd: Sum of the leases.
        exposed_pico_usd: Upper bounds of attempts whose bill is unknown.
    """

    budget_id: int
    window_start_us: int
    window_end_us: int
    limit_pico_usd: int
    spent_pico_usd: int
    reserved_pico_usd: int
    exposed_pico_usd: int

    @property
    def room_pico_usd(self) -> int:
        """What can still be reserved; never below 0."""
        used = self.spent_pico_usd + self.reserved_pico_usd + self.exposed_pico_usd
        return max(self.limit_pico_usd - used, 0)


class LeaseReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was granted, and the buckets that had no room.

    Attributes:
        leases: At most one per want.
        shortages: The state of each bucket whose `at_least_pico_usd` did not fit.
        rules_revision: Of the budgets that it was decided by; newer than the worker's when a budget
            was changed meanwhile.
        is_repeat: Whether that was done when it was asked before, and nothing now.
    """

    leases: tuple[Lease, ...] = ()
    shortages: tuple[BudgetState, ...] = ()
    rules_revision: int = 0
    is_repeat: bool = False


class BudgetSource(StrEnum):
    """Where a budget is set, and can be changed."""

    FILE = "file"
    DATABASE = "database"


DEFAULT_ALERTS_AT = (50, 80, 100)
"""Percent of a budget at which somebody is told."""


class BudgetDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as it is set, before it has a row; fields as in `BudgetRule`.

    Attributes:
        name: Unique among the budgets in force, of file and database together.
        alerts_at: Percent of the limit at which alerts go out, rising.
    """

    name: str
    scope: BudgetScope
    team: str = ""
    project: str = ""
    key_id: str = ""
    cost_tag: tuple[str, str] | None = None
    limit_pico_usd: int
    window: BudgetWindow = BudgetWindow.MONTH
    time_zone: str = "UTC"
    fiscal_month: int = 1
    on_exceed: OnExceed = OnExceed.BLOCK
    alerts_at: tuple[int, ...] = DEFAULT_ALERTS_AT


class AlertWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts go.

    Attributes:
        name: Of the webhook in the configuration.
        url: Where it is posted to.
        secret: Key of the signature.
    """

    name: str
    url: str
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret."""
        return f"AlertWebhook(name={self.name!r}, url={self.url!r})"


class BudgetDeclarations(msgspec.Struct, frozen=True, kw_only=True):
    """Every budget of the configuration file; those that it no longer names are retired.

    Attributes:
        budgets: Unique by name.
        webhooks: Where their alerts go.
    """

    budgets: tuple[BudgetDeclaration, ...] = ()
    webhooks: tuple[AlertWebhook, ...] = ()


class BudgetChange(msgspec.Struct, frozen=True, kw_only=True):
    """What `budgets set` asks for.

    Attributes:
        name: Of a budget that is set in the database, or of a new one.
        budget: What it is from now on; None takes it away.
        actor: Who does it, for the audit log.
        is_new: Whether it is refused where there is a budget of that name.
        form: The page's form that asks for it, which is acted on once.
    """

    name: str
    budget: BudgetDeclaration | None
    actor: str
    is_new: bool = False
    form: FormSent | None = None


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, where it is set, and how its present window stands.

    Attributes:
        rule: The budget.
        alerts_at: Percent of the limit at which alerts go out.
        source: Where it can be changed.
        state: Of its present window.
        expired_pico_usd: Part of what is reserved whose worker was not heard of for long; it stays
            counted until that worker's spool is loaded or the window ends.
    """

    rule: BudgetRule
    alerts_at: tuple[int, ...]
    source: BudgetSource
    state: BudgetState
    expired_pico_usd: int


class ExpiredLeases(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's session has reserved in one bucket and has not renewed for long.

    Attributes:
        budget: Its name.
        window_start_us: Of the window, microseconds since the epoch.
        directory: The worker's spool directory, on PostgreSQL with its machine.
        session: Of its spool writer.
        leases: How many.
        amount_pico_usd: What is left of them.
        renewed_at_us: When they were granted or renewed last.
    """

    budget: str
    window_start_us: int
    directory: str
    session: Id
    leases: int
    amount_pico_usd: int
    renewed_at_us: int


class LeaseWriteOff(msgspec.Struct, frozen=True, kw_only=True):
    """Let go of what is reserved for a worker that will never be heard of again.

    Attributes:
        directory: The worker's, as `ExpiredLeases` names it.
        actor: Who does it, for the audit log.
    """

    directory: str
    actor: str
