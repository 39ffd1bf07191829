"""FOCUS 1.4: Cost and Usage, and the three datasets beside it.

Source: FinOps Open Cost and Usage Specification 1.4 (ratified 2026-06-04), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.finance.focus.charges import SCALE, Allocation
from gateway.finance.focus.columns import (
    LEDGER_CURRENCY,
    SHARED,
    Column,
    ColumnType,
    Value,
    document,
    exact_number,
    in_order,
    of_allocation,
    of_invoice,
    text,
)
from gateway.finance.focus.invoices import ContractLine, InvoiceLine
from gateway.finance.focus.order import billing_period
from gateway.finance.focus.profiles import PROJECT_TAG, Line


def _method_details(one: Allocation) -> str | None:
    element = {
        "AllocatedRatio": exact_number(one.ratio),
        "UsageQuantity": exact_number(one.usage.amount),
        "UsageUnit": one.usage.unit,
        **({"x_Part": one.part} if one.part else {}),
    }
    return document({"Elements": [element]})


def _allocated_tags(line: Line) -> str | None:
    """Tags of what the share is for, which are the charge's own."""
    return None if line.charge.allocation is None else document(dict(line.tags))


def _allocated_to(line: Line) -> str | None:
    """Whose share it is; shares of one origin differ in it."""
    allocation = line.charge.allocation
    if allocation is None:
        return None
    owner = line.owner
    tags = (f"{name}={value}" for name, value in line.tags if name != PROJECT_TAG)
    parts = (owner.team, owner.project, owner.key_id, *tags, allocation.part)
    return "/".join(filter(None, parts))


COST_AND_USAGE: tuple[Column, ...] = in_order(
    (
        *SHARED,
        Column("AllocatedMethodDetails", ColumnType.TEXT, of_allocation(_method_details)),
        Column("AllocatedMethodId", ColumnType.TEXT, of_allocation(lambda one: one.method_id)),
        text("AllocatedResourceId", _allocated_to),
        text("AllocatedResourceName", _allocated_to),
        text("AllocatedTags", _allocated_tags),
        text("HostProviderName", lambda line: line.provider),
        Column("InvoiceDetailId", ColumnType.TEXT, of_invoice(lambda one: one.detail_id)),
        text("ServiceProviderName", lambda line: line.provider),
    )
)
"""Its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodRow:
    """A billing period of an issuer; instants in microseconds since the epoch."""

    start_us: int
    issuer: str
    is_closed: bool
    updated_us: int


def period_values(row: PeriodRow) -> dict[str, tuple[ColumnType, Value]]:
    """A row of Billing Period."""
    start_us, end_us = billing_period(row.start_us)
    return {
        "BillingPeriodCreated": (ColumnType.INSTANT, start_us),
        "BillingPeriodEnd": (ColumnType.INSTANT, end_us),
        "BillingPeriodLastUpdated": (ColumnType.INSTANT, max(start_us, row.updated_us)),
        "BillingPeriodStart": (ColumnType.INSTANT, start_us),
        "BillingPeriodStatus": (ColumnType.TEXT, "Closed" if row.is_closed else "Open"),
        "InvoiceIssuerName": (ColumnType.TEXT, row.issuer),
    }


def invoice_values(line: InvoiceLine) -> dict[str, tuple[ColumnType, Value]]:
    """A row of Invoice Detail."""
    start_us, end_us = billing_period(line.billing_us)
    return {
        "BilledCost": (ColumnType.DECIMAL, line.amount_pico_usd),
        "BillingAccountId": (ColumnType.TEXT, line.provider),
        "BillingCurrency": (ColumnType.TEXT, LEDGER_CURRENCY),
        "BillingPeriodEnd": (ColumnType.INSTANT, end_us),
        "BillingPeriodStart": (ColumnType.INSTANT, start_us),
        "ChargeCategory": (ColumnType.TEXT, line.category),
        "InvoiceDetailCreated": (ColumnType.INSTANT, line.created_us),
        "InvoiceDetailDescription": (ColumnType.TEXT, line.description or None),
        "InvoiceDetailGrain": (ColumnType.TEXT, None),
        "InvoiceDetailId": (ColumnType.TEXT, line.detail_id),
        "InvoiceDetailLastUpdated": (ColumnType.INSTANT, max(line.created_us, line.updated_us)),
        "InvoiceId": (ColumnType.TEXT, line.invoice_id),
        "InvoiceIssueDate": (ColumnType.INSTANT, line.issued_us),
        "InvoiceIssueStatus": (ColumnType.TEXT, "Issued" if line.is_issued else "Open"),
        "InvoiceIssuerName": (ColumnType.TEXT, line.provider),
        "PaymentDueDate": (ColumnType.INSTANT, line.due_us),
        "PaymentTerms": (ColumnType.TEXT, line.payment_terms),
        # The specification takes no null here; an invoice that replaces none refers to itself.
        "ReferenceInvoiceId": (ColumnType.TEXT, line.reference_invoice_id or line.invoice_id),
    }


def contract_values(line: ContractLine) -> dict[str, tuple[ColumnType, Value]]:
    """A row of Contract Commitment."""
    is_upfront = line.is_upfront
    return {
        "BillingCurrency": (ColumnType.TEXT, LEDGER_CURRENCY),
        "ContractCommitmentApplicability": (ColumnType.TEXT, _applies_to(line)),
        "ContractCommitmentBenefitCategory": (ColumnType.TEXT, "Entitlement"),
        "ContractCommitmentCategory": (ColumnType.TEXT, "Spend" if line.is_spend else "Usage"),
        "ContractCommitmentCost": (ColumnType.DECIMAL, line.cost_pico_usd),
        "ContractCommitmentCreated": (ColumnType.INSTANT, line.created_us),
        "ContractCommitmentDescription": (ColumnType.TEXT, line.description or None),
        "ContractCommitmentDiscountPercentage": (ColumnType.DECIMAL, None),
        "ContractCommitmentDurationType": (ColumnType.TEXT, line.duration),
        "ContractCommitmentFulfillmentInterval": (ColumnType.TEXT, line.interval),
        "ContractCommitmentId": (ColumnType.TEXT, line.commitment_id),
        "ContractCommitmentLastUpdated": (
            ColumnType.INSTANT,
            max(line.created_us, line.updated_us),
        ),
        "ContractCommitmentLifecycleStatus": (ColumnType.TEXT, line.status),
        "ContractCommitmentModel": (ColumnType.TEXT, "Continuous"),
        "ContractCommitmentOfferCategory": (ColumnType.TEXT, "Negotiated"),
        "ContractCommitmentPaymentInterval": (
            ColumnType.TEXT,
            "One-Time" if is_upfront else "Monthly",
        ),
        "ContractCommitmentPaymentModel": (
            ColumnType.TEXT,
            "All Upfront" if is_upfront else "No Upfront",
        ),
        "ContractCommitmentPaymentUpfrontPercentage": (
            ColumnType.DECIMAL,
            SCALE if is_upfront else 0,
        ),
        "ContractCommitmentPeriodEnd": (ColumnType.INSTANT, line.end_us),
        "ContractCommitmentPeriodStart": (ColumnType.INSTANT, line.start_us),
        "ContractCommitmentQuantity": (ColumnType.DECIMAL, line.quantity),
        "ContractCommitmentType": (ColumnType.TEXT, line.type),
        "ContractCommitmentUnit": (ColumnType.TEXT, line.unit),
        "ContractId": (ColumnType.TEXT, line.contract_id),
        "ContractPeriodEnd": (ColumnType.INSTANT, line.end_us),
        "ContractPeriodStart": (ColumnType.INSTANT, line.start_us),
        "InvoiceIssuerName": (ColumnType.TEXT, line.provider),
        "ServiceProviderName": (ColumnType.TEXT, line.provider),
    }


def _applies_to(line: ContractLine) -> str | None:
    """Everything of its provider."""
    rule = {"Dimension": "ServiceProviderName", "Operator": "In", "Values": [line.provider]}
    return document({"InclusionOperator": "And", "Inclusions": [rule]})
