"""Trust attributes: facts about a deployment that satisfy the requirements of privacy tags."""

from __future__ import annotations

from gateway.settings.scalars import Day, TextOrSection, Word

SELF_HOSTED = "self_hosted"
LOCAL = "local"

KNOWN_ATTRIBUTES = frozenset(
    {"no_train", "zero_retention", "dpa", "baa", SELF_HOSTED, LOCAL, "isolated_cache"}
)
"""Attributes that Fareway ships; operators may add their own, and `region:` ones are open."""


def is_known_attribute(attribute: str) -> bool:
    """Whether Fareway ships the attribute."""
    return attribute in KNOWN_ATTRIBUTES or attribute.startswith("region:")


class TrustClaim(TextOrSection):
    """An attribute that the operator vouches for; plain text stands for a claim without proof."""

    attribute: Word
    """The attribute, for example `self_hosted` or `region:eu`."""
    evidence: str | None = None
    """Where the proof is, for auditors."""
    expires: Day | None = None
    """First day on which the claim no longer counts."""


def claims_attribute(claims: tuple[TrustClaim, ...] | None, attribute: str) -> TrustClaim | None:
    """Find the claim of an attribute, None when nobody makes it."""
    return next((claim for claim in claims or () if claim.attribute == attribute), None)
