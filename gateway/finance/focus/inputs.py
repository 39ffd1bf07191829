"""What charges are made from, whatever its source.

Sums of the ledger come from `ledger_sums`; the others from reconciliation, contracts and cost
allocation. Amounts are picodollars, instants microseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.finance.focus.charges import (
    NO_OWNER,
    Owner,
    PricingCategory,
    Resource,
    VendorCurrency,
)
from pricing.money import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """One meter of a charge period, summed over attempts of the same owner, place and price.

    Attributes:
        start_us: First instant of the charge period.
        end_us: First instant after it.
        owner: Whose.
        resource: Where.
        meter: Name of the meter in the ledger.
        units: Sum of what was metered.
        rate: What was charged.
        list_rate: The public price, None where it is not known apart.
        cost_pico_usd: Sum of the lines' costs, as booked.
        list_cost_pico_usd: The same at the public price, None where it is not known apart.
        tokens: Tokens of all meters of these attempts, for machines priced by time.
        requests: First attempts, counted on the first line of each.
        attempts: Lines summed.
        quality: How far the counts can be trusted.
        price_version: Identity of the price version.
        is_nominal: Whether the price is a stand-in.
        pricing: Standard, or dynamic for prices of the moment.
        service_tier: The tier at the vendor, None for the usual one.
    """

    start_us: int
    end_us: int
    owner: Owner
    resource: Resource
    meter: str
    units: int
    rate: Rate
    cost_pico_usd: int
    tokens: int
    requests: int
    attempts: int
    quality: str
    price_version: str
    is_nominal: bool
    list_rate: Rate | None = None
    list_cost_pico_usd: int | None = None
    pricing: PricingCategory = PricingCategory.STANDARD
    service_tier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSum:
    """Attempts of a charge period of which the price or the bill is unknown.

    Attributes:
        is_unpriced: Whether the price is unknown; else whether anything is billed.
        attempts: How many.
        requests: First attempts among them.
        tokens: Tokens that were counted all the same.
        exposure_pico_usd: Upper bound of what they may cost, as far as it is known.
    """

    start_us: int
    end_us: int
    owner: Owner
    resource: Resource
    quality: str
    is_unpriced: bool
    attempts: int
    requests: int
    tokens: int
    exposure_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What was bought ahead.

    Attributes:
        commitment_id: Identity of it.
        name: For people.
        provider: With whom.
        is_spend: Whether money is committed; else a quantity.
        type: The vendor's word for it, such as `PTU` or `Prepaid Credit`.
        unit: What its quantity counts, such as `PTU Hours` or `USD`.
    """

    commitment_id: str
    name: str
    provider: str
    is_spend: bool
    type: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A commitment paid for.

    Attributes:
        quantity: Units bought, scaled, at least one part.
        paid_pico_usd: What was paid, so that quantity times unit price is just that.
        is_recurring: Whether it is paid every period.
    """

    commitment: Commitment
    start_us: int
    end_us: int
    quantity: int
    paid_pico_usd: int
    is_recurring: bool
    invoice_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedUse:
    """Usage that a commitment covers.

    Attributes:
        usage: As metered; its rate is the contracted price.
        quantity: Units of the commitment that were drawn, scaled.
        amortised_pico_usd: The share of what was paid.
    """

    usage: UsageSum
    commitment: Commitment
    quantity: int
    amortised_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedCommitment:
    """What of a commitment lapsed in a charge period.

    Attributes:
        quantity: Units that lapsed, scaled.
        unit_price_pico_usd: What a unit was contracted for.
        wasted_pico_usd: The share of what was paid.
    """

    commitment: Commitment
    start_us: int
    end_us: int
    quantity: int
    unit_price_pico_usd: int
    wasted_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrencyUse:
    """Usage that its vendor charges in a currency or credits of its own."""

    usage: UsageSum
    currency: VendorCurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShare:
    """A team's part in a machine's time; with `is_idle` the part that nobody used.

    Attributes:
        owner: Whose; ignored for the idle part.
        work: What the part is measured by, scaled; at least 0.
        tokens: Tokens that came of it.
        requests: First attempts of requests among those that used it.
        attempts: All that did.
        cost_pico_usd: What it bears; None for its share by work.
        is_slice: Whether it is what was idle of the owner's own slice of the machine.
    """

    owner: Owner
    work: int
    tokens: int
    is_idle: bool = False
    is_slice: bool = False
    requests: int = 0
    attempts: int = 0
    cost_pico_usd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePool:
    """A machine's cost of a charge period, to be shared.

    Attributes:
        origin_id: Identity of the cost.
        resource: The machine.
        gpu_us: Microseconds of all its GPUs.
        rate: What a microsecond costs.
        cost_pico_usd: The cost that is shared.
        method_id: Name and version of the method.
        work_unit: What work is counted in, such as `Work Units`.
        shares: At least one, of distinct owners.
        is_nominal: Whether the rate is a stand-in.
        price_version: Identity of the rate.
    """

    origin_id: str
    resource: Resource
    start_us: int
    end_us: int
    gpu_us: int
    rate: Rate
    cost_pico_usd: int
    method_id: str
    work_unit: str
    shares: tuple[MachineShare, ...]
    is_nominal: bool = False
    price_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceCharge:
    """A line of an invoice that is no usage: a credit, a tax, a rounding difference, a fee.

    Attributes:
        amount_pico_usd: Negative for money back.
        description: The invoice's own words.
        is_correction: Whether it belongs to a period that was invoiced before.
        original_us: When it arose, for a correction.
        billing_us: Any instant of the month in which it is billed, None for that of its start.
    """

    provider: str
    start_us: int
    end_us: int
    amount_pico_usd: int
    description: str
    owner: Owner = NO_OWNER
    invoice_id: str | None = None
    detail_id: str | None = None
    is_correction: bool = False
    original_us: int | None = None
    billing_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateUsage:
    """Usage of a closed month; it is billed in a later one.

    Attributes:
        usage: As metered, with the charge period in which it arose.
        billing_us: Any instant of the month in which it is billed.
    """

    usage: UsageSum
    billing_us: int
