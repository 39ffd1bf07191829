"""Requests to finance as the configuration wants them, for commands and pages alike."""

from __future__ import annotations

from decimal import Decimal

from gateway.finance.bill_messages import Reconcile, Tolerances
from gateway.finance.close_messages import CloseDelays
from gateway.settings.finance import CloseSettings, ReconciliationSettings
from pricing.money import parse_usd


def reconcile_order(
    settings: ReconciliationSettings, *, actor: str, month: str, proposes: bool
) -> Reconcile:
    """A run with the configured tolerances and aliases."""
    return Reconcile(
        actor=actor,
        month=month,
        tolerances=Tolerances(
            quantity_ratio=_ratio(settings.quantity_tolerance_percent),
            amount_ratio=_ratio(settings.amount_tolerance_percent),
            price_ratio=_ratio(settings.price_drift_percent),
            amount_pico_usd=parse_usd(settings.amount_tolerance_usd),
            delay_days=settings.delay_days,
        ),
        aliases=dict(settings.model_aliases),
        proposes=proposes,
    )


def close_delays(settings: CloseSettings) -> CloseDelays:
    """From when on a month may be closed."""
    return CloseDelays(soft_days=settings.soft_after_days, hard_days=settings.hard_after_days)


def _ratio(percent: float) -> str:
    """Decimal text; a per cent is no money, and its shortest text is what the file says."""
    return str(Decimal(str(percent)) / 100)
