"""Plans, preemption and invariants of the scheduler, without a runner."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from local_engine.errors import EngineBusy
from local_engine.prefix_cache import ChainHasher
from local_engine.scheduler import Scheduler, SchedulerLimits, Share
from local_engine.sequence import Sequence, SequenceState

HASHER = ChainHasher(b"k" * 32, model_identity=b"m")
_keys = itertools.count()


def make_scheduler(n_blocks: int = 17, block_size: int = 4, **limits) -> Scheduler:
    limits.setdefault("running_max", 4)
    limits.setdefault("step_tokens_max", 16)
    return Scheduler(
        n_blocks=n_blocks,
        block_size=block_size,
        limits=SchedulerLimits(**limits),
        hasher=HASHER,
    )


def make(tokens, *, namespace: bytes = b"a", output_tokens: int = 4, priority: int = 0) -> Sequence:
    key = next(_keys)
    return Sequence(
        key=key,
        namespace=namespace,
        chain_root=HASHER.root(namespace),
        tokens=list(tokens),
        output_tokens_max=output_tokens,
        priority=priority,
        arrival=key,
    )


def step(scheduler: Scheduler, **options) -> dict[int, int]:
    """Plan and commit one step, sample a 7 where due; returns tokens by key."""
    shares = scheduler.plan(**options)
    scheduler.check_integrity()
    scheduler.commit(shares)
    for share in shares:
        if share.sequence.remaining == 0:
            if share.sequence.output_tokens >= share.sequence.output_tokens_max:
                scheduler.finish(share.sequence)
            else:
                scheduler.append(share.sequence, 7)
    scheduler.check_integrity()
    return {share.sequence.key: share.count for share in shares}


def run_down(scheduler: Scheduler, steps_max: int = 500) -> None:
    for _ in range(steps_max):
        if not scheduler.has_work:
            break
        assert step(scheduler), "work exists but nothing is planned"
    assert not scheduler.has_work
    assert scheduler.n_free_blocks == scheduler.n_usable_blocks


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler()
    sequence = make(range(40))
    scheduler.add(sequence)
    counts = [step(scheduler)[sequence.key] for _ in range(3)]
    assert counts == [16, 16, 8]
    assert sequence.output_tokens == 1


def test_streams_get_their_token_before_prompts_get_the_rest() -> None:
    scheduler = make_scheduler()
    long = make(range(40), output_tokens=8)
    scheduler.add(make([1], output_tokens=8))
    first = step(scheduler)
    scheduler.add(long)
    assert set(step(scheduler).values()) == {1, 15}
    scheduler.add(make([2], output_tokens=8))
    assert sorted(step(scheduler).values()) == [1, 15]
    assert len(first) == 1


def test_a_smaller_budget_holds_prompts_back_but_no_stream() -> None:
    scheduler = make_scheduler()
    streams = [make([index], output_tokens=8) for index in range(3)]
    for sequence in streams:
        scheduler.add(sequence)
    step(scheduler)
    long = make(range(40))
    scheduler.add(long)
    counts = step(scheduler, budget_tokens=1)
    assert [counts[each.key] for each in streams] == [1, 1, 1]
    assert counts[long.key] == 1


def test_a_second_request_of_the_tenant_hits_whole_blocks_only() -> None:
    scheduler = make_scheduler()
    first, second = make(range(11), output_tokens=1), make(range(11), output_tokens=1)
    scheduler.add(first)
    run_down(scheduler)
    scheduler.add(second)
    step(scheduler)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)


def test_another_tenant_hits_nothing() -> None:
    # ENG-019
    scheduler = make_scheduler()
    scheduler.add(make(range(12), namespace=b"a", output_tokens=1))
    run_down(scheduler)
    probe = make(range(12), namespace=b"b", output_tokens=1)
    scheduler.add(probe)
    step(scheduler)
    assert probe.cached_tokens == 0


@pytest.mark.parametrize(("prompt_tokens", "cached"), [(8, 4), (9, 8), (4, 0), (5, 4), (12, 8)])
def test_a_hit_leaves_at_least_one_token_to_compute(prompt_tokens: int, cached: int) -> None:
    scheduler = make_scheduler()
    scheduler.add(make(range(prompt_tokens), output_tokens=1))
    run_down(scheduler)
    again = make(range(prompt_tokens), output_tokens=1)
    scheduler.add(again)
    step(scheduler)
    assert again.cached_tokens == cached


def test_two_sequences_with_one_prefix_in_one_step_do_not_hit_each_other() -> None:
    # ENG-011
    scheduler = make_scheduler()
    first, second = make(range(8)), make(range(8))
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler)
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    assert not set(first.block_table) & set(second.block_table)


def test_ending_one_of_two_duplicates_leaves_the_other_matchable() -> None:
    # ENG-012
    scheduler = make_scheduler()
    first, second = make(range(8), output_tokens=9), make(range(8), output_tokens=9)
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler)
    scheduler.finish(first)
    scheduler.check_integrity()
    third = make([*range(8), 50, 51])
    scheduler.add(third)
    step(scheduler)
    assert third.cached_tokens == 8


def test_the_victim_is_the_youngest_of_the_lowest_priority() -> None:
    scheduler = make_scheduler(n_blocks=9, step_tokens_max=32)
    urgent = make(range(8), output_tokens=20, priority=1)
    old = make(range(20, 28), output_tokens=20)
    young = make(range(40, 44), output_tokens=20)
    for sequence in (old, young, urgent):
        scheduler.add(sequence)
    preempted = []
    for _ in range(12):
        step(scheduler)
        preempted += [each for each in (urgent, old, young) if each.preemptions]
        if preempted:
            break
    assert preempted == [young]


def test_a_sequence_preempted_in_a_step_is_not_taken_again_in_it() -> None:
    # ENG-097
    scheduler = make_scheduler(n_blocks=8, step_tokens_max=32)
    sequences = [make(range(index, index + 8), output_tokens=12) for index in (0, 50, 90)]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(200):
        before = {each.key: each.preemptions for each in sequences}
        counts = step(scheduler)
        for each in sequences:
            if each.preemptions > before[each.key]:
                assert each.key not in counts
        if not scheduler.has_work:
            break
    assert sum(each.preemptions for each in sequences) > 0


def test_a_step_that_had_to_preempt_admits_nobody() -> None:
    scheduler = make_scheduler(n_blocks=9, step_tokens_max=32)
    for index in (0, 50):
        scheduler.add(make(range(index, index + 12), output_tokens=12))
    urgent = None
    for _ in range(40):
        before = scheduler.counts.preemptions
        if scheduler.n_free_blocks == 0 and urgent is None:
            urgent = make([90], priority=1, output_tokens=1)
            scheduler.add(urgent)
        counts = step(scheduler)
        if scheduler.counts.preemptions > before:
            assert urgent is not None
            assert urgent.key not in counts
            assert urgent.key in step(scheduler)
            return
    pytest.fail("nobody was preempted")


def test_the_head_of_a_prefix_outlives_its_tail() -> None:
    scheduler = make_scheduler(n_blocks=9)
    scheduler.add(make(range(24), output_tokens=1))
    run_down(scheduler)
    scheduler.add(make(range(50, 66), output_tokens=1))
    run_down(scheduler)
    again = make(range(24), output_tokens=1)
    scheduler.add(again)
    step(scheduler)
    assert again.cached_tokens == 12


def test_thirty_requests_in_a_small_pool_all_end() -> None:
    # ENG-097
    scheduler = make_scheduler(n_blocks=8, queued_requests_max=64)
    for index in range(30):
        scheduler.add(make(range(index, index + 9), output_tokens=14))
    run_down(scheduler, steps_max=5000)


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    scheduler = make_scheduler()
    sequence = make(range(12), output_tokens=9)
    scheduler.add(sequence)
    step(scheduler)
    scheduler.preempt(sequence)
    scheduler.check_integrity()
    assert sequence.computed == 0
    step(scheduler)
    assert sequence.computed == 13
    assert sequence.cached_tokens == 0, "what a resumed sequence finds is not the caller's saving"


def test_blocks_return_when_a_sequence_is_ended_in_any_state() -> None:
    # ENG-102
    scheduler = make_scheduler(running_max=1, step_tokens_max=4)
    running, waiting = make(range(12)), make(range(20, 32))
    scheduler.add(running)
    scheduler.add(waiting)
    step(scheduler)
    assert running.state is SequenceState.RUNNING
    for sequence in (waiting, running, running):
        scheduler.finish(sequence)
        scheduler.check_integrity()
    assert scheduler.n_free_blocks == scheduler.n_usable_blocks
    assert not scheduler.has_work


def test_a_full_queue_says_when_to_come_back() -> None:
    scheduler = make_scheduler(queued_requests_max=4, tenant_share_max=1.0)
    for _ in range(4):
        scheduler.add(make([1]))
    with pytest.raises(EngineBusy, match="4 requests wait") as caught:
        scheduler.add(make([1]), retry_after_s=3.0)
    assert caught.value.retry_after_s == 3.0
    scheduler.check_integrity()


def test_one_tenant_cannot_fill_the_queue() -> None:
    scheduler = make_scheduler(queued_requests_max=4, tenant_share_max=0.5)
    scheduler.add(make([1], namespace=b"flood"))
    scheduler.add(make([1], namespace=b"flood"))
    with pytest.raises(EngineBusy, match="of this tenant"):
        scheduler.add(make([1], namespace=b"flood"))
    scheduler.add(make([1], namespace=b"other"))


def test_waiting_tokens_are_bounded_but_one_prompt_may_always_wait() -> None:
    scheduler = make_scheduler(queued_tokens_max=10, tenant_share_max=1.0)
    scheduler.add(make(range(20)))
    with pytest.raises(EngineBusy, match="20 tokens wait"):
        scheduler.add(make([1]))


def test_a_budget_below_the_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least running_max"):
        SchedulerLimits(running_max=8, step_tokens_max=4)


def test_without_caching_nothing_is_published_or_hit() -> None:
    scheduler = make_scheduler(is_caching=False)
    for _ in range(2):
        sequence = make(range(12), output_tokens=1)
        scheduler.add(sequence)
        run_down(scheduler)
        assert sequence.cached_tokens == 0
    assert scheduler.n_published_blocks == 0


class SchedulerMachine(RuleBasedStateMachine):
    """Random traffic; every invariant after every move."""

    @initialize(
        n_blocks=st.integers(4, 20),
        running_max=st.integers(1, 5),
        extra_budget=st.integers(0, 20),
        is_caching=st.booleans(),
    )
    def begin(self, n_blocks, running_max, extra_budget, is_caching) -> None:
        self.block_size = 2
        self.scheduler = make_scheduler(
            n_blocks=n_blocks,
            block_size=self.block_size,
            running_max=running_max,
            step_tokens_max=running_max + extra_budget,
            queued_requests_max=8,
            quantum_tokens=5,
            is_caching=is_caching,
        )
        self.alive: list[Sequence] = []
        self.arrivals = 0

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        output_tokens=st.integers(0, 8),
        namespace=st.sampled_from([b"a", b"b"]),
        priority=st.integers(-1, 1),
    )
    def add(self, tokens, output_tokens, namespace, priority) -> None:
        slots = self.scheduler.n_usable_blocks * self.block_size
        if len(tokens) + output_tokens > slots:
            return
        sequence = make(tokens, namespace=namespace, output_tokens=output_tokens, priority=priority)
        try:
            self.scheduler.add(sequence)
        except EngineBusy:
            assert self.scheduler.n_waiting > 0
            return
        self.alive.append(sequence)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(budget=st.one_of(st.none(), st.integers(1, 10)), token=st.integers(0, 1))
    def step(self, budget, token) -> None:
        limits = self.scheduler.limits
        oldest = self.scheduler.running[0] if self.scheduler.running else None
        before = oldest.preemptions if oldest else 0
        shares = self.scheduler.plan(budget_tokens=budget)
        self.scheduler.check_integrity()
        assert shares, "work exists but nothing is planned"
        assert sum(share.count for share in shares) <= limits.step_tokens_max
        assert all(0 < share.count <= share.sequence.remaining for share in shares)
        keys = [share.sequence.key for share in shares]
        assert len(keys) == len(set(keys))
        if oldest:
            assert oldest.preemptions == before, "the first in rank was preempted"
        self.commit(shares, token)

    def commit(self, shares: list[Share], token: int) -> None:
        self.scheduler.commit(shares)
        for share in shares:
            sequence = share.sequence
            if sequence.remaining == 0:
                if sequence.output_tokens == sequence.output_tokens_max:
                    self.scheduler.finish(sequence)
                else:
                    self.scheduler.append(sequence, token)

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data) -> None:
        self.scheduler.preempt(data.draw(st.sampled_from(self.scheduler.running)))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.scheduler.finish(data.draw(st.sampled_from(self.alive)))

    @invariant()
    def everything_holds(self) -> None:
        self.scheduler.check_integrity()
        self.alive = [each for each in self.alive if each.state is not SequenceState.FINISHED]
        assert len(self.alive) == len(self.scheduler.running) + self.scheduler.n_waiting

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            self.commit(self.scheduler.plan(), 0)
        assert not self.scheduler.has_work, "somebody is never served"
        assert self.scheduler.n_free_blocks == self.scheduler.n_usable_blocks


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_traffic_keeps_every_invariant_and_ends = SchedulerMachine.TestCase
