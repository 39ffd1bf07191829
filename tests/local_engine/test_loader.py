"""Weights are all set once, in the order that the decoder wants, within bounded memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch

from local_engine.errors import ModelFileError
from local_engine.model_file import ModelFile
from local_engine.models.arch import read_arch
from local_engine.models.loader import half_split_order, load_weights
from tests.support.tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

    from local_engine.models.loader import ModelWeights


def load(path: Path, dtype: torch.dtype = torch.float32) -> ModelWeights:
    with ModelFile.open(path) as file:
        return load_weights(file, read_arch(file), dtype=dtype, device=torch.device("cpu"))


def rename_tensor(path: Path, old: str, new: str) -> Path:
    """Change a tensor's name in place; both names have the same length."""
    raw = path.read_bytes()
    assert len(old) == len(new)
    assert raw.count(old.encode()) == 1
    path.write_bytes(raw.replace(old.encode(), new.encode()))
    return path


def test_row_order_undoes_the_converters_permutation() -> None:
    heads, head_dim = 3, 8
    rows = np.arange(heads * head_dim)
    # What the converter does to a checkpoint's rows, as its source has it.
    permuted = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    assert permuted[half_split_order(heads, head_dim).numpy()].tolist() == rows.tolist()


def test_every_matrix_holds_the_files_values(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", quant="Q4_1", architecture="qwen2", tied=False)
    weights = load(path)
    values = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    assert np.array_equal(weights.embedding.numpy(), values["token_embd.weight"])
    assert np.array_equal(weights.head.numpy(), values["output.weight"])
    for number, layer in enumerate(weights.layers):
        qkv = [values[f"blk.{number}.attn_{part}.weight"] for part in "qkv"]
        assert np.array_equal(layer.qkv.numpy(), np.concatenate(qkv))
        assert np.array_equal(layer.down.numpy(), values[f"blk.{number}.ffn_down.weight"])


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    weights = load(write_tiny_llama(tmp_path / "tiny.gguf"))
    assert weights.head is weights.embedding


def test_the_size_counts_a_tied_matrix_once(tmp_path: Path) -> None:
    tied = load(write_tiny_llama(tmp_path / "a.gguf"))
    untied = load(write_tiny_llama(tmp_path / "b.gguf", tied=False))
    assert untied.size_bytes() - tied.size_bytes() == 512 * 64 * 4


def test_matrices_take_the_type_asked_for_and_norms_stay_exact(tmp_path: Path) -> None:
    weights = load(write_tiny_llama(tmp_path / "tiny.gguf"), torch.bfloat16)
    assert weights.layers[0].qkv.dtype == weights.embedding.dtype == torch.bfloat16
    assert weights.layers[0].attention_norm.dtype == torch.float32


def test_a_missing_and_an_unknown_tensor_are_named(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    rename_tensor(path, "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight")
    with pytest.raises(
        ModelFileError, match=r"lacks 'blk\.1\.ffn_up\.weight', has unknown 'blk\.1\.ffn_xx"
    ):
        load(path)


def test_a_shape_that_the_metadata_does_not_give_is_named(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", inter=96)
    raw = path.read_bytes()
    key = b"llama.feed_forward_length"
    place = raw.index(key) + len(key) + 4
    path.write_bytes(raw[:place] + (64).to_bytes(4, "little") + raw[place + 4 :])
    with pytest.raises(ModelFileError, match=r"ffn_gate.*shape \(96, 64\).*says \(64, 64\)"):
        load(path)


@pytest.mark.slow
def test_loading_peaks_at_the_model_and_a_slab(tmp_path: Path) -> None:
    """A file with one large matrix must not be in memory twice."""
    path = write_tiny_llama(
        tmp_path / "large.gguf", layers=1, hidden=512, vocab=512, padded_rows=64_000, quant="Q8_0"
    )
    script = """
import pathlib, resource, sys, torch
from local_engine.model_file import ModelFile
from local_engine.models.arch import read_arch
from local_engine.models.loader import load_weights
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
torch.set_num_threads(1)
before = peak()
with ModelFile.open(pathlib.Path(sys.argv[1])) as file:
    weights = load_weights(
        file, read_arch(file), dtype=torch.bfloat16, device=torch.device("cpu")
    )
print(peak() - before, weights.size_bytes())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    grown, size = map(int, done.stdout.split())
    assert size > 64 * 2**20
    # A slab exists packed, as numbers and as parts of both; the margin is a few of them.
    assert grown < size + 160 * 2**20


def test_nothing_is_unpickled_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, refuse)
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    assert load(path).layers
    (tmp_path / "pickle.gguf").write_bytes(pickle.dumps({"weights": 1}))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        load(tmp_path / "pickle.gguf")
