"""The paged pool of KV blocks: ids, reference counts and the free list; no tensors.

A block is free exactly while nobody holds it. A free block may still carry content that the prefix
cache can match; such blocks wait at the back of the free list, so that the least recently used
content is lost first and blocks without content are handed out before any content is lost. Block 0
is the runner's scratch block and is never handed out.

Source: PagedAttention (Kwon et al., 2023), section 4; free list as an intrusive doubly linked list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

SCRATCH_BLOCK = 0
_NOT_LINKED = -1


class BlockPool:
    """Reference-counted block ids with a least-recently-used free list.

    Args:
        n_blocks: Blocks in the runner's pool, the scratch block included; at least 2.
        on_evict: Called with a block that carried content and is about to be handed out for other
            content.
    """

    def __init__(self, n_blocks: int, *, on_evict: Callable[[int], None]) -> None:
        if n_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, got {n_blocks}")
        self._n_blocks = n_blocks
        self._on_evict = on_evict
        self._references = [0] * n_blocks
        self._has_content = [False] * n_blocks
        # Place n_blocks is the list's head and tail at once, which spares every edge case.
        self._anchor = n_blocks
        self._next = [_NOT_LINKED] * (n_blocks + 1)
        self._previous = [_NOT_LINKED] * (n_blocks + 1)
        self._next[self._anchor] = self._previous[self._anchor] = self._anchor
        self._n_free = 0
        for block in range(1, n_blocks):
            self._link_back(block)

    @property
    def n_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self._n_blocks - 1

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds, with or without content."""
        return self._n_free

    def reference_count(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def has_content(self, block: int) -> bool:
        """Whether the block carries published content."""
        return self._has_content[block]

    def allocate(self, count: int) -> list[int]:
        """Hand out blocks for new content: those without content, then the least recently used.

        Raises:
            ValueError: fewer blocks are free; the caller checks `n_free` first.
        """
        if not 0 <= count <= self._n_free:
            raise ValueError(f"asked for {count} blocks of {self._n_free} free ones")
        return [self._take_front() for _ in range(count)]

    def hold(self, block: int) -> None:
        """Take one more reference on a block whose content is reused; it may be free now."""
        if self._references[block] == 0:
            assert self._has_content[block], f"free block {block} without content cannot be reused"
            self._unlink(block)
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference on each block.

        Blocks are freed in the order given; a caller passes a sequence's blocks last first, so
        that a prefix outlives what was built on it.
        """
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more often than held"
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._has_content[block]:
                    self._link_back(block)
                else:
                    self._link_front(block)

    def mark_content(self, block: int) -> None:
        """Say that a held block now carries published content."""
        assert self._references[block] > 0, f"free block {block} cannot be published"
        assert not self._has_content[block], f"block {block} is published twice"
        self._has_content[block] = True

    def drop_content(self, block: int) -> None:
        """Say that a block's content is no longer matchable; when free it is handed out next."""
        assert self._has_content[block], f"block {block} has no content to drop"
        self._has_content[block] = False
        if self._references[block] == 0:
            self._unlink(block)
            self._link_front(block)

    def free_blocks(self) -> list[int]:
        """Free blocks in the order in which they would be handed out."""
        order: list[int] = []
        block = self._next[self._anchor]
        while block != self._anchor:
            order.append(block)
            block = self._next[block]
        return order

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert that the pool is consistent with the block tables that exist.

        Args:
            tables: The block table of every sequence that holds blocks.
        """
        held = [0] * self._n_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._references, "reference counts differ from the block tables"
        assert held[SCRATCH_BLOCK] == 0, "the scratch block is in a block table"
        free = self.free_blocks()
        assert len(free) == self._n_free == len(set(free)), "the free list is broken"
        assert set(free) == {block for block in range(1, self._n_blocks) if not held[block]}, (
            "free blocks and held blocks do not add up to the pool"
        )
        backwards = [self._has_content[block] for block in free]
        assert backwards == sorted(backwards), "a block with content is before one without"

    def _take_front(self) -> int:
        block = self._next[self._anchor]
        self._unlink(block)
        if self._has_content[block]:
            self._on_evict(block)
            self._has_content[block] = False
        self._references[block] = 1
        return block

    def _link_back(self, block: int) -> None:
        self._link_between(self._previous[self._anchor], block, self._anchor)

    def _link_front(self, block: int) -> None:
        self._link_between(self._anchor, block, self._next[self._anchor])

    def _link_between(self, before: int, block: int, after: int) -> None:
        assert self._next[block] == _NOT_LINKED, f"block {block} is in the free list already"
        self._previous[block], self._next[block] = before, after
        self._next[before] = self._previous[after] = block
        self._n_free += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        assert after != _NOT_LINKED, f"block {block} is not in the free list"
        self._next[before], self._previous[after] = after, before
        self._next[block] = self._previous[block] = _NOT_LINKED
        self._n_free -= 1
