"""Section `privacy`: what tags require, where they come from and which sinks they may reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gateway.settings.scalars import Many, Section, Word


class TagSettings(Section):
    """A privacy tag: requirements that a deployment must meet."""

    implies: Many[Word] = ()
    """Tags that come with it."""
    require: Many[Word] = ()
    """Trust attributes that a deployment must have."""
    deny: bool = False
    """Whether a request with it is refused altogether."""


class OpaquePartSettings(Section):
    """Tags for parts of a message that no detector can read."""

    image: Many[Word] = ()
    """Tags of a request with an image."""
    audio: Many[Word] = ()
    """Tags of a request with audio."""
    file: Many[Word] = ()
    """Tags of a request with a file."""


class DetectSettings(Section):
    """Detectors, which may only add tags."""

    mode: Literal["observe", "enforce"] = "observe"
    """`observe` counts what would be added, `enforce` adds it."""
    payment_card: Many[Word] = ()
    """Tags added when a payment card number is found."""
    iban: Many[Word] = ()
    """Tags added when an IBAN is found."""
    private_key: Many[Word] = ()
    """Tags added when a private key is found."""
    opaque_parts: OpaquePartSettings = Field(default_factory=OpaquePartSettings)
    """Tags added for parts that cannot be read."""
    on_error: Many[Word] = ()
    """Tags added when a detector fails or is too slow."""


class SinkSettings(Section):
    """Tags that a request may carry and still reach a sink; others keep it out."""

    content_log: Many[Word] = ()
    """Tags allowed in the content log."""
    response_cache: Many[Word] = ()
    """Tags allowed in the response cache."""


class PrivacySettings(Section):
    """What tags require, where they come from and which sinks they may reach."""

    tags: Mapping[Word, TagSettings] = Field(default_factory=dict[str, TagSettings])
    """The tags that exist."""
    floor: Many[Word] = ()
    """Tags that every request carries."""
    detect: DetectSettings | None = None
    """Detectors; unset: they observe and count, nothing more."""
    sinks: SinkSettings = Field(default_factory=SinkSettings)
    """Which tags may reach which sink."""
