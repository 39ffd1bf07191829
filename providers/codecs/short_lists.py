"""Lists in an upstream's JSON, refused at the first item more than anything means.

A list is decoded at once, however long, and millions of empty objects fit into an event: they took
a second and more of the event loop.
"""

from __future__ import annotations

from typing import Any

import msgspec

ITEMS_MAX = 1024
"""Most choices of an answer, and most tool calls of a choice; OpenAI takes 128 of either."""

LONG_BYTES = 64 * 1024
"""What is shorter is decoded within 2 ms, whatever it holds."""

_NULL = msgspec.Raw(b"null")
_Items = msgspec.defstruct(
    "_Items",
    [(f"item_{position}", msgspec.Raw, _NULL) for position in range(ITEMS_MAX)],
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
)
"""A list as msgspec has it that stops at the first item more; a longest length is checked last."""

_ITEMS = msgspec.json.Decoder(_Items)
_CHOICES = msgspec.json.Decoder(msgspec.defstruct("_Body", [("choices", _Items | None, None)]))


def check_list(raw: bytes) -> None:
    """Look over a list before it is decoded, if it is long.

    Raises:
        msgspec.DecodeError: It holds over `ITEMS_MAX` items, or was found to be no list.
    """
    if len(raw) > LONG_BYTES:
        _look_over(raw, _ITEMS)


def check_choices(body: bytes) -> None:
    """Look over the `choices` of an answer or a chunk before they are decoded, if it is long.

    Raises:
        msgspec.DecodeError: There are over `ITEMS_MAX`, or it was found to hold no such list.
    """
    if len(body) > LONG_BYTES:
        _look_over(body, _CHOICES)


def _look_over(data: bytes, decoder: msgspec.json.Decoder[Any]) -> None:
    at = -1
    for _ in range(ITEMS_MAX):
        at = data.find(b",", at + 1)
        if at < 0:
            return  # nor can there be as many items; an image has no commas, and is as long
    try:
        decoder.decode(data)
    except RecursionError:
        raise msgspec.ValidationError("nested too deeply") from None
