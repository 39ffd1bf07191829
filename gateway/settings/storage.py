"""Sections `storage` and `stored_objects`: what is kept, where and how safely."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl

from pydantic import AfterValidator, Field

from gateway.settings.credentials import SecretReference, reference
from gateway.settings.scalars import (
    EnvName,
    FilePath,
    Many,
    Section,
    StoreReference,
    Word,
    split_url,
)

SQLITE_PREFIX = "sqlite:///"


def _holds_password(parts: SplitResult) -> bool:
    """Whether a URL has a password in any place where drivers look for one."""
    names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    return parts.password is not None or bool(names & {"password", "sslpassword"})


def _check_database(value: str) -> str:
    if value.startswith(SQLITE_PREFIX):
        if value == SQLITE_PREFIX or any(character in value for character in "?#\0"):
            raise ValueError("must be sqlite:///FILE, without parameters")
        return value
    parts = split_url(value)
    if parts.scheme != "postgresql" or not parts.hostname:
        raise ValueError("must be sqlite:///FILE or postgresql://user@host/database")
    if _holds_password(parts):
        raise ValueError("must not hold a password; use database_password_env or _file")
    return value


def _check_redis(value: str) -> str:
    parts = split_url(value)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError("must be redis://host:6379/0")
    if _holds_password(parts):
        raise ValueError("must not hold a password; use redis_password_env or _file")
    return value


class StorageSettings(Section):
    """The database, the journal in front of it, and what is never stored by default."""

    database: Annotated[str, AfterValidator(_check_database)] = "sqlite:///fareway.db"
    """`sqlite:///FILE` or `postgresql://user@host/database`."""
    database_password_env: EnvName | None = None
    """Environment variable with the database password."""
    database_password_file: FilePath | None = None
    """File with the database password."""
    database_password_ref: StoreReference | None = None
    """Secret store reference of the database password."""
    redis: Annotated[str, AfterValidator(_check_redis)] | None = None
    """`redis://host:6379/0`; needed only by several machines."""
    redis_password_env: EnvName | None = None
    """Environment variable with the Redis password."""
    redis_password_file: FilePath | None = None
    """File with the Redis password."""
    redis_password_ref: StoreReference | None = None
    """Secret store reference of the Redis password."""
    spool_dir: FilePath = "spool"
    """Folder of the crash-safe journal in front of the database."""
    durability: Literal["group", "strict"] = "group"
    """`group`: on disk within 20 ms; `strict`: on disk before an attempt is dispatched."""
    content_log: Literal["none", "hashes"] = "none"
    """What is kept of prompts and answers: nothing, or keyed hashes."""
    check_hour: int | None = Field(default=3, ge=0, le=23)
    """Hour of the day, in UTC, after which one machine checks the sums of the days that were
    touched against their events; `null` for never."""

    @property
    def database_password(self) -> SecretReference | None:
        """Where the database password is kept, None when there is none."""
        return reference(
            self.database_password_env,
            self.database_password_file,
            self.database_password_ref,
            name="database_password",
        )

    @property
    def redis_password(self) -> SecretReference | None:
        """Where the Redis password is kept, None when there is none."""
        return reference(
            self.redis_password_env,
            self.redis_password_file,
            self.redis_password_ref,
            name="redis_password",
        )

    @property
    def is_shared(self) -> bool:
        """Whether several machines may work on this storage."""
        return self.redis is not None or not self.database.startswith(SQLITE_PREFIX)


class StoredObjectSettings(Section):
    """What clients ask Fareway to keep: files, batches, stored responses."""

    enabled: bool = False
    """Whether clients may store objects at all."""
    ttl_h: int = Field(default=24, ge=1, le=8_760)
    """Hours after which a stored object is deleted."""
    tags: Many[Word] = ()
    """Privacy tags that a request may carry and still store an object."""
