"""Runs the core over the fake runner without processes, checking every invariant after every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from local_engine.engine import Engine, Job
from local_engine.prefix_cache import ChainHasher
from local_engine.protocol import Accepted, Done, TextDelta
from local_engine.sampling import SamplingParameters
from local_engine.scheduler import SchedulerLimits
from local_engine.step import Runner
from tests.local_engine.fake_model import END_ID, ByteTokenizer, FakeRunner

KEY = b"k" * 32


class Clock:
    """A clock that moves a microsecond with every look."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns


@dataclass
class Answer:
    """What one job gave."""

    text: str = ""
    deltas: list[TextDelta] = field(default_factory=list)
    accepted: Accepted | None = None
    done: Done | None = None


class Harness:
    """An engine, and the answers of its jobs by key."""

    def __init__(self, runner: Runner | None = None, *, tokenizer=None, **limits) -> None:
        self.runner = runner or FakeRunner()
        self.tokenizer = tokenizer or ByteTokenizer()
        self.clock = Clock()
        limits.setdefault("running_max", 4)
        limits.setdefault("step_tokens_max", 64)
        self.engine = Engine(
            self.runner,
            token_bytes=self.tokenizer.token_bytes,
            limits=SchedulerLimits(**limits),
            hasher=ChainHasher(KEY, model_identity=b"m"),
            clock_ns=self.clock,
        )
        self.answers: dict[int, Answer] = {}
        self._keys = itertools.count()

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        output_tokens: int = 8,
        stops: Sequence[str] = (),
        stop_ids: frozenset[int] = frozenset(),
        ignore_eos: bool = False,
        namespace: bytes = b"tenant",
        priority: int = 0,
        seed: int = 1,
        temperature: float = 0.0,
        min_tokens: int = 0,
        **sampling,
    ) -> int:
        """Put a job in line; returns its key."""
        key = next(self._keys)
        ends = self.tokenizer.end_ids
        self.answers[key] = Answer()
        self.engine.submit(
            Job(
                key=key,
                request_id=str(key),
                namespace=namespace,
                prompt=self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt),
                output_tokens_max=output_tokens,
                sampling=SamplingParameters(
                    seed=seed,
                    temperature=temperature,
                    min_tokens=min_tokens,
                    end_ids=ends | stop_ids,
                    **sampling,
                ),
                end_ids=stop_ids if ignore_eos else ends | stop_ids,
                stops=tuple(stops),
                received_ns=self.clock(),
                priority=priority,
            )
        )
        return key

    def step(self) -> bool:
        """One step, checked."""
        has_stepped = self.engine.step()
        self.engine.check_integrity()
        self.collect()
        return has_stepped

    def collect(self) -> None:
        """Sort messages into answers."""
        for output in self.engine.take_outputs():
            answer = self.answers[output.key]
            assert answer.done is None, "a message after the last"
            match output.message:
                case Accepted():
                    assert answer.accepted is None
                    answer.accepted = output.message
                case TextDelta(text=text, output_tokens=n_tokens):
                    assert text
                    assert not answer.deltas or n_tokens > answer.deltas[-1].output_tokens
                    answer.deltas.append(output.message)
                    answer.text += text
                case Done():
                    answer.done = output.message

    def run(self, *, before_step: Callable[[int], None] | None = None) -> None:
        """Step until nothing is left."""
        for index in range(100_000):
            if before_step is not None:
                before_step(index)
            if not self.step():
                break
        assert not self.engine.has_work
        assert all(answer.done is not None for answer in self.answers.values())

    def ask(self, prompt: str | Sequence[int], **options) -> Answer:
        """One job from start to end."""
        key = self.submit(prompt, **options)
        self.run()
        return self.answers[key]


__all__ = ["END_ID", "Answer", "Clock", "Harness"]
