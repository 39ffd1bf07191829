"""One generation as the scheduler sees it: tokens, how many are computed, where their blocks are.

There are no phases: a sequence needs steps until `computed` has caught up with its known tokens,
whether these came from the prompt, from sampling, or must be computed again after a preemption.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class SequenceState(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One generation; only the scheduler changes it.

    Attributes:
        key: Unique in this engine.
        namespace: The tenant: unit of fairness and of prefix sharing.
        chain_root: Digest at which this namespace's chains start.
        tokens: Prompt, then sampled tokens.
        prompt_tokens: How many of `tokens` are the prompt.
        output_tokens_max: Sampling ends at this many tokens; 0 computes the prompt alone.
        priority: Greater goes first.
        arrival: Counts up in order of submission.
        computed: Tokens whose keys and values are in the pool.
        block_table: Block ids in order of position.
        chain: Digests of the full blocks of `tokens`, extended when first needed.
        published: Leading blocks of the table that are in the prefix cache.
        cached_tokens: Tokens taken from the prefix cache at first admission, None before it.
        preemptions: How often the blocks were taken away.
    """

    key: int
    namespace: bytes
    chain_root: bytes
    tokens: list[int]
    output_tokens_max: int
    priority: int = 0
    arrival: int = 0
    prompt_tokens: int = field(init=False)
    state: SequenceState = SequenceState.WAITING
    computed: int = 0
    block_table: list[int] = field(default_factory=list[int])
    chain: list[bytes] = field(default_factory=list[bytes])
    published: int = 0
    cached_tokens: int | None = None
    preemptions: int = 0

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a sequence needs at least one token")
        self.prompt_tokens = len(self.tokens)

    @property
    def total(self) -> int:
        """Known tokens, computed or not."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: who is served first, and preempted last."""
        return (-self.priority, self.arrival)
