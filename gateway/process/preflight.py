"""What is checked before a configuration is served, at the start and at every reload."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gateway.clock import Clock, from_microseconds
from gateway.policy_certificate import certify
from gateway.settings.connections import TlsSettings
from gateway.settings.credentials import SecretReference, stated_name
from gateway.settings.declared_keys import fixed_key_records
from gateway.settings.errors import ConfigError, Problem, SecretError
from gateway.settings.extras import missing_extras
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider, ProviderSettings, ServerProvider
from gateway.settings.secrets import Label, MasterKeys, load_master_keys, resolve
from gateway.settings.unbuilt import unbuilt

logger = logging.getLogger(__name__)


class ServeError(Exception):
    """The service cannot start, or not with this configuration; the message says what to mend."""


def check(config: LoadedConfig, *, environ: Mapping[str, str], clock: Clock) -> MasterKeys:
    """Check everything that can be checked before a process is started; the master keys.

    Args:
        config: The configuration.
        environ: The environment.
        clock: For claims that expire.

    Raises:
        ServeError: The configuration asks for what is not built, or a folder cannot be made.
        SettingsError: A secret is missing or malformed.
        PolicyUnproved: The privacy policy does not hold, or its certificate cannot be written.
    """
    pending = unbuilt(config)
    if pending:
        listed = "\n".join(f"  {problem}" for problem in pending)
        raise ServeError(f"this configuration cannot be served yet:\n{listed}")
    _make_folder(config.state_dir, "FAREWAY_STATE_DIR")
    _make_folder(config.spool_dir, "storage.spool_dir")
    master = load_master_keys(config, environ=environ, random_bytes=secrets.token_bytes)
    # So that a missing key is one sentence, not a dead worker.
    fixed_key_records(config, environ=environ, pepper=master.derive(Label.KEY_PEPPER))
    certificate = certify(
        config,
        key=master.derive(Label.CERTIFICATE),
        at=from_microseconds(clock.wall_us()),
    )
    logger.info(
        "the privacy policy %s is proved: %d cells; certificate %s",
        certificate.policy_digest[:12],
        certificate.cells,
        certificate.digest[:12],
    )
    require_provider_keys(config, environ)
    require_collector(config, environ)
    require_redis(config, environ)
    require_identity_provider(config, environ)
    return master


def require_provider_keys(config: LoadedConfig, environ: Mapping[str, str]) -> None:
    """Read every upstream's key and certificates once, so that a missing one stops the start only.

    Raises:
        ConfigError: With every key and file that cannot be read.
    """
    problems = _connection_problems(config, environ)
    for name, provider in config.settings.providers.items():
        if not isinstance(provider, ServerProvider) or provider.api_key is None:
            continue
        try:
            resolve(provider.api_key, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("providers", name, stated_name(provider, "api_key"))
            problems.append(place.problem(str(error)))
    if problems:
        raise ConfigError(tuple(problems))


def _connection_problems(config: LoadedConfig, environ: Mapping[str, str]) -> list[Problem]:
    """What is wrong with certificates and proxies, where there are any."""
    if not any(_has_own_connections(one) for one in config.settings.providers.values()):
        return []
    # Here, because it loads the client library: a tenth of a second that most starts can save.
    from gateway.process.provider_connections import connection_problems

    return list(connection_problems(config, environ))


def _has_own_connections(provider: ProviderSettings) -> bool:
    return not isinstance(provider, LocalProvider) and (
        provider.proxy_credentials is not None or provider.tls != TlsSettings()
    )


def require_collector(config: LoadedConfig, environ: Mapping[str, str]) -> None:
    """See that spans can be sent, where they shall be.

    Raises:
        ConfigError: The library is not installed, or the `Authorization` header cannot be read.
    """
    telemetry = config.settings.telemetry
    if telemetry.otlp_endpoint is None:
        return
    problems: list[Problem] = []
    if telemetry.otlp_authorization is not None:
        try:
            resolve(telemetry.otlp_authorization, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("telemetry", stated_name(telemetry, "otlp_authorization"))
            problems.append(place.problem(str(error)))
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        place = config.locate("telemetry", "otlp_endpoint")
        problems.append(place.problem("needs the extra: pip install 'fareway[otel]'"))
    if problems:
        raise ConfigError(tuple(problems))


def require_redis(config: LoadedConfig, environ: Mapping[str, str]) -> None:
    """See that Redis can be spoken to, where it shall be; whether it is there is another matter.

    Raises:
        ConfigError: The library is not installed, or the password cannot be read.
    """
    storage = config.settings.storage
    if storage.redis is None:
        return
    problems: list[Problem] = []
    if storage.redis_password is not None:
        try:
            resolve(storage.redis_password, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("storage", stated_name(storage, "redis_password"))
            problems.append(place.problem(str(error)))
    if find_spec("redis") is None:
        place = config.locate("storage", "redis")
        problems.append(place.problem("needs the extra: pip install 'fareway[redis]'"))
    if problems:
        raise ConfigError(tuple(problems))


def require_identity_provider(config: LoadedConfig, environ: Mapping[str, str]) -> None:
    """See that people can be sent to the identity provider, where they shall be.

    Raises:
        ConfigError: The library is not installed, or the client secret cannot be read.
    """
    oidc = config.settings.login.oidc
    if oidc is None:
        return
    problems: list[Problem] = list(missing_extras(config))
    if oidc.client_secret is not None:
        try:
            resolve(oidc.client_secret, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("login", "oidc", stated_name(oidc, "client_secret"))
            problems.append(place.problem(str(error)))
    if problems:
        raise ConfigError(tuple(problems))


def require_same_ground(old: LoadedConfig, new: LoadedConfig) -> None:
    """Refuse a reload of what only a restart can change.

    Args:
        old: What is served.
        new: What the files say now.

    Raises:
        ConfigError: With every such change.
    """
    problems = tuple(
        new.locate(*path).problem(f"{what} changes with a restart of the gateway only")
        for path, what in _changes(old, new)
    )
    if problems:
        raise ConfigError(problems)


def _changes(old: LoadedConfig, new: LoadedConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths of changed settings on which running processes stand, and what to call them."""
    before, after = old.settings, new.settings
    if before.server.host != after.server.host:
        yield ("server", "host"), "the address"
    if before.server.port != after.server.port:
        yield ("server", "port"), "the port"
    if old.database_url != new.database_url:
        yield ("storage", "database"), "the database"
    if old.spool_dir != new.spool_dir:
        yield ("storage", "spool_dir"), "the journal's folder"
    if before.storage.redis != after.storage.redis:
        yield ("storage", "redis"), "Redis"
    if _places(before.storage.database_password) != _places(after.storage.database_password):
        yield ("storage",), "the place of the database password"
    if before.secrets != after.secrets:
        yield ("secrets",), "the master key"
    if before.admin != after.admin:
        yield ("admin",), "the place of the administrator's key"
    names = sorted(before.providers.keys() | after.providers.keys())
    for name in names:
        if _engines(old, name) != _engines(new, name):
            yield ("providers", name), "what the embedded engine runs"


def _places(reference: SecretReference | None) -> object:
    return None if reference is None else reference.model_dump()


def _engines(config: LoadedConfig, name: str) -> object:
    """What makes a local provider's engines, None for another provider."""
    provider = config.settings.providers.get(name)
    if not isinstance(provider, LocalProvider):
        return None
    return provider.device, provider.models


def _make_folder(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServeError(
            f"{folder} cannot be made: {error.strerror}; name another folder with {setting}"
        ) from error
