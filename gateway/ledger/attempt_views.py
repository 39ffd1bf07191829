"""Single attempts as they are asked for and told, without the database behind them; no content.

Workers import this module and never the one that queries: they load no SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from pricing.quote import CostLine

PAGE_MAX = 200
"""Attempts of one page."""
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class AttemptPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ends; the next one begins right after it.

    Attributes:
        at_us: When the attempt began, microseconds since the epoch.
        event_id: The attempt.
    """

    at_us: int
    event_id: Id


class AttemptQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempts are wanted, newest first.

    Attributes:
        from_us: First instant, microseconds since the epoch.
        to_us: First instant after the last.
        filters: As in `SpendQuery`; times are not among them.
        teams: Only these teams' may be seen, None for all. Whoever asks for somebody sets it.
        after: Where the page before ended, None for the first page.
        count: At most this many, and `PAGE_MAX`.
    """

    from_us: int
    to_us: int
    filters: Mapping[str, str | tuple[str, ...]] = {}
    teams: tuple[str, ...] | None = None
    after: AttemptPlace | None = None
    count: int = 50


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which request's attempts are wanted.

    Attributes:
        request_id: 16 bytes.
        teams: Only these teams' may be seen, None for all.
    """

    request_id: Id
    teams: tuple[str, ...] | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as it is booked; amounts are exact.

    Attributes:
        event_id: 16 bytes.
        request_id: 16 bytes.
        attempt: 1 for the first of its request.
        at_us: When it began, microseconds since the epoch.
        settled_at_us: When its outcome was written.
        team: Empty for the administrator.
        project: Empty for none.
        key_id: Public id of the key.
        model: What was asked for.
        deployment: Where it went.
        privacy_tags: Of the request.
        cost_tags: Pairs of name and value.
        route: The HTTP route.
        is_stream: Whether a stream was asked for.
        reason: Why this deployment was chosen.
        status: An `AttemptStatus` value.
        is_lost: Whether it never settled and was given up.
        is_correction: Whether it settled after it had been given up.
        quality: A `pricing.usage.Quality` value.
        units: By meter; zeros are left out.
        price_version: Identity of the price, empty when unpriced.
        lines: Cost per meter as charged.
        cost_pico_usd: What is booked, None while the price is unknown.
        list_cost_pico_usd: At public prices, None where none is known apart from the one charged.
        provider_cost_pico_usd: What the provider said, None when it did not.
        exposure_pico_usd: Upper bound of what may still be billed, None where nothing may.
        cache_saved_pico_usd: What cache reads saved, None where that is unknown.
        http_status: What the client got.
        error_code: Empty when all went well.
        upstream_request_id: The provider's id.
        finish_reason: As sent to the client.
        ttft_us: Until the first content event, None when there was none.
        duration_us: From start to end.
    """

    event_id: Id
    request_id: Id
    attempt: int
    at_us: int
    settled_at_us: int
    team: str
    project: str
    key_id: str
    model: str
    deployment: str
    privacy_tags: tuple[str, ...]
    cost_tags: tuple[tuple[str, str], ...]
    route: str
    is_stream: bool
    reason: str
    status: str
    is_lost: bool
    is_correction: bool
    quality: str
    units: Mapping[str, int]
    price_version: str
    lines: tuple[CostLine, ...]
    cost_pico_usd: int | None
    list_cost_pico_usd: int | None
    provider_cost_pico_usd: int | None
    exposure_pico_usd: int | None
    cache_saved_pico_usd: int | None
    http_status: int
    error_code: str
    upstream_request_id: str
    finish_reason: str
    ttft_us: int | None
    duration_us: int


class AttemptPage(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts, newest first.

    Attributes:
        attempts: Those that fit.
        next: Where to go on; None at the end.
        is_cut: Whether the page ends because enough was looked through, not because it is full:
            further attempts may fit, or none.
    """

    attempts: tuple[Attempt, ...]
    next: AttemptPlace | None = None
    is_cut: bool = False
