"""A model's shape is read in full or refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from local_engine.errors import ModelFileError
from local_engine.model_file import ModelFile
from local_engine.models.arch import read_arch
from local_engine.models.loader import expected_shapes
from tests.support.tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

    from local_engine.models.arch import ArchSpec


def read(path: Path) -> ArchSpec:
    with ModelFile.open(path) as file:
        return read_arch(file)


def test_the_shape_of_a_llama_file(tmp_path: Path) -> None:
    spec = read(write_tiny_llama(tmp_path / "tiny.gguf", layers=3, kv_heads=1))
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim) == (3, 64, 4, 1, 16)
    assert (spec.inter, spec.vocab_rows, spec.context_tokens) == (96, 512, 1024)
    assert (spec.ties_head, spec.qkv_bias, spec.permutes_rope_rows) == (True, False, True)
    assert spec.kv_bytes_per_token(4) == 2 * 3 * 16 * 4


def test_the_switches_of_a_qwen2_file(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "t.gguf", architecture="qwen2", pre="qwen2", tied=False)
    spec = read(path)
    assert (spec.ties_head, spec.qkv_bias, spec.permutes_rope_rows) == (False, True, False)


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    metadata: dict[str, object] = {"llama.attention.sliding_window": 256}
    assert read(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata)).context_tokens == 256


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "gemma3"}, "'gemma3' is not supported"),
    "experts": ({"metadata": {"llama.expert_count": 8}}, "mixture-of-experts"),
    "a rope scaling to come": (
        {"metadata": {"llama.rope.scaling.type": "yarn"}},
        "rope scaling 'yarn'",
    ),
    "scaling without a factor": (
        {"metadata": {"llama.rope.scaling.type": "linear"}},
        r"rope\.scaling\.factor is missing",
    ),
    "heads that cannot be shared": ({"heads": 4, "kv_heads": 3}, "4 heads cannot share 3"),
    "more key heads than heads": ({"heads": 2, "kv_heads": 4}, "head_count_kv is 4, outside"),
    "values of another size": (
        {"metadata": {"llama.attention.value_length": 8}},
        "keys of 16 and values of 8",
    ),
    "heads that rotate in part": (
        {"metadata": {"llama.attention.key_length": 32}},
        "only 16 of 32 dimensions rotate",
    ),
    "no context at all": ({"context": 0}, "context_length is 0, outside"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_decoder_cannot_do_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", **options)
    with pytest.raises(ModelFileError, match=message):
        read(path)


def test_a_billion_layers_are_refused_at_once(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    raw = path.read_bytes()
    place = raw.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path.write_bytes(raw[:place] + (10**9).to_bytes(4, "little") + raw[place + 4 :])
    with pytest.raises(ModelFileError, match="block_count is 1000000000, outside 1 to 1024"):
        read(path)


def test_the_expected_tensors_are_those_of_a_file(tmp_path: Path) -> None:
    path = write_tiny_llama(
        tmp_path / "tiny.gguf", tied=False, biases=True, rope_factors=True, layers=3
    )
    with ModelFile.open(path) as file:
        found = {name: info.shape for name, info in file.tensors.items()}
        assert expected_shapes(read_arch(file)) == found
