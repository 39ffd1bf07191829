"""Passwords of local people: rules, and Argon2id.

Only length counts: rules about kinds of characters make passwords worse (NIST SP 800-63B, 3.1.1.2).
A list of breached passwords would be better than any rule; Fareway cannot ask for one, as it may
stand where nothing outside can be reached, and carries none.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type

PASSWORD_CHARACTERS_MIN = 12
PASSWORD_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordCost:
    """What one guess costs an attacker, and one login us.

    The defaults are the second recommended option of RFC 9106, section 4: 64 MiB, three passes,
    four lanes; 0.1 to 0.4 s of a core.

    Attributes:
        memory_kib: Memory in KiB.
        passes: Passes over it.
        lanes: Parallel lanes.
    """

    memory_kib: int = 64 * 1024
    passes: int = 3
    lanes: int = 4


class Hasher:
    """Makes and checks what is kept of passwords; every call computes for long, so use a thread.

    Args:
        cost: What new hashes cost; old ones say their own.
    """

    def __init__(self, cost: PasswordCost) -> None:
        self._argon2 = PasswordHasher(
            time_cost=cost.passes,
            memory_cost=cost.memory_kib,
            parallelism=cost.lanes,
            hash_len=32,
            salt_len=16,
            type=Type.ID,
        )
        # Of no password: what is checked for people who do not exist, so that it takes as long.
        self._of_nobody = self._argon2.hash("\0")

    def hash(self, password: str) -> str:
        """What is kept of a password: parameters, salt and hash in the PHC form."""
        return self._argon2.hash(_normal(password))

    def is_right(self, password: str, kept: str | None) -> bool:
        """Whether a password is the one that was kept.

        Args:
            password: As typed.
            kept: From `hash`; None for somebody without a password, which takes as long.
        """
        try:
            right = self._argon2.verify(kept or self._of_nobody, _normal(password))
        except (VerificationError, InvalidHashError):
            return False
        return right and kept is not None

    def is_outdated(self, kept: str) -> bool:
        """Whether it was made at another cost than new ones are."""
        return self._argon2.check_needs_rehash(kept)


def password_fault(password: str, *, login: str) -> str:
    """What is wrong with a new password, empty when nothing is.

    Args:
        password: As typed.
        login: Whose it is to be.
    """
    text = _normal(password)
    if len(text) < PASSWORD_CHARACTERS_MIN:
        return f"a password has {PASSWORD_CHARACTERS_MIN} characters or more"
    if len(text) > PASSWORD_CHARACTERS_MAX:
        return f"a password has at most {PASSWORD_CHARACTERS_MAX} characters"
    if len(set(text)) < 4 or text.casefold() in (login.casefold(), f"{login.casefold()}fareway"):
        return "this password is the first that anybody would try; choose another"
    return ""


def _normal(password: str) -> str:
    """The same text however a keyboard composes it (NIST SP 800-63B, 3.1.1.2)."""
    # Halves of a pair, which no keyboard sends, have no UTF-8; they are kept apart from any text.
    text = password.encode("utf-8", "backslashreplace").decode("utf-8")
    return unicodedata.normalize("NFKC", text)
