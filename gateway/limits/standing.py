"""Where a request's limits stand: what is told in headers, and what a refusal says; pure."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.limits.rules import LimitKind, LimitRule

CONCURRENCY_WAIT_US: Final = 1_000_000
"""Told where a request in flight has to end first, for nobody knows when."""


class Meter(msgspec.Struct, frozen=True, gc=False):
    """One limit per minute as headers tell it.

    Attributes:
        limit: Units per minute.
        left: Whole units that may be taken now.
        reset_us: Microseconds until all of them may.
    """

    limit: int
    left: int
    reset_us: int


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The narrowest of a request's limits.

    Attributes:
        requests: Of those on requests per minute, None where there is none.
        tokens: Of those on tokens per minute, None where there is none.
    """

    requests: Meter | None = None
    tokens: Meter | None = None

    def and_also(self, requests: Meter | None, tokens: Meter | None) -> Standing:
        """The narrower of each."""
        return Standing(_narrower(self.requests, requests), _narrower(self.tokens, tokens))


class Shortage(msgspec.Struct, frozen=True, gc=False):
    """The limit that refuses a request.

    Attributes:
        rule: Whose it is.
        kind: Which of its limits.
        wait_us: Microseconds after which the request may come again, at least 1.
    """

    rule: LimitRule
    kind: LimitKind
    wait_us: int

    @property
    def label(self) -> str:
        """For the counter of refusals: never a name that somebody chose."""
        return f"{self.rule.scope.value}_{self.kind.value}"

    @property
    def message(self) -> str:
        """For the client: which limit it is, and when to come back."""
        rule = self.rule
        wait = duration(self.wait_us).decode()
        if self.kind is LimitKind.CONCURRENCY:
            limit = f"{rule.concurrency} at once"
            return f"too many requests in flight: {rule.name} may have {limit}; try again in {wait}"
        bucket, unit = rule.requests, "requests"
        if self.kind is LimitKind.TPM:
            bucket, unit = rule.tokens, "tokens"
        assert bucket is not None, "what refuses is limited"
        return (
            f"too many {unit}: {rule.name} may use {bucket.rate} {unit} per minute;"
            f" try again in {wait}"
        )


def header_lines(standing: Standing) -> bytes:
    """Response header lines in the manner of OpenAI's, each with its line end."""
    lines = b""
    for name, meter in ((b"requests", standing.requests), (b"tokens", standing.tokens)):
        if meter is not None:
            lines += (
                b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\n"
                b"x-ratelimit-reset-%b: %b\r\n"
            ) % (name, meter.limit, name, meter.left, name, duration(meter.reset_us))
    return lines


def duration(microseconds: int) -> bytes:
    """A duration as OpenAI writes it: `12ms`, `1s`, `1.5s`, `6m0s`; rounded up to milliseconds.

    Source: OpenAI's guide on rate limits, "Rate limits in headers", 2026-11.
    """
    milliseconds = -(-microseconds // 1000)
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds, thousandths = divmod(rest, 1000)
    text = b"%d" % seconds
    if thousandths:
        text += b"." + (b"%03d" % thousandths).rstrip(b"0")
    text += b"s"
    if hours:
        return b"%dh%dm%b" % (hours, minutes, text)
    return b"%dm%b" % (minutes, text) if minutes else text


def _narrower(one: Meter | None, other: Meter | None) -> Meter | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda meter: (meter.left, meter.limit, -meter.reset_us))
