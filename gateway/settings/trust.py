"""Trust attributes: facts about a deployment that satisfy the requirements of privacy tags."""

from __future__ import annotations

from pydantic import GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.settings.scalars import Day, Section, Word

SELF_HOSTED = "self_hosted"
LOCAL = "local"

KNOWN_ATTRIBUTES = frozenset(
    {"no_train", "zero_retention", "dpa", "baa", SELF_HOSTED, LOCAL, "isolated_cache"}
)
"""Attributes that Fareway ships; operators may add their own, and `region:` ones are open."""


def is_known_attribute(attribute: str) -> bool:
    """Whether Fareway ships the attribute."""
    return attribute in KNOWN_ATTRIBUTES or attribute.startswith("region:")


class TrustClaim(Section):
    """An attribute that the operator vouches for; plain text stands for a claim without proof."""

    attribute: Word
    """The attribute, for example `self_hosted` or `region:eu`."""
    evidence: str | None = None
    """Where the proof is, for auditors."""
    expires: Day | None = None
    """First day on which the claim no longer counts."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"attribute": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Let editors accept the short form too."""
        return or_text(core_schema, handler)


def or_text(core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """JSON Schema of a section that plain text may stand for."""
    return {"anyOf": [{"type": "string"}, handler(core_schema)]}


def claims_attribute(claims: tuple[TrustClaim, ...] | None, attribute: str) -> TrustClaim | None:
    """Find the claim of an attribute, None when nobody makes it."""
    return next((claim for claim in claims or () if claim.attribute == attribute), None)
