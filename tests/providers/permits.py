"""Permits for tests of what sends: to one place, or to wherever a provider is."""

from __future__ import annotations

from typing import Any

from yarl import URL

from gateway.privacy.permit import operator_permit
from providers.compatible import OpenAiCompatibleProvider
from providers.contract import ENGINE, EgressPermit
from providers.transport.head import place_of

DEPLOYMENT = "d/m"


def bound_for(url: str) -> dict[str, Any]:
    """What `Transport.send` demands for a request to a URL."""
    permit = operator_permit("test", {DEPLOYMENT: place_of(URL(url))})
    return {"permit": permit, "deployment": DEPLOYMENT}


def permit_of(provider: OpenAiCompatibleProvider, model: str = "m") -> EgressPermit:
    """A permit for one model of a provider, where that is."""
    place = place_of(provider._upstream.url)
    return operator_permit("test", {f"{provider.name}/{model}": place})


def engine_permit(*deployments: str) -> EgressPermit:
    """A permit for deployments of the embedded engine."""
    return operator_permit("test", dict.fromkeys(deployments, ENGINE))
