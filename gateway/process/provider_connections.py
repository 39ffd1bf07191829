"""From a provider's connection settings to the options of its transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from ssl import SSLContext

from gateway.settings.connections import TlsSettings
from gateway.settings.credentials import stated_name
from gateway.settings.errors import Problem, SecretError
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import (
    AzureProvider,
    BedrockProvider,
    LocalProvider,
    ServerProvider,
    VendorProvider,
)
from gateway.settings.secrets import resolve
from providers.addresses import Reach
from providers.transport import TransportOptions, client_context

RemoteSettings = ServerProvider | VendorProvider | AzureProvider | BedrockProvider


def transport_options(
    settings: RemoteSettings,
    *,
    environ: Mapping[str, str],
    config: LoadedConfig,
    reach: Reach = Reach.ANY,
) -> TransportOptions:
    """Read certificates and credentials, and say how a provider's connections are made.

    Args:
        settings: A provider that is not the embedded engine.
        environ: For the proxy's credentials.
        config: For the paths of files.
        reach: Where the machines behind its name may stand.

    Raises:
        SecretError: The proxy's credentials are missing.
        OSError: A certificate or key cannot be read or used.
    """
    limits = settings.connections
    source = settings.proxy_credentials
    return TransportOptions(
        connections_max=limits.max,
        waiting_max=limits.waiting_max,
        keep_alive_s=limits.keep_alive_s,
        proxy=settings.proxy_url,
        proxy_credentials=None
        if source is None
        else resolve(source, environ=environ, config=config),
        ssl_context=_context(settings, config),
        reach=reach,
    )


def connection_problems(config: LoadedConfig, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Find certificates and credentials that cannot be read, before anything needs them.

    Args:
        config: The configuration.
        environ: For the credentials that it names.
    """
    for name, provider in config.settings.providers.items():
        if isinstance(provider, LocalProvider):
            continue
        try:
            transport_options(provider, environ=environ, config=config)
        except SecretError as error:
            stated = stated_name(provider, "proxy_credentials")
            yield config.locate("providers", name, stated).problem(str(error))
        except OSError as error:
            setting, reason = _tls_fault(provider.tls, config, error)
            yield config.locate("providers", name, "tls", setting).problem(reason)


def _tls_fault(tls: TlsSettings, config: LoadedConfig, error: OSError) -> tuple[str, str]:
    """Which setting is at fault, and why; OpenSSL names neither the setting nor the file."""
    files = {
        "ca_file": tls.ca_file,
        "client_cert_file": tls.client_cert_file,
        "client_key_file": tls.client_key_file,
    }
    for setting, stated in files.items():
        if stated is None:
            continue
        path = config.resolve(stated)
        try:
            path.read_bytes()
        except OSError as unread:
            return setting, f"cannot read {path}: {unread.strerror}"
        if setting != "ca_file":
            continue
        try:
            client_context(ca_file=path)
        except OSError:
            return setting, "holds no certificate in PEM form"
    return "client_cert_file", f"cannot be used with its key: {error.strerror or error}"


def _context(settings: RemoteSettings, config: LoadedConfig) -> SSLContext | None:
    tls = settings.tls
    files = (tls.ca_file, tls.client_cert_file, tls.client_key_file)
    if files == (None, None, None):
        urls = (settings.base_url or "https:", settings.proxy_url or "")
        return _platform_context() if any(url.startswith("https:") for url in urls) else None
    ca_file, client_cert_file, client_key_file = (
        None if file is None else config.resolve(file) for file in files
    )
    return client_context(
        ca_file=ca_file, client_cert_file=client_cert_file, client_key_file=client_key_file
    )


@cache
def _platform_context() -> SSLContext:
    """One for all providers that trust the platform: 20 ms and 2 MB to read."""
    return client_context()
