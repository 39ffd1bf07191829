"""Section `privacy`: what tags require, where they come from and which sinks they may reach."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gateway.settings.detect import DetectSettings
from gateway.settings.scalars import Many, Section, Word


class TagSettings(Section):
    """A privacy tag: requirements that a deployment must meet."""

    implies: Many[Word] = ()
    """Tags that come with it."""
    require: Many[Word] = ()
    """Trust attributes that a deployment must have."""
    deny: bool = False
    """Whether a request with it is refused altogether."""


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
