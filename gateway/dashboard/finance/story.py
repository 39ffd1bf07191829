"""Why a month cost what it did, as a waterfall with its table, and the days that stood out.

Pure: answers of finance in, texts, links and chart data out. Amounts are the answers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import cast
from urllib.parse import urlencode

import msgspec

from gateway.dashboard.finance import attempts, charts, explorer
from gateway.dashboard.finance.amounts import Shown, change_text, shown, shown_together
from gateway.dashboard.finance.charts import Fall, Figure
from gateway.dashboard.finance.periods import Month
from gateway.finance.story_messages import BridgeEffects, BridgeReport, FoundAnomaly, KeyShare
from gateway.ledger.views import GroupBy

PRODUCTS_LISTED_MAX = 50
EFFECTS: Mapping[str, tuple[str, str, str]] = {
    "volume_pico_usd": ("Volume", "More or fewer units.", GroupBy.DEPLOYMENT),
    "mix_pico_usd": ("Mix", "Other deployments.", GroupBy.DEPLOYMENT),
    "output_share_pico_usd": (
        "Output share",
        "More or less output per token of the prompt.",
        GroupBy.MODEL,
    ),
    "cache_rate_pico_usd": (
        "Cache rate",
        "More or less of the prompt from a cache.",
        GroupBy.MODEL,
    ),
    "price_pico_usd": ("Price", "Other rates.", GroupBy.PROVIDER),
    "other_pico_usd": ("Other", "Costs that no line of an attempt explains.", GroupBy.QUALITY),
}
"""Label, meaning and the Explorer's dimension of each part, in the order of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLine:
    """A part of the change.

    Attributes:
        label: What it is called.
        meaning: What it says, one sentence.
        amount: Signed.
        href: Both months in the Explorer, by what the part is about; empty where it is not theirs.
    """

    label: str
    meaning: str
    amount: Shown
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLine:
    """What a deployment adds to the change.

    Attributes:
        deployment: `provider/model-id`.
        parts: In the order of the columns.
        change: Their sum.
        href: Its usage in the Explorer, empty where that is not theirs.
    """

    deployment: str
    parts: Sequence[Shown]
    change: Shown
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """A key behind a day that stood out.

    Attributes:
        name: What it is called, else its id; empty for no key.
        key_id: Its public id.
        amount: What it cost on the day.
        expected: The median of such days.
        href: Its requests of the day.
    """

    name: str
    key_id: str
    amount: Shown
    expected: Shown
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyLine:
    """A day that stood out.

    Attributes:
        day: UTC.
        team: Empty for none.
        model: The name that was asked for.
        amount: What it cost.
        expected: The median of such days.
        excess: The difference.
        score: Median absolute deviations away.
        keys: Those behind it.
        href: The day in the Explorer by key, empty where that is not theirs.
        requests_href: Its requests.
    """

    day: str
    team: str
    model: str
    amount: Shown
    expected: Shown
    excess: Shown
    score: str
    keys: Sequence[KeyLine]
    href: str
    requests_href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryPage:
    """Everything that the page shows.

    Attributes:
        before: Cost of the earlier month.
        after: Cost of the later one.
        difference: The later less the earlier.
        change: The same in per cent.
        figure: The waterfall.
        parts: From the one to the other.
        columns: Labels of the parts that products are told by.
        products: By the size of their change.
        hidden_products: Those that are not listed.
        anomalies: Newest first.
        is_empty: Whether neither month cost anything.
    """

    before: Shown
    after: Shown
    difference: Shown
    change: str
    figure: Figure
    parts: Sequence[PartLine]
    columns: Sequence[str]
    products: Sequence[ProductLine]
    hidden_products: int
    anomalies: Sequence[AnomalyLine]
    is_empty: bool


def story_page(
    bridge: BridgeReport,
    anomalies: Sequence[FoundAnomaly],
    *,
    before: Month,
    after: Month,
    team: str,
    key_name: Callable[[str], str],
    sees_spend: bool,
) -> StoryPage:
    """Make the page.

    Args:
        bridge: From the one month to the other.
        anomalies: Days of the later month.
        before: The month that is compared with.
        after: The month that is told.
        team: Whose bridge it is, empty for everybody's.
        key_name: What the key of an id is called, empty where nobody knows.
        sees_spend: Whether whoever looks may follow links into the Explorer.
    """
    amounts = _amounts(bridge.effects)
    names = [name for name in EFFECTS if name != "other_pico_usd" or amounts[name]]
    difference = bridge.after_pico_usd - bridge.before_pico_usd
    days = (min(before.first, after.first), max(before.last, after.last))

    def link(by: str, **filters: str) -> str:
        said = ({GroupBy.TEAM.value: team} if team else {}) | filters
        return _explorer(by, days, GroupBy.MONTH, said) if sees_spend else ""

    listed = bridge.products[:PRODUCTS_LISTED_MAX]
    return StoryPage(
        before=shown(bridge.before_pico_usd),
        after=shown(bridge.after_pico_usd),
        difference=shown(difference),
        change=change_text(bridge.after_pico_usd, bridge.before_pico_usd),
        figure=_figure(bridge, names, amounts, before, after),
        parts=[
            PartLine(
                label=EFFECTS[name][0],
                meaning=EFFECTS[name][1],
                amount=amount,
                href=link(EFFECTS[name][2]),
            )
            for name, amount in zip(
                names, shown_together([amounts[name] for name in names]), strict=True
            )
        ],
        columns=[EFFECTS[name][0] for name in names if name != "other_pico_usd"],
        products=[
            ProductLine(
                deployment=one.deployment,
                parts=[
                    shown(amount)
                    for name, amount in _amounts(one.effects).items()
                    if name != "other_pico_usd"
                ],
                change=shown(one.change_pico_usd),
                href=link(GroupBy.TEAM, **{GroupBy.DEPLOYMENT.value: one.deployment}),
            )
            for one in listed
        ],
        hidden_products=len(bridge.products) - len(listed),
        anomalies=[
            anomaly_line(one, key_name=key_name, sees_spend=sees_spend)
            for one in anomalies
            if not team or one.team == team
        ],
        is_empty=not bridge.before_pico_usd and not bridge.after_pico_usd and not bridge.products,
    )


def anomaly_line(
    found: FoundAnomaly, *, key_name: Callable[[str], str], sees_spend: bool
) -> AnomalyLine:
    """A day that stood out, with the ways to what is behind it."""
    day = date.fromisoformat(found.day)
    filters = {GroupBy.TEAM.value: found.team, GroupBy.MODEL.value: found.model}
    # The Explorer knows no filter for spend of nobody; it is told by team then.
    by = GroupBy.KEY if found.team else GroupBy.TEAM
    named = {name: value for name, value in filters.items() if value}
    return AnomalyLine(
        day=found.day,
        team=found.team,
        model=found.model,
        amount=shown(found.amount_pico_usd),
        expected=shown(found.expected_pico_usd),
        excess=shown(found.excess_pico_usd),
        score=f"{found.score_permille // 1000:,}.{found.score_permille % 1000 // 100}",
        keys=[_key_line(one, found.day, filters, key_name) for one in found.keys],
        href=_explorer(by, (day, day), GroupBy.HOUR, named) if sees_spend else "",
        requests_href=_requests(found.day, filters),
    )


def _key_line(
    share: KeyShare, day: str, filters: Mapping[str, str], key_name: Callable[[str], str]
) -> KeyLine:
    return KeyLine(
        name=key_name(share.key_id) or share.key_id,
        key_id=share.key_id,
        amount=shown(share.amount_pico_usd),
        expected=shown(share.expected_pico_usd),
        href=_requests(day, {**filters, GroupBy.KEY.value: share.key_id}),
    )


def _amounts(effects: BridgeEffects) -> dict[str, int]:
    said = cast("dict[str, int]", msgspec.structs.asdict(effects))
    return {name: said[name] for name in EFFECTS}


def _figure(
    bridge: BridgeReport,
    names: Sequence[str],
    amounts: Mapping[str, int],
    before: Month,
    after: Month,
) -> Figure:
    falls = [Fall(label=before.title, start=0, end=bridge.before_pico_usd, is_total=True)]
    at = bridge.before_pico_usd
    for name in names:
        falls.append(Fall(label=EFFECTS[name][0], start=at, end=at + amounts[name]))
        at += amounts[name]
    falls.append(Fall(label=after.title, start=0, end=bridge.after_pico_usd, is_total=True))
    return charts.waterfall(falls)


def _explorer(by: str, days: tuple[date, date], step: str, filters: Mapping[str, str]) -> str:
    said = {"by": by, "per": step, "from": days[0].isoformat(), "to": days[1].isoformat()}
    return f"{explorer.PATH}?{urlencode({**said, **filters})}"


def _requests(day: str, filters: Mapping[str, str]) -> str:
    return f"{attempts.PATH}?{urlencode({'from': day, 'to': day, **filters})}"
