"""What a server's own metrics say of its load: whether it has requests to work on; pure.

The names are those of vLLM, SGLang, Text Generation Inference and llama.cpp, which say how many
requests run and how many wait. Everything else on the page is passed over.

Source: docs.vllm.ai (production metrics), docs.sglang.io (production metrics),
huggingface.co/docs/text-generation-inference (metrics), tools/server/README.md of llama.cpp; all
2026-11-30.
"""

from __future__ import annotations

import math
import re

_GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "tgi_batch_current_size",
    "tgi_queue_size",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
)
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?", re.ASCII)
_MODEL = re.compile(r'[{,]\s*model_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


def is_loaded(page: str, *, model: str | None = None) -> bool | None:
    """Whether a server has requests that run or wait.

    Args:
        page: In the text format of Prometheus.
        model: Only of this model, where the server says which; None for all.

    Returns:
        None where the page does not say.
    """
    found: bool | None = None
    for text in page.splitlines():
        text = text.strip()
        if not text.startswith(_GAUGES):
            continue
        line = _LINE.fullmatch(text)
        if line is None or line[1] not in _GAUGES or not _is_of(line[2] or "", model):
            continue
        count = _number(line[3])
        if count is not None:
            found = bool(found) or count > 0
    return found


def _is_of(labels: str, model: str | None) -> bool:
    named = _MODEL.search(labels)
    if model is None or named is None:
        return True
    return _ESCAPED.sub(lambda one: _UNESCAPED.get(one[1], one[1]), named[1]) == model


def _number(text: str) -> float | None:
    """A count; None of what is none, as a gauge that was never set."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
