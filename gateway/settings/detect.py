"""Section `privacy.detect`: what detectors look for, and which tags that adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.scalars import Many, Milliseconds, Name, Section, Word

PATTERN_CHARACTERS_MAX = 1000
CUSTOM_MAX = 100
ALLOWED_MAX = 10_000

DETECTORS = (
    "payment_card", "iban", "national_id", "email", "phone_number", "ip_address", "private_key",
    "access_token", "jwt", "fareway_key",
)  # fmt: skip
"""The built-in detectors, by the names of their settings."""


def _check_pattern(value: str) -> str:
    # What compiles it is not needed by those who have no detector of their own.
    from gateway.detect.errors import BadPattern
    from gateway.detect.linear import TextPattern

    if not 0 < len(value) <= PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters")
    try:
        TextPattern(value)
    except BadPattern as error:
        raise ValueError(str(error)) from error
    return value


def _check_together(patterns: list[str]) -> None:
    from gateway.detect.errors import BadPattern
    from gateway.detect.linear import TextPatternSet

    try:
        TextPatternSet(patterns)
    except BadPattern as error:
        raise ValueError(f"custom: {error}") from error


Re2Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A regular expression in RE2's syntax, which takes time linear in the text."""


def _check_detector_name(value: str) -> str:
    if value in DETECTORS:
        raise ValueError(f"{value} is a built-in detector; name yours otherwise")
    return value


DetectorName = Annotated[Word, AfterValidator(_check_detector_name)]


class OpaquePartSettings(Section):
    """Tags for parts of a message that no detector can read."""

    image: Many[Word] = ()
    """Tags of a request with an image."""
    audio: Many[Word] = ()
    """Tags of a request with audio."""
    file: Many[Word] = ()
    """Tags of a request with a file, or with any part that is not known to be something else."""


class MinCountSettings(Section):
    """How many different values must be in a request before a detector's tags are added."""

    email: int = Field(default=5, ge=1, le=100_000)
    """E-mail addresses: a list of customers, not the sender of a letter."""
    phone_number: int = Field(default=5, ge=1, le=100_000)
    """Phone numbers."""
    ip_address: int = Field(default=5, ge=1, le=100_000)
    """Public IP addresses."""


class CustomDetectorSettings(Section):
    """A detector of the operator's own."""

    name: DetectorName
    """What denials, records and metrics call it."""
    pattern: Re2Pattern
    """A regular expression in RE2's syntax, searched in each string of a request."""
    check: Literal["luhn", "mod97", "verhoeff"] | None = None
    """A check digit that a match must have."""
    tags: Many[Word] = ()
    """Tags added when it finds something."""
    min_count: int = Field(default=1, ge=1, le=100_000)
    """How many different values it must find."""


class DetectSettings(Section):
    """Detectors, which may only add tags."""

    mode: Literal["observe", "enforce"] = "observe"
    """`observe` counts what would be added, `enforce` adds it."""
    payment_card: Many[Word] = ()
    """Tags added when a payment card number is found."""
    iban: Many[Word] = ()
    """Tags added when an IBAN is found."""
    national_id: Many[Word] = ()
    """Tags added when a national identity or tax number is found, of 27 kinds."""
    email: Many[Word] = ()
    """Tags added when e-mail addresses are found in bulk (`min_count.email`)."""
    phone_number: Many[Word] = ()
    """Tags added when phone numbers are found in bulk."""
    ip_address: Many[Word] = ()
    """Tags added when public IP addresses are found in bulk."""
    private_key: Many[Word] = ()
    """Tags added when a private key is found."""
    access_token: Many[Word] = ()
    """Tags added when a key or token of a cloud or vendor is found, of 60 kinds."""
    jwt: Many[Word] = ()
    """Tags added when a JSON Web Token is found."""
    fareway_key: Many[Word] = ()
    """Tags added when one of Fareway's own keys is found."""
    min_count: MinCountSettings = Field(default_factory=MinCountSettings)
    """How many different values make a find, for what ordinary text holds, too."""
    custom: Many[CustomDetectorSettings] = Field(default=(), max_length=CUSTOM_MAX)
    """Detectors of your own."""
    allow: Many[Name] = Field(default=(), max_length=ALLOWED_MAX)
    """Values that are nobody's and never count; spaces, dashes, points and case do not matter."""
    published_examples: Literal["allow", "detect"] = "allow"
    """Whether test cards and example account and identity numbers that issuers publish count."""
    opaque_parts: OpaquePartSettings = Field(default_factory=OpaquePartSettings)
    """Tags added for parts that cannot be read."""
    on_error: Many[Word] | None = None
    """Tags added when detectors fail, are too slow or the body is beyond their bounds; unset: all
    tags that they could have added."""
    timeout_ms: Milliseconds = 15.0
    """Longest processor time for one request."""

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [one.name for one in self.custom]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two custom detectors are called {name!r}")
        if self.custom:
            _check_together([one.pattern for one in self.custom])
        return self

    def tag_lists(self) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...]]]:
        """Every list of tags, with its path within the section."""
        for name in DETECTORS:
            yield (name,), self.tags_of(name)
        for index, one in enumerate(self.custom):
            yield ("custom", index, "tags"), one.tags
        for kind in ("image", "audio", "file"):
            yield ("opaque_parts", kind), self.opaque_tags(kind)
        yield ("on_error",), self.on_error or ()

    def tags_of(self, detector: str) -> tuple[str, ...]:
        """Tags of a built-in detector."""
        return cast("tuple[str, ...]", getattr(self, detector))

    def opaque_tags(self, kind: str) -> tuple[str, ...]:
        """Tags of a kind of part that cannot be read."""
        return cast("tuple[str, ...]", getattr(self.opaque_parts, kind))
