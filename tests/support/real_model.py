"""The real small model, SmolLM2-135M-Instruct in Q4_1, fetched once into the user's cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from local_engine.model_store import DEFAULT_SOURCE, ModelStore, default_root

if TYPE_CHECKING:
    from pathlib import Path


def _say_nothing(done_bytes: int, total_bytes: int | None, what: str) -> None:
    pass


@functools.cache
def smollm2_path() -> Path:
    """Path of the model file; the first call on a machine downloads 93 MB."""
    return ModelStore(default_root()).pull(DEFAULT_SOURCE, on_progress=_say_nothing).path
