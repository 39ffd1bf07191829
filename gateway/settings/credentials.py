"""Where secrets come from: the sections `admin` and `secrets`, and the form of every reference.

A secret is never in the file. A setting `x` that is secret is written `x_env` (a variable),
`x_file` (a file that only its owner can read) or `x_ref` (`vault:` or `awssm:`).
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gateway.settings.scalars import EnvName, FilePath, Many, Section, StoreReference


class SecretReference(Section):
    """Where one secret is kept; exactly one of the three."""

    env: EnvName | None = None
    """Environment variable that holds the secret."""
    file: FilePath | None = None
    """File that holds the secret; others must not be able to read it."""
    ref: StoreReference | None = None
    """Reference to a secret store: `vault:path#field` or `awssm:arn#field`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.env, self.file, self.ref)) != 1:
            raise ValueError("needs exactly one of env, file and ref")
        return self


def reference(
    env: str | None, file: str | None, ref: str | None, *, name: str
) -> SecretReference | None:
    """Gather the three spellings of one secret setting.

    Args:
        env: The value of `<name>_env`.
        file: The value of `<name>_file`.
        ref: The value of `<name>_ref`.
        name: The setting's name without ending, for the error.

    Returns:
        The reference, None when none is given.

    Raises:
        ValueError: More than one is given.
    """
    given = sum(source is not None for source in (env, file, ref))
    if given > 1:
        raise ValueError(f"give only one of {name}_env, {name}_file and {name}_ref")
    return SecretReference(env=env, file=file, ref=ref) if given else None


def stated_name(section: Section, name: str) -> str:
    """The spelling of a secret setting that a section gives, to point at it.

    Args:
        section: Gives one of the three.
        name: The setting's name without ending.
    """
    spellings = (f"{name}_env", f"{name}_file", f"{name}_ref")
    return next(one for one in spellings if getattr(section, one) is not None)


class ApiKeySource(Section):
    """The three ways to name an upstream's API key."""

    api_key_env: EnvName | None = None
    """Environment variable with the upstream's API key."""
    api_key_file: FilePath | None = None
    """File with the upstream's API key."""
    api_key_ref: StoreReference | None = None
    """Secret store reference of the upstream's API key."""

    @property
    def api_key(self) -> SecretReference | None:
        """Where the API key is kept, None when the upstream needs none."""
        return reference(self.api_key_env, self.api_key_file, self.api_key_ref, name="api_key")

    @model_validator(mode="after")
    def _one_api_key(self) -> Self:
        _ = self.api_key
        return self


class AdminSettings(Section):
    """The administrator's key."""

    key_env: EnvName | None = None
    """Environment variable with the administrator's key; `FAREWAY_ADMIN_KEY` unless another source
    is given. Unset: a key is generated on the first start and shown once."""
    key_file: FilePath | None = None
    """File with the administrator's key."""
    key_ref: StoreReference | None = None
    """Secret store reference of the administrator's key."""

    @property
    def key(self) -> SecretReference:
        """Where the key is kept."""
        given = reference(self.key_env, self.key_file, self.key_ref, name="key")
        return given or SecretReference(env="FAREWAY_ADMIN_KEY")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        _ = self.key
        return self


class SecretsSettings(Section):
    """The master key, from which every other internal secret is derived."""

    master_key_env: EnvName | None = None
    """Environment variable with the master key (32 characters or more); `FAREWAY_MASTER_KEY` unless
    another source is given. Unset: one machine makes a file of its own, several refuse to start."""
    master_key_file: FilePath | None = None
    """File with the master key."""
    master_key_ref: StoreReference | None = None
    """Secret store reference of the master key."""
    previous: Many[SecretReference] = Field(default=(), max_length=2)
    """Earlier master keys, newest first; keys hashed with them stay valid."""

    @property
    def master_key(self) -> SecretReference:
        """Where the master key is kept."""
        given = reference(
            self.master_key_env, self.master_key_file, self.master_key_ref, name="master_key"
        )
        return given or SecretReference(env="FAREWAY_MASTER_KEY")

    @model_validator(mode="after")
    def _one_master_key(self) -> Self:
        _ = self.master_key
        return self
