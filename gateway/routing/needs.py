"""What a request needs of a deployment, and whether a deployment can give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from gateway.routing.snapshot import DeploymentView
from pricing.quote import Workload

EXPECTED_OUTPUT_TOKENS = 256
"""Output per choice that is expected of a request about which nothing else is known."""


NOTHING_CACHED: Mapping[str, int] = MappingProxyType({})


class RequestNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as far as routing looks at it.

    Attributes:
        prompt_tokens_estimate: Estimated prompt tokens; what does not fit by this count is not
            sent, so it should err on the low side.
        max_output_tokens: Most tokens per choice, None when the client set no limit.
        fields: Top-level members of the body that change what is generated.
        has_media: Whether a message part other than text is among the messages.
        n: Choices asked for, at least 1.
        max_prompt_tokens: No tokenizer makes more tokens of this prompt; None when the estimate is
            exact. Only the upper bound of the cost uses it.
        expected_output_tokens: Expected tokens per choice, None when nothing is known.
        cached_tokens: Prompt tokens expected to be in a deployment's cache, by deployment.
    """

    prompt_tokens_estimate: int
    max_output_tokens: int | None = None
    fields: frozenset[str] = frozenset()
    has_media: bool = False
    n: int = 1
    max_prompt_tokens: int | None = None
    expected_output_tokens: int | None = None
    cached_tokens: Mapping[str, int] = NOTHING_CACHED

    def workload(self, view: DeploymentView) -> Workload:
        """Expected and largest counts at one deployment.

        Without a limit of the client's, the context window bounds the output.
        """
        limit_tokens = self._output_limit_tokens(view)
        expected_tokens = (
            EXPECTED_OUTPUT_TOKENS
            if self.expected_output_tokens is None
            else self.expected_output_tokens
        )
        if limit_tokens is not None:
            expected_tokens = min(expected_tokens, limit_tokens)
        prompt_tokens = self.prompt_tokens_estimate
        largest_tokens = self.max_prompt_tokens
        return Workload(
            prompt_tokens=prompt_tokens,
            max_prompt_tokens=None
            if largest_tokens is None
            else max(prompt_tokens, largest_tokens),
            cached_tokens=min(self.cached_tokens.get(view.name, 0), prompt_tokens),
            expected_output_tokens=expected_tokens * self.n,
            max_output_tokens=None if limit_tokens is None else limit_tokens * self.n,
        )

    def _output_limit_tokens(self, view: DeploymentView) -> int | None:
        window_tokens = view.capabilities.context_window_tokens
        if self.max_output_tokens is not None or window_tokens is None:
            return self.max_output_tokens
        return max(0, window_tokens - self.prompt_tokens_estimate)


class Inability(StrEnum):
    """Why a deployment cannot serve a request."""

    PARAMETER = "parameter"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One thing that stands in the way.

    Attributes:
        kind: What sort of thing.
        param: The request field to blame.
        reason: One phrase.
    """

    kind: Inability
    param: str
    reason: str


def obstacles(needs: RequestNeeds, view: DeploymentView) -> tuple[Obstacle, ...]:
    """Everything that keeps a deployment from serving a request; empty when it is able.

    Decided from configuration and catalogue only, never from health. An unknown context window
    excludes nothing: the upstream will say.
    """
    able = view.capabilities
    is_plain = able.is_open and not able.unsupported and able.context_window_tokens is None
    if is_plain and (able.multimodal or not needs.has_media):
        return ()  # nothing is known that it could not do
    return (*_parameter_obstacles(needs, view), *_length_obstacles(needs, view))


def _parameter_obstacles(needs: RequestNeeds, view: DeploymentView) -> list[Obstacle]:
    able = view.capabilities
    found: list[Obstacle] = []
    for name in sorted(needs.fields):
        if name in able.unsupported:
            reason = f"{name} is not supported: {able.unsupported[name]}"
        elif not able.is_open and name not in able.supported:
            reason = f"{name} is not supported"
        else:
            continue
        found.append(Obstacle(kind=Inability.PARAMETER, param=name, reason=reason))
    if needs.has_media and not able.multimodal:
        reason = "message parts other than text are not supported"
        found.append(Obstacle(kind=Inability.PARAMETER, param="messages", reason=reason))
    return found


def _length_obstacles(needs: RequestNeeds, view: DeploymentView) -> list[Obstacle]:
    window_tokens = view.capabilities.context_window_tokens
    if window_tokens is None:
        return []
    # One token of output is the least that makes an answer.
    asked_tokens = 1 if needs.max_output_tokens is None else needs.max_output_tokens
    if needs.prompt_tokens_estimate + asked_tokens <= window_tokens:
        return []
    reason = (
        f"about {needs.prompt_tokens_estimate} prompt tokens and {asked_tokens} of output "
        f"exceed its context window of {window_tokens} tokens"
    )
    return [Obstacle(kind=Inability.LENGTH, param="messages", reason=reason)]
