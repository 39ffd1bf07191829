"""Section `privacy`: what tags require, where they come from and which sinks they may reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gateway.settings.detect import DetectSettings
from gateway.settings.scalars import Many, Section, Word
from gateway.settings.trust import TrustClaim


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
    traces: Many[Word] = ()
    """Tags allowed in traces; a request with another one leaves none."""
    response_cache: Many[Word] = ()
    """Tags allowed in the response cache."""
    batch_files: Many[Word] = ()
    """Tags allowed in files of batches."""
    exports: Many[Word] = ()
    """Tags allowed in exports."""


class ToolSettings(Section):
    """What is known of a tool that leaves the machine of whoever answers."""

    trust: Many[TrustClaim] = ()
    """Trust attributes of wherever it leads, whichever deployment calls it."""


KnownTool = Literal[
    "web_search", "url_fetch", "code_execution", "file_search", "mcp", "image_generation"
]


class PrivacySettings(Section):
    """What tags require, where they come from and which sinks they may reach."""

    tags: Mapping[Word, TagSettings] = Field(default_factory=dict[str, TagSettings])
    """The tags that exist."""
    floor: Many[Word] = ()
    """Tags that every request carries."""
    detect: DetectSettings | None = None
    """Detectors; unset: they observe and count, nothing more."""
    tools: Mapping[KnownTool, ToolSettings] = Field(default_factory=dict[KnownTool, ToolSettings])
    """Tools and features of vendors that leave their machine; what is not here has no trust, so
    that only requests without requirements may use it."""
    sinks: SinkSettings = Field(default_factory=SinkSettings)
    """Which tags may reach which sink."""
