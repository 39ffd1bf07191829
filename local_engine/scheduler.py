"""One token-budget step: who computes how many tokens next, and in which blocks.

There is no prefill or decode phase. A step hands out a budget of tokens: first one token to each
running sequence that only waits for its next token, so that no long prompt freezes a stream, then
chunks of prompts in order of rank, then new sequences while budget, slots and blocks last. When
blocks run out, the running sequence that is served last loses its blocks and is computed again
later (recompute; its published blocks usually are still in the cache). The sequence served first
is never a victim, and every sequence fits an empty pool, so something always gets on.

Source: iteration-level scheduling (Orca, Yu et al., 2022), chunked prefill (Sarathi-Serve, Agrawal
et al., 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from local_engine.errors import EngineBusy
from local_engine.fair_queue import FairQueue
from local_engine.kv_blocks import BlockPool
from local_engine.prefix_cache import ChainHasher, PrefixCache
from local_engine.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Bounds of one scheduler.

    Attributes:
        running_max: Sequences that compute at a time.
        step_tokens_max: Tokens of one step, at least `running_max`.
        queued_requests_max: Sequences that may wait.
        queued_tokens_max: Known tokens of all that wait; one sequence may always wait alone.
        tenant_share_max: Part of the queue, 0 to 1, that one tenant may fill.
        quantum_tokens: Tokens that a waiting tenant gains per turn.
        is_caching: Whether prefixes are looked up and published.
    """

    running_max: int = 8
    step_tokens_max: int = 512
    queued_requests_max: int = 256
    queued_tokens_max: int = 1_000_000
    tenant_share_max: float = 0.5
    quantum_tokens: int = 512
    is_caching: bool = True

    def __post_init__(self) -> None:
        if self.running_max < 1 or self.step_tokens_max < self.running_max:
            raise ValueError(
                f"step_tokens_max ({self.step_tokens_max}) must be at least running_max "
                f"({self.running_max}), and that at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a step that one sequence gets: `count` tokens from its `computed` on."""

    sequence: Sequence
    count: int


@dataclass(slots=True, kw_only=True)
class SchedulerCounts:
    """Totals since the scheduler was made, all in tokens except where named otherwise."""

    preemptions: int = 0
    recomputed: int = 0
    looked_up: int = 0
    hit: int = 0


class Scheduler:
    """Owns the waiting line, the running set, the block pool and the prefix cache.

    Args:
        n_blocks: Blocks of the runner's pool, the scratch block included.
        block_size: Token slots of a block.
        limits: Bounds of queue and step.
        hasher: Digests of prefixes.
    """

    def __init__(
        self, *, n_blocks: int, block_size: int, limits: SchedulerLimits, hasher: ChainHasher
    ) -> None:
        self.limits = limits
        self.counts = SchedulerCounts()
        self._block_size = block_size
        self._hasher = hasher
        self._cache = PrefixCache()
        self._pool = BlockPool(n_blocks, on_evict=self._cache.forget)
        self._waiting = FairQueue(quantum_tokens=limits.quantum_tokens)
        self._running: list[Sequence] = []
        # A few blocks stay free for the next tokens of what runs already.
        self._watermark_blocks = min(max(2, n_blocks // 100), n_blocks // 4)

    @property
    def running(self) -> Items[Sequence]:
        """Sequences that hold blocks, first served first."""
        return tuple(self._running)

    @property
    def n_waiting(self) -> int:
        """Number of sequences that wait."""
        return len(self._waiting)

    @property
    def queued_tokens(self) -> int:
        """Known tokens of all that wait."""
        return self._waiting.queued_tokens

    @property
    def n_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.n_free

    @property
    def n_usable_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self._pool.n_usable

    @property
    def n_published_blocks(self) -> int:
        """Blocks whose content can be matched."""
        return len(self._cache)

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._running) or len(self._waiting) > 0

    def add(self, sequence: Sequence, *, retry_after_s: float = 1.0) -> None:
        """Put a new sequence in line.

        Args:
            sequence: It must fit an empty pool; the caller has refused it otherwise.
            retry_after_s: What to tell the caller when there is no room.

        Raises:
            EngineBusy: the queue, or this tenant's part of it, is full.
        """
        assert self._blocks_for(sequence.total + sequence.output_tokens_max) <= self._pool.n_usable
        limits = self.limits
        tenant_max = max(1, int(limits.queued_requests_max * limits.tenant_share_max))
        tokens_after = self._waiting.queued_tokens + sequence.total
        if len(self._waiting) >= limits.queued_requests_max:
            raise EngineBusy(
                f"the queue is full: {len(self._waiting)} requests wait",
                retry_after_s=retry_after_s,
            )
        if self._waiting.waiting_of(sequence.namespace) >= tenant_max:
            raise EngineBusy(
                f"{tenant_max} requests of this tenant wait already", retry_after_s=retry_after_s
            )
        if len(self._waiting) and tokens_after > limits.queued_tokens_max:
            raise EngineBusy(
                f"the queue is full: {self._waiting.queued_tokens} tokens wait",
                retry_after_s=retry_after_s,
            )
        self._waiting.push(sequence)

    def plan(self, *, budget_tokens: int | None = None) -> list[Share]:
        """Choose what the next step computes, and give it blocks.

        Args:
            budget_tokens: Tokens of this step when fewer than the limit are wanted; every running
                sequence that waits for its next token is served all the same.

        Returns:
            Shares in order of rank, empty when there is nothing to do.
        """
        budget = min(budget_tokens or self.limits.step_tokens_max, self.limits.step_tokens_max)
        budget = max(budget, self.limits.running_max)
        preemptions_before = self.counts.preemptions
        counts: dict[int, int] = {}
        decoding = [each for each in self._running if each.remaining == 1]
        prefilling = [each for each in self._running if each.remaining > 1]
        for sequence in [*decoding, *prefilling]:
            count = min(sequence.remaining, budget)
            # A sequence may have been preempted for the sake of an earlier one in this very loop.
            if count and sequence.state is SequenceState.RUNNING:
                self._make_room(sequence, count)
                if sequence.state is SequenceState.RUNNING:
                    counts[sequence.key] = count
                    budget -= count
        # Only a sequence that decodes ever wants a block, and victims rank below it: whoever was
        # given tokens in this step still runs.
        assert counts.keys() <= {each.key for each in self._running}, "a victim was planned already"
        if self.counts.preemptions == preemptions_before:
            # What was preempted in this step is not looked at again before the next: no livelock.
            self._admit(counts, budget)
        return [
            Share(sequence=each, count=counts[each.key])
            for each in self._running
            if each.key in counts
        ]

    def commit(self, shares: Items[Share]) -> None:
        """Note that the tokens of these shares are computed; publish blocks that became full."""
        for share in shares:
            sequence = share.sequence
            assert sequence.state is SequenceState.RUNNING, "only running sequences compute"
            sequence.computed += share.count
            assert sequence.computed <= sequence.total, "computed tokens that are not known"
            if self.limits.is_caching:
                self._publish(sequence)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """Add a sampled token; everything before it is computed."""
        assert sequence.remaining == 0, "a token is sampled only after all known ones are computed"
        sequence.tokens.append(token_id)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence in any state and free what it holds; harmless when it has ended."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks away and put it in line again."""
        assert sequence.state is SequenceState.RUNNING, "only running sequences are preempted"
        self._running.remove(sequence)
        self.counts.preemptions += 1
        self.counts.recomputed += sequence.computed
        sequence.preemptions += 1
        self._release(sequence)
        sequence.state = SequenceState.WAITING
        self._waiting.push_returning(sequence)

    def check_integrity(self) -> None:
        """Assert every invariant of pool, cache, line and running set.

        Raises:
            AssertionError: a defect of ours; the message names the invariant.
        """
        self._pool.check_integrity(each.block_table for each in self._running)
        self._cache.check_integrity()
        self._waiting.check_integrity()
        with_content = {
            block for block in range(1, self._pool.n_usable + 1) if self._pool.has_content(block)
        }
        assert with_content == self._cache.published(), "pool and cache disagree on content"
        assert len(self._running) <= self.limits.running_max, "too many sequences run"
        assert self._running == sorted(self._running, key=lambda each: each.rank), "order is lost"
        for sequence in self._running:
            self._check_running(sequence)
        for sequence in self._waiting:
            assert sequence.state is SequenceState.WAITING, "something else than waiting waits"
            assert not sequence.block_table, "a waiting sequence holds blocks"
            assert sequence.computed == sequence.published == 0, "a waiting sequence has computed"

    def _check_running(self, sequence: Sequence) -> None:
        assert sequence.state is SequenceState.RUNNING, "something else than running runs"
        table = sequence.block_table
        size = self._block_size
        assert sequence.computed <= sequence.total <= len(table) * size + 1, "blocks are missing"
        assert len(table) == self._blocks_for(min(sequence.total, len(table) * size)), (
            "a sequence holds blocks that it does not need"
        )
        assert sequence.published * size <= sequence.computed, "published before computed"
        for index, block in enumerate(table):
            digest = self._cache.digest_of(block)
            if index < sequence.published:
                assert digest == sequence.chain[index], "a published block has another's digest"
            else:
                assert digest is None, "a block that may be written is published"
                assert self._pool.reference_count(block) == 1, "a writable block is shared"

    def _blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self._block_size)

    def _missing_blocks(self, sequence: Sequence, n_tokens: int) -> int:
        return max(0, self._blocks_for(n_tokens) - len(sequence.block_table))

    def _make_room(self, sequence: Sequence, count: int) -> None:
        """Give a running sequence blocks for `count` more tokens, or preempt it."""
        while True:
            missing = self._missing_blocks(sequence, sequence.computed + count)
            if missing <= self._pool.n_free:
                sequence.block_table += self._pool.allocate(missing)
                return
            victim = self._running[-1]
            self.preempt(victim)
            if victim is sequence:
                return

    def _admit(self, counts: dict[int, int], budget: int) -> None:
        """Start waiting sequences in turn while slots, budget and blocks last."""
        while budget > 0 and len(self._running) < self.limits.running_max:
            sequence = self._waiting.head()
            if sequence is None:
                return
            hits = self._find_hits(sequence)
            revived = sum(1 for block in hits if self._pool.reference_count(block) == 0)
            needed = self._blocks_for(sequence.total) - len(hits)
            # With nothing else running the watermark would protect nobody.
            reserve = self._watermark_blocks if self._running else 0
            if needed + revived + reserve > self._pool.n_free:
                return
            self._start(self._waiting.take_head(), hits)
            count = min(sequence.remaining, budget)
            counts[sequence.key] = count
            budget -= count

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        for block in hits:
            self._pool.hold(block)
        sequence.block_table = list(hits)
        sequence.published = len(hits)
        sequence.computed = len(hits) * self._block_size
        sequence.block_table += self._pool.allocate(self._missing_blocks(sequence, sequence.total))
        sequence.state = SequenceState.RUNNING
        self.counts.looked_up += sequence.total
        self.counts.hit += sequence.computed
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        self._running.append(sequence)
        self._running.sort(key=lambda each: each.rank)

    def _find_hits(self, sequence: Sequence) -> list[int]:
        """Blocks of the longest cached prefix; at least one token is left to give logits."""
        if not self.limits.is_caching:
            return []
        hits: list[int] = []
        size = self._block_size
        for index, (digest, parent) in enumerate(self._chain(sequence, sequence.total - 1)):
            tokens = sequence.tokens[index * size : (index + 1) * size]
            block = self._cache.find(digest, parent=parent, token_ids=tokens)
            if block is None:
                break
            hits.append(block)
        return hits

    def _publish(self, sequence: Sequence) -> None:
        size = self._block_size
        if sequence.computed // size == sequence.published:
            return
        for index, (digest, parent) in enumerate(self._chain(sequence, sequence.computed)):
            if index >= sequence.published:
                block = sequence.block_table[index]
                tokens = sequence.tokens[index * size : (index + 1) * size]
                self._cache.publish(block, digest=digest, parent=parent, token_ids=tokens)
                self._pool.mark_content(block)
                sequence.published = index + 1

    def _chain(self, sequence: Sequence, n_tokens: int) -> Iterator[tuple[bytes, bytes]]:
        """Digest and parent of each full block within the first `n_tokens` tokens."""
        size = self._block_size
        for index in range(n_tokens // size):
            parent = sequence.chain[index - 1] if index else sequence.chain_root
            if index == len(sequence.chain):
                tokens = sequence.tokens[index * size : (index + 1) * size]
                sequence.chain.append(self._hasher.child(parent, tokens))
            yield sequence.chain[index], parent

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.computed = 0
        sequence.published = 0
