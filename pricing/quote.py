"""From usage to a charge after the fact, and from expectations to a quote before it; exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pricing.money import PicoUsd, Rate, line_cost
from pricing.price_book import Basis, Dearest, PriceVersion, Unpriced
from pricing.usage import METER_PLACES, METERS, Meter

EVENT_PICO_USD_MAX = 10**18
"""Largest amount of one event that a ledger holds: a million dollars."""

Count = Annotated[int, Meta(ge=0, lt=2**53)]
PicoUsdAmount = Annotated[int, Meta(ge=0, le=EVENT_PICO_USD_MAX)]
PerUnits = Annotated[int, Meta(ge=1, le=EVENT_PICO_USD_MAX)]
PicoUsdChange = Annotated[int, Meta(ge=-EVENT_PICO_USD_MAX, le=EVENT_PICO_USD_MAX)]

_US_PER_S = 1_000_000
_INPUT, _CACHE_READ, _CACHE_WRITE, _OUTPUT, _REQUESTS = (
    METERS.index(meter)
    for meter in (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE, Meter.OUTPUT, Meter.REQUESTS)
)


class CostLine(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One meter's cost: `units` x `rate_pico_usd` / `rate_per_units`, rounded once, half-even.

    The ledger keeps it as it is, so ranges are checked where a line is decoded.

    Attributes:
        meter: Name of a `Meter`.
        units: How many.
        rate_pico_usd: What is charged for every `rate_per_units` units.
        rate_per_units: At least 1.
        cost_pico_usd: What is charged.
        list_rate_pico_usd: The public price of every `list_rate_per_units` units, None where no
            public price is known apart from what is charged.
        list_rate_per_units: At least 1.
        list_cost_pico_usd: The units at the public price, None as the rate.
    """

    meter: str
    units: Count
    rate_pico_usd: PicoUsdAmount
    rate_per_units: PerUnits
    cost_pico_usd: int
    list_rate_pico_usd: PicoUsdAmount | None = None
    list_rate_per_units: PerUnits = 1
    list_cost_pico_usd: PicoUsdAmount | None = None


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an attempt costs.

    Attributes:
        lines: One per charged meter, in the order of `Meter`.
        total_pico_usd: Exactly the sum of the lines.
        list_pico_usd: The same at public prices, None where the price states none.
    """

    lines: tuple[CostLine, ...]
    total_pico_usd: PicoUsd
    list_pico_usd: PicoUsd | None = None

    @property
    def fits(self) -> bool:
        """Whether an entry of a ledger can hold it, and its public price."""
        largest = max(self.total_pico_usd, self.list_pico_usd or 0)
        return largest <= EVENT_PICO_USD_MAX


class MeasuredSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a machine of ours runs a model, in whole tokens per busy second.

    Attributes:
        prefill_tps: Prompt tokens per second, at least 1.
        decode_tps: Generated tokens per second, at least 1.
    """

    prefill_tps: int
    decode_tps: int

    def __post_init__(self) -> None:
        """Refuse a speed that would divide by zero.

        Raises:
            ValueError: A speed is below 1.
        """
        if min(self.prefill_tps, self.decode_tps) < 1:
            raise ValueError(f"speeds must be >= 1 token per second, got {self}")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is expected to use, and at most.

    Attributes:
        prompt_tokens: Expected prompt tokens, cached ones included.
        expected_output_tokens: Expected generated tokens of all choices together.
        max_output_tokens: Most tokens of all choices together, None when nothing bounds them.
        max_prompt_tokens: Most prompt tokens, None when `prompt_tokens` is exact.
        cached_tokens: How many prompt tokens are expected to come from a cache.
        written_tokens: How many prompt tokens are expected to be written to one.
    """

    prompt_tokens: int
    expected_output_tokens: int
    max_output_tokens: int | None
    max_prompt_tokens: int | None = None
    cached_tokens: int = 0
    written_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse expectations that contradict each other.

        Raises:
            ValueError: A count is negative, more is cached or written than there is, or an
                expectation is above its maximum.
        """
        cached, written, output = (
            self.cached_tokens,
            self.written_tokens,
            self.expected_output_tokens,
        )
        if cached < 0 or written < 0 or self.prompt_tokens < cached + written:
            raise ValueError(f"the prompt's parts must be >= 0 and add up, got {self}")
        if output < 0:
            raise ValueError(f"expected output must be >= 0, got {output}")
        if self.max_output_tokens is not None and output > self.max_output_tokens:
            raise ValueError(
                f"expected output of {output} is above {self.max_output_tokens} tokens"
            )
        largest = self.max_prompt_tokens
        if largest is not None and self.prompt_tokens > largest:
            raise ValueError(f"expected prompt of {self.prompt_tokens} is above {largest} tokens")

    @property
    def fresh_tokens(self) -> int:
        """Prompt tokens neither read from nor written to a cache."""
        return self.prompt_tokens - self.cached_tokens - self.written_tokens

    @property
    def largest_prompt_tokens(self) -> int:
        """Most prompt tokens."""
        return self.prompt_tokens if self.max_prompt_tokens is None else self.max_prompt_tokens


class Quote(msgspec.Struct, frozen=True):
    """What a request will cost.

    Attributes:
        expected_pico_usd: For the expected counts.
        upper_bound_pico_usd: No charge within the workload's maxima is above it; None when the
            output has no bound. On a GPU-time price it is a bound for the measured speed only.
    """

    expected_pico_usd: PicoUsd
    upper_bound_pico_usd: PicoUsd | None


def charge(used: Mapping[str, int], version: PriceVersion) -> Charge | Unpriced:
    """Price what an attempt used.

    Meters that the version's basis does not charge leave no line. A charged meter with a count but
    without a rate (its own or its fallback's) makes the whole attempt unpriced: a partial sum would
    read as a bill.

    Args:
        used: Counts above zero by the names of their meters (`Usage.named`).
        version: The price in force when the attempt started.
    """
    lines: list[CostLine] = []
    total = 0
    plan = version.plan
    for name, units in used.items():
        rate = plan[METER_PLACES[name]]
        if rate is False:
            continue
        if rate is None:
            return Unpriced(reason=f"no rate for {name}")
        per_units = rate.per_units
        # Nearly every rate is per token, which leaves nothing to round and saves a call.
        cost_pico_usd = units * rate.pico_usd if per_units == 1 else line_cost(units, rate)
        lines.append(
            CostLine(
                meter=name,
                units=units,
                rate_pico_usd=rate.pico_usd,
                rate_per_units=per_units,
                cost_pico_usd=cost_pico_usd,
            )
        )
        total += cost_pico_usd
    if version.list_plan is not None:
        return _with_list_prices(lines, PicoUsd(total), version.list_plan)
    return Charge(lines=tuple(lines), total_pico_usd=PicoUsd(total))


def cache_saved(used: Mapping[str, int], version: PriceVersion) -> int | None:
    """What an attempt's cache reads would have cost as fresh input, less what they cost.

    Picodollars; negative where a cache read is dearer. Nothing that anyone is credited with: it
    says what the cache was worth at the contracted price.

    Args:
        used: Counts above zero by the names of their meters (`Usage.named`).
        version: The price in force when the attempt started.

    Returns:
        None where nothing was read from a cache, or tokens are not what is charged, or a rate is
        unknown, or an entry of a ledger cannot hold it.
    """
    units = used.get(Meter.CACHE_READ)
    if units is None:
        return None
    fresh, read = version.plan[_INPUT], version.plan[_CACHE_READ]
    if not fresh or not read:
        return None
    saved = line_cost(units, fresh) - line_cost(units, read)
    return saved if abs(saved) <= EVENT_PICO_USD_MAX else None


def _with_list_prices(
    lines: Iterable[CostLine], total: PicoUsd, plan: Sequence[Rate | Literal[False] | None]
) -> Charge:
    """The charge with each line's public price beside its own."""
    listed: list[CostLine] = []
    list_total = 0
    for line in lines:
        rate = plan[METER_PLACES[line.meter]]
        assert rate, "what is charged has a public price, its own at the least"
        list_cost_pico_usd = line_cost(line.units, rate)
        listed.append(
            msgspec.structs.replace(
                line,
                list_rate_pico_usd=rate.pico_usd,
                list_rate_per_units=rate.per_units,
                list_cost_pico_usd=list_cost_pico_usd,
            )
        )
        list_total += list_cost_pico_usd
    return Charge(lines=tuple(listed), total_pico_usd=total, list_pico_usd=PicoUsd(list_total))


def quote(
    workload: Workload, version: PriceVersion, *, speed: MeasuredSpeed | None = None
) -> Quote | Unpriced:
    """Price a request before it is sent.

    A fee per request is included once where the version has one.

    Args:
        workload: Expected and largest counts.
        version: The price in force.
        speed: Measured speed, needed by a GPU-time price only.
    """
    price = version.linear
    if price is None:
        if version.basis is Basis.GPU_TIME:
            return _quote_gpu_time(workload, version, speed)
        return _quote_tokens(workload, version)
    # What `_quote_tokens` gives, for nearly every price there is, without a look-up or a call: it
    # runs for every deployment of a request.
    prompt, cached, written = (
        workload.prompt_tokens,
        workload.cached_tokens,
        workload.written_tokens,
    )
    expected = (
        (prompt - cached - written) * price.input
        + workload.expected_output_tokens * price.output
        + price.fee
    )
    if cached or written:
        expected += cached * price.cache_read + written * price.cache_write
    output_max = workload.max_output_tokens
    if output_max is None:
        return Quote(PicoUsd(expected), None)
    prompt_max = workload.max_prompt_tokens
    bound = (
        (prompt if prompt_max is None else prompt_max) * price.dearest_prompt
        + output_max * price.dearest_output
        + price.fee
    )
    return Quote(PicoUsd(expected), PicoUsd(bound))


def _quote_gpu_time(
    workload: Workload, version: PriceVersion, speed: MeasuredSpeed | None
) -> Quote | Unpriced:
    rate = version.rate_for(Meter.GPU_US)
    if rate is None:
        return Unpriced(reason=f"no rate for {Meter.GPU_US}")
    if speed is None:
        return Unpriced(reason="no measured rates")
    prefill = _rate_per_token(rate, speed.prefill_tps)
    decode = _rate_per_token(rate, speed.decode_tps)
    # What a cache holds needs no prefill; the bound assumes an empty cache.
    uncached_tokens = workload.prompt_tokens - workload.cached_tokens
    expected = line_cost(uncached_tokens, prefill) + line_cost(
        workload.expected_output_tokens, decode
    )
    bound: PicoUsd | None = None
    if workload.max_output_tokens is not None:
        bound = PicoUsd(
            line_cost(workload.largest_prompt_tokens, prefill)
            + line_cost(workload.max_output_tokens, decode)
        )
    return Quote(expected_pico_usd=PicoUsd(expected), upper_bound_pico_usd=bound)


def _quote_tokens(workload: Workload, version: PriceVersion) -> Quote | Unpriced:
    expected = 0
    for place, units in (
        (_INPUT, workload.fresh_tokens),
        (_CACHE_READ, workload.cached_tokens),
        (_CACHE_WRITE, workload.written_tokens),
        (_OUTPUT, workload.expected_output_tokens),
    ):
        if not units:
            continue
        rate = version.plan[place]
        if not rate:
            return Unpriced(reason=f"no rate for {METERS[place]}")
        expected += line_cost(units, rate)
    bound = _token_bound(workload, version)
    if isinstance(bound, Unpriced):
        return bound
    fee = version.plan[_REQUESTS]
    if fee:
        expected += line_cost(1, fee)
        bound = None if bound is None else PicoUsd(bound + line_cost(1, fee))
    return Quote(expected_pico_usd=PicoUsd(expected), upper_bound_pico_usd=bound)


def _token_bound(workload: Workload, version: PriceVersion) -> PicoUsd | Unpriced | None:
    """Every token at the dearest rate that it may meet, and room for rounding a split count."""
    if workload.max_output_tokens is None:
        return None
    prompt = _most(workload.largest_prompt_tokens, version.dearest_prompt)
    output = _most(workload.max_output_tokens, version.dearest_output)
    if prompt is None:
        return Unpriced(reason=f"no rate for {Meter.INPUT}")
    if output is None:
        return Unpriced(reason=f"no rate for {Meter.OUTPUT}")
    return PicoUsd(prompt + output)


def _most(units: int, dearest: Dearest | None) -> int | None:
    if units == 0:
        return 0
    return None if dearest is None else line_cost(units, dearest.rate) + dearest.rounding_pico_usd


def _rate_per_token(rate: Rate, tokens_per_s: int) -> Rate:
    """The exact price of a token from the price of a microsecond."""
    return Rate(pico_usd=rate.pico_usd * _US_PER_S, per_units=rate.per_units * tokens_per_s)
