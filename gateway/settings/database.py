"""Where the ledger's database is, with the password that opens it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import quote, urlsplit, urlunsplit

from gateway.settings.credentials import stated_name
from gateway.settings.errors import ConfigError, SecretError
from gateway.settings.loader import LoadedConfig
from gateway.settings.secrets import resolve
from gateway.settings.storage import SQLITE_PREFIX


def connection_url(config: LoadedConfig, *, environ: Mapping[str, str]) -> str:
    """The URL that opens the database; it may hold a password, so it is never shown.

    Raises:
        SecretError: The password is missing, or in a place that cannot be read.
    """
    url = config.database_url
    reference = config.settings.storage.database_password
    if reference is None or url.startswith(SQLITE_PREFIX):
        return url
    password = resolve(reference, environ=environ, config=config)
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}{at or '@'}{host}"))


def redis_password(config: LoadedConfig, *, environ: Mapping[str, str]) -> str | None:
    """The password of `storage.redis`, None where it has none.

    Raises:
        SecretError: It is missing, or in a place that cannot be read.
    """
    reference = config.settings.storage.redis_password
    return None if reference is None else resolve(reference, environ=environ, config=config)


def require_database(config: LoadedConfig, environ: Mapping[str, str]) -> None:
    """See that the database can be opened, as far as this machine alone can tell.

    Raises:
        ConfigError: The driver is not installed, or the password cannot be read.
    """
    if config.database_url.startswith(SQLITE_PREFIX):
        return
    if find_spec("asyncpg") is None:
        place = config.locate("storage", "database")
        problem = place.problem("PostgreSQL needs the extra: pip install 'fareway[postgres]'")
        raise ConfigError((problem,))
    storage = config.settings.storage
    try:
        connection_url(config, environ=environ)
    except SecretError as error:
        place = config.locate("storage", stated_name(storage, "database_password"))
        raise ConfigError((place.problem(str(error)),)) from error
