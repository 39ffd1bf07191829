"""Incremental UTF-8: the bytes of tokens become text without ever splitting a code point.

A character may be spread over several tokens, so bytes wait until their code point is complete.
What can never become valid turns into U+FFFD at once, an incomplete tail only when the output
ends. The text so far is always a prefix of what decoding all bytes at once would give.
"""

from __future__ import annotations

import codecs

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the token bytes of one generation into text; the prompt never enters it."""

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, token_bytes: bytes) -> str:
        """Text that these bytes complete, often empty."""
        return self._decoder.decode(token_bytes)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an incomplete tail, else empty."""
        return self._decoder.decode(b"", final=True)
