"""Who is served next."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.fair_queue import FairQueue, service_cost
from local_engine.sequence import Sequence

_keys = itertools.count()


def make(
    namespace: bytes = b"a", *, prompt_tokens: int = 10, output_tokens: int = 0, priority: int = 0
) -> Sequence:
    key = next(_keys)
    return Sequence(
        key=key,
        namespace=namespace,
        chain_root=b"",
        tokens=[1] * prompt_tokens,
        output_tokens_max=output_tokens,
        priority=priority,
        arrival=key,
    )


def drain(queue: FairQueue) -> list[Sequence]:
    served = []
    while queue.head() is not None:
        head = queue.head()
        served.append(queue.take_head())
        assert served[-1] is head
        queue.check_integrity()
    return served


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    queue = FairQueue(quantum_tokens=1)
    sequences = [make(prompt_tokens=n) for n in (50, 1, 20)]
    for sequence in sequences:
        queue.push(sequence)
    assert drain(queue) == sequences


def test_a_tenant_with_few_requests_does_not_wait_for_one_with_many() -> None:
    queue = FairQueue(quantum_tokens=10)
    flood = [make(b"flood") for _ in range(100)]
    for sequence in flood:
        queue.push(sequence)
    late = make(b"late")
    queue.push(late)
    assert drain(queue).index(late) <= 2


def test_tenants_share_tokens_not_requests() -> None:
    queue = FairQueue(quantum_tokens=16)
    for _ in range(200):
        queue.push(make(b"short", prompt_tokens=10))
        queue.push(make(b"long", prompt_tokens=100))
    served = [queue.take_head() for _ in range(110)]
    tokens = dict.fromkeys((b"short", b"long"), 0)
    for sequence in served:
        tokens[sequence.namespace] += service_cost(sequence)
    assert tokens[b"short"] / tokens[b"long"] == pytest.approx(1, abs=0.2)


def test_higher_priority_goes_first_whoever_asks() -> None:
    queue = FairQueue(quantum_tokens=10)
    low, high = make(priority=-1), make(b"b", priority=5)
    queue.push(low)
    queue.push(high)
    assert drain(queue) == [high, low]


def test_preempted_sequences_return_before_new_ones_in_order_of_rank() -> None:
    queue = FairQueue(quantum_tokens=10)
    first, second, new = make(), make(b"b"), make()
    queue.push(new)
    queue.push_returning(second)
    queue.push_returning(first)
    assert drain(queue) == [first, second, new]


def test_an_idle_tenant_saves_up_no_credit() -> None:
    queue = FairQueue(quantum_tokens=1000)
    queue.push(make(b"a"))
    drain(queue)
    for _ in range(3):
        queue.push(make(b"a", prompt_tokens=900))
        queue.push(make(b"b", prompt_tokens=900))
    order = [sequence.namespace for sequence in drain(queue)]
    assert order == [b"a", b"b"] * 3


def test_a_sequence_may_leave_from_any_place() -> None:
    queue = FairQueue(quantum_tokens=10)
    sequences = [make(), make(), make(b"b"), make()]
    for sequence in sequences[:3]:
        queue.push(sequence)
    queue.push_returning(sequences[3])
    for sequence in (sequences[1], sequences[3], sequences[2]):
        queue.remove(sequence)
        queue.check_integrity()
    assert drain(queue) == [sequences[0]]
    assert queue.queued_tokens == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 300), st.integers(-1, 1)),
        max_size=40,
    ),
    st.integers(1, 400),
)
def test_everyone_is_served_exactly_once_and_priorities_hold(arrivals, quantum) -> None:
    queue = FairQueue(quantum_tokens=quantum)
    sequences = [
        make(namespace, prompt_tokens=tokens, priority=priority)
        for namespace, tokens, priority in arrivals
    ]
    for sequence in sequences:
        queue.push(sequence)
    queue.check_integrity()
    served = drain(queue)
    assert sorted(each.key for each in served) == [each.key for each in sequences]
    assert [each.priority for each in served] == sorted(
        (each.priority for each in served), reverse=True
    )
    for namespace in (b"a", b"b", b"c"):
        own = [each for each in served if each.namespace == namespace]
        for priority in (-1, 0, 1):
            keys = [each.key for each in own if each.priority == priority]
            assert keys == sorted(keys)
