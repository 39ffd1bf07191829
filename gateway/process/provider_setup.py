"""From the configuration's providers to provider objects; nothing is connected here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from gateway.egress.destinations import provider_reach
from gateway.process.provider_connections import transport_options
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider, ServerProvider
from gateway.settings.secrets import resolve
from local_engine.api import Done
from providers.contract import Capabilities, Provider
from providers.native.local import EngineLink
from providers.registry import (
    CompatibleDescription,
    Description,
    LocalDescription,
    build_providers,
)

Links = Mapping[str, Mapping[str, EngineLink]]


def engine_links(config: LoadedConfig) -> Links:
    """An unconnected link per local model, by provider name and model id."""
    return {
        name: {model.id: EngineLink() for model in provider.models}
        for name, provider in config.settings.providers.items()
        if isinstance(provider, LocalProvider)
    }


def set_up_providers(
    config: LoadedConfig,
    *,
    environ: Mapping[str, str],
    links: Links,
    on_done: Callable[[str, Done], None] | None = None,
) -> dict[str, Provider]:
    """Make every provider of a configuration.

    Args:
        config: The configuration.
        environ: For the keys that it names.
        links: From `engine_links`.
        on_done: Told the engine's account of each generation.

    Raises:
        SecretError: A key or a proxy's credentials are missing.
        OSError: A certificate cannot be used.
        ValueError: A base URL cannot be used.
    """
    descriptions = _descriptions(config, environ=environ, links=links, on_done=on_done)
    return build_providers(descriptions, clock=lambda: datetime.now(UTC))


def _descriptions(
    config: LoadedConfig,
    *,
    environ: Mapping[str, str],
    links: Links,
    on_done: Callable[[str, Done], None] | None,
) -> Iterator[Description]:
    windows, today = _context_windows(config), datetime.now(UTC).date()
    for name, provider in config.settings.providers.items():
        if isinstance(provider, LocalProvider):
            yield LocalDescription(name=name, links=links[name], on_done=on_done)
        elif isinstance(provider, ServerProvider):
            key = provider.api_key
            yield CompatibleDescription(
                name=name,
                kind=provider.kind,
                enforced=provider.enforce,
                base_url=provider.base_url,
                api_key=None if key is None else resolve(key, environ=environ, config=config),
                transport_options=transport_options(
                    provider,
                    environ=environ,
                    config=config,
                    reach=provider_reach(config.settings, name, today=today),
                ),
                model_capabilities={
                    model_id: Capabilities(context_window_tokens=window)
                    for model_id, window in windows.get(name, {}).items()
                },
            )


def _context_windows(config: LoadedConfig) -> dict[str, dict[str, int]]:
    """Context windows that the configuration states, by provider and model id."""
    found: dict[str, dict[str, int]] = {}
    for model in config.settings.models.values():
        for entry in model.deployments:
            if entry.context_window_tokens is not None:
                models = found.setdefault(entry.provider, {})
                models[entry.model_id] = entry.context_window_tokens
    return found
