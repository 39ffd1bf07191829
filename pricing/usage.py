"""Integer counts of what an attempt used, in disjoint meters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


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


class Quality(StrEnum):
    """How far an event's counts can be trusted."""

    EXACT = "exact"
    PROVIDER_COST = "provider_cost"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
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
        for meter, units in self.all_meters():
            if units < 0:
                raise ValueError(f"{meter} must be >= 0, got {units}")

    def all_meters(self) -> Iterator[tuple[Meter, int]]:
        """Every meter with its count, zeros included, in the order of `Meter`."""
        yield Meter.INPUT, self.input_tokens
        yield Meter.CACHE_READ, self.cache_read_tokens
        yield Meter.CACHE_WRITE, self.cache_write_tokens
        yield Meter.OUTPUT, self.output_tokens
        yield Meter.REASONING, self.reasoning_tokens
        yield Meter.IMAGES, self.images
        yield Meter.AUDIO_MS, self.audio_ms
        yield Meter.GPU_US, self.gpu_us
        yield Meter.REQUESTS, self.requests

    def meters(self) -> Iterator[tuple[Meter, int]]:
        """Meters with a count above zero."""
        return ((meter, units) for meter, units in self.all_meters() if units)

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens
