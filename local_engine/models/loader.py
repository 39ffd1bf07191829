"""Weights of a decoder, loaded from a GGUF file one matrix at a time.

Every tensor that the model needs is set exactly once, every tensor in the file is used, and every
shape is checked before a byte is read: a file that almost fits must not run and give nonsense.
Matrices are expanded in slabs of rows, so that the peak is the finished model plus one slab.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from local_engine.errors import ModelFileError
from local_engine.models.arch import EMBEDDING_TENSOR, HEAD_TENSOR, ROPE_FACTORS_TENSOR
from local_engine.quantisation import dequantise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from local_engine.gguf_header import TensorInfo
    from local_engine.model_file import ModelFile
    from local_engine.models.arch import ArchSpec

SLAB_BYTES: Final = 32 * 1024 * 1024
_OUTPUT_NORM: Final = "output_norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One block's weights; matrices are [out, in].

    Attributes:
        attention_norm: [H] float32.
        qkv: Rows of q, then k, then v; q and k in half-split rotary order.
        qkv_bias: One value per row of `qkv`, None when the model has no biases.
        attention_output: [H, q_width].
        mlp_norm: [H] float32.
        gate_up: Rows of the gate, then of the up projection.
        down: [H, inter].
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    attention_output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """All weights of a decoder; `head` is `embedding` itself when the model ties them."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    head: torch.Tensor
    rope_factors: torch.Tensor | None

    def size_bytes(self) -> int:
        """Memory that the weights take, a tied matrix counted once."""
        tensors = {id(tensor): tensor for tensor in self._tensors()}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from (self.embedding, self.output_norm, self.head)
        for layer in self.layers:
            yield from (layer.attention_norm, layer.qkv, layer.attention_output)
            yield from (layer.mlp_norm, layer.gate_up, layer.down)
            if layer.qkv_bias is not None:
                yield layer.qkv_bias


def load_weights(
    file: ModelFile, spec: ArchSpec, *, dtype: torch.dtype, device: torch.device
) -> ModelWeights:
    """Load and convert all weights.

    Args:
        file: An open model file.
        spec: Its shape, from `read_arch`.
        dtype: Type of matrices; norms and biases stay float32.
        device: Where they will live.

    Raises:
        ModelFileError: A tensor is missing, unknown or of another shape.
    """
    expected = expected_shapes(spec)
    _check_tensors(file, expected)
    loader = _Loader(file, spec, dtype=dtype, device=device)
    embedding = loader.matrix(EMBEDDING_TENSOR)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(loader.layer(number) for number in range(spec.layers)),
        output_norm=loader.vector(_OUTPUT_NORM),
        head=embedding if spec.ties_head else loader.matrix(HEAD_TENSOR),
        rope_factors=loader.vector(ROPE_FACTORS_TENSOR) if spec.has_rope_factors else None,
    )


def expected_shapes(spec: ArchSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a file of this shape holds, and no other."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING_TENSOR: (spec.vocab_rows, spec.hidden),
        _OUTPUT_NORM: (spec.hidden,),
    }
    if not spec.ties_head:
        shapes[HEAD_TENSOR] = (spec.vocab_rows, spec.hidden)
    if spec.has_rope_factors:
        shapes[ROPE_FACTORS_TENSOR] = (spec.head_dim // 2,)
    widths = {"attn_q": spec.q_width, "attn_k": spec.kv_width, "attn_v": spec.kv_width}
    for number in range(spec.layers):
        block = f"blk.{number}"
        shapes[f"{block}.attn_norm.weight"] = (spec.hidden,)
        shapes[f"{block}.ffn_norm.weight"] = (spec.hidden,)
        for part, width in widths.items():
            shapes[f"{block}.{part}.weight"] = (width, spec.hidden)
            if spec.qkv_bias:
                shapes[f"{block}.{part}.bias"] = (width,)
        shapes[f"{block}.attn_output.weight"] = (spec.hidden, spec.q_width)
        shapes[f"{block}.ffn_gate.weight"] = (spec.inter, spec.hidden)
        shapes[f"{block}.ffn_up.weight"] = (spec.inter, spec.hidden)
        shapes[f"{block}.ffn_down.weight"] = (spec.hidden, spec.inter)
    return shapes


def half_split_order(heads: int, head_dim: int) -> torch.Tensor:
    """Row order that undoes the interleaving of Llama-architecture files.

    Returns:
        [heads * head_dim] indices: row i of the result is row `order[i]` of the file. The file
        keeps dimensions i and i + D/2 of a head side by side.

    Source: llama.cpp's converter permutes rows per head; k has its own, smaller number of heads.
    """
    rows = torch.arange(heads * head_dim)
    return rows.view(heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def _check_tensors(file: ModelFile, expected: Mapping[str, tuple[int, ...]]) -> None:
    missing = sorted(expected.keys() - file.tensors.keys())
    unknown = sorted(file.tensors.keys() - expected.keys())
    if missing or unknown:
        found = [f"lacks {name!r}" for name in missing[:3]] + [
            f"has unknown {name!r}" for name in unknown[:3]
        ]
        raise ModelFileError(
            f"model file {file.path} does not hold the tensors of its architecture: it "
            f"{', '.join(found)} ({len(missing)} missing, {len(unknown)} unknown): "
            "choose another file"
        )
    for name, shape in expected.items():
        actual = file.tensors[name].shape
        if actual != shape:
            raise ModelFileError(
                f"model file {file.path}: tensor {name!r} has shape {actual}, the metadata says "
                f"{shape}: the file is damaged, fetch it again"
            )


class _Loader:
    """Reads single tensors and the fused matrices of a layer."""

    def __init__(
        self, file: ModelFile, spec: ArchSpec, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._file = file
        self._spec = spec
        self._dtype = dtype
        self._device = device

    def vector(self, name: str) -> torch.Tensor:
        tensor = self._file.tensors[name]
        values = torch.empty(tensor.shape, dtype=torch.float32)
        self._fill(values.unsqueeze(0), tensor)
        return values.to(self._device)

    def matrix(self, *names: str) -> torch.Tensor:
        """One matrix, or several of equal width stacked."""
        tensors = [self._file.tensors[name] for name in names]
        rows = sum(tensor.rows for tensor in tensors)
        values = torch.empty((rows, tensors[0].shape[-1]), dtype=self._dtype)
        start = 0
        for tensor in tensors:
            self._fill(values[start : start + tensor.rows], tensor)
            start += tensor.rows
        return values.to(self._device)

    def layer(self, number: int) -> LayerWeights:
        block = f"blk.{number}"
        parts = [f"{block}.attn_{part}" for part in "qkv"]
        qkv = self.matrix(*(f"{part}.weight" for part in parts))
        bias = None
        if self._spec.qkv_bias:
            bias = torch.cat([self.vector(f"{part}.bias") for part in parts])
        if self._spec.permutes_rope_rows:
            order = self._qkv_order()
            qkv = qkv[order]
            bias = None if bias is None else bias[order]
        return LayerWeights(
            attention_norm=self.vector(f"{block}.attn_norm.weight"),
            qkv=qkv,
            qkv_bias=bias,
            attention_output=self.matrix(f"{block}.attn_output.weight"),
            mlp_norm=self.vector(f"{block}.ffn_norm.weight"),
            gate_up=self.matrix(f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight"),
            down=self.matrix(f"{block}.ffn_down.weight"),
        )

    def _qkv_order(self) -> torch.Tensor:
        spec = self._spec
        keys = half_split_order(spec.kv_heads, spec.head_dim)
        order = (
            half_split_order(spec.heads, spec.head_dim),
            keys + spec.q_width,
            torch.arange(spec.kv_width) + spec.q_width + spec.kv_width,
        )
        return torch.cat(order).to(self._device)

    def _fill(self, target: torch.Tensor, tensor: TensorInfo) -> None:
        """Expand a tensor into rows of `target`, a slab at a time."""
        columns = tensor.shape[-1]
        step = max(1, SLAB_BYTES // (4 * columns))
        for start in range(0, tensor.rows, step):
            stop = min(start + step, tensor.rows)
            raw = self._file.read_rows(tensor, start, stop)
            values = dequantise(raw, tensor.block_type).reshape(stop - start, columns)
            target[start:stop] = torch.from_numpy(values)
