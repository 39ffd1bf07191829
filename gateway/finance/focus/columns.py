"""Columns that every version of FOCUS has, and ours (`x_`), each as a function of a line.

A value is text, a whole number of parts of 1e-12, an instant in microseconds, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import msgspec

from gateway.clock import from_microseconds
from gateway.finance.focus.charges import (
    LEDGER_CURRENCY,
    SCALE,
    Allocation,
    CommitmentPart,
    Invoice,
    Quantity,
    Sku,
    VendorCurrency,
)
from gateway.finance.focus.meters import GPU_METER
from gateway.finance.focus.order import billing_period
from gateway.finance.focus.profiles import Line

Value = str | int | None

_to_json = msgspec.json.Encoder(decimal_format="number").encode


class ColumnType(StrEnum):
    """How a value is written."""

    TEXT = "text"
    DECIMAL = "decimal"
    INSTANT = "instant"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a dataset."""

    name: str
    type: ColumnType
    value: Callable[[Line], Value]


def text(name: str, value: Callable[[Line], str | None]) -> Column:
    """A column of text; JSON is text too."""
    return Column(name, ColumnType.TEXT, value)


def decimal(name: str, value: Callable[[Line], int | None]) -> Column:
    """A column of numbers in parts of 1e-12."""
    return Column(name, ColumnType.DECIMAL, value)


def instant(name: str, value: Callable[[Line], int | None]) -> Column:
    """A column of instants."""
    return Column(name, ColumnType.INSTANT, value)


def document(value: Mapping[str, object]) -> str | None:
    """A JSON object on one line, names sorted; None for an empty one."""
    return _to_json(dict(sorted(value.items()))).decode() if value else None


def exact_number(scaled: int) -> Decimal:
    """A scaled number as JSON writes it: exact, without trailing zeros."""
    number = Decimal(scaled).scaleb(-12).normalize()
    exponent = number.as_tuple().exponent
    is_round = isinstance(exponent, int) and exponent > 0
    return number.quantize(Decimal(1)) if is_round else number


def _of_sku(read: Callable[[Sku], Value]) -> Callable[[Line], Value]:
    return lambda line: None if line.charge.sku is None else read(line.charge.sku)


def _of_commitment(read: Callable[[CommitmentPart], Value]) -> Callable[[Line], Value]:
    return lambda line: None if line.charge.commitment is None else read(line.charge.commitment)


def of_allocation(read: Callable[[Allocation], Value]) -> Callable[[Line], Value]:
    """A value of a charge that is a share, None for others."""
    return lambda line: None if line.charge.allocation is None else read(line.charge.allocation)


def of_invoice(read: Callable[[Invoice], Value]) -> Callable[[Line], Value]:
    """A value of a charge that stands on an invoice, None for others."""
    return lambda line: None if line.invoice is None else read(line.invoice)


def _of_consumed(read: Callable[[Quantity], Value]) -> Callable[[Line], Value]:
    return lambda line: None if line.charge.consumed is None else read(line.charge.consumed)


def _in_currency(
    read: Callable[[VendorCurrency], int], otherwise: Callable[[Sku], int]
) -> Callable[[Line], Value]:
    """A price in the vendor's currency; in dollars where there is none."""

    def value(line: Line) -> int | None:
        currency, sku = line.charge.currency, line.charge.sku
        if currency is not None:
            return read(currency)
        return None if sku is None else otherwise(sku)

    return value


def _effective_in_currency(line: Line) -> int:
    currency = line.charge.currency
    return line.costs.effective_pico_usd if currency is None else currency.effective_cost


def _service(line: Line) -> str:
    is_machine = line.charge.meter == GPU_METER
    return "Self-Hosted Inference" if is_machine else "Model Inference"


def _price_details(sku: Sku, model_id: str) -> str | None:
    details = {
        "x_CacheRetention": sku.cache_retention,
        "x_ModelId": model_id or None,
        "x_ServiceTier": sku.service_tier,
        "x_TokenCacheAction": sku.cache_action,
        "x_TokenDirection": sku.direction,
    }
    return document({name: value for name, value in details.items() if value is not None})


def _details_of(line: Line) -> str | None:
    sku = line.charge.sku
    return None if sku is None else _price_details(sku, line.charge.resource.model_id)


def _words(names: Iterable[str]) -> str | None:
    return " ".join(names) or None


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _count(read: Callable[[Line], int]) -> Callable[[Line], int]:
    return lambda line: read(line) * SCALE


def _original_day(line: Line) -> str | None:
    at_us = line.charge.original_us
    return None if at_us is None else from_microseconds(at_us).date().isoformat()


SHARED: tuple[Column, ...] = (
    decimal("BilledCost", lambda line: line.costs.billed_pico_usd),
    text("BillingAccountId", lambda line: line.issuer),
    text("BillingAccountName", lambda line: line.issuer),
    text("BillingAccountType", lambda _: "Organisation"),
    text("BillingCurrency", lambda _: LEDGER_CURRENCY),
    instant("BillingPeriodEnd", lambda line: billing_period(line.charge.billing_us)[1]),
    instant("BillingPeriodStart", lambda line: billing_period(line.charge.billing_us)[0]),
    text("ChargeCategory", lambda line: line.charge.category.value),
    text("ChargeClass", lambda line: "Correction" if line.charge.is_correction else None),
    text("ChargeDescription", lambda line: line.charge.description),
    text("ChargeFrequency", lambda line: line.charge.frequency.value),
    instant("ChargePeriodEnd", lambda line: line.charge.end_us),
    instant("ChargePeriodStart", lambda line: line.charge.start_us),
    Column("CommitmentDiscountCategory", ColumnType.TEXT, _of_commitment(lambda c: c.category)),
    Column("CommitmentDiscountId", ColumnType.TEXT, _of_commitment(lambda c: c.commitment_id)),
    Column("CommitmentDiscountName", ColumnType.TEXT, _of_commitment(lambda c: c.name)),
    Column(
        "CommitmentDiscountQuantity",
        ColumnType.DECIMAL,
        _of_commitment(lambda c: c.quantity.amount),
    ),
    Column("CommitmentDiscountStatus", ColumnType.TEXT, _of_commitment(lambda c: c.status)),
    Column("CommitmentDiscountType", ColumnType.TEXT, _of_commitment(lambda c: c.type)),
    Column("CommitmentDiscountUnit", ColumnType.TEXT, _of_commitment(lambda c: c.quantity.unit)),
    Column("ConsumedQuantity", ColumnType.DECIMAL, _of_consumed(lambda q: q.amount)),
    Column("ConsumedUnit", ColumnType.TEXT, _of_consumed(lambda q: q.unit)),
    decimal("ContractedCost", lambda line: line.costs.contracted_pico_usd),
    Column(
        "ContractedUnitPrice", ColumnType.DECIMAL, _of_sku(lambda sku: sku.contracted_unit_price)
    ),
    decimal("EffectiveCost", lambda line: line.costs.effective_pico_usd),
    Column("InvoiceId", ColumnType.TEXT, of_invoice(lambda one: one.invoice_id)),
    text("InvoiceIssuerName", lambda line: line.issuer),
    decimal("ListCost", lambda line: line.costs.list_pico_usd),
    Column("ListUnitPrice", ColumnType.DECIMAL, _of_sku(lambda sku: sku.list_unit_price)),
    Column("PricingCategory", ColumnType.TEXT, _of_sku(lambda sku: sku.category.value)),
    text(
        "PricingCurrency",
        lambda line: LEDGER_CURRENCY if line.charge.currency is None else line.charge.currency.code,
    ),
    Column(
        "PricingCurrencyContractedUnitPrice",
        ColumnType.DECIMAL,
        _in_currency(lambda c: c.contracted_unit_price, lambda sku: sku.contracted_unit_price),
    ),
    decimal("PricingCurrencyEffectiveCost", _effective_in_currency),
    Column(
        "PricingCurrencyListUnitPrice",
        ColumnType.DECIMAL,
        _in_currency(lambda c: c.list_unit_price, lambda sku: sku.list_unit_price),
    ),
    Column("PricingQuantity", ColumnType.DECIMAL, _of_sku(lambda sku: sku.pricing_quantity)),
    Column("PricingUnit", ColumnType.TEXT, _of_sku(lambda sku: sku.pricing_unit)),
    text("ResourceId", lambda line: line.charge.resource.deployment or None),
    text("ResourceName", lambda line: line.charge.resource.deployment or None),
    text(
        "ResourceType",
        lambda line: "Model Deployment" if line.charge.resource.deployment else None,
    ),
    text("ServiceCategory", lambda _: "AI and Machine Learning"),
    text("ServiceName", _service),
    text("ServiceSubcategory", lambda _: "Generative AI"),
    Column("SkuId", ColumnType.TEXT, _of_sku(lambda sku: sku.sku_id)),
    Column("SkuMeter", ColumnType.TEXT, _of_sku(lambda sku: sku.meter)),
    text("SkuPriceDetails", _details_of),
    Column("SkuPriceId", ColumnType.TEXT, _of_sku(lambda sku: sku.price_id)),
    text("SubAccountId", lambda line: line.owner.team or None),
    text("SubAccountName", lambda line: line.owner.team or None),
    text("SubAccountType", lambda line: "Team" if line.owner.team else None),
    text("Tags", lambda line: document(dict(line.tags))),
)
"""What 1.2 and 1.4 both have."""

OURS: tuple[Column, ...] = (
    decimal("x_AttemptCount", _count(lambda line: line.charge.evidence.attempts)),
    Column("x_CacheRetention", ColumnType.TEXT, _of_sku(lambda sku: sku.cache_retention)),
    text("x_ChargeKind", lambda line: line.charge.kind.value),
    text("x_CredentialId", lambda line: line.owner.key_id or None),
    text("x_DataClass", lambda line: _words(line.owner.data_class)),
    text("x_EstimateQuality", lambda line: line.charge.evidence.quality or None),
    decimal("x_EstimatedBilledCost", lambda line: line.estimated_billed_pico_usd),
    decimal("x_ExposureUpperBound", lambda line: line.charge.evidence.exposure_pico_usd),
    text("x_IsNominalPrice", lambda line: _flag(line.charge.evidence.is_nominal)),
    text("x_OriginalEventDate", _original_day),
    text("x_PriceBookVersion", lambda line: line.charge.evidence.price_version or None),
    text("x_PricingState", lambda line: line.charge.evidence.state.value),
    text("x_ReconciliationState", lambda line: line.reconciliation),
    decimal("x_RequestCount", _count(lambda line: line.charge.evidence.requests)),
    Column("x_ServiceTier", ColumnType.TEXT, _of_sku(lambda sku: sku.service_tier)),
    decimal("x_SplitOriginCost", lambda line: line.split_origin_pico_usd),
    Column("x_SplitOriginId", ColumnType.TEXT, of_allocation(lambda one: one.origin_id)),
    Column("x_TokenCacheAction", ColumnType.TEXT, _of_sku(lambda sku: sku.cache_action)),
    Column("x_TokenDirection", ColumnType.TEXT, _of_sku(lambda sku: sku.direction)),
    decimal("x_UnknownBillingAttempts", _count(lambda line: line.charge.evidence.unknown_attempts)),
    decimal("x_UnpricedAttempts", _count(lambda line: line.charge.evidence.unpriced_attempts)),
    decimal(
        "x_VendorCurrencyRate",
        lambda line: (
            None if line.charge.currency is None else line.charge.currency.pico_usd_per_unit
        ),
    ),
)
"""Columns of our own, behind those of the specification."""


def in_order(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The specification's columns by name, then ours."""
    ordered = sorted(columns, key=lambda column: column.name)
    return (*ordered, *OURS)
