"""What the engine process needs of a model, and how it is put together from a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from local_engine.errors import EngineError
from local_engine.frontend import RenderChat
from local_engine.protocol import EngineConfig
from local_engine.step import Runner, Tokenizer

_NO_BOUND_TOKENS = 2**31 - 1
"""Longer than any model's own context, which then decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run.

    Attributes:
        render_chat: Messages to text, None when the file has no chat template.
        context_window: The longest sequence that runner and configuration allow, the pool aside.
        file_digest: SHA-256 of the model file in hexadecimal.
        device: Where it runs.
        dtype: In what it computes.
    """

    runner: Runner
    tokenizer: Tokenizer
    render_chat: RenderChat | None
    context_window: int
    file_digest: str
    device: str
    dtype: str


def load_model(config: EngineConfig) -> LoadedModel:
    """Load a GGUF file as configured; takes seconds.

    Raises:
        ModelFileError: the file cannot be served.
    """
    _bound_spinning()
    # Torch and the tokenizers take a second to import; only the engine process pays for that.
    from local_engine.chat_template import ChatTemplate
    from local_engine.model_runner import ModelRunner

    dtype = _choose_dtype(config.dtype)
    runner = ModelRunner.load(
        Path(config.path),
        device=_choose_device(config.device),
        dtype=dtype,
        kv_memory_bytes=config.kv_memory_bytes,
        max_model_len=config.max_model_len or _NO_BOUND_TOKENS,
        block_size=config.block_size,
    )
    tokenizer = runner.tokenizer
    render_chat: RenderChat | None = None
    if runner.chat_template_source is not None:
        template = ChatTemplate(
            runner.chat_template_source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text
        )
        render_chat = template.render
    return LoadedModel(
        runner=runner,
        tokenizer=tokenizer,
        render_chat=render_chat,
        context_window=runner.context_window,
        file_digest=runner.file_digest,
        device=str(runner.device),
        dtype=dtype,
    )


def _bound_spinning() -> None:
    """Let threads that wait for each other sleep soon instead of burning the core they wait for.

    By default the OpenMP runtime spins for milliseconds at each of the hundreds of barriers of a
    step. While other processes want the cores too, that made a step of SmolLM2 6 to 10 times slower
    (two cores, load 9: 3.5 to 6.7 s against 0.6 s). A thousand rounds are about as long as waking a
    thread takes. The runtime reads this when torch is first imported, so this comes before.

    Source: libgomp manual, GOMP_SPINCOUNT.
    """
    os.putenv("GOMP_SPINCOUNT", "1000")


def _choose_device(name: str) -> Literal["auto", "cpu", "cuda"]:
    match name:
        case "auto" | "cpu" | "cuda":
            return name
        case _:
            raise EngineError(f"device must be auto, cpu or cuda, got {name!r}")


def _choose_dtype(name: str) -> Literal["float32", "bfloat16"]:
    match name:
        # The reference until a faster back end has been measured against it.
        case "auto" | "float32":
            return "float32"
        case "bfloat16":
            return "bfloat16"
        case _:
            raise EngineError(f"dtype must be auto, float32 or bfloat16, got {name!r}")
