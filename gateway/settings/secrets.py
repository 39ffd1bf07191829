"""Secrets: read where the settings point to, derived from one master key, never shown.

Everything internal (pepper of keys, tenant namespaces, digests) is HKDF-SHA256 of the master key
with a label of its own, so that one secret has to be guarded and none of the derived ones tells
about another.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from gateway.settings.credentials import SecretReference
from gateway.settings.errors import SecretError
from gateway.settings.loader import LoadedConfig

SECRET_BYTES_MAX = 64 * 1024
MASTER_KEY_CHARACTERS_MIN = 32
MASTER_KEY_FILE = "master.key"

RandomBytes = Callable[[int], bytes]
"""`secrets.token_bytes`, or a fixed source in tests."""


class Label(StrEnum):
    """What a derived key is for; a label once shipped never changes."""

    KEY_PEPPER = "fareway/key-pepper/1"
    NAMESPACE = "fareway/namespace/1"
    DIGEST = "fareway/digest/1"
    RECEIPT = "fareway/receipt/1"
    SESSION = "fareway/session/1"
    WEBHOOK = "fareway/webhook/1"
    PSEUDONYM = "fareway/pseudonym/1"
    CERTIFICATE = "fareway/policy-certificate/1"


def hkdf_sha256(key: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Derive a key of `length` bytes, at most 8160.

    Source: RFC 5869, sections 2.2 and 2.3.
    """
    if not 0 < length <= 255 * 32:
        raise ValueError(f"length must be 1 to 8160, got {length}")
    pseudorandom_key = hmac.digest(salt or bytes(32), key, "sha256")
    block, output = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(pseudorandom_key, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


class MasterKeys:
    """The current master key and those before it, newest first; shows nothing of itself."""

    __slots__ = ("_keys",)

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        """Keep the keys.

        Args:
            keys: The current one first.
        """
        assert keys
        self._keys = keys

    def derive(self, label: Label) -> bytes:
        """32 bytes for a purpose, of the current master key."""
        return self.derive_all(label)[0]

    def derive_all(self, label: Label) -> tuple[bytes, ...]:
        """32 bytes for a purpose of each master key, newest first."""
        info = label.value.encode("ascii")
        return tuple(hkdf_sha256(key, salt=b"fareway", info=info, length=32) for key in self._keys)

    def __repr__(self) -> str:
        return f"<MasterKeys of {len(self._keys)}>"


def resolve(reference: SecretReference, *, environ: Mapping[str, str], config: LoadedConfig) -> str:
    """Read one secret, without the line end that editors put behind it.

    Raises:
        SecretError: It is missing or empty, in a file that others can read, or in a store that is
            not built yet. The message names the place, never the secret.
    """
    if reference.env is not None:
        value = environ.get(reference.env, "").strip()
        if not value:
            raise SecretError(f"environment variable {reference.env} is not set")
        return value
    if reference.file is not None:
        return read_secret_file(config.resolve(reference.file))
    raise SecretError(f"secret stores are not built yet: {reference.ref}")


def resolve_optional(
    reference: SecretReference, *, environ: Mapping[str, str], config: LoadedConfig
) -> str | None:
    """Read one secret; None when it names a variable that is not set.

    Raises:
        SecretError: As `resolve`, except for an unset variable.
    """
    if reference.env is not None and not environ.get(reference.env, "").strip():
        return None
    return resolve(reference, environ=environ, config=config)


def read_secret_file(path: Path) -> str:
    """Read a secret from a file that only its owner, and at most its group, can read.

    Raises:
        SecretError: The file is missing, open to others, empty, too large or not text.
    """
    try:
        # One descriptor for check and read, so that the file cannot change in between.
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(f"secret file {path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise SecretError(f"secret file {path} is not a regular file")
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise SecretError(f"secret file {path} is open to others: chmod 600 it")
    if len(content) > SECRET_BYTES_MAX:
        raise SecretError(f"secret file {path} is larger than {SECRET_BYTES_MAX // 1024} KiB")
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise SecretError(f"secret file {path} is not UTF-8") from error
    if not text:
        raise SecretError(f"secret file {path} is empty")
    return text


def read_or_create_file(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """Read a private file, or make it with mode 0600 when there is none.

    Of several processes that start at once, one wins and all read the same content.

    Args:
        path: The file; missing folders are made with mode 0700.
        make: What to write.

    Returns:
        The content, and whether this call made the file.

    Raises:
        SecretError: The file or its folder cannot be read or made.
    """
    if path.exists():
        return read_secret_file(path), False
    text = make()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link appears whole or not at all, and never replaces what another process made.
            path.hardlink_to(temporary)
            is_ours = True
        except FileExistsError:
            is_ours = False
    except OSError as error:
        raise SecretError(f"secret file {path} cannot be made: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return (text, True) if is_ours else (read_secret_file(path), False)


def load_master_keys(
    config: LoadedConfig, *, environ: Mapping[str, str], random_bytes: RandomBytes
) -> MasterKeys:
    """Read the master keys, or make one for this machine on first use.

    Args:
        config: Says where the keys are, and where the state directory is.
        environ: The environment.
        random_bytes: A cryptographic source.

    Raises:
        SecretError: A key is missing where several machines share the storage, unreadable or
            shorter than 32 characters.
    """
    settings = config.settings.secrets
    current = resolve_optional(settings.master_key, environ=environ, config=config)
    if current is None:
        if config.settings.storage.is_shared:
            raise SecretError(
                f"several machines need the same master key: set {settings.master_key.env}"
            )
        path = config.state_dir / MASTER_KEY_FILE
        current, _ = read_or_create_file(path, lambda: random_bytes(32).hex())
    previous = [resolve(source, environ=environ, config=config) for source in settings.previous]
    keys = (current, *previous)
    if any(len(key) < MASTER_KEY_CHARACTERS_MIN for key in keys):
        raise SecretError(f"a master key has at least {MASTER_KEY_CHARACTERS_MIN} characters")
    return MasterKeys(tuple(key.encode("utf-8") for key in keys))
