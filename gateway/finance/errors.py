"""Errors of finance, named by what the caller should do.

FinanceError
  UnreadableSource   mend the file; it names the file and every line that is wrong
  NoRate             add the missing exchange rate to the rates file
  Refused            the books do not allow it now; the sentence says what has to come first
    ProposalVoid     what was proposed is not what there is any more; propose it again
  NotFound           name something that exists
"""

from __future__ import annotations

from collections.abc import Sequence

PROBLEMS_MAX = 20
"""Problems of a file that are told one by one; the rest is counted."""


class FinanceError(Exception):
    """Root of what finance raises."""


class UnreadableSource(FinanceError):
    """A file from outside cannot be read as what it is said to be; nothing of it was taken.

    Attributes:
        problems: One sentence each, with file and line.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep every problem, tell the first ones."""
        told = list(problems[:PROBLEMS_MAX])
        hidden = len(problems) - len(told)
        if hidden > 0:
            told.append(f"and {hidden} more problems")
        super().__init__("UNREADABLE: " + "; ".join(told))
        self.problems = tuple(problems)


class NoRate(FinanceError):
    """There is no exchange rate for a pair and a day."""


class Refused(FinanceError):
    """The state of the books does not allow what was asked."""


class ProposalVoid(Refused):
    """A close was proposed of other figures than the month has now.

    Attributes:
        month: The month.
        proposal_id: Number of the proposal.
    """

    def __init__(self, sentence: str, *, month: str, proposal_id: int) -> None:
        """Keep all."""
        super().__init__(sentence)
        self.month = month
        self.proposal_id = proposal_id


class NotFound(FinanceError):
    """No such import, run, proposal or month."""
