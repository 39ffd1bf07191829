"""Section `server`: where the gateway listens and how long it waits."""

from __future__ import annotations

from pydantic import Field

from gateway.settings.scalars import Seconds, Section, Word


class TimeoutSettings(Section):
    """How long a request may wait; each ends the attempt that runs."""

    connect_s: Seconds = 5.0
    """Until the connection to the upstream stands."""
    first_token_s: Seconds = 120.0
    """From sending the request to the first content event."""
    between_tokens_s: Seconds = 60.0
    """Between two reads once content flows."""
    total_s: Seconds = 900.0
    """For the whole request: all its attempts and the pauses between them."""


class ServerSettings(Section):
    """Where the gateway listens and how long it waits."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on."""
    port: int = Field(default=8642, ge=0, le=65_535)
    """Port to listen on; 0 lets the system choose."""
    region: Word | None = None
    """Where this machine stands, for example `eu`; unset satisfies no `region:` requirement."""
    workers: int = Field(default=1, ge=1, le=256)
    """Gateway processes on this machine."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Largest request body in MiB."""
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings)
    """How long a request may wait."""
    heartbeat_s: Seconds = 15.0
    """Silence on a stream after which a heartbeat comment is sent."""
