"""Why an answer ended, in OpenAI's words; one rule for streams and whole answers."""

from __future__ import annotations

_WORDS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_length": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
"""Words of other wires that come through on this one.

Source: Together, TGI and Bedrock documentation of finish reasons (2026-10).
"""


def finish_word(reason: str, *, has_calls: bool) -> str:
    """OpenAI's word for an upstream's reason; a word that is neither's stays as it is.

    Some servers end an answer that calls tools as `stop` when it is whole and as `tool_calls` when
    it streams, or the other way round. Agents act on the word, so it is `tool_calls` in both.

    Args:
        reason: The upstream's word.
        has_calls: Whether the choice holds a tool call.
    """
    word = _WORDS.get(reason, reason)
    return "tool_calls" if has_calls and word == "stop" else word
