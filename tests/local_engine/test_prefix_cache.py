"""Digests that bind tenant, model and position, and a map that survives duplicates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.prefix_cache import DIGEST_BYTES, ChainHasher, PrefixCache

KEY = b"k" * 32


def make_hasher(key: bytes = KEY, model_identity: bytes = b"model") -> ChainHasher:
    return ChainHasher(key, model_identity=model_identity)


def chain(hasher: ChainHasher, namespace: bytes, blocks: list[list[int]]) -> list[bytes]:
    digests = [hasher.root(namespace)]
    for block in blocks:
        digests.append(hasher.child(digests[-1], block))
    return digests


# ENG-021: a keyed hash; ENG-002, ENG-005: what KV depends on is part of the identity.
DIFFERENCES = {
    "another tenant": chain(make_hasher(), b"b", [[1, 2], [3, 4]]),
    "another key": chain(make_hasher(b"x" * 32), b"a", [[1, 2], [3, 4]]),
    "another model or adapter version": chain(
        make_hasher(model_identity=b"model2"), b"a", [[1, 2], [3, 4]]
    ),
    "another first block": chain(make_hasher(), b"a", [[1, 9], [3, 4]]),
    "another order": chain(make_hasher(), b"a", [[3, 4], [1, 2]]),
    "a namespace that runs into the model's name": chain(
        make_hasher(model_identity=b"odel"), b"am", [[1, 2], [3, 4]]
    ),
}


@pytest.mark.parametrize("other", DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_the_last_digest_differs_with(other: list[bytes]) -> None:
    assert chain(make_hasher(), b"a", [[1, 2], [3, 4]])[-1] != other[-1]


def test_the_same_content_has_the_same_digest_in_every_process() -> None:
    first = chain(make_hasher(), b"a", [[1, 2], [3, 4]])
    assert first == chain(make_hasher(), b"a", [[1, 2], [3, 4]])
    assert {len(digest) for digest in first} == {DIGEST_BYTES}


def test_a_root_is_never_a_child() -> None:
    hasher = make_hasher(model_identity=b"")
    assert hasher.root(b"") != hasher.child(b"\0" * 8, [])


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        make_hasher(b"k" * size)


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2), min_size=1, max_size=4),
)
def test_digests_are_equal_exactly_when_the_tokens_are(one, other) -> None:
    hasher = make_hasher()
    same = chain(hasher, b"a", one)[-1] == chain(hasher, b"a", other)[-1]
    assert same == (one == other)


def test_a_hit_compares_token_ids_and_parent_so_that_a_collision_gives_nothing() -> None:
    # ENG-021
    cache = PrefixCache()
    cache.publish(3, digest=b"d", parent=b"p", token_ids=[1, 2])
    assert cache.find(b"d", parent=b"p", token_ids=[1, 2]) == 3
    assert cache.find(b"d", parent=b"p", token_ids=[1, 3]) is None
    assert cache.find(b"d", parent=b"q", token_ids=[1, 2]) is None
    assert cache.find(b"e", parent=b"p", token_ids=[1, 2]) is None


def test_two_blocks_with_one_digest_live_and_die_apart() -> None:
    # ENG-012
    cache = PrefixCache()
    cache.publish(3, digest=b"d", parent=b"p", token_ids=[1, 2])
    cache.publish(4, digest=b"d", parent=b"p", token_ids=[1, 2])
    cache.forget(3)
    cache.check_integrity()
    assert cache.find(b"d", parent=b"p", token_ids=[1, 2]) == 4
    cache.forget(4)
    cache.check_integrity()
    assert cache.find(b"d", parent=b"p", token_ids=[1, 2]) is None
    assert len(cache) == 0


def test_a_block_is_published_once() -> None:
    cache = PrefixCache()
    cache.publish(3, digest=b"d", parent=b"p", token_ids=[1])
    with pytest.raises(AssertionError, match="published already"):
        cache.publish(3, digest=b"e", parent=b"p", token_ids=[1])
