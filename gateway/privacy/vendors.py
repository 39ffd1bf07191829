"""What vendors document about what is sent to them, by provider kind: trust where none is stated.

Only what holds for every account, model and endpoint without a switch or a contract is here; what
a vendor grants on request (zero retention, a data processing agreement, a region) is the operator's
to state, with evidence. A row counts only for the vendor's own hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Final

from gateway.privacy.model import DIRECT, TrustClaim

NO_TRAIN: Final = "no_train"

DATA_COLLECTION_DENIED: Final = "provider.data_collection=deny"
"""OpenRouter then asks no upstream that may store prompts or train on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRow:
    """What a vendor documents.

    Attributes:
        claims: Each with its source as evidence and the day on which it was read.
        domains: Where the vendor's own hosts are.
        is_aggregator: Whether it hands requests on to others.
    """

    claims: tuple[TrustClaim, ...]
    domains: tuple[str, ...]
    is_aggregator: bool = False


_READ_ON: Final = date(2026, 11, 30)
_VERIFIER: Final = "Fareway's catalogue"


def _row(*domains: str, source: str, no_train: bool = False) -> VendorRow:
    attributes = (DIRECT, NO_TRAIN) if no_train else (DIRECT,)
    return VendorRow(
        claims=tuple(_claim(attribute, source) for attribute in attributes), domains=domains
    )


def _claim(attribute: str, source: str, condition: str = "") -> TrustClaim:
    return TrustClaim(
        attribute=attribute,
        evidence=source,
        verified_by=_VERIFIER,
        verified_on=_READ_ON,
        condition=condition,
    )


_AZURE: Final = _row(
    "openai.azure.com",
    "ai.azure.com",
    "cognitiveservices.azure.com",
    source="https://learn.microsoft.com/azure/ai-foundry/responsible-ai/openai/data-privacy",
    no_train=True,
)

VENDORS: Final[Mapping[str, VendorRow]] = MappingProxyType(
    {
        "openai": _row(
            "openai.com",
            source="https://platform.openai.com/docs/guides/your-data",
            no_train=True,
        ),
        "anthropic": _row(
            "anthropic.com",
            source="https://privacy.anthropic.com: commercial customers",
            no_train=True,
        ),
        "groq": _row("groq.com", source="https://console.groq.com/docs/your-data", no_train=True),
        # Stores and trains as the account's settings say, which nobody sees from here.
        "together": _row("together.ai", "together.xyz", source="https://docs.together.ai"),
        "fireworks": _row("fireworks.ai", source="https://docs.fireworks.ai: data handling"),
        "cerebras": _row("cerebras.ai", source="https://support.cerebras.net"),
        "replicate": _row("replicate.com", source="https://replicate.com/docs: data retention"),
        # Whom it asks, and so what holds, differs per request unless the request says otherwise.
        # `provider.zdr` is no claim here: an account may let it reach endpoints that keep what they
        # find unsafe.
        "openrouter": VendorRow(
            claims=(
                _claim(
                    NO_TRAIN,
                    "https://openrouter.ai/docs/guides/privacy/zdr",
                    condition=DATA_COLLECTION_DENIED,
                ),
            ),
            domains=("openrouter.ai",),
            is_aggregator=True,
        ),
        "bedrock": _row(
            "amazonaws.com",
            "api.aws",
            source="https://docs.aws.amazon.com/bedrock/latest/userguide/data-protection.html",
            no_train=True,
        ),
        "azure": _AZURE,
        "azure_openai": _AZURE,
    }
)

AGGREGATOR_DOMAINS: Final = (
    "ai-gateway.vercel.sh",
    "api.portkey.ai",
    "edenai.run",
    "gateway.ai.cloudflare.com",
    "nano-gpt.com",
    "openrouter.ai",
    "poe.com",
    "requesty.ai",
    "router.huggingface.co",
    "unify.ai",
)
"""Hosts that hand requests on to others, whose terms are not theirs."""


def aggregator_domain(host: str) -> str | None:
    """The aggregator's domain that a host is in, None when it is in none."""
    return _domain_of(host, AGGREGATOR_DOMAINS)


def vendor_row(kind: str, host: str | None) -> VendorRow | None:
    """What is documented of a provider, None where nothing is.

    Args:
        kind: Its kind.
        host: Where it is, None for the vendor's usual place. Elsewhere, at a proxy for example,
            nobody knows who answers, and nothing is documented.
    """
    row = VENDORS.get(kind)
    if row is None or host is None:
        return row
    return None if _domain_of(host, row.domains) is None else row


def _domain_of(host: str, domains: tuple[str, ...]) -> str | None:
    name = host.rstrip(".").lower()
    return next((one for one in domains if name == one or name.endswith(f".{one}")), None)
