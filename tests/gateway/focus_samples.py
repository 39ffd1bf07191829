"""One charge of every kind of `finance_policy.md` 1.5, and what finance knows beside them."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.finance.focus import row_map
from gateway.finance.focus.charges import (
    NO_OWNER,
    SCALE,
    Charge,
    Owner,
    PricingCategory,
    Resource,
    VendorCurrency,
)
from gateway.finance.focus.export import Export
from gateway.finance.focus.inputs import (
    Commitment,
    CommittedUse,
    CurrencyUse,
    InvoiceCharge,
    LateUsage,
    MachinePool,
    MachineShare,
    PendingSum,
    Purchase,
    UnusedCommitment,
    UsageSum,
)
from gateway.finance.focus.invoices import (
    ContractLine,
    InvoiceAllocation,
    InvoiceLine,
    PeriodClose,
)
from gateway.finance.focus.order import (
    HOUR_US,
    ExportOrder,
    NameForm,
    Parties,
    Profile,
    billing_period,
    month_of,
)
from gateway.finance.focus.pseudonyms import Names
from gateway.finance.focus.source import NothingMore
from pricing.money import PICO_PER_USD, Rate, parse_usd, rate_per_hour_us, rate_per_mtok

FROM_US, TO_US = month_of("2026-11")
HOUR = FROM_US + 10 * HOUR_US
PARTIES = Parties(organisation="Acme Platform", machines=("local",), declared_tags=("env",))
FRAUD = Owner(
    team="payments",
    project="fraud",
    key_id="abcdefghjkmn",
    data_class=("gdpr", "private"),
    cost_tags=(("env", "prod"), ("user", "jane.doe")),
)
SEARCH = Owner(team="search", cost_tags=(("env", "test"),))
HOSTED = Resource(provider="groq", deployment="groq/llama-3.1-8b", model_id="llama-3.1-8b")
MACHINE = Resource(provider="local", deployment="local/smollm2", model_id="smollm2")
RATES = {
    "input": rate_per_mtok("0.15"),
    "cache_read": rate_per_mtok("0.0375"),
    "cache_write": rate_per_mtok("0.1875"),
    "cache_write_5m": rate_per_mtok("0.1875"),
    "cache_write_1h": rate_per_mtok("0.3"),
    "cache_storage_token_hours": rate_per_mtok("4.5"),
    "output": rate_per_mtok("0.6"),
    "reasoning": rate_per_mtok("0.6"),
    "images": Rate(pico_usd=parse_usd("0.04")),
    "audio_ms": Rate(pico_usd=parse_usd("0.006"), per_units=60_000),
    "gpu_us": rate_per_hour_us("3", 2),
    "requests": Rate(pico_usd=parse_usd("0.005")),
    "web_searches": Rate(pico_usd=parse_usd("0.01")),
}


def usage_sum(meter: str, units: int, **changes) -> UsageSum:
    rate = changes.pop("rate", RATES[meter])
    cost, rest = divmod(units * rate.pico_usd, rate.per_units)
    values = {
        "start_us": HOUR,
        "end_us": HOUR + HOUR_US,
        "owner": FRAUD,
        "resource": MACHINE if meter == "gpu_us" else HOSTED,
        "meter": meter,
        "units": units,
        "rate": rate,
        "cost_pico_usd": cost + (2 * rest >= rate.per_units),
        "tokens": 0,
        "requests": 3,
        "attempts": 3,
        "quality": "exact",
        "price_version": "0123456789abcdef",
        "is_nominal": False,
    }
    return UsageSum(**(values | changes))


def commitment(**changes) -> Commitment:
    values = {
        "commitment_id": "ptu-2026-11",
        "name": "November capacity",
        "provider": "azure",
        "is_spend": False,
        "type": "PTU",
        "unit": "PTU Hours",
    }
    return Commitment(**(values | changes))


def pool(**changes) -> MachinePool:
    rate = rate_per_hour_us("3")
    values = {
        "origin_id": "local/2026-11-01T10",
        "resource": MACHINE,
        "start_us": HOUR,
        "end_us": HOUR + HOUR_US,
        "gpu_us": HOUR_US,
        "rate": rate,
        "cost_pico_usd": 3 * PICO_PER_USD,
        "method_id": "work-units/1",
        "work_unit": "Work Units",
        "shares": (
            MachineShare(owner=FRAUD, work=1 * SCALE, tokens=1_000),
            MachineShare(owner=SEARCH, work=1 * SCALE, tokens=2_000),
            MachineShare(owner=NO_OWNER, work=1 * SCALE, tokens=0, is_idle=True),
        ),
        "price_version": "node-1",
    }
    return MachinePool(**(values | changes))


def invoice_charge(dollars: str, description: str, **changes) -> InvoiceCharge:
    values = {
        "provider": "groq",
        "start_us": FROM_US,
        "end_us": TO_US,
        "amount_pico_usd": parse_usd(dollars),
        "description": description,
        "invoice_id": "INV-1",
    }
    return InvoiceCharge(**(values | changes))


def pending_sum(**changes) -> PendingSum:
    values = {
        "start_us": HOUR,
        "end_us": HOUR + HOUR_US,
        "owner": FRAUD,
        "resource": HOSTED,
        "quality": "unknown",
        "is_unpriced": False,
        "attempts": 2,
        "requests": 1,
        "tokens": 10,
        "exposure_pico_usd": 7_000_000,
    }
    return PendingSum(**(values | changes))


def every_kind() -> dict[str, Charge]:
    """Charges by what they show."""
    kinds = {
        f"metered {meter}": row_map.usage(usage_sum(meter, 8_400_000, tokens=900))
        for meter in RATES
    }
    kinds |= {
        "batch tier": row_map.usage(
            usage_sum("input", 1_000_000, rate=rate_per_mtok("0.075"), service_tier="batch")
        ),
        "dynamic price": row_map.usage(
            usage_sum("output", 1_000_000, pricing=PricingCategory.DYNAMIC)
        ),
        "negotiated price": row_map.usage(
            usage_sum(
                "output",
                3_000_000,
                rate=rate_per_mtok("0.5"),
                list_rate=rate_per_mtok("0.6"),
                list_cost_pico_usd=parse_usd("1.8"),
            )
        ),
        "nominal price": row_map.usage(usage_sum("gpu_us", 5_000_001, is_nominal=True, tokens=77)),
        "estimated counts": row_map.usage(usage_sum("output", 999, quality="estimated")),
        "no team": row_map.usage(usage_sum("input", 1, owner=NO_OWNER)),
        "unpriced": row_map.pending(pending_sum(is_unpriced=True, quality="exact", attempts=1)),
        "unknown billing": row_map.pending(pending_sum()),
    }
    kinds |= _commitments()
    kinds |= _invoiced()
    kinds |= {f"machine {n}": charge for n, charge in enumerate(row_map.self_host(pool()))}
    return kinds


def _commitments() -> dict[str, Charge]:
    ptu = commitment()
    drawn = usage_sum("output", 2_000_000, resource=replace(HOSTED, provider="azure"))
    return {
        "capacity bought": row_map.purchase(
            Purchase(
                commitment=ptu,
                start_us=FROM_US,
                end_us=TO_US,
                quantity=720 * SCALE,
                paid_pico_usd=parse_usd("720"),
                is_recurring=True,
                invoice_id="INV-2",
            )
        ),
        "credit bought": row_map.purchase(
            Purchase(
                commitment=commitment(
                    commitment_id="credit-7", is_spend=True, type="Prepaid Credit", unit="USD"
                ),
                start_us=FROM_US,
                end_us=TO_US,
                quantity=500 * SCALE,
                paid_pico_usd=parse_usd("450"),
                is_recurring=False,
                invoice_id="INV-3",
            )
        ),
        "drawn from capacity": row_map.committed_usage(
            CommittedUse(
                usage=drawn,
                commitment=ptu,
                quantity=SCALE // 2,
                amortised_pico_usd=parse_usd("0.5"),
            )
        ),
        "unused capacity": row_map.unused_commitment(
            UnusedCommitment(
                commitment=ptu,
                start_us=HOUR,
                end_us=HOUR + HOUR_US,
                quantity=SCALE // 2,
                unit_price_pico_usd=parse_usd("1"),
                wasted_pico_usd=parse_usd("0.5"),
            )
        ),
        "vendor currency": row_map.currency_usage(
            CurrencyUse(
                usage=usage_sum("input", 4_000_000, owner=SEARCH),
                currency=VendorCurrency(
                    code="EUR",
                    list_unit_price=parse_usd("0.14"),
                    contracted_unit_price=parse_usd("0.14"),
                    effective_cost=parse_usd("0.56"),
                    pico_usd_per_unit=parse_usd("1.071428571429"),
                ),
            )
        ),
    }


def _invoiced() -> dict[str, Charge]:
    previous_us = FROM_US - HOUR_US
    late = usage_sum("input", 5_000, start_us=previous_us, end_us=FROM_US)
    return {
        "credit": row_map.credit(invoice_charge("-25", "Service level credit")),
        "tax": row_map.tax(invoice_charge("19.000001", "VAT 19 %")),
        "rounding": row_map.adjustment(invoice_charge("0.004", "Rounding of the invoice")),
        "correction of an invoice": row_map.adjustment(
            invoice_charge(
                "1.5",
                "Correction of October",
                start_us=previous_us,
                end_us=FROM_US,
                is_correction=True,
                original_us=previous_us,
                billing_us=FROM_US,
            )
        ),
        "late usage": row_map.correction(LateUsage(usage=late, billing_us=FROM_US)),
    }


@dataclass
class SampleFinance(NothingMore):
    """A source with fixed answers."""

    more: list[Charge] = field(default_factory=list)
    allocated: list[InvoiceAllocation] = field(default_factory=list)
    lines: list[InvoiceLine] = field(default_factory=list)
    contracted: list[ContractLine] = field(default_factory=list)
    closed: list[PeriodClose] = field(default_factory=list)

    def charges(self, from_us, to_us):
        return self.more

    def allocations(self, from_us, to_us):
        return self.allocated

    def invoice_lines(self, from_us, to_us):
        return self.lines

    def contracts(self, from_us, to_us):
        return self.contracted

    def closes(self, from_us, to_us):
        return self.closed


def sample_finance() -> SampleFinance:
    """Every kind of row, an invoice over what was metered at groq, a contract, a closed month."""
    return SampleFinance(
        more=list(every_kind().values()),
        allocated=[
            InvoiceAllocation(
                billing_us=FROM_US,
                provider="groq",
                deployment=None,
                meter=None,
                amount_pico_usd=parse_usd("1000.01"),
                invoice_id="INV-1",
                detail_id="INV-1/1",
            )
        ],
        lines=[
            InvoiceLine(
                invoice_id="INV-1",
                detail_id="INV-1/1",
                provider="groq",
                billing_us=FROM_US,
                category="Usage",
                amount_pico_usd=parse_usd("1000.01"),
                description="Inference",
                issued_us=TO_US,
                is_issued=True,
                created_us=TO_US,
                updated_us=TO_US,
            )
        ],
        contracted=[
            ContractLine(
                contract_id="contract-1",
                commitment_id="ptu-2026-11",
                description="November capacity",
                provider="azure",
                type="PTU",
                is_spend=False,
                start_us=FROM_US,
                end_us=TO_US,
                duration="1 Month",
                interval="Monthly",
                is_upfront=True,
                status="Active",
                cost_pico_usd=None,
                quantity=720 * SCALE,
                unit="PTU Hours",
                created_us=FROM_US,
                updated_us=FROM_US,
            )
        ],
        closed=[PeriodClose(billing_us=FROM_US, closed_us=TO_US + 5 * HOUR_US)],
    )


def make_export(*, source=None, names=NameForm.PSEUDONYMS, **order) -> Export:
    values = {"from_us": FROM_US, "to_us": TO_US, "names": names}
    return Export(
        order=ExportOrder(**(values | order)),
        parties=PARTIES,
        names=Names(names, key=b"k" * 32, declared_tags=PARTIES.declared_tags),
        source=NothingMore() if source is None else source,
    )


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def pico(text: str) -> int:
    return parse_usd(text)


PROFILES = tuple(Profile)
NOVEMBER = billing_period(HOUR)
