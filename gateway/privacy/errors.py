"""Errors of the privacy policy, named by what the caller should do.

PrivacyError
  PolicyError   mend the configuration: every fault of the policy at once   (problems)
  UnknownTags   mend the request: the policy has no such tags               (tags, near)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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


class UnknownTags(PrivacyError):
    """A request carries tags that the policy does not know: refuse it, never ignore them.

    Attributes:
        tags: The unknown tags, all of them, in the order of the request.
        near: The most similar known tag: that of the first one, and of the next ones those that
            are alike. Empty when the policy has no tags.
    """

    def __init__(self, tags: Sequence[str], near: Mapping[str, str]) -> None:
        """Keep the names, at least one, and say them."""
        names = ", ".join(
            f"{tag!r} (the nearest is {near[tag]!r})" if tag in near else repr(tag) for tag in tags
        )
        if len(tags) == 1 and near:
            names = f"{tags[0]!r}; the nearest is {near[tags[0]]!r}"
        hint = "" if near else "; this policy has no tags"
        super().__init__(f"unknown privacy tag{'s' if len(tags) > 1 else ''} {names}{hint}")
        self.tags = tuple(tags)
        self.near = dict(near)
