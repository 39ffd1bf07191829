"""What an attempt writes to the spool: an intent before dispatch, a settlement at the end.

None of the structs can be part of a reference cycle, so the garbage collector need not look at them
(`gc=False`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.budgets.holds import Hold
from gateway.clock import Clock
from gateway.errors import LedgerUnavailable
from gateway.ledger.errors import SpoolError
from gateway.ledger.price_label import price_label
from gateway.ledger.records import AttemptStatus, Intent, Record, Settlement
from pricing.baseline import Baseline, baseline_cost
from pricing.errors import PricingError
from pricing.money import PicoUsd, round_reported_usd
from pricing.price_book import PriceVersion, Unpriced
from pricing.quote import EVENT_PICO_USD_MAX, Charge, CostLine, cache_saved, charge
from pricing.usage import METER_PLACES, Quality, Usage
from providers.contract import UsageReport

LEDGER_RETRY_S = 5.0
CODE_CHARS_MAX = 64
REQUEST_ID_CHARS_MAX = 200
"""Upstreams name their errors and requests; a hostile one shall not fill the ledger with it."""

_STATUS_NAMES = {status: status.value for status in AttemptStatus}
_EXACT, _ESTIMATED, _UNKNOWN = (
    quality.value for quality in (Quality.EXACT, Quality.ESTIMATED, Quality.UNKNOWN)
)
# Reading an enum's value costs two calls.
_REQUESTS = METER_PLACES["requests"]


class Spool(Protocol):
    """The part of the spool writer that attempts use."""

    def append(self, record: Record) -> int:
        """Hand a record to the kernel and return its position.

        Raises:
            SpoolError: Nothing was written.
        """
        ...

    async def durable(self, position: int) -> None:
        """Return once everything up to the position is on disk.

        Raises:
            SpoolError: The disk failed.
        """
        ...


class Booking(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whom and what an attempt is booked on; the same for every attempt of a request.

    Attributes:
        request_id: 16 bytes.
        model: What the client asked for, resolved to the logical name.
        team: Team name.
        project: Project name, empty for none.
        key_id: Public id of the key.
        tags: Closed privacy tags, sorted.
        cost_tags: Cost tags, sorted.
        route: For example `chat.completions`.
        is_stream: Whether the client asked for a stream.
        baseline: What its attempts are compared with, None without any.
    """

    request_id: bytes
    model: str
    team: str
    project: str
    key_id: str
    tags: tuple[str, ...]
    cost_tags: tuple[tuple[str, str], ...]
    route: str
    is_stream: bool
    baseline: Baseline | None = None


class Outcome(msgspec.Struct, kw_only=True, gc=False):
    """What is known when an attempt ends; filled while it runs.

    Attributes:
        status: How it ended; pessimistic until something better is known.
        usage: The last report.
        is_usage_final: Whether that report counts everything, not only what came until the break.
        output_tokens_estimate: From what passed, for a booking where the upstream gives no counts;
            zero where nothing passed.
        prompt_tokens_estimate: For the same.
        http_status: What the client gets.
        error_code: Empty when all went well.
        upstream_request_id: Empty when unknown.
        finish_reason: Empty when there was none.
        ttft_us: None until content was sent.
    """

    status: AttemptStatus = AttemptStatus.UNKNOWN_BILLING
    usage: UsageReport | None = None
    is_usage_final: bool = False
    output_tokens_estimate: int = 0
    prompt_tokens_estimate: int = 0
    http_status: int = 0
    error_code: str = ""
    upstream_request_id: str = ""
    finish_reason: str = ""
    ttft_us: int | None = None


class OpenAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt whose intent is in the spool."""

    event_id: bytes
    started_s: float
    price: PriceVersion | Unpriced
    position: int
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Writes intents and settlements.

    Attributes:
        spool: Where to.
        clock: For instants and durations.
        new_id: Makes event ids.
        durable_wait_s: Longest wait for the disk with `durability: strict`; a slower one is as good
            as failed.
    """

    spool: Spool
    clock: Clock
    new_id: Callable[[], bytes]
    durable_wait_s: float = 10.0

    def open(
        self,
        booking: Booking,
        *,
        attempt: int,
        deployment: str,
        reason: str,
        price: PriceVersion | Unpriced,
        exposure_pico_usd: PicoUsd | None,
        lifetime_s: float,
        hold: Hold,
    ) -> OpenAttempt:
        """Write the intent; nothing may be dispatched unless this returned.

        Args:
            booking: Whom it is booked on; what follows is as in `Intent`.
            attempt: 1 for the first.
            deployment: `provider/model-id`.
            reason: Why it was chosen.
            price: What it is charged with.
            exposure_pico_usd: The most that it is taken to cost.
            lifetime_s: Until it counts as lost.
            hold: What its budgets hold for it; `NO_HOLD` where none counts it.

        Raises:
            LedgerUnavailable: The spool takes no record (disk full, failed disk).
        """
        provider, _, upstream_model = deployment.partition("/")
        event_id = self.new_id()
        intent = Intent(
            event_id=event_id,
            at_us=self.clock.wall_us() if hold.at_us is None else hold.at_us,
            request_id=booking.request_id,
            attempt=attempt,
            deployment=deployment,
            provider=provider,
            upstream_model=upstream_model,
            model=booking.model,
            team=booking.team,
            project=booking.project,
            key_id=booking.key_id,
            tags=booking.tags,
            cost_tags=booking.cost_tags,
            reason=reason,
            price_version=_price_version(price),
            exposure_pico_usd=exposure_pico_usd,
            is_stream=booking.is_stream,
            route=booking.route,
            lifetime_s=lifetime_s,
            hold_pico_usd=hold.amount_pico_usd,
            lease_ids=hold.lease_ids,
        )
        try:
            position = self.spool.append(intent)
        except SpoolError as error:
            raise LedgerUnavailable(
                "the spend journal cannot be written, so nothing is dispatched; the operator must"
                " free disk space or mend the disk (see /readyz)",
                retry_after_s=LEDGER_RETRY_S,
            ) from error
        return OpenAttempt(
            event_id=event_id,
            started_s=self.clock.monotonic_s(),
            price=price,
            position=position,
            baseline=booking.baseline,
        )

    async def wait_durable(self, attempt: OpenAttempt) -> None:
        """Wait until the intent is on disk (`durability: strict`).

        Raises:
            LedgerUnavailable: The disk failed, or takes too long.
        """
        try:
            async with asyncio.timeout(self.durable_wait_s):
                await self.spool.durable(attempt.position)
        except (SpoolError, TimeoutError) as error:
            raise LedgerUnavailable(
                "the spend journal cannot be written, so nothing is dispatched",
                retry_after_s=LEDGER_RETRY_S,
            ) from error

    def settle(self, attempt: OpenAttempt, outcome: Outcome) -> Settlement:
        """Write the settlement; without await, so that no cancellation can part it.

        Raises:
            SpoolError: It could not be written; the loader will book the intent as unknown.
        """
        report = outcome.usage
        reported_usd: str | None = None
        if report is None:
            usage, quality = _uncounted(outcome)
        else:
            usage, reported_usd = report.usage, report.provider_cost_usd
            is_exact = report.is_consistent and outcome.is_usage_final
            quality = _EXACT if is_exact else _ESTIMATED
        used = usage.named()
        lines: tuple[CostLine, ...] = ()
        cost_pico_usd: PicoUsd | None = None
        list_pico_usd: PicoUsd | None = None
        saved_pico_usd: int | None = None
        if not isinstance(attempt.price, Unpriced):
            if used and attempt.price.plan[_REQUESTS]:
                used["requests"] = used.get("requests") or 1  # what has counts was answered
            charged = charge(used, attempt.price)
            # Counts that cost more than an entry can hold are an upstream's nonsense: unpriced.
            if isinstance(charged, Charge) and charged.fits:
                lines, cost_pico_usd = charged.lines, charged.total_pico_usd
                list_pico_usd = charged.list_pico_usd
                saved_pico_usd = cache_saved(used, attempt.price)
        baseline = attempt.baseline
        settlement = Settlement(
            event_id=attempt.event_id,
            settled_at_us=self.clock.wall_us(),
            status=_STATUS_NAMES[outcome.status],
            quality=quality,
            usage=used,
            lines=lines,
            cost_pico_usd=cost_pico_usd,
            provider_cost_pico_usd=None if reported_usd is None else _provider_cost(reported_usd),
            http_status=outcome.http_status,
            error_code=outcome.error_code and _identifier(outcome.error_code, CODE_CHARS_MAX),
            upstream_request_id=_identifier(outcome.upstream_request_id, REQUEST_ID_CHARS_MAX),
            finish_reason=_identifier(outcome.finish_reason, CODE_CHARS_MAX),
            ttft_us=outcome.ttft_us,
            duration_us=round((self.clock.monotonic_s() - attempt.started_s) * 1_000_000),
            list_cost_pico_usd=list_pico_usd,
            cache_saved_pico_usd=saved_pico_usd,
            baseline="" if baseline is None else baseline.label,
            baseline_cost_pico_usd=None
            if baseline is None or cost_pico_usd is None
            else _baseline_cost(outcome, used, quality, baseline),
        )
        self.spool.append(settlement)
        return settlement


def _price_version(price: PriceVersion | Unpriced) -> str:
    """Identity of a price, empty where there is none."""
    if isinstance(price, Unpriced):
        return ""
    if price.is_nominal:
        return price_label(price.version_id, is_nominal=True)
    return price.version_id


def _identifier(text: str, chars_max: int) -> str:
    """What an upstream gave as a name; `unnamed` for any other text, which may be content (G7)."""
    cut = text[:chars_max]
    is_name = cut.isascii() and cut.isprintable() and " " not in cut
    return cut if is_name else "unnamed"


def _uncounted(outcome: Outcome) -> tuple[Usage, str]:
    """What is charged where the upstream gave no counts, by `finance_policy.md` 2.4.

    Counts of the upstream always win. Without them a refused attempt used nothing, exactly; an
    answer that went through, or that a client cut, is counted from what passed; an empty answer and
    a stream that broke are booked as nothing with their exposure kept: elsewhere a guess billed
    23 USD for one broken prompt.
    """
    match outcome.status:
        case AttemptStatus.NOT_SENT | AttemptStatus.REJECTED:
            return Usage(), _EXACT
        case AttemptStatus.OK | AttemptStatus.CLIENT_LEFT if outcome.output_tokens_estimate:
            counted = Usage(
                input_tokens=outcome.prompt_tokens_estimate,
                output_tokens=outcome.output_tokens_estimate,
            )
            return counted, _ESTIMATED
        case _:
            return Usage(), _UNKNOWN


def _baseline_cost(
    outcome: Outcome, used: Mapping[str, int], quality: str, baseline: Baseline
) -> PicoUsd | None:
    """What the baseline would have cost for what the client got of an attempt.

    Nothing where it got nothing: what failed attempts and retries cost is the price of routing. At
    most one attempt of a request has content that went out; a client that leaves ends the request.
    """
    if outcome.ttft_us is None and outcome.status is not AttemptStatus.CLIENT_LEFT:
        return PicoUsd(0)
    if quality == _UNKNOWN:
        return None
    cost = baseline_cost(used, baseline.price)
    return None if isinstance(cost, Unpriced) else cost


def _provider_cost(reported_usd: str) -> PicoUsd | None:
    try:
        cost = round_reported_usd(reported_usd)
    except PricingError:
        return None  # an upstream's nonsense is no reason to lose the row
    return cost if cost <= EVENT_PICO_USD_MAX else None
