"""Single attempts on a page: what an address asks for, and attempts as text; no content.

Pure: an address in, a query out; attempts in, texts out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from gateway.budgets.windows import Window, day_start_us
from gateway.clock import from_microseconds, to_microseconds
from gateway.dashboard.figures import NOTHING, Amount, aligned
from gateway.dashboard.finance.explorer import (
    FILTERS,
    BadAddress,
    check_parameters,
    read_days,
)
from gateway.ledger.attempt_views import Attempt, AttemptPlace, AttemptQuery
from gateway.ledger.price_label import is_nominal, plain_version
from gateway.ledger.records import AttemptStatus
from gateway.ledger.views import COST_TAG, GroupBy
from pricing.money import PICO_PER_USD, format_usd
from pricing.quote import CostLine
from pricing.usage import Meter, Quality

PATH = "/ui/requests"
PAGE = 50
FAILED = "failed"
"""As a status: everything that did not end well."""
NOT_EXACT = "not-exact"
"""As a quality: everything whose counts are not the provider's own."""
_STATUSES = {FAILED: tuple(one.value for one in AttemptStatus if one is not AttemptStatus.OK)}
_QUALITIES = {
    NOT_EXACT: tuple(
        one.value for one in Quality if one not in (Quality.EXACT, Quality.PROVIDER_COST)
    )
}
MORE_FILTERS = (GroupBy.STATUS, GroupBy.QUALITY, GroupBy.PRIVACY_TAGS, GroupBy.PRIVACY_TAG)
_QUARTER_US = 900_000_000
_HOUR_US = 4 * _QUARTER_US
_RATE_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an address asks for.

    Attributes:
        first: First day.
        last: Last day, counted too.
        hour: The hour of one cell as reports name it, empty for whole days.
        window: From when to when.
        filters: Value by dimension, as in the address; an empty value stands for having none.
        preset: Name of the period, empty where the days are chosen.
        after: Where the page before ended, None for the first page.
    """

    first: date
    last: date
    hour: str
    window: Window
    filters: Mapping[str, str]
    preset: str
    after: AttemptPlace | None

    def address(self, **changes: object) -> str:
        """The page's first address with some of it changed."""
        said: dict[str, object] = {}
        if self.hour:
            said["hour"] = self.hour
        elif self.preset:
            said["period"] = self.preset
        else:
            said |= {"from": self.first.isoformat(), "to": self.last.isoformat()}
        said |= self.filters
        said |= changes
        return f"{PATH}?{urlencode({k: v for k, v in said.items() if v is not None})}"

    @property
    def dimensions(self) -> dict[str, str | tuple[str, ...]]:
        """The filters as the ledger takes them."""
        found: dict[str, str | tuple[str, ...]] = {}
        for name, value in self.filters.items():
            chosen: str | tuple[str, ...] = value
            if name == GroupBy.STATUS:
                chosen = _STATUSES.get(value, value)
            elif name == GroupBy.QUALITY:
                chosen = _QUALITIES.get(value, value)
            found[name] = chosen
        return found

    def query(self, teams: tuple[str, ...] | None) -> AttemptQuery:
        """What the ledger is asked."""
        return AttemptQuery(
            from_us=self.window.start_us,
            to_us=self.window.end_us,
            filters=self.dimensions,
            teams=teams,
            after=self.after,
            count=PAGE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One meter's cost as text.

    Attributes:
        meter: What was counted.
        units: How many, digits grouped.
        rate: The price, with what it is for.
        cost: Exact dollars.
        list_rate: The public price, a dash where none is known apart.
        list_cost: The same units at it.
    """

    meter: str
    units: str
    rate: str
    cost: str
    list_rate: str
    list_cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt as text; what is unknown is a dash.

    Attributes:
        href: The page of its request.
        instant: ISO 8601, for machines.
        time: In the zone of the page.
        key: What the key is called; its id where that is not known.
        is_ok: Whether it ended well.
        cost: None while the price is unknown.
        is_estimated: Whether the counts are not the provider's own.
        price_version: Identity of the price, without the mark of a nominal one.
        facts: Everything else that is known, by name.
    """

    event_id: str
    href: str
    request_id: str
    number: int
    instant: str
    time: str
    team: str
    project: str
    key: str
    key_id: str
    model: str
    deployment: str
    reason: str
    outcome: str
    is_ok: bool
    quality: str
    is_estimated: bool
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    ttft: str
    duration: str
    cost: Amount | None
    price_version: str
    is_nominal: bool
    lines: Sequence[Line]
    facts: Sequence[tuple[str, str]]


def read_wanted(
    given: Mapping[str, str],
    *,
    now_us: int,
    zone: str,
    fiscal_month: int = 1,
    cost_tags: Sequence[str] = (),
) -> Wanted:
    """Read what an address asks for.

    Args:
        given: Its parameters.
        now_us: Microseconds since the epoch.
        zone: IANA name of the zone of its days and hours.
        fiscal_month: Month in which the fiscal year begins.
        cost_tags: Names that can be filtered by.

    Raises:
        BadAddress: A parameter is unknown or has no meaning.
    """
    dimensions = (*FILTERS, *MORE_FILTERS, *(f"{COST_TAG}{name}" for name in cost_tags))
    check_parameters(given, (*dimensions, "period", "from", "to", "hour", "after"))
    hour = given.get("hour", "")
    if hour:
        window = _hour(hour, zone)
        first = last = from_microseconds(window.start_us).astimezone(ZoneInfo(zone)).date()
        preset = ""
    else:
        first, last, preset = read_days(given, now_us=now_us, zone=zone, fiscal_month=fiscal_month)
        window = Window(
            start_us=day_start_us(first, zone), end_us=day_start_us(last + timedelta(days=1), zone)
        )
    return Wanted(
        first=first,
        last=last,
        hour=hour,
        window=window,
        filters={name: given[name] for name in dimensions if name in given},
        preset=preset,
        after=_place(given.get("after", "")),
    )


def place_text(place: AttemptPlace) -> str:
    """Where a page ends, as it stands in an address."""
    return f"{place.at_us}.{place.event_id.hex()}"


def attempt_lines(
    attempts: Sequence[Attempt], *, zone: str, key_name: Callable[[str], str]
) -> list[AttemptLine]:
    """Attempts as text.

    Args:
        attempts: As they are booked.
        zone: IANA name of the zone of the times.
        key_name: What the key of an id is called, empty where nobody knows.
    """
    costs = iter(aligned([one.cost_pico_usd for one in attempts if one.cost_pico_usd is not None]))
    return [
        _attempt_line(
            one, ZoneInfo(zone), key_name, None if one.cost_pico_usd is None else next(costs)
        )
        for one in attempts
    ]


def rate_text(rate_pico_usd: int, per_units: int, meter: str) -> str:
    """A price with what it is for; exact where twelve decimals say it."""
    count, unit = _RATES.get(meter, (1_000_000, "million tokens"))
    exact = Fraction(rate_pico_usd * count, per_units * PICO_PER_USD)
    scaled = exact * 10**_RATE_DIGITS
    sign = "" if scaled.denominator == 1 else "about "
    return f"{sign}{format_usd(round(scaled))} USD per {unit}"


def _hour(text: str, zone: str) -> Window:
    """The quarter-hours that an hour of a report consists of.

    Where clocks change inside of an hour the report has two rows, told apart by their offset.
    """
    try:
        start = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadAddress(
            f"hour: {text[:64]!r} is no hour such as 2026-11-01T14:00+00:00"
        ) from error
    if start.tzinfo is None or not 1970 < start.year < 9998:
        raise BadAddress(f"hour: {text[:64]!r} says no offset such as +00:00, or is out of range")
    start_us = to_microseconds(start)
    offset = start.utcoffset()
    quarters = [
        at_us
        for at_us in range(start_us, start_us + _HOUR_US, _QUARTER_US)
        if from_microseconds(at_us).astimezone(ZoneInfo(zone)).utcoffset() == offset
    ]
    if not quarters or start_us % _QUARTER_US:
        raise BadAddress(f"hour: {text[:64]!r} is no hour of {zone}")
    return Window(start_us=quarters[0], end_us=quarters[-1] + _QUARTER_US)


def _place(text: str) -> AttemptPlace | None:
    if not text:
        return None
    at_us, _, event_id = text.partition(".")
    try:
        if not (at_us.isascii() and at_us.isdigit() and len(at_us) <= 17 and len(event_id) == 32):
            raise ValueError
        return AttemptPlace(int(at_us), bytes.fromhex(event_id))
    except ValueError as error:
        raise BadAddress("after: that is no place where a page ends") from error


def _attempt_line(
    attempt: Attempt, zone: ZoneInfo, key_name: Callable[[str], str], cost: Amount | None
) -> AttemptLine:
    at = from_microseconds(attempt.at_us)
    units, request_id = attempt.units, attempt.request_id.hex()
    prompt = sum(units.get(one, 0) for one in (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE))
    status = attempt.status.replace("_", " ")
    return AttemptLine(
        event_id=attempt.event_id.hex(),
        href=f"{PATH}/{request_id}",
        request_id=request_id,
        number=attempt.attempt,
        instant=at.isoformat(timespec="milliseconds"),
        time=at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"),
        team=attempt.team,
        project=attempt.project,
        key=key_name(attempt.key_id) or attempt.key_id,
        key_id=attempt.key_id,
        model=attempt.model,
        deployment=attempt.deployment,
        reason=attempt.reason,
        outcome=f"{status}: {attempt.error_code}" if attempt.error_code else status,
        is_ok=attempt.status == AttemptStatus.OK and not attempt.error_code,
        quality=attempt.quality.replace("_", " "),
        is_estimated=attempt.quality not in (Quality.EXACT, Quality.PROVIDER_COST),
        input_tokens=f"{prompt:,}",
        cached_tokens=f"{units.get(Meter.CACHE_READ, 0):,}",
        output_tokens=f"{units.get(Meter.OUTPUT, 0) + units.get(Meter.REASONING, 0):,}",
        ttft=_milliseconds(attempt.ttft_us),
        duration=_milliseconds(attempt.duration_us),
        cost=cost,
        price_version=plain_version(attempt.price_version),
        is_nominal=is_nominal(attempt.price_version),
        lines=[_line(line) for line in attempt.lines],
        facts=_facts(attempt),
    )


def _line(line: CostLine) -> Line:
    list_rate = line.list_rate_pico_usd
    list_cost = line.list_cost_pico_usd
    return Line(
        meter=METER_NAMES.get(line.meter, line.meter),
        units=f"{line.units:,}",
        rate=rate_text(line.rate_pico_usd, line.rate_per_units, line.meter),
        cost=format_usd(line.cost_pico_usd),
        list_rate=NOTHING
        if list_rate is None
        else rate_text(list_rate, line.list_rate_per_units, line.meter),
        list_cost=NOTHING if list_cost is None else format_usd(list_cost),
    )


def _facts(attempt: Attempt) -> list[tuple[str, str]]:
    """What is told of an attempt beside its cost lines."""
    money = {
        "At list prices": attempt.list_cost_pico_usd,
        "Told by the provider": attempt.provider_cost_pico_usd,
        "Saved by caches": attempt.cache_saved_pico_usd,
        "May still be billed, at most": attempt.exposure_pico_usd,
    }
    states = [
        text
        for is_so, text in (
            (attempt.is_lost, "never settled, given up"),
            (attempt.is_correction, "settled after it had been given up"),
        )
        if is_so
    ]
    tags = ", ".join(f"{name}={value}" for name, value in attempt.cost_tags)
    return [
        *((name, f"{format_usd(value)} USD") for name, value in money.items() if value is not None),
        *(("Note", text) for text in states),
        ("Route", f"{attempt.route}, {'stream' if attempt.is_stream else 'whole answer'}"),
        ("Privacy tags", ", ".join(attempt.privacy_tags) or NOTHING),
        ("Cost tags", tags or NOTHING),
        ("Status to the client", str(attempt.http_status or NOTHING)),
        ("Finish reason", attempt.finish_reason or NOTHING),
        ("Provider's request id", attempt.upstream_request_id or NOTHING),
    ]


def _milliseconds(duration_us: int | None) -> str:
    return NOTHING if duration_us is None else f"{duration_us // 1000:,} ms"


METER_NAMES: Mapping[str, str] = {
    Meter.INPUT: "Input tokens",
    Meter.CACHE_READ: "Tokens read from a cache",
    Meter.CACHE_WRITE: "Tokens written to a cache",
    Meter.OUTPUT: "Output tokens",
    Meter.REASONING: "Reasoning tokens",
    Meter.IMAGES: "Images",
    Meter.AUDIO_MS: "Milliseconds of audio",
    Meter.GPU_US: "Busy microseconds",
    Meter.REQUESTS: "Requests",
}
_RATES: Mapping[str, tuple[int, str]] = {
    Meter.IMAGES: (1, "image"),
    Meter.AUDIO_MS: (3_600_000, "hour of audio"),
    Meter.GPU_US: (3_600_000_000, "busy hour"),
    Meter.REQUESTS: (1, "request"),
}
