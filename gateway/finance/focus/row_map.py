"""From what happened to the rows of an export: pure functions, one per kind of row.

Costs come from the ledger and are never computed again here: where a price divides, they are
unit price times quantity to the picodollar; where it does not, they are the sum of what was booked
for each attempt, each rounded once.

Source: `finance_policy.md` 1.5; FOCUS 1.4, columns of Cost and Usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.finance.focus.charges import (
    IDLE,
    NO_OWNER,
    SCALE,
    SLICE_IDLE,
    Allocation,
    Category,
    Charge,
    ChargeKind,
    CommitmentPart,
    Costs,
    Evidence,
    Frequency,
    Invoice,
    Owner,
    PricingCategory,
    PricingState,
    Quantity,
    Resource,
    Sku,
)
from gateway.finance.focus.errors import Inconsistent
from gateway.finance.focus.inputs import (
    Commitment,
    CommittedUse,
    CurrencyUse,
    InvoiceCharge,
    LateUsage,
    MachinePool,
    PendingSum,
    Purchase,
    UnusedCommitment,
    UsageSum,
)
from gateway.finance.focus.meters import GPU_METER, METER_FORMS, MeterForm
from pricing.money import Rate
from pricing.shares import split

_FORM_OF_MACHINES = METER_FORMS[GPU_METER]


def usage(found: UsageSum) -> Charge:
    """What was metered and priced.

    Raises:
        Inconsistent: The meter has no form here.
    """
    form = _form(found.meter)
    consumed = found.tokens if found.meter == GPU_METER else found.units
    list_pico_usd = found.list_cost_pico_usd
    return Charge(
        kind=ChargeKind.USAGE,
        category=Category.USAGE,
        frequency=Frequency.USAGE_BASED,
        description=f"{form.sku_meter} of {found.resource.deployment}",
        start_us=found.start_us,
        end_us=found.end_us,
        billing_us=found.start_us,
        owner=found.owner,
        resource=found.resource,
        meter=found.meter,
        costs=Costs(
            list_pico_usd=found.cost_pico_usd if list_pico_usd is None else list_pico_usd,
            contracted_pico_usd=found.cost_pico_usd,
            effective_pico_usd=found.cost_pico_usd,
            billed_pico_usd=found.cost_pico_usd,
        ),
        sku=_sku(found, form),
        consumed=Quantity(
            amount=_scaled(consumed, form.units_per_consumed), unit=form.consumed_unit
        ),
        evidence=Evidence(
            requests=found.requests,
            attempts=found.attempts,
            quality=found.quality,
            price_version=found.price_version,
            is_nominal=found.is_nominal,
        ),
    )


def pending(found: PendingSum) -> Charge:
    """Attempts without a price or without a known bill: a row that says so instead of a cost.

    FOCUS has no null cost, and usage must name a price. So it is an adjustment of zero, the place
    of the amount to come.
    """
    state = PricingState.UNPRICED if found.is_unpriced else PricingState.UNKNOWN_BILLING
    why = "price is unknown" if found.is_unpriced else "bill is unknown"
    count = "1 attempt" if found.attempts == 1 else f"{found.attempts} attempts"
    return Charge(
        kind=ChargeKind.PENDING,
        category=Category.ADJUSTMENT,
        frequency=Frequency.ONE_TIME,
        description=f"{count} on {found.resource.deployment}: the {why}, the cost of 0 is no claim",
        start_us=found.start_us,
        end_us=found.end_us,
        billing_us=found.start_us,
        owner=found.owner,
        resource=found.resource,
        costs=Costs.equal(0),
        evidence=Evidence(
            requests=found.requests,
            attempts=found.attempts,
            quality=found.quality,
            state=state,
            unpriced_attempts=found.attempts if found.is_unpriced else 0,
            unknown_attempts=0 if found.is_unpriced else found.attempts,
            exposure_pico_usd=found.exposure_pico_usd,
        ),
    )


def late_pending(found: PendingSum, billing_us: int, *, is_taken_back: bool = False) -> Charge:
    """The same for a closed month: told in a later one.

    Args:
        found: As `pending` takes it.
        billing_us: Any instant of the month in which it counts.
        is_taken_back: Whether the attempts settled after all; counts and bound are negative, so
            that sums over months are right.
    """
    charge = pending(found)
    evidence, description = charge.evidence, charge.description
    if is_taken_back:
        description = f"Settled after all, or told again: {description}"
        evidence = replace(
            evidence,
            requests=-evidence.requests,
            attempts=-evidence.attempts,
            unpriced_attempts=-evidence.unpriced_attempts,
            unknown_attempts=-evidence.unknown_attempts,
            exposure_pico_usd=-evidence.exposure_pico_usd,
        )
    return replace(
        charge,
        is_correction=True,
        description=description,
        evidence=evidence,
        billing_us=billing_us,
        original_us=charge.start_us,
    )


def purchase(bought: Purchase) -> Charge:
    """What was paid for a commitment; its use carries the effective cost."""
    commitment = bought.commitment
    unit_price = _price_of(bought.paid_pico_usd, bought.quantity)
    return Charge(
        kind=ChargeKind.PURCHASE,
        category=Category.PURCHASE,
        frequency=Frequency.RECURRING if bought.is_recurring else Frequency.ONE_TIME,
        description=f"{commitment.type} {commitment.name}",
        start_us=bought.start_us,
        end_us=bought.end_us,
        billing_us=bought.start_us,
        owner=NO_OWNER,
        resource=Resource(provider=commitment.provider),
        costs=replace(Costs.equal(bought.paid_pico_usd), effective_pico_usd=0),
        sku=_commitment_sku(
            commitment, bought.quantity, unit_price, category=PricingCategory.STANDARD
        ),
        commitment=_part(commitment, bought.quantity),
        invoice=_invoice(bought.invoice_id, None),
    )


def committed_usage(drawn: CommittedUse) -> Charge:
    """Usage that a commitment covers: paid before, so nothing is billed."""
    charge = usage(drawn.usage)
    assert charge.sku is not None
    costs = replace(charge.costs, effective_pico_usd=drawn.amortised_pico_usd, billed_pico_usd=0)
    return replace(
        charge,
        kind=ChargeKind.COMMITTED_USAGE,
        costs=costs,
        sku=replace(charge.sku, category=PricingCategory.COMMITTED),
        commitment=_part(drawn.commitment, drawn.quantity, status="Used"),
    )


def unused_commitment(lapsed: UnusedCommitment) -> Charge:
    """What of a commitment nobody used: no consumption, the waste as effective cost."""
    commitment = lapsed.commitment
    cost_pico_usd = _times(lapsed.unit_price_pico_usd, lapsed.quantity)
    return Charge(
        kind=ChargeKind.UNUSED_COMMITMENT,
        category=Category.USAGE,
        frequency=Frequency.USAGE_BASED,
        description=f"Unused {commitment.type} {commitment.name}",
        start_us=lapsed.start_us,
        end_us=lapsed.end_us,
        billing_us=lapsed.start_us,
        owner=NO_OWNER,
        resource=Resource(provider=commitment.provider),
        costs=Costs(
            list_pico_usd=cost_pico_usd,
            contracted_pico_usd=cost_pico_usd,
            effective_pico_usd=lapsed.wasted_pico_usd,
            billed_pico_usd=0,
        ),
        sku=_commitment_sku(
            commitment,
            lapsed.quantity,
            lapsed.unit_price_pico_usd,
            category=PricingCategory.COMMITTED,
        ),
        commitment=_part(commitment, lapsed.quantity, status="Unused"),
    )


def currency_usage(used: CurrencyUse) -> Charge:
    """Usage priced in a vendor's currency or credits."""
    return replace(usage(used.usage), currency=used.currency)


def self_host(pool: MachinePool) -> Iterator[Charge]:
    """A machine's cost, shared by work: a row per share, idle time included.

    Ratios sum to one, costs to the pool's cost and hours to the pool's, exactly: what rounding
    leaves goes to the shares with the largest remainders.

    Raises:
        Inconsistent: There is no work to share by, or what shares bear is not the pool's cost.
    """
    weights = [share.work for share in pool.shares]
    if not sum(weights):
        raise Inconsistent(f"{pool.origin_id}: nothing was worked, so nothing can be shared")
    unit_price = _unit_price(pool.rate, _FORM_OF_MACHINES)
    hours = split(_scaled(pool.gpu_us, _FORM_OF_MACHINES.units_per_price), weights)
    costs = _borne(pool) or split(pool.cost_pico_usd, weights)
    ratios = split(SCALE, weights)
    sku_id = f"{pool.resource.deployment}/{GPU_METER}"
    for share, quantity, cost, ratio in zip(pool.shares, hours, costs, ratios, strict=True):
        owner = Owner(team=IDLE) if share.is_idle else share.owner
        is_idle = share.is_idle or share.is_slice
        subject = "Idle machine time" if is_idle else "Machine time"
        yield Charge(
            kind=ChargeKind.SELF_HOST_IDLE if is_idle else ChargeKind.SELF_HOST,
            category=Category.USAGE,
            frequency=Frequency.USAGE_BASED,
            description=f"{subject} of {pool.resource.deployment}",
            start_us=pool.start_us,
            end_us=pool.end_us,
            billing_us=pool.start_us,
            owner=owner,
            resource=pool.resource,
            meter=GPU_METER,
            costs=Costs.equal(cost),
            sku=Sku(
                sku_id=sku_id,
                price_id=f"{sku_id}@{pool.price_version}",
                meter=_FORM_OF_MACHINES.sku_meter,
                pricing_unit=_FORM_OF_MACHINES.pricing_unit,
                pricing_quantity=quantity,
                list_unit_price=unit_price,
                contracted_unit_price=unit_price,
            ),
            consumed=Quantity(amount=share.tokens * SCALE, unit=_FORM_OF_MACHINES.consumed_unit),
            allocation=Allocation(
                method_id=pool.method_id,
                ratio=ratio,
                usage=Quantity(amount=share.work, unit=pool.work_unit),
                origin_id=pool.origin_id,
                origin_pico_usd=pool.cost_pico_usd,
                part=SLICE_IDLE if share.is_slice else "",
            ),
            evidence=Evidence(
                requests=share.requests,
                attempts=share.attempts,
                price_version=pool.price_version,
                is_nominal=pool.is_nominal,
            ),
        )


def _borne(pool: MachinePool) -> tuple[int, ...]:
    """What each share bears where that was worked out before; else nothing."""
    known = tuple(share.cost_pico_usd for share in pool.shares if share.cost_pico_usd is not None)
    if not known:
        return ()
    if len(known) < len(pool.shares) or sum(known) != pool.cost_pico_usd:
        raise Inconsistent(f"{pool.origin_id}: the shares do not sum to {pool.cost_pico_usd}")
    return known


def credit(line: InvoiceCharge) -> Charge:
    """Money back from who issues the invoice: negative, never negative usage.

    Raises:
        Inconsistent: The amount is not below zero.
    """
    if line.amount_pico_usd >= 0:
        raise Inconsistent(f"credit {line.description!r} of {line.provider} is not below zero")
    return _invoice_charge(line, ChargeKind.CREDIT, Category.CREDIT)


def tax(line: InvoiceCharge) -> Charge:
    """Tax, apart from every unit cost."""
    return _invoice_charge(line, ChargeKind.TAX, Category.TAX)


def adjustment(line: InvoiceCharge) -> Charge:
    """A rounding difference, a least fee: anything on an invoice that nothing else explains."""
    return _invoice_charge(line, ChargeKind.ADJUSTMENT, Category.ADJUSTMENT)


def unbilled(charge: Charge) -> Charge:
    """The same charge where an invoice that is told elsewhere bills it."""
    return replace(charge, costs=replace(charge.costs, billed_pico_usd=0))


def correction(late: LateUsage) -> Charge:
    """Usage of a closed month: billed in a later one, with the charge period in which it arose."""
    charge = usage(late.usage)
    return replace(
        charge,
        kind=ChargeKind.CORRECTION,
        is_correction=True,
        billing_us=late.billing_us,
        original_us=charge.start_us,
    )


def _invoice_charge(line: InvoiceCharge, kind: ChargeKind, category: Category) -> Charge:
    return Charge(
        kind=kind,
        category=category,
        frequency=Frequency.ONE_TIME,
        description=line.description,
        start_us=line.start_us,
        end_us=line.end_us,
        billing_us=line.start_us if line.billing_us is None else line.billing_us,
        owner=line.owner,
        resource=Resource(provider=line.provider),
        costs=Costs.equal(line.amount_pico_usd),
        is_correction=line.is_correction,
        original_us=line.original_us,
        invoice=_invoice(line.invoice_id, line.detail_id),
    )


def _form(meter: str) -> MeterForm:
    form = METER_FORMS.get(meter)
    if form is None:
        raise Inconsistent(f"the ledger has a meter {meter!r} that exports do not know")
    return form


def _sku(found: UsageSum, form: MeterForm) -> Sku:
    sku_id = f"{found.resource.deployment}/{found.meter}"
    return Sku(
        sku_id=sku_id,
        price_id=f"{sku_id}@{found.price_version}",
        meter=form.sku_meter,
        pricing_unit=form.pricing_unit,
        pricing_quantity=_scaled(found.units, form.units_per_price),
        list_unit_price=_unit_price(found.list_rate or found.rate, form),
        contracted_unit_price=_unit_price(found.rate, form),
        category=found.pricing,
        direction=form.direction,
        cache_action=form.cache_action,
        cache_retention=form.cache_retention,
        service_tier=found.service_tier,
    )


def _commitment_sku(
    commitment: Commitment, quantity: int, unit_price: int, *, category: PricingCategory
) -> Sku:
    sku_id = f"{commitment.provider}/{commitment.type}"
    return Sku(
        sku_id=sku_id,
        price_id=f"{sku_id}@{commitment.commitment_id}",
        meter=commitment.type,
        pricing_unit=commitment.unit,
        pricing_quantity=quantity,
        list_unit_price=unit_price,
        contracted_unit_price=unit_price,
        category=category,
    )


def _part(commitment: Commitment, quantity: int, *, status: str | None = None) -> CommitmentPart:
    return CommitmentPart(
        commitment_id=commitment.commitment_id,
        name=commitment.name,
        category="Spend" if commitment.is_spend else "Usage",
        type=commitment.type,
        quantity=Quantity(amount=quantity, unit=commitment.unit),
        status=status,
    )


def _invoice(invoice_id: str | None, detail_id: str | None) -> Invoice | None:
    return None if invoice_id is None else Invoice(invoice_id=invoice_id, detail_id=detail_id)


def _scaled(units: int, per: int) -> int:
    """Units by the unit that is written, scaled; rounded half-even where it does not divide."""
    return _divided(units * SCALE, per)


def _unit_price(rate: Rate, form: MeterForm) -> int:
    """Picodollars per pricing unit, which is the unit that prices are quoted in."""
    return _divided(rate.pico_usd * form.units_per_price, rate.per_units)


def _price_of(cost: int, quantity: int) -> int:
    return _divided(cost * SCALE, quantity)


def _times(unit_price: int, quantity: int) -> int:
    return _divided(unit_price * quantity, SCALE)


def _divided(number: int, by: int) -> int:
    """The nearest whole number, half-even."""
    whole, rest = divmod(number, by)
    twice = 2 * rest - by
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))
