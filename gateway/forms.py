"""Forms of pages that are acted on once, however often a browser sends them.

A page gives each form a random number. What is done for it carries the number to the ledger, which
keeps it in the transaction that does it (`gateway.ledger.forms`): a second sending finds it there
and does nothing. What is made at random for a form is derived from its number, so that the second
answer, which is the one that a browser shows after a double click, tells the same.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

import msgspec


class FormSent(msgspec.Struct, frozen=True, kw_only=True):
    """A form as it came.

    Attributes:
        number: SHA-256 of its number, of who sends it and of what it acts on; the number itself is
            kept nowhere.
        content: HMAC-SHA-256 of what it asks for, by its number: it says whether the same is asked
            for, passwords included, and as nobody has the number, nothing of what that is.
    """

    number: bytes
    content: bytes


def form_sent(
    number: str, *, actor: str, subject: Sequence[str], fields: Mapping[str, str]
) -> FormSent:
    """Make what the ledger is told of a form.

    Args:
        number: As the page gave it, 128 random bits.
        actor: Who sends it, so that nobody is told what another person's form made; empty for
            somebody who is not logged in.
        subject: What the form acts on: several forms of one page share a number.
        fields: What it asks for.
    """
    content = msgspec.json.encode(sorted(fields.items()))
    return FormSent(
        number=hashlib.sha256(msgspec.json.encode([number, actor, *subject])).digest(),
        content=hmac.digest(number.encode("ascii"), content, "sha256"),
    )
