"""Certificates of proved policies in the state directory.

One is written at each start and reload, and each worker requires that of what it serves.
A file is named by the policy and the inventory that it is about. So a worker that is started again
beside a reload finds the certificate of what it serves, and none that is about anything else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gateway.fleet import build_policy
from gateway.policy_proof import PolicyUnproved, inventory_of, prove_config, require_holds
from gateway.privacy.certificate import BYTES_MAX, Certificate, CertificateError, read_certificate
from gateway.privacy.policy import Policy
from gateway.privacy.proof import Proof
from gateway.settings.loader import LoadedConfig

FOLDER = "policy-certificates"
KEPT_MAX = 32
"""Certificates that are kept, the newest; each start and reload writes its own anew."""
_DIGITS = 32


def certify(config: LoadedConfig, *, key: bytes, at: datetime) -> Certificate:
    """Prove the policy of a configuration and put its certificate into the state directory.

    Args:
        config: The configuration.
        key: What certificates are signed with.
        at: Aware instant.

    Raises:
        PolicyUnproved: It does not hold, or the certificate cannot be written.
        PolicyError: It cannot be compiled.
    """
    proof = prove_config(config, at=at)
    require_holds(proof)
    certificate = certificate_of(proof, at=at)
    path = certificate_path(config, certificate.policy_digest, certificate.inventory_digest)
    try:
        write_certificate(path, certificate.signed(key))
        _forget_old(path.parent)
    except OSError as error:
        raise PolicyUnproved(
            f"the certificate of the policy cannot be written to {path}: {error.strerror}"
        ) from error
    return certificate


def certified_policy(config: LoadedConfig, *, keys: Sequence[bytes]) -> tuple[Policy, Certificate]:
    """Compile the policy of a configuration, for which there must be a certificate.

    Args:
        config: The configuration.
        keys: Any of which may have signed it.

    Raises:
        PolicyUnproved: There is none, or it is about something else.
    """
    policy = build_policy(config.settings)
    inventory = inventory_of(config.settings).digest
    path = certificate_path(config, policy.digest, inventory)
    try:
        with path.open("rb") as file:
            found = read_certificate(file.read(BYTES_MAX + 1), keys)
    except FileNotFoundError:
        raise PolicyUnproved(f"nobody has proved this policy: there is no {path}") from None
    except OSError as error:
        raise PolicyUnproved(f"{path} cannot be read: {error.strerror}") from error
    except CertificateError as error:
        raise PolicyUnproved(f"the certificate {path} does not count: {error}") from error
    if (found.policy_digest, found.inventory_digest) != (policy.digest, inventory):
        raise PolicyUnproved(f"the certificate {path} is about another policy or inventory")
    return policy, found


def certificate_of(proof: Proof, *, at: datetime) -> Certificate:
    """The certificate of a proof that holds, by this version of Fareway.

    Raises:
        CertificateError: It does not hold.
    """
    try:
        release = version("fareway")
    except PackageNotFoundError:  # run from a folder that nobody installed
        release = "unknown"
    return Certificate.of(proof, at=at, version=release)


def certificate_path(config: LoadedConfig, policy_digest: str, inventory_digest: str) -> Path:
    """Where the certificate of a policy and an inventory is."""
    name = f"{policy_digest[:_DIGITS]}-{inventory_digest[:_DIGITS]}.json"
    return config.state_dir / FOLDER / name


def write_certificate(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, for its owner alone.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _forget_old(folder: Path) -> None:
    """Keep the newest certificates; one that another process takes away meanwhile is gone."""
    dated: list[tuple[int, Path]] = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(dated, reverse=True)[KEPT_MAX:]:
        path.unlink(missing_ok=True)
