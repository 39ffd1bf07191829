"""Which larger open model this machine can hold in the embedded engine; a rule of thumb.

Needed bytes = parameters x bytes per weight in memory (the engine of this version computes with
unpacked weights, 4 bytes each on a CPU) + 1 GiB for keys, values and the process; it may take 70 %
of the machine's memory. Parameters are those that the models' cards state (2026-11-30).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

BYTES_PER_WEIGHT = 4
OVERHEAD_BYTES = 1024**3
USABLE_RATIO = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that the engine of this version loads.

    Attributes:
        name: As its card says.
        source: What `fareway models pull` takes.
        parameters: How many weights it has.
    """

    name: str
    source: str
    parameters: int

    @property
    def needed_bytes(self) -> int:
        """Memory that the engine takes with it."""
        return self.parameters * BYTES_PER_WEIGHT + OVERHEAD_BYTES


LARGER_MODELS = (
    KnownModel(
        name="Llama-3.1-8B-Instruct",
        source="hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF@main#Meta-Llama-3.1-8B-Instruct-Q8_0.gguf",
        parameters=8_030_000_000,
    ),
    KnownModel(
        name="Llama-3.2-3B-Instruct",
        source="hf:bartowski/Llama-3.2-3B-Instruct-GGUF@main#Llama-3.2-3B-Instruct-Q8_0.gguf",
        parameters=3_210_000_000,
    ),
    KnownModel(
        name="SmolLM2-1.7B-Instruct",
        source="hf:bartowski/SmolLM2-1.7B-Instruct-GGUF@main#SmolLM2-1.7B-Instruct-Q8_0.gguf",
        parameters=1_710_000_000,
    ),
    KnownModel(
        name="SmolLM2-360M-Instruct",
        source="hf:bartowski/SmolLM2-360M-Instruct-GGUF@main#SmolLM2-360M-Instruct-Q8_0.gguf",
        parameters=362_000_000,
    ),
)
"""Largest first."""


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def largest_that_fits(total_bytes: int) -> KnownModel | None:
    """The largest known model that the machine can hold, None when not even the smallest fits."""
    usable_bytes = int(total_bytes * USABLE_RATIO)
    return next((model for model in LARGER_MODELS if model.needed_bytes <= usable_bytes), None)


def larger_model_advice() -> str:
    """What to say beside an answer of the demonstration model."""
    said = "SmolLM2-135M is a small model for demonstration; do not judge answers by it."
    total_bytes = memory_bytes()
    found = largest_that_fits(total_bytes)
    if found is None:
        return f"{said} This machine's memory holds no larger one; route to a server instead."
    model_id = found.name.lower()
    return (
        f"{said}\nThis machine ({total_bytes / 1e9:.0f} GB) can hold {found.name}"
        f" (about {found.needed_bytes / 1e9:.0f} GB in memory). To serve it, put into fareway.yaml,"
        " which `fareway init` writes,\n"
        f'  under providers.local.models  - {{id: {model_id}, source: "{found.source}"}}\n'
        f"  under models                  {model_id}: {{deployments: [local/{model_id}]}}\n"
        f"and {model_id} into the models of a team."
    )
