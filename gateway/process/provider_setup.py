"""From the configuration's providers to provider objects; opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider as LocalSettings
from gateway.settings.providers import ServerProvider
from gateway.settings.secrets import resolve
from providers.compatible import Account, OpenAiCompatibleProvider, load_catalog
from providers.contract import Capabilities, Provider

CATALOG = load_catalog()


def build_providers(
    config: LoadedConfig, *, environ: Mapping[str, str]
) -> dict[str, Provider]:
    found: dict[str, Provider] = {}
    for name, provider in config.settings.providers.items():
        if isinstance(provider, ServerProvider):
            key = provider.api_key
            found[name] = OpenAiCompatibleProvider(
                Account(
                    name=name,
                    base_url=provider.base_url,
                    api_key=None if key is None else resolve(key, environ=environ, config=config),
                ),
                CATALOG["openai_compatible"],
                clock=lambda: datetime.now(UTC),
            )
    return found
