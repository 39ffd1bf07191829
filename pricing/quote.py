"""From usage to a charge after the fact, and from expectations to a quote before it; exact."""

from __future__ import annotations

from dataclasses import dataclass

from pricing.money import PicoUsd, Rate, line_cost
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.usage import Meter, Usage

_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeLine:
    """One meter's cost: `units` at `rate`, rounded once."""

    meter: Meter
    units: int
    rate: Rate
    cost_pico_usd: PicoUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What an attempt costs.

    Attributes:
        lines: One per charged meter, in the order of `Meter`.
        total_pico_usd: Exactly the sum of the lines.
    """

    lines: tuple[ChargeLine, ...]
    total_pico_usd: PicoUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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
        if min(self.fresh_tokens, self.cached_tokens, self.written_tokens) < 0:
            raise ValueError(f"the prompt's parts must be >= 0 and add up, got {self}")
        if self.expected_output_tokens < 0:
            raise ValueError(f"expected output must be >= 0, got {self.expected_output_tokens}")
        if self.max_output_tokens is not None:
            _refuse_above("output", self.expected_output_tokens, self.max_output_tokens)
        _refuse_above("prompt", self.prompt_tokens, self.largest_prompt_tokens)

    @property
    def fresh_tokens(self) -> int:
        """Prompt tokens neither read from nor written to a cache."""
        return self.prompt_tokens - self.cached_tokens - self.written_tokens

    @property
    def largest_prompt_tokens(self) -> int:
        """Most prompt tokens."""
        return self.prompt_tokens if self.max_prompt_tokens is None else self.max_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a request will cost.

    Attributes:
        expected_pico_usd: For the expected counts.
        upper_bound_pico_usd: No charge within the workload's maxima is above it; None when the
            output has no bound. On a GPU-time price it is a bound for the measured speed only.
    """

    expected_pico_usd: PicoUsd
    upper_bound_pico_usd: PicoUsd | None


def charge(usage: Usage, version: PriceVersion) -> Charge | Unpriced:
    """Price what an attempt used.

    Meters that the version's basis does not charge leave no line. A charged meter with a count but
    without a rate (its own or its fallback's) makes the whole attempt unpriced: a partial sum would
    read as a bill.

    Args:
        usage: Disjoint counts.
        version: The price in force when the attempt started.
    """
    lines: list[ChargeLine] = []
    for meter, units in usage.meters():
        if not version.is_charged(meter):
            continue
        rate = version.rate_for(meter)
        if rate is None:
            return Unpriced(reason=f"no rate for {meter}")
        cost_pico_usd = line_cost(units, rate)
        lines.append(ChargeLine(meter=meter, units=units, rate=rate, cost_pico_usd=cost_pico_usd))
    total_pico_usd = PicoUsd(sum(line.cost_pico_usd for line in lines))
    return Charge(lines=tuple(lines), total_pico_usd=total_pico_usd)


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
    if version.basis is Basis.GPU_TIME:
        return _quote_gpu_time(workload, version, speed)
    return _quote_tokens(workload, version)


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
    fee = version.rates.get(Meter.REQUESTS)
    usage = Usage(
        input_tokens=workload.fresh_tokens,
        cache_read_tokens=workload.cached_tokens,
        cache_write_tokens=workload.written_tokens,
        output_tokens=workload.expected_output_tokens,
        requests=0 if fee is None else 1,
    )
    expected = charge(usage, version)
    if isinstance(expected, Unpriced):
        return expected
    bound = _token_bound(workload, version)
    if isinstance(bound, Unpriced):
        return bound
    return Quote(expected_pico_usd=expected.total_pico_usd, upper_bound_pico_usd=bound)


def _token_bound(workload: Workload, version: PriceVersion) -> PicoUsd | Unpriced | None:
    """Every token at the dearest rate that it may meet, and room for rounding a split count."""
    if workload.max_output_tokens is None:
        return None
    total = 0
    for units, meters in (
        (workload.largest_prompt_tokens, (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE)),
        (workload.max_output_tokens, (Meter.OUTPUT, Meter.REASONING)),
    ):
        if units == 0:
            continue
        rates = [version.rates[meter] for meter in meters if meter in version.rates]
        if not rates:
            return Unpriced(reason=f"no rate for {meters[0]}")
        # Counts split over several meters are rounded once per line, each up by at most half.
        is_exact = all(rate.per_units == 1 for rate in rates)
        rounding = 0 if is_exact else len(meters)
        total += max(line_cost(units, rate) for rate in rates) + rounding
    fee = version.rates.get(Meter.REQUESTS)
    return PicoUsd(total if fee is None else total + line_cost(1, fee))


def _rate_per_token(rate: Rate, tokens_per_s: int) -> Rate:
    """The exact price of a token from the price of a microsecond."""
    return Rate(pico_usd=rate.pico_usd * _US_PER_S, per_units=rate.per_units * tokens_per_s)


def _refuse_above(what: str, expected_tokens: int, max_tokens: int) -> None:
    if expected_tokens > max_tokens:
        raise ValueError(f"expected {what} of {expected_tokens} is above {max_tokens} tokens")
