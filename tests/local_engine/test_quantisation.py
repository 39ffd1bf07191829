"""Dequantisation is bit-equal to the `gguf` package for every byte pattern."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from local_engine.errors import ModelFileError
from local_engine.quantisation import BLOCK_TYPES, dequantise, find_block_type

SUPPORTED = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}


@pytest.mark.parametrize("name", SUPPORTED)
def test_random_bytes_expand_bit_equal_to_the_reference(name: str) -> None:
    block_type = SUPPORTED[name]
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, 4_096 * block_type.block_bytes, dtype=np.uint8).tobytes()
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, block_type.block_bytes)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        actual = dequantise(raw, block_type)
    # Bits, not values: random bytes hold infinities, NaN and negative zeros.
    np.testing.assert_array_equal(
        actual.view(np.uint32), np.ascontiguousarray(expected).reshape(-1).view(np.uint32)
    )


@pytest.mark.parametrize("name", SUPPORTED)
def test_sizes_agree_with_the_reference(name: str) -> None:
    elements, size_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    block_type = SUPPORTED[name]
    assert (block_type.block_elements, block_type.block_bytes) == (elements, size_bytes)


@pytest.mark.parametrize(
    "kind", [kind for kind in gguf.GGMLQuantizationType if kind.name not in SUPPORTED]
)
def test_other_types_are_refused_by_name_with_the_supported_ones(kind: int) -> None:
    kind = gguf.GGMLQuantizationType(kind)
    with pytest.raises(ModelFileError, match=rf"{kind.name}; supported are .*BF16.*Q8_0"):
        find_block_type(int(kind), tensor_name="blk.0.attn_q.weight")


def test_a_number_without_a_name_is_refused() -> None:
    with pytest.raises(ModelFileError, match="number 4711"):
        find_block_type(4711, tensor_name="x")
