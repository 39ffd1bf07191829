"""One row of an export before it is written in a version's columns.

Every number is a whole one: amounts in picodollars, quantities in units of 1e-12, the scale that
exports are written with. Instants are microseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCALE = 10**12
"""Parts of one in a quantity; a dollar has as many picodollars."""

LEDGER_CURRENCY = "USD"
"""What the ledger is in."""
IDLE = "unallocated-idle"
"""Sub-account of machine time that no team used."""
SLICE_IDLE = "idle of its slice"
"""The part of a team's allocation that was idle of its own slice of a machine."""


class Category(StrEnum):
    """Column ChargeCategory."""

    USAGE = "Usage"
    PURCHASE = "Purchase"
    TAX = "Tax"
    CREDIT = "Credit"
    ADJUSTMENT = "Adjustment"


class Frequency(StrEnum):
    """Column ChargeFrequency."""

    ONE_TIME = "One-Time"
    RECURRING = "Recurring"
    USAGE_BASED = "Usage-Based"


class PricingCategory(StrEnum):
    """Column PricingCategory."""

    STANDARD = "Standard"
    DYNAMIC = "Dynamic"
    COMMITTED = "Committed"
    OTHER = "Other"


class ChargeKind(StrEnum):
    """Which of our row kinds it is; column `x_ChargeKind`."""

    USAGE = "usage"
    PENDING = "pending"
    COMMITTED_USAGE = "committed_usage"
    UNUSED_COMMITMENT = "unused_commitment"
    PURCHASE = "purchase"
    SELF_HOST = "self_host"
    SELF_HOST_IDLE = "self_host_idle"
    CREDIT = "credit"
    TAX = "tax"
    ADJUSTMENT = "adjustment"
    CORRECTION = "correction"


class PricingState(StrEnum):
    """Whether the costs of a row are what there is to pay; column `x_PricingState`."""

    PRICED = "Priced"
    UNPRICED = "Unpriced"
    """The price is unknown; the zero is a place to be filled."""
    UNKNOWN_BILLING = "UnknownBilling"
    """Whether anything is billed is unknown; so is the zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The four costs of a charge, picodollars."""

    list_pico_usd: int
    contracted_pico_usd: int
    effective_pico_usd: int
    billed_pico_usd: int

    @staticmethod
    def equal(amount_pico_usd: int) -> Costs:
        """The same amount four times."""
        return Costs(
            list_pico_usd=amount_pico_usd,
            contracted_pico_usd=amount_pico_usd,
            effective_pico_usd=amount_pico_usd,
            billed_pico_usd=amount_pico_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose charge it is.

    Attributes:
        team: Empty for none.
        project: Empty for none.
        key_id: Public id of the key, empty where charges are not told apart by key.
        data_class: Privacy tags, sorted.
        cost_tags: Sorted pairs.
    """

    team: str = ""
    project: str = ""
    key_id: str = ""
    data_class: tuple[str, ...] = ()
    cost_tags: tuple[tuple[str, str], ...] = ()


NO_OWNER = Owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Where the charge arose.

    Attributes:
        provider: Name of the provider in the configuration, empty for the operator itself.
        deployment: `provider/model-id`, empty where no deployment is meant.
        model_id: The model's id at the provider, empty for none.
    """

    provider: str
    deployment: str = ""
    model_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """What was priced, and at which price.

    Attributes:
        sku_id: Identity of what is sold.
        price_id: Identity of its price.
        meter: Name of the meter for people.
        pricing_unit: What the unit prices are for.
        pricing_quantity: In pricing units, scaled.
        list_unit_price: Picodollars per pricing unit.
        contracted_unit_price: Picodollars per pricing unit.
        category: Column PricingCategory.
        direction: Tokens' direction, None where the meter is not one of tokens.
        cache_action: What a cache did to these tokens.
        cache_retention: How long a written cache is kept.
        service_tier: The tier at the vendor (`batch`, `flex`), None for the usual one.
    """

    sku_id: str
    price_id: str
    meter: str
    pricing_unit: str
    pricing_quantity: int
    list_unit_price: int
    contracted_unit_price: int
    category: PricingCategory = PricingCategory.STANDARD
    direction: str | None = None
    cache_action: str | None = None
    cache_retention: str | None = None
    service_tier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """How much of something, scaled, and of what."""

    amount: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentPart:
    """A charge's part in a commitment."""

    commitment_id: str
    name: str
    category: str
    type: str
    quantity: Quantity
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A charge's share in a cost that several share.

    Attributes:
        method_id: Name and version of the method.
        ratio: The share, scaled; over one origin they sum to one.
        usage: What the share was measured by.
        origin_id: Identity of the cost that is shared.
        origin_pico_usd: That cost.
        part: What the share is, where its owner has another one too; else empty.
    """

    method_id: str
    ratio: int
    usage: Quantity
    origin_id: str
    origin_pico_usd: int
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorCurrency:
    """Prices and amount in a vendor's own currency or credits.

    Attributes:
        code: ISO 4217, or the vendor's name of its credits.
        list_unit_price: Per pricing unit, scaled.
        contracted_unit_price: Per pricing unit, scaled.
        effective_cost: Scaled.
        pico_usd_per_unit: What one unit of it costs.
    """

    code: str
    list_unit_price: int
    contracted_unit_price: int
    effective_cost: int
    pico_usd_per_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a reader must know of how a charge came about.

    Attributes:
        requests: Requests whose first attempt this is, each counted on one row.
        attempts: Attempts that used this meter.
        quality: How far the counts can be trusted, empty where nothing was counted.
        price_version: Identity of the price version, empty for none.
        is_nominal: Whether the price is a stand-in.
        state: Whether the costs are what there is to pay.
        unpriced_attempts: Attempts without a price.
        unknown_attempts: Attempts whose bill is unknown.
        exposure_pico_usd: Upper bound of what these may cost.
    """

    requests: int = 0
    attempts: int = 0
    quality: str = ""
    price_version: str = ""
    is_nominal: bool = False
    state: PricingState = PricingState.PRICED
    unpriced_attempts: int = 0
    unknown_attempts: int = 0
    exposure_pico_usd: int = 0


NO_EVIDENCE = Evidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Where a charge stands on an invoice."""

    invoice_id: str
    detail_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One row.

    Attributes:
        kind: Which of our row kinds.
        meter: Name of the meter in the ledger, empty for none.
        is_correction: Whether it belongs to a period that was invoiced before.
        start_us: First instant of the charge period.
        end_us: First instant after it.
        billing_us: Any instant of the billing period, which is a calendar month (UTC).
        original_us: When a late charge arose, None for others.
        consumed: What was consumed, only for usage.
    """

    kind: ChargeKind
    category: Category
    frequency: Frequency
    description: str
    start_us: int
    end_us: int
    billing_us: int
    owner: Owner
    resource: Resource
    costs: Costs
    meter: str = ""
    is_correction: bool = False
    original_us: int | None = None
    sku: Sku | None = None
    consumed: Quantity | None = None
    commitment: CommitmentPart | None = None
    allocation: Allocation | None = None
    currency: VendorCurrency | None = None
    evidence: Evidence = NO_EVIDENCE
    invoice: Invoice | None = None
