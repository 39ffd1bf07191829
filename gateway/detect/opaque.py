"""Parts that no detector can read: images, audio, files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

IMAGE, AUDIO, FILE = "image", "audio", "file"

_KINDS: Mapping[str, str | None] = {
    "text": None,
    "refusal": None,
    "input_text": None,
    "output_text": None,
    "image": IMAGE,
    "image_url": IMAGE,
    "input_image": IMAGE,
    "audio": AUDIO,
    "input_audio": AUDIO,
}
"""By a part's `type`; whatever is not listed counts as a file, whoever invents it."""


class _Part(msgspec.Struct):
    type: str


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])


def opaque_kinds(fields: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    """Which kinds of such parts the messages hold, sorted."""
    raw = fields.get("messages")
    found: set[str] = set()
    for message in () if raw is None else _MESSAGES.decode(raw):
        if isinstance(message.content, list):
            kinds = (_KINDS.get(part.type, FILE) for part in message.content)
            found.update(kind for kind in kinds if kind is not None)
    return tuple(sorted(found))
