"""Integer counts of what an attempt used, in disjoint meters."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec


class Meter(StrEnum):
    """A kind of usage that has a rate of its own; no unit is counted on two meters."""

    INPUT = "input"
    """Prompt tokens neither read from nor written to a cache."""
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    OUTPUT = "output"
    """Generated tokens; reasoning included unless the vendor bills it apart."""
    REASONING = "reasoning"
    """Reasoning tokens that the vendor bills apart from output."""
    IMAGES = "images"
    AUDIO_MS = "audio_ms"
    GPU_US = "gpu_us"
    """Busy microseconds of a machine of ours."""
    REQUESTS = "requests"


METERS: Final = tuple(Meter)
"""Every meter, in the order of `Usage.counts`."""

METER_PLACES: Final = {meter.value: place for place, meter in enumerate(METERS)}
"""Where in `METERS` the meter of a name stands."""


class Quality(StrEnum):
    """How far an event's counts can be trusted."""

    EXACT = "exact"
    PROVIDER_COST = "provider_cost"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts per meter, each at least 0.

    Attributes:
        input_tokens: Fresh prompt tokens.
        cache_read_tokens: Prompt tokens served from a cache.
        cache_write_tokens: Prompt tokens written to a cache at a rate of their own.
        output_tokens: Generated tokens.
        reasoning_tokens: Reasoning tokens billed apart; 0 where they are part of output.
        images: Generated images.
        audio_ms: Milliseconds of audio.
        gpu_us: Busy microseconds.
        requests: Billed requests.
    """

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    images: int = 0
    audio_ms: int = 0
    gpu_us: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative count.

        Raises:
            ValueError: A count is negative.
        """
        # The sign bits of all counts at once: every answer of an upstream comes by here.
        if (
            self.input_tokens
            | self.cache_read_tokens
            | self.cache_write_tokens
            | self.output_tokens
            | self.reasoning_tokens
            | self.images
            | self.audio_ms
            | self.gpu_us
            | self.requests
        ) < 0:
            meter, units = next(one for one in self.all_meters() if one[1] < 0)
            raise ValueError(f"{meter} must be >= 0, got {units}")

    def counts(self) -> tuple[int, ...]:
        """Every count, in the order of `METERS`."""
        return (
            self.input_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.output_tokens,
            self.reasoning_tokens,
            self.images,
            self.audio_ms,
            self.gpu_us,
            self.requests,
        )

    def all_meters(self) -> Iterator[tuple[Meter, int]]:
        """Every meter with its count, zeros included, in the order of `Meter`."""
        return zip(METERS, self.counts(), strict=True)

    def meters(self) -> Iterator[tuple[Meter, int]]:
        """Meters with a count above zero."""
        return ((meter, units) for meter, units in self.all_meters() if units)

    def named(self) -> dict[str, int]:
        """Counts above zero by the names of their meters, in the order of `Meter`.

        Written out, for every attempt is booked by it: a loop costs three times as much.
        """
        used: dict[str, int] = {}
        if self.input_tokens:
            used["input"] = self.input_tokens
        if self.cache_read_tokens:
            used["cache_read"] = self.cache_read_tokens
        if self.cache_write_tokens:
            used["cache_write"] = self.cache_write_tokens
        if self.output_tokens:
            used["output"] = self.output_tokens
        if self.reasoning_tokens:
            used["reasoning"] = self.reasoning_tokens
        if self.images:
            used["images"] = self.images
        if self.audio_ms:
            used["audio_ms"] = self.audio_ms
        if self.gpu_us:
            used["gpu_us"] = self.gpu_us
        if self.requests:
            used["requests"] = self.requests
        return used

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens
