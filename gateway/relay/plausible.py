"""Counts that no answer can have: an upstream's nonsense, which must not pass for a bill.

A bound is generous, so that a context window that was configured too small takes no counts away:
four times the window, or more tokens than any model's window where it is not known. Beyond it the
attempt is booked as one without counts (estimated from what passed, or unknown with its exposure
kept), and the claim stays on the ledger's row.
"""

from __future__ import annotations

from pricing.usage import Usage

UNKNOWN_WINDOW_TOKENS = 1 << 24
"""More than the largest context window there is (10 million tokens)."""
WINDOWS = 4
CHOICES_MAX = 128
"""More answers to one request than any vendor gives."""


def implausible(usage: Usage, *, window_tokens: int | None, choices: int) -> str:
    """What cannot be, as a code for the ledger; empty where the counts are possible.

    Args:
        usage: As the upstream reports it.
        window_tokens: Context window of the deployment, None when unknown.
        choices: Answers asked for.
    """
    bound = UNKNOWN_WINDOW_TOKENS if window_tokens is None else window_tokens * WINDOWS
    if usage.prompt_tokens > bound:
        return f"implausible_usage:prompt={usage.prompt_tokens}"
    generated = usage.output_tokens + usage.reasoning_tokens
    if generated > bound * min(choices, CHOICES_MAX):
        return f"implausible_usage:output={generated}"
    return ""
