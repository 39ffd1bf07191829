"""The block pool against a naive model, and its rules one by one."""

from __future__ import annotations

from collections import deque

import pytest

from local_engine.kv_blocks import SCRATCH_BLOCK, BlockPool


def make_pool(n_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(n_blocks, on_evict=evicted.append), evicted


def test_the_scratch_block_is_never_handed_out() -> None:
    pool, _ = make_pool(8)
    assert SCRATCH_BLOCK not in pool.allocate(pool.n_free)


def test_more_blocks_than_are_free_are_refused_and_nothing_changes() -> None:
    pool, _ = make_pool(4)
    held = pool.allocate(2)
    with pytest.raises(ValueError, match="asked for 2 blocks of 1 free"):
        pool.allocate(2)
    pool.check_integrity([held])


def test_a_pool_of_scratch_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        make_pool(1)


def test_blocks_without_content_go_before_blocks_with_content() -> None:
    pool, evicted = make_pool(5)
    first, second, third = pool.allocate(3)
    pool.mark_content(first)
    pool.release([first])
    pool.release([second])
    assert first not in pool.allocate(2)
    assert evicted == []
    pool.check_integrity([[third], [second], [4]])


def test_the_least_recently_freed_content_is_evicted_first() -> None:
    pool, evicted = make_pool(4)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.mark_content(block)
    pool.release([blocks[1]])
    pool.release([blocks[2]])
    pool.release([blocks[0]])
    assert pool.allocate(2) == [blocks[1], blocks[2]]
    assert evicted == [blocks[1], blocks[2]]


def test_freeing_last_first_lets_parents_outlive_children() -> None:
    pool, evicted = make_pool(4)
    table = pool.allocate(3)
    for block in table:
        pool.mark_content(block)
    pool.release(reversed(table))
    pool.allocate(1)
    assert evicted == [table[-1]]


def test_content_in_a_free_block_can_be_held_again() -> None:
    pool, evicted = make_pool(4)
    (block,) = pool.allocate(1)
    pool.mark_content(block)
    pool.release([block])
    pool.hold(block)
    pool.hold(block)
    assert pool.reference_count(block) == 2
    assert block not in pool.allocate(2)
    assert evicted == []


def test_dropped_content_of_a_free_block_is_handed_out_next() -> None:
    pool, evicted = make_pool(5)
    blocks = pool.allocate(2)
    for block in blocks:
        pool.mark_content(block)
    pool.release(blocks)
    pool.drop_content(blocks[1])
    pool.check_integrity([])
    assert pool.allocate(1) == [blocks[1]]
    assert evicted == []


MISUSES = {
    "a release too many": lambda pool, block: pool.release([block, block]),
    "publishing a free block": lambda pool, block: pool.mark_content(block + 1),
    "publishing twice": lambda pool, block: (pool.mark_content(block), pool.mark_content(block)),
    "holding a free block without content": lambda pool, block: pool.hold(block + 1),
    "dropping content that is not there": lambda pool, block: pool.drop_content(block),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_caught_by_an_assertion(misuse) -> None:
    pool, _ = make_pool(4)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError):
        misuse(pool, block)


FAULTS = {
    "a table that is not counted": lambda pool: pool.check_integrity([[1], [2]]),
    "a block in two tables but held once": lambda pool: pool.check_integrity([[1], [1]]),
    "a held block in no table": lambda pool: pool.check_integrity([]),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_integrity_check_finds(fault) -> None:
    pool, _ = make_pool(4)
    assert pool.allocate(1) == [1]
    pool.check_integrity([[1]])
    with pytest.raises(AssertionError):
        fault(pool)


class NaiveModel:
    """The same rules as sets and lists, without links or counts."""

    def __init__(self, n_blocks: int) -> None:
        self.tables: list[list[int]] = [[], [], []]
        self.content: set[int] = set()
        self.free = list(range(1, n_blocks))

    def holders(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables)

    def apply(self, move: tuple) -> list[int] | None:
        """Evicted blocks, None when the move is not possible."""
        kind, *arguments = move
        return getattr(self, kind)(*arguments)

    def take(self, owner: int) -> list[int] | None:
        if not self.free:
            return None
        block = self.free.pop(0)
        evicted = [block] if block in self.content else []
        self.content.discard(block)
        self.tables[owner].append(block)
        return evicted

    def share(self, owner: int, block: int) -> list[int] | None:
        if block not in self.content or block in self.tables[owner]:
            return None
        if block in self.free:
            self.free.remove(block)
        self.tables[owner].append(block)
        return []

    def publish(self, owner: int) -> list[int] | None:
        fresh = [block for block in self.tables[owner] if block not in self.content]
        if not fresh:
            return None
        self.content.add(fresh[0])
        return []

    def leave(self, owner: int) -> list[int] | None:
        if not self.tables[owner]:
            return None
        table, self.tables[owner] = self.tables[owner], []
        for block in reversed(table):
            if not self.holders(block):
                if block in self.content:
                    self.free.append(block)
                else:
                    self.free.insert(0, block)
        return []

    def state(self) -> tuple:
        return (
            tuple(map(tuple, self.tables)),
            tuple(self.free),
            tuple(sorted(self.content)),
        )


def replay(moves: tuple, n_blocks: int) -> tuple[BlockPool, NaiveModel]:
    """Both after the same moves; what is evicted, and every state on the way, must agree."""
    pool, evicted = make_pool(n_blocks)
    model = NaiveModel(n_blocks)
    for move in moves:
        before = [list(table) for table in model.tables]
        content = set(model.content)
        wanted = model.apply(move)
        evicted.clear()
        match move:
            case ("take", owner):
                assert pool.allocate(1) == model.tables[owner][-1:]
            case ("share", _, block):
                pool.hold(block)
            case ("publish", owner):
                pool.mark_content(next(b for b in before[owner] if b not in content))
            case ("leave", owner):
                pool.release(reversed(before[owner]))
        assert evicted == wanted
    pool.check_integrity(model.tables)
    assert pool.free_blocks() == model.free
    assert {b for b in range(1, n_blocks) if pool.has_content(b)} == model.content
    return pool, model


def explore(n_blocks: int, depth: int) -> int:
    """Breadth first over every interleaving, each state once; returns the number of states."""
    moves = [(kind, owner) for kind in ("take", "publish", "leave") for owner in range(3)]
    moves += [("share", owner, block) for owner in range(3) for block in range(1, n_blocks)]
    seen: set[tuple] = set()
    queue: deque[tuple] = deque([()])
    while queue:
        path = queue.popleft()
        model = NaiveModel(n_blocks)
        for move in path:
            model.apply(move)
        for move in moves:
            tried = NaiveModel(n_blocks)
            for earlier in path:
                tried.apply(earlier)
            if tried.apply(move) is None or tried.state() in seen:
                continue
            seen.add(tried.state())
            replay((*path, move), n_blocks)
            if len(path) + 1 < depth:
                queue.append((*path, move))
    return len(seen)


def test_every_interleaving_of_three_owners_agrees_with_the_naive_model() -> None:
    assert explore(n_blocks=4, depth=9) > 4000


@pytest.mark.ci
@pytest.mark.slow
def test_every_deep_interleaving_of_three_owners_agrees_with_the_naive_model() -> None:
    assert explore(n_blocks=6, depth=8) > 20_000
