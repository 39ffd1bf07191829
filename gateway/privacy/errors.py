"""Errors of the privacy policy, named by what the caller should do.

PrivacyError
  PolicyError   mend the configuration: every fault of the policy at once   (problems)
  UnknownTag    mend the request: the policy has no such tag                (tag, near)
"""

from __future__ import annotations

from collections.abc import Sequence


class PrivacyError(Exception):
    """Root of what this package raises on purpose."""


class PolicyError(PrivacyError):
    """The policy cannot be used.

    Attributes:
        problems: One sentence per fault; all faults, not the first.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep every problem and join them into the message."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class UnknownTag(PrivacyError):
    """A request carries a tag that the policy does not know: refuse it, never ignore it.

    Attributes:
        tag: The unknown tag.
        near: The most similar known tag, None when the policy has no tags.
    """

    def __init__(self, tag: str, near: str | None) -> None:
        """Keep the names and say them."""
        hint = "this policy has no tags" if near is None else f"the nearest is {near!r}"
        super().__init__(f"unknown privacy tag {tag!r}; {hint}")
        self.tag = tag
        self.near = near
