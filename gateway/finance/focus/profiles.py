"""What a profile makes of a charge: who issues the invoice, and what of it is billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from gateway.finance.focus.charges import (
    LEDGER_CURRENCY,
    SCALE,
    Category,
    Charge,
    ChargeKind,
    Costs,
    Invoice,
    Owner,
    VendorCurrency,
)
from gateway.finance.focus.invoices import Billed, Spread
from gateway.finance.focus.order import Parties, Profile
from gateway.finance.focus.pseudonyms import Names

RESERVED_TAG_PREFIX = "fareway:"
PROJECT_TAG = f"{RESERVED_TAG_PREFIX}project"
_OPERATORS_OWN = frozenset({ChargeKind.SELF_HOST, ChargeKind.SELF_HOST_IDLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A charge as a profile tells it, names written as the order asks.

    Attributes:
        charge: What it was made from; costs, owner and invoice are those below.
        issuer: Who issues the invoice.
        provider: Whose service it is: the vendor, or the operator for machines of its own.
        costs: The four costs of this profile.
        estimated_billed_pico_usd: What is expected to be billed elsewhere, None where `costs` say.
        split_origin_pico_usd: The shared cost on the basis of what is billed, None for others.
        reconciliation: `Invoiced` or `Estimated`, None in other profiles.
        owner: With pseudonyms where they are wanted.
        tags: Name and value, sorted.
    """

    charge: Charge
    issuer: str
    provider: str
    costs: Costs
    estimated_billed_pico_usd: int | None
    split_origin_pico_usd: int | None
    reconciliation: str | None
    invoice: Invoice | None
    owner: Owner
    tags: tuple[tuple[str, str], ...]


Teller = Callable[[Charge], Line]
"""Tells a charge in one profile."""


def teller(profile: Profile, *, parties: Parties, names: Names, spread: Spread) -> Teller:
    """Make what tells charges in a profile.

    Args:
        profile: Which.
        parties: Who stands on the export.
        names: How names are written.
        spread: What invoices bill, counted already; only for `reconciled`.
    """
    if profile is Profile.CHARGEBACK:
        return lambda charge: _chargeback(charge, parties, names)
    if profile is Profile.OVERLAY:
        return lambda charge: _overlay(charge, parties, names)
    if profile is Profile.RECONCILED:
        return lambda charge: _reconciled(charge, parties, names, spread)
    assert_never(profile)


def _chargeback(charge: Charge, parties: Parties, names: Names) -> Line:
    """The operator bills its teams: what is billed is what is charged."""
    provider = _issuer(charge, parties)
    return _line(
        charge,
        names,
        issuer=parties.organisation,
        provider=provider,
        costs=charge.costs,
        invoice=charge.invoice,
    )


def _overlay(charge: Charge, parties: Parties, names: Names) -> Line:
    """The vendor's own file bills: a second bill here would count twice."""
    billed = charge.costs.billed_pico_usd
    # Tax and credits have one amount only; FOCUS wants it to be the billed one.
    is_invoice_only = charge.category in (Category.TAX, Category.CREDIT)
    costs = Costs.equal(0) if is_invoice_only else replace(charge.costs, billed_pico_usd=0)
    issuer = _issuer(charge, parties)
    line = _line(charge, names, issuer=issuer, provider=issuer, costs=costs, estimated=billed)
    return line if charge.allocation is None else replace(line, split_origin_pico_usd=0)


def _reconciled(charge: Charge, parties: Parties, names: Names, spread: Spread) -> Line:
    """What vendors invoiced; what no invoice covers yet says that it is an estimate."""
    issuer = _issuer(charge, parties)
    estimated = charge.costs.billed_pico_usd
    found = spread.billed(charge)
    if found is not None:
        invoice = found.invoice
        costs = replace(charge.costs, billed_pico_usd=found.amount_pico_usd)
        if found.currency != LEDGER_CURRENCY:
            charge = replace(charge, currency=_vendor_currency(charge, found))
        state = "Invoiced"
    else:
        costs, invoice = charge.costs, charge.invoice
        state = "Estimated" if invoice is None else "Invoiced"
    line = _line(
        charge,
        names,
        issuer=issuer,
        provider=issuer,
        costs=costs,
        estimated=estimated,
        invoice=invoice,
    )
    return replace(line, reconciliation=state)


def _vendor_currency(charge: Charge, found: Billed) -> VendorCurrency | None:
    """Prices and cost in the currency that the vendor bills in, at the rate of its invoice."""
    if charge.sku is None:
        return None
    return VendorCurrency(
        code=found.currency,
        list_unit_price=round(charge.sku.list_unit_price / found.rate),
        contracted_unit_price=round(charge.sku.contracted_unit_price / found.rate),
        effective_cost=round(charge.costs.effective_pico_usd / found.rate),
        pico_usd_per_unit=round(SCALE * found.rate),
    )


def _issuer(charge: Charge, parties: Parties) -> str:
    """The vendor; for machines of the operator's own and moves between teams, the operator."""
    provider = charge.resource.provider
    is_own = charge.kind in _OPERATORS_OWN or not provider or provider in parties.machines
    return parties.organisation if is_own else provider


def _line(
    charge: Charge,
    names: Names,
    *,
    issuer: str,
    provider: str,
    costs: Costs,
    estimated: int | None = None,
    invoice: Invoice | None = None,
) -> Line:
    shared = charge.allocation
    owner = charge.owner
    return Line(
        charge=charge,
        issuer=issuer,
        provider=provider,
        costs=costs,
        estimated_billed_pico_usd=estimated,
        split_origin_pico_usd=None if shared is None else shared.origin_pico_usd,
        reconciliation=None,
        invoice=invoice,
        owner=replace(owner, key_id=names.key_id(owner.key_id)),
        tags=_tags(owner, names),
    )


def _tags(owner: Owner, names: Names) -> tuple[tuple[str, str], ...]:
    """Cost tags, and the project under a name that no client can take."""
    tags = {
        (f"client:{name}" if name.startswith(RESERVED_TAG_PREFIX) else name): names.tag_value(
            name, value
        )
        for name, value in owner.cost_tags
    }
    if owner.project:
        tags[PROJECT_TAG] = owner.project
    return tuple(sorted(tags.items()))
