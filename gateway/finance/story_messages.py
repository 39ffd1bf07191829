"""What is asked and answered about why a month cost what it did, and which days stood out."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Day, Month

DAYS_MAX = 62


class BridgeEffects(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a change; their sum is the change, to the picodollar.

    Attributes:
        volume_pico_usd: More or fewer units.
        mix_pico_usd: Other deployments.
        output_share_pico_usd: More or less output per prompt token.
        cache_rate_pico_usd: More or less of the prompt from a cache.
        price_pico_usd: Other rates.
        other_pico_usd: What no line of an attempt says; 0 unless such costs were booked.
    """

    volume_pico_usd: int
    mix_pico_usd: int
    output_share_pico_usd: int
    cache_rate_pico_usd: int
    price_pico_usd: int
    other_pico_usd: int = 0


class ProductEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment adds to the change.

    Attributes:
        deployment: `provider/model-id`.
        effects: Its parts.
        change_pico_usd: Their sum.
    """

    deployment: str
    effects: BridgeEffects
    change_pico_usd: int


class BridgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The way from one month's usage to another's; months are of UTC, usage on its own days.

    Attributes:
        before: The first month.
        after: The second one.
        team: Whose, None for everybody's.
        before_pico_usd: What the first month's usage cost.
        after_pico_usd: What the second month's usage cost.
        effects: Of everything together.
        products: By the size of their change.
    """

    before: str
    after: str
    team: str | None
    before_pico_usd: int
    after_pico_usd: int
    effects: BridgeEffects
    products: tuple[ProductEffects, ...]


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a key added to a day that stood out.

    Attributes:
        key_id: Public id.
        amount_pico_usd: What it cost that day.
        expected_pico_usd: The median of such days.
    """

    key_id: str
    amount_pico_usd: int
    expected_pico_usd: int


class FoundAnomaly(msgspec.Struct, frozen=True, kw_only=True):
    """A day on which a team spent much more on a model than on such days.

    Attributes:
        day: In UTC.
        team: Empty for spend of no team.
        model: The name that was asked for.
        amount_pico_usd: What the day cost.
        expected_pico_usd: The median of such days.
        excess_pico_usd: The difference.
        score_permille: The robust score in thousandths; from 3,500 on a day stands out.
        keys: Those behind it, the largest excess first.
    """

    day: str
    team: str
    model: str
    amount_pico_usd: int
    expected_pico_usd: int
    excess_pico_usd: int
    score_permille: int
    keys: tuple[KeyShare, ...]


class ShowBridge(msgspec.Struct, frozen=True, kw_only=True, tag="show_bridge"):
    """Ask why a month cost more or less than another; of one team when it is given.

    Attributes:
        before: The month that is compared with.
        after: The month that is explained.
        team: Only its usage, None for everybody's.
        teams: Whose usage may be told; None for everybody's, that of no team too.
    """

    before: Month
    after: Month
    team: str | None = None
    teams: tuple[str, ...] | None = None


class ShowAnomalies(msgspec.Struct, frozen=True, kw_only=True, tag="show_anomalies"):
    """Ask which days stood out.

    Attributes:
        first_day: `YYYY-MM-DD`, in UTC.
        last_day: Counted too; at most `DAYS_MAX` days in all.
        excess_pico_usd: Least excess.
        teams: Whose days may be told; None for everybody's, those of no team too.
    """

    first_day: Day
    last_day: Day
    excess_pico_usd: Annotated[int, Meta(ge=1)]
    teams: tuple[str, ...] | None = None
