"""Keys that the file declares: the fixed keys of teams and the administrator's key.

They are read, hashed and forgotten; what is handed on is records without the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.auth.directory import KeyRecord, admin_key_digest, fixed_key_record
from gateway.auth.keys import make_key
from gateway.settings.errors import ConfigError, Problem, SecretError
from gateway.settings.loader import LoadedConfig
from gateway.settings.secrets import (
    RandomBytes,
    read_or_create_file,
    resolve,
    resolve_optional,
)

ADMIN_DIGEST_FILE = "admin-key.hmac"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminKey:
    """The administrator's key after it was read or made.

    Attributes:
        digest: What is kept of it.
        text_once: The key itself when this call made it: show it now, it is nowhere else.
    """

    digest: bytes
    text_once: str | None

    def __repr__(self) -> str:
        return f"AdminKey(is_new={self.text_once is not None})"


def fixed_key_records(
    config: LoadedConfig, *, environ: Mapping[str, str], pepper: bytes
) -> tuple[KeyRecord, ...]:
    """Read and hash the fixed keys of all teams.

    Raises:
        ConfigError: Keys are missing, too short or given twice; each with its line.
    """
    records: dict[bytes, KeyRecord] = {}
    problems: list[Problem] = []
    for team, team_settings in config.settings.teams.items():
        for index, key in enumerate(team_settings.keys):
            try:
                record = fixed_key_record(
                    resolve(key.value, environ=environ, config=config),
                    pepper=pepper,
                    team=team,
                    name=key.name,
                    project=key.project or "",
                    models=key.models,
                    tags=key.tags,
                    limits=None if key.limits is None else key.limits.amounts,
                )
                other = records.setdefault(record.digest, record)
                if other is not record:
                    raise ValueError(f"is the same key as `{other.name}` of team `{other.team}`")
            except (SecretError, ValueError) as error:
                place = config.locate("teams", team, "keys", index)
                problems.append(place.problem(str(error)))
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(records.values())


def load_admin_key(
    config: LoadedConfig,
    *,
    environ: Mapping[str, str],
    pepper: bytes,
    random_bytes: RandomBytes,
) -> AdminKey:
    """Read the administrator's key; without one, make it and keep its HMAC only.

    Raises:
        SecretError: The key cannot be read, is too short, or the state directory is not writable.
    """
    given = resolve_optional(config.settings.admin.key, environ=environ, config=config)
    if given is not None:
        try:
            return AdminKey(digest=admin_key_digest(given, pepper=pepper), text_once=None)
        except ValueError as error:
            raise SecretError(str(error)) from error
    key = make_key("live", random_bytes)
    path = config.state_dir / ADMIN_DIGEST_FILE
    kept, is_new = read_or_create_file(
        path, lambda: admin_key_digest(key.text, pepper=pepper).hex()
    )
    try:
        digest = bytes.fromhex(kept)
    except ValueError as error:
        raise SecretError(f"{path} is damaged; remove it to make a new key") from error
    return AdminKey(digest=digest, text_once=key.text if is_new else None)
