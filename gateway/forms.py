"""Forms of pages that are acted on once, however often a browser sends them.

A page gives each form a random number. What is done for it carries the number to the ledger, which
keeps it in the transaction that does it (`gateway.ledger.forms`): a second sending finds it there
and does nothing. What is made at random for a form is derived from its number, so that the second
answer, which is the one that a browser shows after a double click, tells the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec


class FormSent(msgspec.Struct, frozen=True, kw_only=True):
    """A form as it came.

    Attributes:
        number: SHA-256 of its number and of what it acts on; the number itself is kept nowhere.
        content: SHA-256 of what it asks for, without passwords.
    """

    number: bytes
    content: bytes


def form_sent(number: str, subject: str, fields: Mapping[str, str]) -> FormSent:
    """Make what the ledger is told of a form.

    Args:
        number: As the page gave it.
        subject: What the form acts on: several forms of one page share a number.
        fields: What it asks for; never a password.
    """
    return FormSent(
        number=_digest(number, subject),
        content=hashlib.sha256(msgspec.json.encode(sorted(fields.items()))).digest(),
    )


def _digest(*words: str) -> bytes:
    return hashlib.sha256(msgspec.json.encode(words)).digest()
