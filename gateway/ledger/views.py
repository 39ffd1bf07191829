"""What the ledger process is asked and what it answers, without the database behind it.

Workers import this module and never the ones that query: they load no SQLAlchemy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import cast

import msgspec

from gateway.auth.directory import KeyRecord
from pricing.money import format_usd


class GroupBy(StrEnum):
    """What a report has a row for."""

    TEAM = "team"
    PROJECT = "project"
    MODEL = "model"
    DEPLOYMENT = "deployment"
    KEY = "key"
    DAY = "day"


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which report is wanted.

    Attributes:
        group_by: One or more dimensions, in the order of the columns.
        from_us: First instant, microseconds since the epoch; None for the beginning.
        to_us: First instant after the last; None for no end.
        filters: Exact values by dimension; `day` is not among them.
        teams: Only what these teams spent, None for everything: what whoever asks may see.
    """

    group_by: tuple[GroupBy, ...] = (GroupBy.TEAM,)
    from_us: int | None = None
    to_us: int | None = None
    filters: dict[GroupBy, str] = {}
    teams: tuple[str, ...] | None = None


class SpendSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one row. Token meters are disjoint: `input_tokens` are fresh ones.

    Attributes:
        requests: Requests, counted where their first attempt went.
        attempts: Calls to deployments, failed ones included.
        unpriced_attempts: Attempts whose price is unknown; they are not in the cost.
        list_price_attempts: Attempts with a public price apart from the one charged.
        provider_cost_attempts: Attempts whose cost the provider told.
        exposure_unknown_attempts: Attempts whose bill is unknown and has no upper bound either.
        input_tokens: Neither read from nor written to a cache.
        cached_input_tokens: Read from a cache.
        cache_write_tokens: Written to a cache at a rate of their own.
        output_tokens: Generated, reasoning included unless billed apart.
        reasoning_tokens: Reasoning billed apart.
        images: Generated images.
        audio_ms: Milliseconds of audio.
        gpu_us: Busy microseconds of our machines.
        billed_requests: Requests billed by number.
        cost_pico_usd: What was booked.
        list_cost_pico_usd: The same at public prices; the cost, where no public price is known.
        provider_cost_pico_usd: What providers told, of those attempts alone.
        estimated_cost_pico_usd: The part of it whose counts are not the upstream's own.
        nominal_cost_pico_usd: The part of it at a nominal machine rate.
        exposure_pico_usd: Upper bound of attempts whose bill is unknown; not in the cost.
        cache_saved_pico_usd: What cache reads would have cost as fresh input less what they cost.
    """

    requests: int
    attempts: int
    unpriced_attempts: int
    list_price_attempts: int
    provider_cost_attempts: int
    exposure_unknown_attempts: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    images: int
    audio_ms: int
    gpu_us: int
    billed_requests: int
    cost_pico_usd: int
    list_cost_pico_usd: int
    provider_cost_pico_usd: int
    estimated_cost_pico_usd: int
    nominal_cost_pico_usd: int
    exposure_pico_usd: int
    cache_saved_pico_usd: int


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row: the values of the grouping, in its order, and the sums."""

    group: tuple[str, ...]
    sums: SpendSums


class SpendReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report: rows by falling cost, days ascending, and their total.

    Attributes:
        columns: Names of the grouping; a project's row also names its team.
        rows: Groups with at least one attempt.
        total: The sum of the rows.
    """

    columns: tuple[str, ...]
    rows: tuple[SpendRow, ...]
    total: SpendSums


class RecentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are wanted, newest first.

    Attributes:
        count: At most this many.
        team: Only this team's, None for all; empty means those without a team.
        teams: Only these teams', None for all: what whoever asks may see.
    """

    count: int
    team: str | None = None
    teams: tuple[str, ...] | None = None


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; its last attempt says how it ended, amounts are of all attempts.

    Attributes:
        request_id: 32 hexadecimal digits.
        at_us: When its first attempt began, microseconds since the epoch.
        team: Empty for the administrator.
        project: Empty for none.
        key_id: Public id of the key.
        model: What was asked for.
        deployment: Where the last attempt went.
        reason: Why that deployment was chosen.
        attempts: How many there were.
        input_tokens: Prompt tokens, cached or not.
        cached_input_tokens: Those read from a cache.
        output_tokens: Generated tokens.
        cost_pico_usd: Sum over the attempts with a known price; None when none has one.
        is_estimated: Whether a count is not the upstream's own.
        ttft_us: Until the first content event, None when there was none.
        duration_us: Of the last attempt.
        status: An `AttemptStatus` value.
        error_code: Empty when all went well.
    """

    request_id: str
    at_us: int
    team: str
    project: str
    key_id: str
    model: str
    deployment: str
    reason: str
    attempts: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_pico_usd: int | None
    is_estimated: bool
    ttft_us: int | None
    duration_us: int
    status: str
    error_code: str


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key's record and its dates.

    Attributes:
        record: What workers need.
        created_at_us: Microseconds since the epoch.
        disabled_at_us: When it was revoked, None while it is in use.
    """

    record: KeyRecord
    created_at_us: int
    disabled_at_us: int | None


def report_document(report: SpendReport) -> dict[str, object]:
    """The report as `spend report --format json` prints it: amounts as strings and integers."""
    return {
        "rows": [
            {**dict(zip(report.columns, row.group, strict=True)), **sums_document(row.sums)}
            for row in report.rows
        ],
        "total": sums_document(report.total),
    }


def sums_document(sums: SpendSums) -> dict[str, int | str]:
    """Sums by name, each amount both exact in dollars, as a string, and in picodollars."""
    document: dict[str, int | str] = {}
    for name, value in cast("dict[str, int]", msgspec.structs.asdict(sums)).items():
        if name.endswith("_pico_usd"):
            document[f"{name.removesuffix('_pico_usd')}_usd"] = format_usd(value)
        document[name] = value
    return document
