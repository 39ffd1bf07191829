"""The waiting line: strict by priority, fair between tenants, in order within a tenant.

Fairness is deficit round robin: tenants take turns, each turn adds a quantum of tokens to what the
tenant may spend, and a sequence is served once its tenant can pay for it. A tenant with many or
long requests therefore delays others by a bounded amount. Preempted sequences were paid for
already and go before everything else of their priority.

Source: Efficient fair queuing using deficit round robin (Shreedhar and Varghese, 1995).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from local_engine.sequence import Sequence

ASSUMED_OUTPUT_TOKENS = 256
"""Upper bound of the output that is charged at admission; a request rarely uses all that it may."""


def service_cost(sequence: Sequence) -> int:
    """Tokens that a sequence is charged when it is served."""
    return sequence.total + min(sequence.output_tokens_max, ASSUMED_OUTPUT_TOKENS)


@dataclass(slots=True, kw_only=True)
class _Class:
    """Everything that waits at one priority."""

    turns: deque[bytes] = field(default_factory=deque[bytes])
    lines: dict[bytes, deque[Sequence]] = field(default_factory=dict[bytes, deque[Sequence]])
    credit_tokens: dict[bytes, int] = field(default_factory=dict[bytes, int])
    returning: list[Sequence] = field(default_factory=list[Sequence])

    def is_empty(self) -> bool:
        return not self.lines and not self.returning

    def head(self, quantum_tokens: int) -> Sequence:
        if self.returning:
            return self.returning[0]
        while True:
            namespace = self.turns[0]
            first = self.lines[namespace][0]
            if self.credit_tokens[namespace] >= service_cost(first):
                return first
            self.credit_tokens[namespace] += quantum_tokens
            self.turns.rotate(-1)

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.returning:
            self.returning.remove(sequence)
            return
        line = self.lines[sequence.namespace]
        line.remove(sequence)
        if not line:
            # Credit is not saved up while nothing waits: an idle tenant gains no claim on the
            # future.
            del self.lines[sequence.namespace], self.credit_tokens[sequence.namespace]
            self.turns.remove(sequence.namespace)


class FairQueue:
    """Sequences that wait to be admitted.

    Args:
        quantum_tokens: Tokens that a tenant gains per turn.
    """

    def __init__(self, *, quantum_tokens: int) -> None:
        if quantum_tokens < 1:
            raise ValueError(f"quantum_tokens must be at least 1, got {quantum_tokens}")
        self._quantum_tokens = quantum_tokens
        self._classes: dict[int, _Class] = {}
        self._members: dict[int, Sequence] = {}
        self._waiting_by_namespace: dict[bytes, int] = {}
        self._queued_tokens = 0

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """Waiting sequences, in order of submission or return."""
        return iter(self._members.values())

    @property
    def queued_tokens(self) -> int:
        """Known tokens of everything that waits."""
        return self._queued_tokens

    def waiting_of(self, namespace: bytes) -> int:
        """Number of sequences of one tenant that wait."""
        return self._waiting_by_namespace.get(namespace, 0)

    def push(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of its tenant's line."""
        members = self._enter(sequence)
        line = members.lines.get(sequence.namespace)
        if line is None:
            line = members.lines[sequence.namespace] = deque()
            members.credit_tokens[sequence.namespace] = 0
            members.turns.append(sequence.namespace)
        line.append(sequence)

    def push_returning(self, sequence: Sequence) -> None:
        """Put a preempted sequence before everything new of its priority."""
        bisect.insort(self._enter(sequence).returning, sequence, key=lambda each: each.rank)

    def head(self) -> Sequence | None:
        """Whose turn it is; the same answer until the queue changes. None when nothing waits."""
        if not self._classes:
            return None
        return self._classes[max(self._classes)].head(self._quantum_tokens)

    def take_head(self) -> Sequence:
        """Remove the sequence that `head` names and charge its tenant."""
        sequence = self.head()
        assert sequence is not None, "nothing waits"
        members = self._classes[sequence.priority]
        if sequence not in members.returning:
            members.credit_tokens[sequence.namespace] -= service_cost(sequence)
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands, without charging for it."""
        del self._members[sequence.key]
        members = self._classes[sequence.priority]
        members.drop(sequence)
        if members.is_empty():
            del self._classes[sequence.priority]
        self._queued_tokens -= sequence.total
        left = self._waiting_by_namespace[sequence.namespace] - 1
        if left:
            self._waiting_by_namespace[sequence.namespace] = left
        else:
            del self._waiting_by_namespace[sequence.namespace]

    def check_integrity(self) -> None:
        """Assert that the counts equal what waits."""
        standing = [
            sequence
            for members in self._classes.values()
            for line in [*members.lines.values(), members.returning]
            for sequence in line
        ]
        assert sorted(each.key for each in standing) == sorted(self._members), "lines differ"
        assert self._queued_tokens == sum(each.total for each in standing), "token count differs"
        assert sum(self._waiting_by_namespace.values()) == len(standing), "tenant counts differ"
        for members in self._classes.values():
            assert not members.is_empty(), "an empty priority class was left behind"
            assert all(members.lines.values()), "an empty line was left behind"
            assert sorted(members.turns) == sorted(members.lines), "turns differ from lines"
            assert members.credit_tokens.keys() == members.lines.keys(), "credit differs"

    def _enter(self, sequence: Sequence) -> _Class:
        assert sequence.key not in self._members, f"sequence {sequence.key} waits already"
        self._members[sequence.key] = sequence
        self._queued_tokens += sequence.total
        namespace = sequence.namespace
        self._waiting_by_namespace[namespace] = self._waiting_by_namespace.get(namespace, 0) + 1
        return self._classes.setdefault(sequence.priority, _Class())
