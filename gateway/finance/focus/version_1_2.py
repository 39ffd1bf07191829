"""FOCUS 1.2: Cost and Usage.

Source: FinOps Open Cost and Usage Specification 1.2 (ratified 2025-05-29), section 3.1.
"""

from __future__ import annotations

from gateway.finance.focus.columns import SHARED, Column, in_order, text

COST_AND_USAGE: tuple[Column, ...] = in_order(
    (
        *SHARED,
        # Whoever makes a service available for purchase is its provider here, and only a provider
        # may bill; whoever makes the service is its publisher.
        text("ProviderName", lambda line: line.issuer),
        text("PublisherName", lambda line: line.provider),
    )
)
"""Its columns. Shares of a machine have none of their own in this version; ours name the origin."""
