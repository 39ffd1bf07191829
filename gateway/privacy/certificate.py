"""The certificate of a proof: what was proved, when and by which version, signed by this service.

Without it nothing is served. It is canonical JSON, so that the same proof has the same bytes, with
an HMAC under a key that is derived from the master key for nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import cast

from gateway.privacy.proof import Proof

FORMAT = 1
BYTES_MAX = 16 * 1024


class CertificateError(ValueError):
    """A certificate cannot be believed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was proved.

    Attributes:
        format: Version of this form.
        policy_digest: Of the policy.
        inventory_digest: Of names, floors and who may ask for what.
        cells: How many were looked at.
        is_complete: Whether every set of tags was walked.
        instants: How many instants were looked at.
        proved_at: ISO 8601 instant of the proof.
        version: Of Fareway.
    """

    format: int
    policy_digest: str
    inventory_digest: str
    cells: int
    is_complete: bool
    instants: int
    proved_at: str
    version: str

    @classmethod
    def of(cls, proof: Proof, *, at: datetime, version: str) -> Certificate:
        """The certificate of a proof that holds.

        Raises:
            CertificateError: It does not hold.
        """
        if not proof.holds:
            raise CertificateError("a policy with a counter-example gets no certificate")
        return cls(
            format=FORMAT,
            policy_digest=proof.policy_digest,
            inventory_digest=proof.inventory_digest,
            cells=proof.cells,
            is_complete=proof.is_complete,
            instants=len(proof.instants),
            proved_at=at.isoformat(),
            version=version,
        )

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of its canonical form, without the signature."""
        return hashlib.sha256(_canonical(self)).hexdigest()

    def signed(self, key: bytes) -> bytes:
        """Canonical JSON with the signature, and a line end.

        Args:
            key: 32 bytes that nothing else uses.
        """
        mac = hmac.digest(key, _canonical(self), "sha256").hex()
        return _dumped({**asdict(self), "hmac_sha256": mac}) + b"\n"


def read_certificate(content: bytes, keys: Sequence[bytes]) -> Certificate:
    """Check the signature of a certificate and read it.

    Args:
        content: As `Certificate.signed` wrote it.
        keys: Any of them may have signed it; the newest first.

    Raises:
        CertificateError: It is none, or another service signed it, or it was changed.
    """
    if len(content) > BYTES_MAX:
        raise CertificateError(f"a certificate has at most {BYTES_MAX // 1024} KiB")
    try:
        loaded = cast("object", json.loads(content))
    except ValueError as error:
        raise CertificateError("it is no JSON") from error
    if not isinstance(loaded, dict):
        raise CertificateError("it is no JSON object")
    members = cast("dict[str, object]", loaded)
    mac = members.pop("hmac_sha256", None)
    wanted = {one.name: one.type for one in fields(Certificate)}
    if members.keys() != wanted.keys() or any(
        type(members[name]).__name__ != kind for name, kind in wanted.items()
    ):
        raise CertificateError("its members are not those of a certificate")
    found = Certificate(**members)  # pyright: ignore[reportArgumentType]
    signatures = [hmac.digest(key, _canonical(found), "sha256").hex() for key in keys]
    if not isinstance(mac, str) or not any(
        hmac.compare_digest(mac.encode(), one.encode()) for one in signatures
    ):
        raise CertificateError("its signature is not this service's")
    if found.format != FORMAT:
        raise CertificateError(f"its format is {found.format}, not {FORMAT}")
    return found


def _canonical(certificate: Certificate) -> bytes:
    return _dumped(asdict(certificate))


def _dumped(members: dict[str, object]) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
