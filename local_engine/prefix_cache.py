"""Which block holds which prefix: a hash-chained map of full blocks, per tenant namespace.

The digest of a block is a keyed BLAKE2b-128 of its parent's digest and its own token ids; the
chain starts at a root that binds the namespace and the model. Two namespaces therefore never share
a digest, and nobody without the key can build a collision. Token ids are compared on every hit all
the same, so that even a collision could not hand out foreign keys and values. A block is published
only after its keys and values exist.

Source: automatic prefix caching as described in the vLLM design documents (hash chain over full
blocks); BLAKE2 (RFC 7693) as the keyed hash.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

DIGEST_BYTES = 16


class ChainHasher:
    """Computes the digests of a chain.

    Args:
        key: Secret of this engine, 16 to 64 bytes; another key makes every earlier digest
            worthless.
        model_identity: What keys and values depend on apart from tokens: file digest, data type,
            adapter.
    """

    def __init__(self, key: bytes, *, model_identity: bytes) -> None:
        if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"the namespace key must have 16 to 64 bytes, got {len(key)}")
        self._key = key
        self._model_identity = model_identity

    def root(self, namespace: bytes) -> bytes:
        """First parent of every chain in a namespace."""
        # The length goes first, so that no namespace and model can be cut differently.
        text = struct.pack("<Q", len(namespace)) + namespace + self._model_identity
        return self._digest(text, person=b"fw-root")

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Digest of a full block that continues the chain at `parent`."""
        return self._digest(parent + array("I", token_ids).tobytes(), person=b"fw-block")

    def _digest(self, text: bytes, *, person: bytes) -> bytes:
        return hashlib.blake2b(
            text, digest_size=DIGEST_BYTES, key=self._key, person=person
        ).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]


class PrefixCache:
    """Map from digest to the blocks that hold that content.

    Two sequences that computed the same prefix in the same step leave two blocks with one digest;
    removing one leaves the other.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, dict[int, None]] = {}
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        """Number of published blocks."""
        return len(self._entries)

    def find(self, digest: bytes, *, parent: bytes, token_ids: Sequence[int]) -> int | None:
        """A block that holds exactly these tokens behind exactly that parent, else None."""
        for block in self._blocks.get(digest, ()):
            entry = self._entries[block]
            if entry.parent == parent and entry.token_ids == tuple(token_ids):
                return block
        return None

    def publish(
        self, block: int, *, digest: bytes, parent: bytes, token_ids: Sequence[int]
    ) -> None:
        """Make a block matchable; its keys and values have been written."""
        assert block not in self._entries, f"block {block} is published already"
        self._entries[block] = _Entry(digest=digest, parent=parent, token_ids=tuple(token_ids))
        self._blocks.setdefault(digest, {})[block] = None

    def forget(self, block: int) -> None:
        """Make a block unmatchable, because it is about to hold something else."""
        digest = self._entries.pop(block).digest
        siblings = self._blocks[digest]
        del siblings[block]
        if not siblings:
            del self._blocks[digest]

    def digest_of(self, block: int) -> bytes | None:
        """Digest under which a block is published, None while it is not."""
        entry = self._entries.get(block)
        return entry.digest if entry else None

    def published(self) -> frozenset[int]:
        """Ids of all published blocks."""
        return frozenset(self._entries)

    def check_integrity(self) -> None:
        """Assert that both directions of the map agree."""
        forward = {(block, digest) for digest, blocks in self._blocks.items() for block in blocks}
        backward = {(block, entry.digest) for block, entry in self._entries.items()}
        assert forward == backward, "digest map and block map differ"
        assert all(self._blocks.values()), "an empty digest entry was left behind"
