"""How a model is put together for the engine process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from local_engine.errors import EngineError
from local_engine.loading import load_model
from local_engine.protocol import EngineConfig
from tests.support.tiny_models import write_tiny_llama

CONFIG = EngineConfig(
    model_id="m", path="", namespace_key=b"k" * 32, block_size=8, kv_memory_bytes=4 * 2**20
)


def test_a_model_file_gives_everything_that_the_engine_needs(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", context=256)
    model = load_model(msgspec.structs.replace(CONFIG, path=str(path)))
    assert (model.context_window, model.dtype, model.device) == (256, "float32", "cpu")
    assert model.runner.block_size == 8
    assert model.render_chat is not None
    assert "hi there" in model.render_chat([{"role": "user", "content": "hi there"}])
    bounded = load_model(msgspec.structs.replace(CONFIG, path=str(path), max_model_len=100))
    assert bounded.context_window == 100


def test_a_file_without_a_template_renders_no_chat(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "base.gguf", chat_template=None)
    assert load_model(msgspec.structs.replace(CONFIG, path=str(path))).render_chat is None


WRONG = {"a device": {"device": "tpu"}, "a number format": {"dtype": "float8"}}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
def test_an_unknown_choice_is_named(changes) -> None:
    with pytest.raises(EngineError, match=next(iter(changes.values()))):
        load_model(msgspec.structs.replace(CONFIG, path="/nowhere", **changes))


PROBE = """
import ctypes, sys
import local_engine.server
from local_engine import loading

print("torch" in sys.modules)
loading._bound_spinning()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"GOMP_SPINCOUNT").decode())
"""


def test_the_process_bounds_spinning_before_it_imports_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1000"]
