"""Parser of GGUF headers that trusts nothing in them.

Plain Python with checked integers: every count, length and offset is compared with a hard limit and
with the bytes that the file really has before anything is allocated, so that a damaged or hostile
file costs a clear `ModelFileError` and never memory or a crash.

Source: ggml `docs/gguf.md`, versions 2 and 3, as of November 2026.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from local_engine.errors import ModelFileError
from local_engine.quantisation import BlockType, find_block_type

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_METADATA_KEYS: Final = 4_096
MAX_TENSORS: Final = 65_536
MAX_KEY_BYTES: Final = 1_024
MAX_STRING_BYTES: Final = 4 * 1024 * 1024
MAX_ARRAY_ITEMS: Final = 2_000_000
MAX_TOTAL_ITEMS: Final = 6_000_000
MAX_HEADER_BYTES: Final = 256 * 1024 * 1024
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 1 << 20

_MAGIC: Final = b"GGUF"
_STRING_TYPE: Final = 8
_ARRAY_TYPE: Final = 9
_BOOL_TYPE: Final = 7
_SCALARS: Final[Mapping[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL_TYPE: "B",
    10: "Q",
    11: "q",
    12: "d",
}

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor's place in the file.

    Attributes:
        name: Unique in the file.
        shape: Slowest dimension first, so a matrix is (rows, columns) as torch has it.
        block_type: How each row is packed.
        offset_bytes: From the start of the file.
        size_bytes: Bytes that the data takes, padding excluded.
    """

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    offset_bytes: int
    size_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows; a vector is one row."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says about itself: metadata by key, tensors by name."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]


def read_header(stream: BinaryIO, size_bytes: int) -> Header:
    """Parse and check a header.

    Args:
        stream: Positioned at the start of the file.
        size_bytes: Size of the whole file.

    Raises:
        ModelFileError: The header is damaged or names what the engine does not support; the message
            leaves the path to the caller.
    """
    return _HeaderReader(stream, size_bytes).read()


class _HeaderReader:
    """Parses one header, from the start of the file to its tensor table."""

    def __init__(self, stream: BinaryIO, size_bytes: int) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._limit_bytes = min(size_bytes, MAX_HEADER_BYTES)
        self._position = 0
        self._items = 0

    def read(self) -> Header:
        self._read_magic()
        tensor_count = self._count("tensor count", maximum=MAX_TENSORS)
        key_count = self._count("metadata key count", maximum=MAX_METADATA_KEYS)
        metadata = self._read_metadata(key_count)
        alignment = _checked_alignment(metadata.get("general.alignment", 32))
        entries = [self._read_tensor_entry() for _ in range(tensor_count)]
        data_start = -(-self._position // alignment) * alignment
        tensors = self._place_tensors(entries, data_start, alignment)
        return Header(metadata=metadata, tensors=tensors)

    def _read_magic(self) -> None:
        if self._size_bytes < len(_MAGIC) or self._take(4, "magic") != _MAGIC:
            raise ModelFileError("not a GGUF file: give a file whose name ends in .gguf")
        version = self._unpack("I", "version")
        if version & 0xFFFF == 0:
            raise ModelFileError("a big-endian GGUF file: convert it to little-endian")
        if version not in {2, 3}:
            raise ModelFileError(
                f"GGUF version {version} is not supported (2 and 3 are): convert the file"
            )

    def _read_metadata(self, key_count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._string("metadata key", maximum=MAX_KEY_BYTES)
            if key in metadata:
                raise ModelFileError(f"metadata key {key!r} appears twice: the file is damaged")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        value_type = self._unpack("I", f"type of {key!r}")
        if value_type != _ARRAY_TYPE:
            return self._scalar(value_type, key)
        item_type = self._unpack("I", f"item type of {key!r}")
        count = self._count(f"item count of {key!r}", maximum=MAX_ARRAY_ITEMS)
        self._items += count
        if self._items > MAX_TOTAL_ITEMS:
            raise ModelFileError(
                f"the metadata lists hold more than {MAX_TOTAL_ITEMS} items: the file is damaged"
            )
        if item_type == _STRING_TYPE:
            return tuple(self._string(key) for _ in range(count))
        return self._numeric_array(item_type, count, key)

    def _scalar(self, value_type: int, key: str) -> Scalar:
        if value_type == _STRING_TYPE:
            return self._string(key)
        code = _scalar_code(value_type, key)
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), key))
        return bool(value) if value_type == _BOOL_TYPE else value

    def _numeric_array(
        self, item_type: int, count: int, key: str
    ) -> tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]:
        code = _scalar_code(item_type, key)
        raw = self._take(count * struct.calcsize(f"<{code}"), key)
        values = struct.unpack(f"<{count}{code}", raw)
        return tuple(bool(item) for item in values) if item_type == _BOOL_TYPE else values

    def _read_tensor_entry(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._string("tensor name", maximum=MAX_KEY_BYTES)
        dimensions = self._unpack("I", f"dimension count of {name!r}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelFileError(
                f"tensor {name!r} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}: "
                "the file is damaged"
            )
        raw = self._take(8 * dimensions, f"shape of {name!r}")
        # The file lists the fastest dimension first.
        shape = struct.unpack(f"<{dimensions}Q", raw)[::-1]
        block_type = find_block_type(self._unpack("I", f"type of {name!r}"), tensor_name=name)
        return name, shape, block_type, self._unpack("Q", f"offset of {name!r}")

    def _place_tensors(
        self, entries: list[tuple[str, tuple[int, ...], BlockType, int]], start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, block_type, offset in entries:
            if name in tensors:
                raise ModelFileError(f"tensor {name!r} appears twice: the file is damaged")
            size = _checked_size(name, shape, block_type, limit_bytes=self._size_bytes)
            if offset % alignment:
                raise ModelFileError(
                    f"tensor {name!r} starts at {offset}, not a multiple of {alignment}: "
                    "the file is damaged"
                )
            if start + offset + size > self._size_bytes:
                raise ModelFileError(
                    f"tensor {name!r} ends at byte {start + offset + size} of a file of "
                    f"{self._size_bytes} bytes: it is truncated, fetch it again"
                )
            tensors[name] = TensorInfo(
                name=name,
                shape=shape,
                block_type=block_type,
                offset_bytes=start + offset,
                size_bytes=size,
            )
        _check_overlaps(tensors)
        return tensors

    def _count(self, what: str, *, maximum: int) -> int:
        count = self._unpack("Q", what)
        if count > maximum:
            raise ModelFileError(f"{what} is {count}, more than {maximum}: the file is damaged")
        return count

    def _string(self, what: str, *, maximum: int = MAX_STRING_BYTES) -> str:
        size = self._unpack("Q", f"length of {what}")
        if size > maximum:
            raise ModelFileError(
                f"a string ({what}) claims {size} bytes, more than {maximum}: the file is damaged"
            )
        try:
            return self._take(size, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"a string ({what}) is not UTF-8: the file is damaged") from error

    def _unpack(self, code: str, what: str) -> int:
        raw = self._take(struct.calcsize(f"<{code}"), what)
        value: int = struct.unpack(f"<{code}", raw)[0]
        return value

    def _take(self, size_bytes: int, what: str) -> bytes:
        """The next bytes; nothing is read or allocated before the file is known to have them."""
        if size_bytes > self._limit_bytes - self._position:
            raise ModelFileError(
                f"the header ends inside {what} (at byte {self._position}): "
                "the file is truncated or damaged, fetch it again"
            )
        raw = self._stream.read(size_bytes)
        if len(raw) != size_bytes:
            raise ModelFileError(f"the file ends inside {what}: it is truncated, fetch it again")
        self._position += size_bytes
        return raw


def _scalar_code(value_type: int, key: str) -> str:
    code = _SCALARS.get(value_type)
    if code is None:
        what = "a list of lists" if value_type == _ARRAY_TYPE else f"of unknown type {value_type}"
        raise ModelFileError(f"metadata key {key!r} is {what}: the file is damaged or too new")
    return code


def _checked_alignment(value: Value) -> int:
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelFileError(
            f"general.alignment is {value!r}, not a power of two from 8 to {MAX_ALIGNMENT}: "
            "the file is damaged"
        )
    return value


def _checked_size(
    name: str, shape: tuple[int, ...], block_type: BlockType, *, limit_bytes: int
) -> int:
    if 0 in shape:
        raise ModelFileError(f"tensor {name!r} has an empty dimension {shape}: the file is damaged")
    if shape[-1] % block_type.block_elements:
        raise ModelFileError(
            f"tensor {name!r} has rows of {shape[-1]} elements, which {block_type.name} blocks of "
            f"{block_type.block_elements} do not fill: the file is damaged"
        )
    # Python integers do not wrap, so a product that would overflow is simply larger than the file.
    size = block_type.size_bytes(math.prod(shape))
    if size > limit_bytes:
        raise ModelFileError(
            f"tensor {name!r} of shape {shape} needs {size} bytes, more than the whole file: "
            "it is truncated or damaged, fetch it again"
        )
    return size


def _check_overlaps(tensors: Mapping[str, TensorInfo]) -> None:
    placed = sorted(tensors.values(), key=lambda tensor: tensor.offset_bytes)
    for before, after in itertools.pairwise(placed):
        if before.offset_bytes + before.size_bytes > after.offset_bytes:
            raise ModelFileError(
                f"tensors {before.name!r} and {after.name!r} overlap: the file is damaged"
            )
