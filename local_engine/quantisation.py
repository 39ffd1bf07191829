"""Block types of GGUF tensors and their exact expansion to float32.

A block type packs a fixed number of consecutive elements of a row into a fixed number of bytes.
The expansion here is bit-equal to the `gguf` package's for every type listed; types that are merely
known by name are refused by the reader with a sentence that says which ones would work.

Source: ggml `docs/gguf.md` and `ggml-common.h` as of November 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from local_engine.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """How a run of elements lies in the file.

    Attributes:
        name: ggml's name, for example `Q4_1`.
        block_elements: Consecutive elements of a row in one block; a row holds whole blocks.
        block_bytes: Size of one block.
    """

    name: str
    block_elements: int
    block_bytes: int

    def size_bytes(self, elements: int) -> int:
        """Bytes that `elements` take; the caller has checked that they fill whole blocks."""
        return elements // self.block_elements * self.block_bytes


BLOCK_TYPES: Final[Mapping[int, BlockType]] = {
    0: BlockType(name="F32", block_elements=1, block_bytes=4),
    1: BlockType(name="F16", block_elements=1, block_bytes=2),
    2: BlockType(name="Q4_0", block_elements=32, block_bytes=18),
    3: BlockType(name="Q4_1", block_elements=32, block_bytes=20),
    8: BlockType(name="Q8_0", block_elements=32, block_bytes=34),
    30: BlockType(name="BF16", block_elements=1, block_bytes=2),
}

_KNOWN_BUT_UNSUPPORTED: Final[Mapping[int, str]] = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


def find_block_type(type_id: int, *, tensor_name: str) -> BlockType:
    """Look up a tensor's block type by its number in the file.

    Raises:
        ModelFileError: The type is unknown or not supported; the message names the ones that are.
    """
    found = BLOCK_TYPES.get(type_id)
    if found is not None:
        return found
    name = _KNOWN_BUT_UNSUPPORTED.get(
        type_id, f"number {type_id}, which no known version of the format has"
    )
    supported = ", ".join(sorted(known.name for known in BLOCK_TYPES.values()))
    raise ModelFileError(
        f"tensor {tensor_name!r} has block type {name}; supported are {supported}: "
        "choose a file quantised to one of these"
    )


def dequantise(raw: bytes, block_type: BlockType) -> Floats:
    """Expand whole blocks to their exact values.

    Args:
        raw: A multiple of `block_type.block_bytes` bytes.
        block_type: How they are packed.

    Returns:
        One value per element, flat, in file order; freshly allocated and writable.
    """
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, block_type.block_bytes)
    # A damaged file may hold infinities and NaN; they expand like any other value.
    with np.errstate(invalid="ignore", over="ignore"):
        return _EXPANDERS[block_type.name](blocks).reshape(-1)


def _expand_f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _expand_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _expand_bf16(blocks: Bytes) -> Floats:
    # A bfloat16 is the upper half of a float32.
    return np.left_shift(blocks.view("<u2"), 16, dtype=np.uint32).view(np.float32)


def _expand_q8_0(blocks: Bytes) -> Floats:
    scales = _half_at(blocks, 0)
    return scales * blocks[:, 2:].view(np.int8).astype(np.float32)


def _expand_q4_0(blocks: Bytes) -> Floats:
    scales = _half_at(blocks, 0)
    return scales * np.subtract(_nibbles(blocks[:, 2:]), 8, dtype=np.float32)


def _expand_q4_1(blocks: Bytes) -> Floats:
    scales, minima = _half_at(blocks, 0), _half_at(blocks, 2)
    # Two roundings, as in the reference: a fused multiply-add would differ in the last bit.
    return scales * _nibbles(blocks[:, 4:]) + minima


def _half_at(blocks: Bytes, offset: int) -> Floats:
    """One little-endian half float per block, as a column."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """[N, 16] bytes to [N, 32] values 0..15: a block's low halves come before its high halves."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).astype(np.float32)


_EXPANDERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "F32": _expand_f32,
    "F16": _expand_f16,
    "BF16": _expand_bf16,
    "Q8_0": _expand_q8_0,
    "Q4_0": _expand_q4_0,
    "Q4_1": _expand_q4_1,
}
