"""Why a login at the identity provider came to nothing.

Reason and sentences are ours: nothing that the provider or the browser sent is in them, so they can
be shown, logged and kept.
"""

from __future__ import annotations


class OidcFault(Exception):
    """A login that came to nothing.

    Attributes:
        reason: A word for log and audit.
        sentence: For the person: what is wrong.
        mend: For the person: what to do.
        status: Of the page that says so.
        is_recorded: Whether the audit log has it already.
    """

    def __init__(
        self,
        reason: str,
        sentence: str,
        *,
        mend: str,
        status: int = 403,
        is_recorded: bool = False,
    ) -> None:
        """Keep what the page needs."""
        super().__init__(reason)
        self.reason = reason
        self.sentence = sentence
        self.mend = mend
        self.status = status
        self.is_recorded = is_recorded


ASK_OPERATOR = "Try again in a minute; when it stays so, the operator's log has the reason."
BEGIN_AGAIN = "Begin again from the login page, and finish in the same browser within ten minutes."


def unreachable(reason: str) -> OidcFault:
    """The provider does not answer, or not as one does."""
    sentence = "the identity provider does not answer as it should"
    return OidcFault(reason, sentence, mend=ASK_OPERATOR, status=502)


def not_trusted(reason: str) -> OidcFault:
    """What came back is not what this login asked for."""
    sentence = "the answer of the identity provider does not belong to this login"
    return OidcFault(reason, sentence, mend=BEGIN_AGAIN)
