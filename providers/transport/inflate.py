"""Answers that come compressed although nobody asked for it, undone in bounds."""

from __future__ import annotations

import zlib
from typing import Protocol

from providers.errors import BadWire

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_CODINGS = frozenset({"gzip", "deflate"})
_ZLIB_METHOD = 8
MEMBERS_MAX = 1024
"""Of one gzip body: each costs a decompressor and a copy of what follows."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


class Inflater:
    """Undoes one body's compression, never more at once than asked for.

    Attributes:
        has_more: Whether there may be more without another part of the body.
    """

    def __init__(self, header: bytes) -> None:
        """Expect a body that `is_to_inflate`.

        Args:
            header: Its `content-encoding`.
        """
        self._coding = _coding(header)
        self._wbits = _GZIP_WBITS
        self._inner: _Decompressor | None = None
        self._members = 1
        self._left = b""  # of what came: behind the bound, or behind the end
        self._is_broken = False
        self.has_more = False

    def inflate(self, part: bytes, *, max_bytes: int) -> bytes:
        """Take a part of the body, empty only when `has_more`; what comes out may be empty.

        Raises:
            BadWire: It is not what the header says; and from then on each time.
        """
        if self._is_broken:
            raise _broken()
        try:
            plain = self._inflate(part, max_bytes)
        except zlib.error as fault:
            self._is_broken = True
            raise _broken() from fault
        # At the bound there may be more inside, although all that came was taken in.
        self.has_more = bool(self._left) or len(plain) >= max_bytes
        return plain

    def _inflate(self, part: bytes, max_bytes: int) -> bytes:
        inner = self._inner
        if inner is None:
            if self._coding == "deflate":
                # Some servers send the bare deflate format, which lacks a header.
                is_bare = part[0] & 15 != _ZLIB_METHOD
                self._wbits = -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS
            inner = self._inner = zlib.decompressobj(self._wbits)
        data = self._left + part
        pieces: list[bytes] = []
        room = max_bytes
        while True:
            if inner.eof and data:  # a gzip file may be several (RFC 1952, section 2.2)
                self._members += 1
                if self._wbits != _GZIP_WBITS or self._members > MEMBERS_MAX:
                    raise zlib.error("there is something behind the end")
                inner = self._inner = zlib.decompressobj(self._wbits)
            piece = inner.decompress(data, room)
            pieces.append(piece)
            room -= len(piece)
            data = inner.unused_data if inner.eof else inner.unconsumed_tail
            if not (inner.eof and data and room):
                break
        self._left = data
        return b"".join(pieces)

    def check_end(self) -> None:
        """Whether the body may end here.

        Raises:
            BadWire: It may not.
        """
        inner = self._inner
        is_cut = inner is not None and self._coding == "deflate" and not inner.eof
        if self._is_broken or is_cut:
            raise _broken()


def is_to_inflate(header: bytes, *, status: int) -> bool:
    """Whether an answer's body has to be decompressed.

    Args:
        header: Its `content-encoding`.
        status: The answer's; an error's tells enough, whatever its body is written in.

    Raises:
        BadWire: The upstream compressed, in a way that we do not know, what we asked it not to.
    """
    coding = _coding(header)
    if coding in _CODINGS:
        return True
    if coding in ("", "identity") or status >= 400:
        return False
    raise BadWire(f"The upstream's answer is compressed in an unknown way: {coding[:40]!r}.")


def _coding(header: bytes) -> str:
    return header.decode("utf-8", "replace").strip().lower()


def _broken() -> BadWire:
    return BadWire("The upstream's answer is compressed in a way that cannot be undone.")
