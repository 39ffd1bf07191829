"""Answers that come compressed although nobody asked for it, undone in bounds."""

from __future__ import annotations

import zlib

from aiohttp.compression_utils import ZLibDecompressor

from providers.errors import BadWire

_CODINGS = frozenset({"gzip", "deflate"})
_ZLIB_METHOD = 8


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
        self._inner: ZLibDecompressor | None = None
        self._is_broken = False
        self.has_more = False

    def inflate(self, part: bytes, *, max_bytes: int) -> bytes:
        """Take a part of the body, empty only when `has_more`; what comes out may be empty.

        Raises:
            BadWire: It is not what the header says; and from then on each time.
        """
        inner = self._inner
        if inner is None:
            # Some servers send the bare deflate format, which lacks a header.
            is_bare = self._coding == "deflate" and part[0] & 15 != _ZLIB_METHOD
            inner = self._inner = ZLibDecompressor(
                encoding=self._coding, suppress_deflate_header=is_bare
            )
        if self._is_broken:
            raise _broken()
        try:
            plain = inner.decompress_sync(part, max_length=max_bytes)
        except (zlib.error, ValueError) as fault:
            self._is_broken = True
            raise _broken() from fault
        self.has_more = inner.data_available
        return plain

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
