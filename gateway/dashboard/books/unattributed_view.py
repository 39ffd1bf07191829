"""Spend of nobody and what rests on estimates, as people read them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from gateway.dashboard.books.adjustment_view import (
    NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    amount_of,
    team_fault,
)
from gateway.dashboard.books.frame import UNATTRIBUTED_PATH, FieldFaults
from gateway.dashboard.books.run_view import column
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.finance.messages import (
    UNATTRIBUTED,
    Adjustment,
    AdjustmentKind,
    AdjustmentLine,
    Proposal,
    Propose,
)
from gateway.ledger.views import SpendReport
from pricing.money import format_usd

ROWS_SHOWN = 200
WHOLE = NOTHING
"""The item of what is about no deployment."""
_MOVES = frozenset({AdjustmentKind.REATTRIBUTION, AdjustmentKind.ALLOCATION})
QUALITIES: Mapping[str, str] = {
    "estimated": "counts are estimated",
    "assumed": "counts are assumed",
    "unknown": "nothing is known of the counts",
    "exact": "exact counts",
    "provider_cost": "the provider's own cost",
}
_DOUBTFUL = frozenset({"estimated", "assumed", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What nobody has of one deployment, in picodollars.

    Attributes:
        booked: In the ledger, by keys of no team.
        billed: Posted adjustments of nobody: billed usage that was not metered.
        moved: Given to teams already; negative.
        waiting: Proposed to be given; negative.
    """

    booked: int = 0
    billed: int = 0
    moved: int = 0
    waiting: int = 0

    @property
    def left(self) -> int:
        """What is nobody's still."""
        return self.booked + self.billed + self.moved


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """What nobody has of one deployment.

    Attributes:
        item: Provider and model, or `WHOLE`.
        left: What is nobody's still.
        free: That, less what waits: what can be given yet; exact decimal text.
        explorer: Its attempts, empty where there are none.
        give: The form, filled in with this one.
    """

    item: str
    booked: Shown
    billed: Shown
    moved: Shown
    waiting: Shown
    left: Shown
    free: str
    explorer: str
    give: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtLine:
    """Attempts of a team at a deployment that are not exact, not priced, or may cost more.

    Attributes:
        quality: Of the counts, in words.
        cost: What was booked.
        unpriced: Attempts without a price, or a dash.
        exposure: What may still be billed, or a dash.
        explorer: Their attempts.
    """

    quality: str
    team: str
    deployment: str
    attempts: str
    cost: Shown
    unpriced: str
    exposure: Shown
    explorer: str


def balances(
    report: SpendReport, posted: Sequence[Adjustment], waiting: Sequence[Proposal]
) -> dict[str, Balance]:
    """What nobody has, by deployment.

    Args:
        report: Of no team, by deployment.
        posted: Adjustments that count in the month.
        waiting: Proposals about the month that nobody decided.
    """
    sums: dict[str, dict[str, int]] = {}

    def add(item: str, part: str, amount: int) -> None:
        parts = sums.setdefault(item, {"booked": 0, "billed": 0, "moved": 0, "waiting": 0})
        parts[part] += amount

    for row in report.rows:
        if row.sums.cost_pico_usd:
            add(row.group[0], "booked", row.sums.cost_pico_usd)
    for one in posted:
        if one.team == UNATTRIBUTED:
            part = "moved" if one.kind in _MOVES else "billed"
            add(item_of(one.account, one.model), part, one.amount_pico_usd)
    for proposal in waiting:
        for line in proposal.lines:
            if line.team == UNATTRIBUTED and proposal.kind in _MOVES:
                add(item_of(line.account, line.model), "waiting", line.amount_pico_usd)
    return {item: Balance(**parts) for item, parts in sorted(sums.items())}


def item_of(account: str, model: str) -> str:
    """Provider and model as one name."""
    return f"{account}/{model}" if account and model else account or WHOLE


def item_lines(found: Mapping[str, Balance], *, month: str) -> list[ItemLine]:
    """What nobody has, largest first; the cents of each column add up to the cents of its sum."""
    order = sorted(found, key=lambda item: (-found[item].left, item))
    columns = {
        name: column([getattr(found[item], name) for item in order])
        for name in ("booked", "billed", "moved", "waiting", "left")
    }
    return [
        ItemLine(
            item=item,
            **{name: amounts[place] for name, amounts in columns.items()},
            free=format_usd(found[item].left + found[item].waiting),
            explorer=_explorer(month, deployment=item) if found[item].booked else "",
            give=f"{UNATTRIBUTED_PATH}?{urlencode({'month': month, 'item': item})}#give",
        )
        for place, item in enumerate(order)
    ]


def doubt_lines(report: SpendReport, *, month: str) -> list[DoubtLine]:
    """What is not exact, not priced or may cost more, largest first.

    Args:
        report: By quality, team and deployment.
        month: For the addresses.
    """
    rows = [
        (row.group, row.sums)
        for row in report.rows
        if row.group[0] in _DOUBTFUL or row.sums.unpriced_attempts or row.sums.exposure_pico_usd
    ]
    rows.sort(key=lambda row: (-row[1].cost_pico_usd - row[1].exposure_pico_usd, row[0]))
    return [
        DoubtLine(
            quality=QUALITIES.get(quality, quality),
            team=team,
            deployment=deployment,
            attempts=f"{sums.attempts:,}",
            cost=shown(sums.cost_pico_usd),
            unpriced=f"{sums.unpriced_attempts:,}" if sums.unpriced_attempts else NOTHING,
            exposure=shown(sums.exposure_pico_usd)
            if sums.exposure_pico_usd
            else Shown(text=NOTHING, exact=""),
            explorer=_explorer(month, team=team, deployment=deployment),
        )
        for (quality, team, deployment), sums in rows[:ROWS_SHOWN]
    ]


def reattribution_of(
    form: Mapping[str, str],
    found: Mapping[str, Balance],
    *,
    actor: str,
    month: str,
    teams: Collection[str],
) -> tuple[Propose, Mapping[str, str]]:
    """A proposal to give spend of nobody to a team, and why what is left is not enough for it.

    Args:
        form: As it was filled in.
        found: What nobody has.
        actor: Who proposes.
        month: The month that it is about.
        teams: Configured teams.

    Returns:
        The proposal; and faults by field, empty where it can be made now.

    Raises:
        FieldFaults: Something of it can never be taken; all of it is told.
    """
    faults: dict[str, str] = {}
    lacking: dict[str, str] = {}
    item, team = form.get("item", ""), form.get("team", "")
    balance = found.get(item)
    if balance is None:
        (faults if len(item) > NAME_CHARACTERS_MAX else lacking)["item"] = "choose what is given"
    if team == UNATTRIBUTED or team not in teams:
        faults["team"] = team_fault("" if team == UNATTRIBUTED else team, teams)
    project, reason = form.get("project", "").strip(), form.get("reason", "").strip()
    if len(project) > NAME_CHARACTERS_MAX:
        faults["project"] = f"at most {NAME_CHARACTERS_MAX} characters"
    if not reason or len(reason) > REASON_CHARACTERS_MAX:
        faults["reason"] = f"say why, in at most {REASON_CHARACTERS_MAX} characters"
    amount = 0
    try:
        amount = amount_of(form.get("amount", ""))
    except ValueError as error:
        faults["amount"] = str(error)
    if balance is not None and "amount" not in faults:
        free = balance.left + balance.waiting
        # A credit of nobody is below 0, and is given like a cost.
        if not (0 < amount <= free or free <= amount < 0):
            lacking["amount"] = f"must lie between 0 and {format_usd(free)} USD"
    if faults:
        raise FieldFaults(faults | lacking)
    account, _, model = ("", "", "") if item == WHOLE else item.partition("/")
    order = Propose(
        actor=actor,
        period=month,
        kind=AdjustmentKind.REATTRIBUTION,
        reason=reason,
        lines=(
            AdjustmentLine(
                amount_pico_usd=-amount, team=UNATTRIBUTED, account=account, model=model
            ),
            AdjustmentLine(
                amount_pico_usd=amount, team=team, project=project, account=account, model=model
            ),
        ),
    )
    return order, lacking


def _explorer(month: str, **filters: str) -> str:
    """Attempts in the explorer; one of no team cannot be asked for there, so all teams show."""
    query = {"by": "key", "per": "day", "period": month}
    return f"/ui/spend?{urlencode(query | {name: one for name, one in filters.items() if one})}"
