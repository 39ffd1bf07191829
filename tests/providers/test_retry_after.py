"""Every spelling of a wait that vendors use."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from providers.codecs.retry_after import RETRY_AFTER_MAX_S, retry_after_s

NOW = datetime(2026, 11, 30, 0, 0, 0, tzinfo=UTC)

CASES = {
    "seconds (GW-053)": ({"retry-after": "30"}, "", 30.0),
    "a fraction of seconds": ({"retry-after": "0.25"}, "", 0.25),
    "milliseconds win": ({"retry-after-ms": "5800", "retry-after": "6"}, "", 5.8),
    "an HTTP date": ({"retry-after": "Mon, 30 Nov 2026 00:00:30 GMT"}, "", 30.0),
    "a date gone by is no wait": ({"retry-after": "Sun, 29 Nov 2026 00:00:30 GMT"}, "", 0.0),
    "Anthropic's instant": ({"x-ratelimit-reset-tokens": "2026-11-30T00:00:12Z"}, "", 12.0),
    "OpenAI's durations": ({"x-ratelimit-reset-requests": "2m59.56s"}, "", 179.56),
    "milliseconds as a duration": ({"x-ratelimit-reset-requests": "644ms"}, "", 0.644),
    "the quota that is used up counts": (
        {"x-ratelimit-reset-requests": "1h2m3s", "x-ratelimit-reset-tokens": "7.66s", "x-ratelimit-remaining-requests": "9", "x-ratelimit-remaining-tokens": "0"}, "", 7.66),
    "else the later reset": ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "3s"}, "", 3.0),
    "Cerebras' long float": ({"x-ratelimit-reset-requests": "33.011382867097855"}, "", 33.011382867097855),
    "Together's seconds": ({"x-ratelimit-reset": "0.25"}, "", 0.25),
    "OpenRouter's epoch in milliseconds": ({"x-ratelimit-reset": str(int(NOW.timestamp() * 1000) + 5000)}, "", 5.0),
    "an epoch in seconds": ({"x-ratelimit-reset": str(int(NOW.timestamp()) + 7)}, "", 7.0),
    "Groq's text": ({}, "Please try again in 9m38.016s.", 578.016),
    "Azure's text": ({}, "Please retry after 6 seconds.", 6.0),
    "Replicate's text": ({}, "Your rate limit resets in ~30s.", 30.0),
    "a text in minutes": ({}, "Please retry after 2 minutes.", 120.0),
    "a text in milliseconds": ({}, "try again in 250 milliseconds", 0.25),
    "a text without a space": ({}, "Please wait 3minutes", 180.0),
    "Anthropic's own headers": (
        {"anthropic-ratelimit-requests-reset": "2026-11-30T00:00:50Z", "anthropic-ratelimit-requests-remaining": "9", "anthropic-ratelimit-input-tokens-reset": "2026-11-30T00:00:12Z", "anthropic-ratelimit-input-tokens-remaining": "0"}, "", 12.0),
    "Cerebras' day is not waited for when a minute may be meant": (
        {"x-ratelimit-reset-requests-day": "33011.38", "x-ratelimit-remaining-requests-day": "900", "x-ratelimit-reset-tokens-minute": "11.5", "x-ratelimit-remaining-tokens-minute": "40"}, "", 11.5),
    "unless the day's quota is used up": (
        {"x-ratelimit-reset-requests-day": "600.5", "x-ratelimit-remaining-requests-day": "0", "x-ratelimit-reset-tokens-minute": "11.5"}, "", 600.5),
    "of late resets the sooner": ({"x-ratelimit-reset-requests-day": "9000", "x-ratelimit-reset-tokens-day": "700"}, "", 700.0),
    "a day is cut": ({"retry-after": "86400"}, "", RETRY_AFTER_MAX_S),
    "nothing is unknown": ({}, "slow down", None),
    "nonsense is unknown": ({"retry-after": "soon"}, "", None),
    "infinity is unknown": ({"retry-after": "inf"}, "", None),
    "a negative wait is unknown": ({"retry-after": "-5"}, "", None),
    "a year of many digits is unknown": ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, "", None),
    "a day of many digits is unknown": ({"x-ratelimit-reset-tokens": "Wed, 99999999999 Oct 2026 07:28:00 GMT"}, "", None),
    "the last year that there is": ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, "", RETRY_AFTER_MAX_S),
    "a header of kilobytes is unknown": ({"retry-after": "1" * 5000}, "", None),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "message", "wait_s"), CASES.values(), ids=CASES.keys())
def test_retry_after(headers: dict[str, str], message: str, wait_s: float | None) -> None:
    found = retry_after_s(headers, message, now=NOW, is_quota=True)
    assert found == (None if wait_s is None else pytest.approx(wait_s))


def test_resets_of_quotas_say_nothing_when_no_quota_ran_out() -> None:
    assert retry_after_s({"x-ratelimit-reset-requests": "30s"}, now=NOW) is None
