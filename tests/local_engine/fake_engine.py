"""An engine process over the fake runner: `python -m tests.local_engine.fake_engine --control-fd N`.

The model path of the configuration chooses how the runner behaves.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from local_engine.errors import ModelFileError
from local_engine.loading import LoadedModel
from local_engine.protocol import EngineConfig
from local_engine.server import main
from local_engine.step import StepPlan
from tests.local_engine.fake_model import ByteTokenizer, FakeRunner, render_chat

SLOW_STEP_S = 0.005
HANGING_PROMPT = "\x01"
HANG_S = 600.0


def _wait(plan: StepPlan) -> None:
    del plan
    time.sleep(SLOW_STEP_S)


def _hang(plan: StepPlan) -> None:
    if any(ord(HANGING_PROMPT) in chunk.token_ids for chunk in plan.chunks):
        time.sleep(HANG_S)


def load(config: EngineConfig) -> LoadedModel:
    """Make the fake model that the file name asks for."""
    behaviour = Path(config.path).name
    if behaviour == "corrupt":
        raise ModelFileError("the model file is corrupt")
    if behaviour == "defect":
        raise RuntimeError("secret words")
    runner = FakeRunner(
        n_blocks=max(2, config.kv_memory_bytes // config.block_size),
        block_size=config.block_size,
        on_execute={"slow": _wait, "hangs": _hang}.get(behaviour),
        end_bias=-30.0,
    )
    return LoadedModel(
        runner=runner,
        tokenizer=ByteTokenizer(),
        render_chat=render_chat,
        context_window=config.max_model_len or 4096,
        file_digest="00" * 32,
        device="cpu",
        dtype="float32",
    )


if __name__ == "__main__":
    sys.exit(main(load=load))
