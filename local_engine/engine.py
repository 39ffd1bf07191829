"""The core: submissions in, steps on the runner, messages out; one thread, no locks, no sockets.

A step plans, computes, samples, publishes and meters. What goes wrong with one sequence ends that
sequence alone: a step that fails is tried again in halves until the culprit is found.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from local_engine.detokenizer import Detokenizer
from local_engine.metering import Meter, Work
from local_engine.prefix_cache import ChainHasher
from local_engine.protocol import (
    Accepted,
    Done,
    EngineStats,
    FinishReason,
    GenerationUsage,
    Refused,
    TextDelta,
)
from local_engine.sampling import SamplingParameters, TokenHistory, sample
from local_engine.scheduler import Scheduler, SchedulerLimits, Share
from local_engine.sequence import Sequence, SequenceState
from local_engine.step import Runner, SequenceChunk, StepPlan
from local_engine.stop_strings import StopMatcher

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_NS_PER_S = 1_000_000_000
_PROMPT_CHUNK_TOKENS_MIN = 32
_RETRY_AFTER_S_MAX = 60.0
_FAILED_STEPS_MAX = 16
"""Steps in a row in which nothing could be computed; then it is the device, not a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A generation that was rendered, encoded and checked.

    Attributes:
        key: Unique in this engine.
        request_id: Id that messages about it carry.
        namespace: The tenant.
        prompt: Token ids, at least one.
        output_tokens_max: With the prompt it stays within the context window.
        sampling: Its `end_ids` are what `min_tokens` holds back.
        end_ids: Tokens that end this output.
        stops: Stop strings.
        received_ns: When the request arrived, on the engine's clock.
        priority: Greater goes first.
    """

    key: int
    request_id: str
    namespace: bytes
    prompt: list[int]
    output_tokens_max: int
    sampling: SamplingParameters
    end_ids: frozenset[int]
    stops: tuple[str, ...]
    received_ns: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A message about the job with this key."""

    key: int
    message: Accepted | TextDelta | Done | Refused


@dataclass(slots=True, kw_only=True, eq=False)
class _Generation:
    """A job in progress."""

    job: Job
    sequence: Sequence
    history: TokenHistory
    stops: StopMatcher
    detokenizer: Detokenizer = field(default_factory=Detokenizer)
    busy_ns: int = 0
    started_ns: int | None = None
    first_token_ns: int | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Totals since the start."""

    arrivals: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0


class Engine:
    """Runs generations on a runner.

    Args:
        runner: Computes steps; owned by this engine.
        token_bytes: Bytes that a token adds to the output.
        limits: Bounds of queue and step.
        hasher: Digests of prefixes.
        clock_ns: Monotonic clock in nanoseconds.
        itl_target_s: Steps that carry streams take prompt tokens only as far as this is kept,
            by the fitted cost model.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        token_bytes: Callable[[int], bytes],
        limits: SchedulerLimits,
        hasher: ChainHasher,
        clock_ns: Callable[[], int],
        itl_target_s: float = 0.2,
    ) -> None:
        self.scheduler = Scheduler(
            n_blocks=runner.n_blocks, block_size=runner.block_size, limits=limits, hasher=hasher
        )
        self._runner = runner
        self._token_bytes = token_bytes
        self._hasher = hasher
        self._clock_ns = clock_ns
        self._itl_target_s = itl_target_s
        self._meter = Meter(clock_ns)
        self._generations: dict[int, _Generation] = {}
        self._outputs: list[Output] = []
        self._counts = _Counts()
        self._failed_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    def submit(self, job: Job) -> None:
        """Put a job in line.

        Raises:
            EngineBusy: the queue is full.
        """
        assert job.key not in self._generations, f"job {job.key} is submitted twice"
        sequence = Sequence(
            key=job.key,
            namespace=job.namespace,
            chain_root=self._hasher.root(job.namespace),
            tokens=list(job.prompt),
            output_tokens_max=job.output_tokens_max,
            priority=job.priority,
            arrival=self._counts.arrivals,
        )
        self.scheduler.add(sequence, retry_after_s=self._drain_s())
        self._counts.arrivals += 1
        self._generations[job.key] = _Generation(
            job=job,
            sequence=sequence,
            history=TokenHistory(job.prompt),
            stops=StopMatcher(job.stops),
        )

    def abort(self, key: int, *, error: str | None = None) -> None:
        """End a generation now; harmless when it has ended.

        Args:
            key: The job's.
            error: Why, when it was not the caller who asked for it.
        """
        generation = self._generations.get(key)
        if generation is not None:
            self._end(generation, "abort", error=error)
            self._report_end(generation)

    def abort_all(self, *, error: str) -> None:
        """End every generation."""
        for key in list(self._generations):
            self.abort(key, error=error)

    def take_outputs(self) -> list[Output]:
        """Messages since the last call, in order."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def step(self) -> bool:
        """Run one step.

        Returns:
            False when there was nothing to do.

        Raises:
            RuntimeError: nothing could be computed for many steps; the process must not go on.
        """
        self._meter.begin_step()
        shares = self.scheduler.plan(budget_tokens=self._budget_tokens())
        if not shares:
            self._meter.end_step([])
            return False
        works = [
            Work.of_chunk(start=share.sequence.computed, count=share.count) for share in shares
        ]
        self._note_starts(shares)
        ended = self._compute(shares)
        for share, busy_ns in zip(shares, self._meter.end_step(works), strict=True):
            self._generations[share.sequence.key].busy_ns += busy_ns
        for generation in ended:
            self._report_end(generation)
        if self._failed_steps >= _FAILED_STEPS_MAX:
            raise RuntimeError(f"{self._failed_steps} steps in a row computed nothing")
        return True

    def stats(self) -> EngineStats:
        """A snapshot between steps."""
        self._meter.settle()
        scheduler = self.scheduler
        counts = self._counts
        return EngineStats(
            state="ready",
            running=len(scheduler.running),
            waiting=scheduler.n_waiting,
            queued_tokens=scheduler.queued_tokens,
            free_blocks=scheduler.n_free_blocks,
            usable_blocks=scheduler.n_usable_blocks,
            published_blocks=scheduler.n_published_blocks,
            busy_s=self._meter.busy_s,
            idle_s=self._meter.idle_s,
            wall_s=self._meter.wall_s,
            steps=self._meter.n_steps,
            computed_tokens=counts.computed_tokens,
            cached_tokens=counts.cached_tokens,
            generated_tokens=counts.generated_tokens,
            preemptions=scheduler.counts.preemptions,
            finished=counts.finished,
            aborted=counts.aborted,
            failed=counts.failed,
        )

    def check_integrity(self) -> None:
        """Assert every invariant of the core; at idle nothing is held."""
        self.scheduler.check_integrity()
        self._meter.check_integrity()
        alive = len(self.scheduler.running) + self.scheduler.n_waiting
        assert alive == len(self._generations), "a generation is known to one side only"
        if not alive:
            assert self.scheduler.n_free_blocks == self.scheduler.n_usable_blocks, "blocks leaked"

    def _budget_tokens(self) -> int | None:
        """Tokens of the next step: all that the limit allows unless a stream would stall."""
        decoding = [each for each in self.scheduler.running if each.remaining == 1]
        if not decoding:
            return None
        model = self._meter.model
        works = [Work.of_chunk(start=each.computed, count=1) for each in decoding]
        spare_s = self._itl_target_s - model.step_s(works)
        return len(decoding) + max(_PROMPT_CHUNK_TOKENS_MIN, model.tokens_within(spare_s))

    def _drain_s(self) -> float:
        """Predicted seconds until the queue has room: its prompts at the measured speed."""
        tokens_per_s = max(1, self._meter.model.tokens_within(1.0))
        return float(min(_RETRY_AFTER_S_MAX, 1 + self.scheduler.queued_tokens // tokens_per_s))

    def _note_starts(self, shares: list[Share]) -> None:
        for share in shares:
            generation = self._generations[share.sequence.key]
            if generation.started_ns is None:
                generation.started_ns = self._clock_ns()
                cached_tokens = share.sequence.cached_tokens or 0
                self._counts.cached_tokens += cached_tokens
                self._emit(
                    generation,
                    Accepted(
                        id=generation.job.request_id,
                        prompt_tokens=share.sequence.prompt_tokens,
                        cached_tokens=cached_tokens,
                    ),
                )

    def _compute(self, shares: list[Share]) -> list[_Generation]:
        """Execute, commit and sample; returns the generations that ended."""
        rows = self._execute(shares)
        self._failed_steps = 0 if rows else self._failed_steps + 1
        ended: list[_Generation] = []
        for share in shares:
            generation = self._generations[share.sequence.key]
            if share.sequence.key not in rows:
                self._end(generation, "abort", error="the engine failed to compute this request")
            else:
                self.scheduler.commit([share])
                self._counts.computed_tokens += share.count
                row = rows[share.sequence.key]
                if row is not None:
                    self._advance(generation, row)
            if generation.finish_reason is not None:
                ended.append(generation)
        return ended

    def _execute(self, shares: list[Share]) -> Mapping[int, torch.Tensor | None]:
        """Logits by key, None for a chunk inside a prompt; what fails alone is left out.

        Computing a chunk again writes the same keys and values to the same places, so a step may
        be repeated in part.
        """
        chunks = [_chunk_of(share) for share in shares]
        try:
            logits = self._runner.execute(StepPlan(chunks=chunks))
            wanted = sum(chunk.needs_logits for chunk in chunks)
            if logits.shape != (wanted, self._runner.vocab_size):
                raise RuntimeError("the runner gave logits of the wrong shape")
        except Exception as fault:  # noqa: BLE001 - the boundary of a request; logged right below
            log_fault("a step failed", fault, n_sequences=len(shares))
            if len(shares) == 1:
                return {}
            middle = len(shares) // 2
            return {**self._execute(shares[:middle]), **self._execute(shares[middle:])}
        rows = iter(logits)
        return {
            share.sequence.key: next(rows) if chunk.needs_logits else None
            for share, chunk in zip(shares, chunks, strict=True)
        }

    def _advance(self, generation: _Generation, row: torch.Tensor) -> None:
        """Sample the next token of a generation whose known tokens are all computed."""
        job = generation.job
        if job.output_tokens_max == 0:
            self._end(generation, "length")
            return
        try:
            token_id = sample(row, job.sampling, generation.history)
            token_bytes = b"" if token_id in job.end_ids else self._token_bytes(token_id)
        except Exception as fault:  # noqa: BLE001 - the boundary of a request; logged right below
            log_fault("sampling failed", fault, n_sequences=1)
            self._end(generation, "abort", error="the engine failed to sample a token")
            return
        self.scheduler.append(generation.sequence, token_id)
        generation.history.add(token_id)
        self._counts.generated_tokens += 1
        if generation.first_token_ns is None:
            generation.first_token_ns = self._clock_ns()
        self._take_token(generation, token_id, token_bytes)

    def _take_token(self, generation: _Generation, token_id: int, token_bytes: bytes) -> None:
        """Turn a sampled token into text and see whether the output ends with it."""
        job = generation.job
        n_tokens = generation.sequence.output_tokens
        may_stop = n_tokens >= job.sampling.min_tokens
        is_end = token_id in job.end_ids and n_tokens > job.sampling.min_tokens
        is_last = is_end or n_tokens >= job.output_tokens_max
        text = generation.detokenizer.push(token_bytes)
        if is_last:
            text += generation.detokenizer.finish()
        result = generation.stops.push(text, may_stop=may_stop)
        text = result.text
        if is_last and not result.is_stopped:
            text += generation.stops.finish()
        if text:
            self._emit(generation, TextDelta(id=job.request_id, text=text, output_tokens=n_tokens))
        if result.is_stopped or is_end:
            self._end(generation, "stop")
        elif is_last:
            self._end(generation, "length")

    def _end(
        self, generation: _Generation, reason: FinishReason, *, error: str | None = None
    ) -> None:
        """Free what the generation holds; its last message follows when its time is known."""
        self.scheduler.finish(generation.sequence)
        generation.finish_reason = reason
        generation.error = error
        if error is not None:
            self._counts.failed += 1
        elif reason == "abort":
            self._counts.aborted += 1
        else:
            self._counts.finished += 1

    def _report_end(self, generation: _Generation) -> None:
        job = generation.job
        assert generation.finish_reason is not None
        assert generation.sequence.state is SequenceState.FINISHED
        del self._generations[job.key]
        now_ns = self._clock_ns()
        started_ns = generation.started_ns
        first_ns = generation.first_token_ns
        done = Done(
            id=job.request_id,
            finish_reason=generation.finish_reason,
            usage=GenerationUsage(
                prompt_tokens=generation.sequence.prompt_tokens,
                cached_tokens=generation.sequence.cached_tokens or 0,
                output_tokens=generation.sequence.output_tokens,
            ),
            busy_s=generation.busy_ns / _NS_PER_S,
            queue_s=_between_s(job.received_ns, now_ns if started_ns is None else started_ns),
            prefill_s=None if started_ns is None else _between_s(started_ns, first_ns),
            ttft_s=_between_s(job.received_ns, first_ns),
            e2e_s=_between_s(job.received_ns, now_ns),
            preemptions=generation.sequence.preemptions,
            error=generation.error,
        )
        self._emit(generation, done)

    def _emit(self, generation: _Generation, message: Accepted | TextDelta | Done) -> None:
        self._outputs.append(Output(key=generation.job.key, message=message))


@overload
def _between_s(start_ns: int, end_ns: int) -> float: ...
@overload
def _between_s(start_ns: int, end_ns: int | None) -> float | None: ...
def _between_s(start_ns: int, end_ns: int | None) -> float | None:
    return None if end_ns is None else (end_ns - start_ns) / _NS_PER_S


def _chunk_of(share: Share) -> SequenceChunk:
    sequence = share.sequence
    end = sequence.computed + share.count
    return SequenceChunk(
        token_ids=sequence.tokens[sequence.computed : end],
        start=sequence.computed,
        block_table=tuple(sequence.block_table),
        needs_logits=end == sequence.total,
    )


def log_fault(what: str, fault: Exception, *, n_sequences: int) -> None:
    """Log where a fault came from; its own words may quote tokens, which belong in no log."""
    frames = "".join(traceback.format_tb(fault.__traceback__))
    _log.error("%s for %d sequences: %s\n%s", what, n_sequences, type(fault).__name__, frames)
