"""How long an upstream asks to wait, in every spelling that vendors use.

Source: RFC 9110 section 10.2.3; rate-limit pages of OpenAI, Anthropic, Groq, Cerebras, Together,
OpenRouter and Azure (2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRY_AFTER_MAX_S = 3600.0
"""A longer wish is cut to this: a breaker that sleeps for a day hides a deployment."""

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?")
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|µs|ns|h|m|s))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_IN_TEXT = re.compile(
    r"(?:try again in|retry (?:after|in)|resets? in|wait)\s+~?"
    r"(?:(?P<duration>(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s))+)(?![a-z])"
    r"|(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>milliseconds?|minutes?|mins?|hours?)?)",
    re.IGNORECASE,
)
_WORD_S = {"mil": 1e-3, "min": 60.0, "hou": 3600.0}
"""Seconds in a unit that a text spells out, by its first three letters."""

_RESET_HEADERS = (
    (re.compile(r"x-ratelimit-reset-([a-z-]{1,32})"), "x-ratelimit-remaining-{}"),
    (re.compile(r"anthropic-ratelimit-([a-z-]{1,32})-reset"), "anthropic-ratelimit-{}-remaining"),
)
_WINDOW_S_MAX = 120.0
"""Resets of quotas per minute are sooner than this, those of quotas per day mostly later."""

_EPOCH_MS_MIN = 10**11
_EPOCH_S_MIN = 10**8


def retry_after_s(
    headers: Mapping[str, str], message: str = "", *, now: datetime, is_quota: bool = False
) -> float | None:
    """Seconds to wait before this upstream is worth another try.

    Args:
        headers: The answer's headers, names in lower case.
        message: The error's text; Groq, Azure and Replicate name the wait only there.
        now: The present instant, for dates and epochs.
        is_quota: Whether a quota ran out; only then the reset headers of quotas count.

    Returns:
        Between 0 and `RETRY_AFTER_MAX_S`; None when the upstream did not say.
    """
    found = _parsed(headers.get("retry-after-ms"), now, scale=1e-3)
    if found is None:
        found = _parsed(headers.get("retry-after"), now)
    if found is None and is_quota:
        found = _from_reset_headers(headers, now)
    if found is None and (match := _IN_TEXT.search(message)):
        found = _from_text(match, now)
    return None if found is None else min(max(found, 0.0), RETRY_AFTER_MAX_S)


def _from_text(match: re.Match[str], now: datetime) -> float | None:
    if match["duration"]:
        return _parsed(match["duration"].lower(), now)
    unit = match["unit"]
    return float(match["number"]) * (_WORD_S[unit[:3].lower()] if unit else 1.0)


def _from_reset_headers(headers: Mapping[str, str], now: datetime) -> float | None:
    """The latest reset of the quotas that are used up.

    Where none says that it is, the quota that ran out is most likely one of those that reset soon:
    an estimate is taken from it before the request runs, so some of it can remain.
    """
    used_up: list[float] = []
    named: list[float] = []
    for name, text in headers.items():
        for pattern, remaining in _RESET_HEADERS:
            match = pattern.fullmatch(name)
            if match is None or (reset := _parsed(text, now)) is None:
                continue
            named.append(reset)
            if headers.get(remaining.format(match[1])) == "0":
                used_up.append(reset)
    if used_up:
        return max(used_up)
    if named:
        return max((reset for reset in named if reset <= _WINDOW_S_MAX), default=min(named))
    return _parsed(headers.get("x-ratelimit-reset"), now)


def _parsed(text: str | None, now: datetime, *, scale: float = 1.0) -> float | None:
    """Seconds from a number, a Go duration, an epoch, an RFC 3339 instant or an HTTP date."""
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if _NUMBER.fullmatch(text):
        value = float(text)
        if value >= _EPOCH_MS_MIN:
            return value / 1000 - now.timestamp()
        return value - now.timestamp() if value >= _EPOCH_S_MIN else value * scale
    if _DURATION.fullmatch(text):
        return sum(float(part[1]) * _UNIT_S[part[2]] for part in _DURATION_PART.finditer(text))
    instant = _instant(text)
    return None if instant is None else (instant - now).total_seconds()


def _instant(text: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        try:
            instant = parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # a year or an hour of many digits is one or the other
            return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
