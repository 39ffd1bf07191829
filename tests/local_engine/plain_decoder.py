"""The plainest possible decoder, in float64 with numpy, read through the `gguf` package.

It shares nothing with the engine: another reader, another rotation (adjacent pairs, as the files of the
Llama architecture lie on disk), no cache, no tiles, one sequence at a time. Slow and obviously right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class PlainDecoder:
    """Full logits of every position of a token sequence."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self._fields = {key: field.contents() for key, field in reader.fields.items()}
        self._family = self._fields["general.architecture"]

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """[positions, vocabulary]."""
        weights = self._weights
        rows = weights["token_embd.weight"][list(token_ids)]
        for layer in range(self._number("block_count")):
            rows = rows + self._attention(layer, self._norm(rows, f"blk.{layer}.attn_norm.weight"))
            inner = self._norm(rows, f"blk.{layer}.ffn_norm.weight")
            gate = inner @ weights[f"blk.{layer}.ffn_gate.weight"].T
            up = inner @ weights[f"blk.{layer}.ffn_up.weight"].T
            rows = (
                rows + (gate / (1 + np.exp(-gate)) * up) @ weights[f"blk.{layer}.ffn_down.weight"].T
            )
        head = weights.get("output.weight", weights["token_embd.weight"])
        return self._norm(rows, "output_norm.weight") @ head.T

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The most likely continuation, token by token from scratch."""
        tokens = list(token_ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(token_ids) :]

    def _number(self, key: str) -> int:
        return int(self._fields[f"{self._family}.{key}"])

    def _norm(self, rows: np.ndarray, name: str) -> np.ndarray:
        epsilon = self._fields[f"{self._family}.attention.layer_norm_rms_epsilon"]
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + epsilon) * self._weights[name]

    def _attention(self, layer: int, rows: np.ndarray) -> np.ndarray:
        heads, kv_heads = (
            self._number("attention.head_count"),
            self._number("attention.head_count_kv"),
        )
        queries = self._rotate(self._project(layer, "q", rows, heads))
        keys = self._rotate(self._project(layer, "k", rows, kv_heads))
        values = self._project(layer, "v", rows, kv_heads)
        count = len(rows)
        causal = np.tril(np.ones((count, count), dtype=bool))
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = queries[:, head] @ keys[:, shared].T / np.sqrt(queries.shape[-1])
            scores = np.where(causal, scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(shares / shares.sum(-1, keepdims=True) @ values[:, shared])
        return np.concatenate(mixed, axis=-1) @ self._weights[f"blk.{layer}.attn_output.weight"].T

    def _project(self, layer: int, part: str, rows: np.ndarray, heads: int) -> np.ndarray:
        projected = rows @ self._weights[f"blk.{layer}.attn_{part}.weight"].T
        projected = projected + self._weights.get(f"blk.{layer}.attn_{part}.bias", 0.0)
        return projected.reshape(len(rows), heads, -1)

    def _rotate(self, heads: np.ndarray) -> np.ndarray:
        size = heads.shape[-1]
        frequencies = self._fields[f"{self._family}.rope.freq_base"] ** (
            -np.arange(0, size, 2) / size
        )
        frequencies = frequencies / self._weights.get("rope_freqs.weight", 1.0)
        frequencies = frequencies / self._fields.get(f"{self._family}.rope.scaling.factor", 1.0)
        angles = (np.arange(len(heads))[:, None] * frequencies)[:, None, :]
        turned = np.empty_like(heads)
        half = size // 2
        pairs = (slice(0, half), slice(half, None))
        if self._family == "llama":
            pairs = (slice(0, None, 2), slice(1, None, 2))
        first, second = heads[..., pairs[0]], heads[..., pairs[1]]
        turned[..., pairs[0]] = first * np.cos(angles) - second * np.sin(angles)
        turned[..., pairs[1]] = second * np.cos(angles) + first * np.sin(angles)
        return turned
