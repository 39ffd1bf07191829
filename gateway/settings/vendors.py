"""What is documented of the vendor behind a provider, and what a file states beyond that."""

from __future__ import annotations

from gateway.privacy.vendors import VendorRow, aggregator_domain, vendor_row
from gateway.settings.hosts import is_publicly_routable
from gateway.settings.providers import LocalProvider, ProviderSettings, base_url_of
from gateway.settings.scalars import split_url
from gateway.settings.trust import SELF_HOSTED, TrustClaim


def documented(provider: ProviderSettings) -> VendorRow | None:
    """What its vendor documents; None for servers, and for a vendor's kind at another host."""
    return vendor_row(provider.kind, host_of(provider))


def host_of(provider: ProviderSettings) -> str | None:
    """Its host, None for the embedded engine and the vendor's usual one."""
    base_url = base_url_of(provider)
    return None if base_url is None else split_url(base_url).hostname or ""


def aggregator_of(provider: ProviderSettings) -> str | None:
    """What says that a provider hands requests on to others, None where nothing does."""
    row = vendor_row(provider.kind, None)  # wherever it is: whoever speaks for one is one
    if row is not None and row.is_aggregator:
        return f"kind {provider.kind}"
    host = host_of(provider)
    return None if host is None else aggregator_domain(host)


def needs_evidence(provider: ProviderSettings, claim: TrustClaim) -> bool:
    """Whether a claim goes beyond what is documented, about machines that others run.

    A server in a private network is the operator's to know; anybody else's word needs a proof.
    """
    if isinstance(provider, LocalProvider) or claim.attribute == SELF_HOSTED:
        return False  # the one is ours; the other has a stricter rule of its own
    host = host_of(provider)
    if host is not None and not is_publicly_routable(host):
        return False
    row = documented(provider)
    known = () if row is None else row.claims
    return not any(
        one.attribute == claim.attribute and one.condition in ("", claim.condition) for one in known
    )
