"""What the ledger process is asked and what it answers, without the database behind it.

Workers import this module and never the ones that query: they load no SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from gateway.auth.directory import KeyRecord
from gateway.forms import FormSent


class GroupBy(StrEnum):
    """What a report has a row for; `cost_tag:<name>` is another."""

    TEAM = "team"
    PROJECT = "project"
    COST_CENTRE = "cost_centre"
    """Of the project, else of the team, as the configuration says now."""
    KEY = "key"
    MODEL = "model"
    PROVIDER = "provider"
    DEPLOYMENT = "deployment"
    PRIVACY_TAGS = "privacy_tags"
    """The whole set of a request's privacy tags, joined by commas."""
    PRIVACY_TAG = "privacy_tag"
    """Each privacy tag: a request with two of them is in two rows."""
    STATUS = "status"
    QUALITY = "quality"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday, by its ISO 8601 number."""
    MONTH = "month"
    FISCAL_YEAR = "fiscal_year"


TIMES = (GroupBy.HOUR, GroupBy.DAY, GroupBy.WEEK, GroupBy.MONTH, GroupBy.FISCAL_YEAR)
COST_TAG = "cost_tag:"
"""Before the name of a cost tag that a report groups or filters by."""
USD = "USD"


_NAMES = frozenset(one.value for one in GroupBy)


def is_dimension(name: str) -> bool:
    """Whether reports can be grouped by a name."""
    return name in _NAMES or (name.startswith(COST_TAG) and len(name) > len(COST_TAG))


class DayRate(msgspec.Struct, frozen=True, array_like=True):
    """What a dollar is worth in the report's currency on a day.

    Attributes:
        day: UTC days since 1970-01-01.
        rate: Above 0, exact: `108/100` or `2`. As text, for its parts may be of any length.
    """

    day: int
    rate: str


class CostCentre(msgspec.Struct, frozen=True, array_like=True):
    """What the configuration charges a team or a project to.

    Attributes:
        team: Empty for spend of no team.
        project: Empty for all of the team's that have none of their own.
        name: As the general ledger calls it.
    """

    team: str
    project: str
    name: str


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which report is wanted.

    Attributes:
        group_by: One or more dimensions, in the order of the columns: `GroupBy` values, and
            `cost_tag:<name>`.
        from_us: First instant, microseconds since the epoch; None for the beginning.
        to_us: First instant after the last; None for no end.
        filters: Exact values by dimension, any one of several; a privacy tag matches every request
            that carries it. Times are not among them.
        teams: Only these teams may be seen, whatever the filters say; None for all. Whoever asks
            for somebody sets it.
        zone: IANA name of the time zone of hours, days and months.
        fiscal_month: Month in which the fiscal year begins, 1 to 12.
        currency: Three letters of ISO 4217; for others than USD `rates` are needed.
        rates: Of every UTC day on which something was spent.
        cost_centres: Who is charged to which, for reports by cost centre.
        with_adjustments: Whether each row also says what the months of the range are charged for.
    """

    group_by: tuple[str, ...] = (GroupBy.TEAM,)
    from_us: int | None = None
    to_us: int | None = None
    filters: Mapping[str, str | tuple[str, ...]] = {}
    teams: tuple[str, ...] | None = None
    zone: str = "UTC"
    fiscal_month: int = 1
    currency: str = USD
    rates: tuple[DayRate, ...] = ()
    cost_centres: tuple[CostCentre, ...] = ()
    with_adjustments: bool = False


class PeriodSums(msgspec.Struct, frozen=True, kw_only=True):
    """What months are charged for; the parts are those of a month's close.

    Attributes:
        booked_pico_usd: What happened in the month and came before it was closed.
        late_pico_usd: Usage of closed months that is counted in this one.
        adjusted_pico_usd: Adjustments of the month.
    """

    booked_pico_usd: int
    late_pico_usd: int
    adjusted_pico_usd: int

    @property
    def total_pico_usd(self) -> int:
        """What is charged."""
        return self.booked_pico_usd + self.late_pico_usd + self.adjusted_pico_usd


class SpendSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one row. Token meters are disjoint: `input_tokens` are fresh ones.

    Attributes:
        requests: Requests, counted where their first attempt went.
        attempts: Calls to deployments, failed ones included.
        unpriced_attempts: Attempts whose price is unknown; they are not in the cost.
        list_price_attempts: Attempts with a public price apart from the one charged.
        provider_cost_attempts: Attempts whose cost the provider told.
        exposure_unknown_attempts: Attempts whose bill is unknown and has no upper bound either.
        compared_attempts: Attempts that are compared with the baseline of their model.
        uncompared_attempts: Attempts whose model has a baseline and that cannot be compared: their
            own cost or that of the baseline is unknown.
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
        baseline_cost_pico_usd: What the compared attempts would have cost at the baseline.
        compared_cost_pico_usd: What they cost, failed ones and retries included.
        failed_cost_pico_usd: The part of the cost whose attempts did not end well.
        saved_pico_usd: Baseline cost less compared cost; negative where the baseline was cheaper.
        compared_failed_pico_usd: The part of the compared cost whose attempts did not end well.
        baseline_estimated_pico_usd: The part of the baseline cost whose counts are not the
            upstream's own.
    """

    requests: int
    attempts: int
    unpriced_attempts: int
    list_price_attempts: int
    provider_cost_attempts: int
    exposure_unknown_attempts: int
    compared_attempts: int
    uncompared_attempts: int
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
    baseline_cost_pico_usd: int
    compared_cost_pico_usd: int
    failed_cost_pico_usd: int
    saved_pico_usd: int
    compared_failed_pico_usd: int
    baseline_estimated_pico_usd: int


AMOUNTS = tuple(name for name in SpendSums.__struct_fields__ if name.endswith("_pico_usd"))
"""Fields of `SpendSums` that are money."""


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        group: The values of the grouping, in its order.
        sums: What it adds up to.
        converted: The amounts in the report's currency, in its picounits, in the order of
            `AMOUNTS`; empty in a report in dollars.
        period: What the months of the range are charged for, in dollars; None where that was not
            asked for.
    """

    group: tuple[str, ...]
    sums: SpendSums
    converted: tuple[int, ...] = ()
    period: PeriodSums | None = None


class SpendReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report: rows by time, then by falling cost, and their total.

    Attributes:
        columns: Names of the grouping; a project's row also names its team.
        rows: Groups with at least one attempt.
        total: Of everything that was asked for, each attempt once.
        total_converted: As `SpendRow.converted`, rounded by itself.
        currency: Of the converted amounts.
        zone: Of hours, days and months.
        is_partition: Whether each attempt is in one row; where it is not, rows do not add up.
        total_period: As `SpendRow.period`, of everything that was asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[SpendRow, ...]
    total: SpendSums
    total_converted: tuple[int, ...] = ()
    currency: str = USD
    zone: str = "UTC"
    is_partition: bool = True
    total_period: PeriodSums | None = None


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
        owner: The person who made it, empty for nobody or unknown.
    """

    record: KeyRecord
    created_at_us: int
    disabled_at_us: int | None
    owner: str = ""


class KeyCreation(msgspec.Struct, frozen=True, kw_only=True):
    """A key to be added.

    Attributes:
        record: The key.
        actor: Who does it, for the audit log.
        owner: The person whose own key it is, empty for nobody.
        form: The page's form that asks for it, which is acted on once.
    """

    record: KeyRecord
    actor: str
    owner: str = ""
    form: FormSent | None = None


class KeyRevocation(msgspec.Struct, frozen=True, kw_only=True):
    """A key to be made void.

    Attributes:
        key_id: Its id.
        actor: Who does it, for the audit log.
        at_us: From when on, microseconds since the epoch; None for at once.
    """

    key_id: str
    actor: str
    at_us: int | None = None
