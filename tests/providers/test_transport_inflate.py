"""Compressed bodies, undone part by part."""

from __future__ import annotations

import gzip
import zlib

import pytest

from providers.errors import BadWire
from providers.transport.inflate import MEMBERS_MAX, Inflater


@pytest.mark.parametrize("cut", [1, 7, 10_000])
@pytest.mark.parametrize("bound", [1, 5, 10_000])
def test_gzip_in_several_members_is_one_body(cut, bound) -> None:
    whole = b"".join(gzip.compress(text) for text in (b"one ", b"", b"two and " * 50, b"three"))
    inflater, found = Inflater(b"gzip"), []
    for at in range(0, len(whole), cut):
        found.append(inflater.inflate(whole[at : at + cut], max_bytes=bound))
        while inflater.has_more:
            found.append(inflater.inflate(b"", max_bytes=bound))
    inflater.check_end()
    assert b"".join(found) == b"one " + b"two and " * 50 + b"three"
    assert max(map(len, found)) <= bound


def test_what_follows_a_deflated_body_is_bad_wire() -> None:
    inflater = Inflater(b"deflate")
    with pytest.raises(BadWire):
        inflater.inflate(zlib.compress(b"body") + b"more", max_bytes=100)


def test_a_body_of_very_many_members_is_refused() -> None:
    inflater = Inflater(b"gzip")
    inflater.inflate(gzip.compress(b"x") * MEMBERS_MAX, max_bytes=10**6)
    with pytest.raises(BadWire):
        inflater.inflate(gzip.compress(b"x"), max_bytes=10**6)
