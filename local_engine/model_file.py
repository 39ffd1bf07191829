"""An open GGUF model file: typed metadata, checked tensor table, data on demand.

Tensor data is read with ordinary reads, not mapped: a file that shrinks while it is open gives an
error, not a signal, and what was read does not stay in the process's resident memory.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Self, TypeVar

from local_engine.errors import ModelFileError
from local_engine.gguf_header import read_header

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    from local_engine.gguf_header import Header, TensorInfo, Value

_Item = TypeVar("_Item", str, int, float)


class ModelFile:
    """An open GGUF file.

    Use as a context manager. `metadata` and `tensors` stay usable after closing; reading does not.
    """

    def __init__(self, path: Path, stream: BufferedReader, header: Header) -> None:
        self.path = path
        self.metadata = header.metadata
        self.tensors = header.tensors
        self._stream = stream

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file and check everything in it except the values of the tensors.

        Raises:
            ModelFileError: It cannot be read, is damaged or holds what the engine does not support.
        """
        try:
            stream = path.open("rb")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ModelFileError(f"cannot open model file {path}: {reason}") from error
        try:
            header = read_header(stream, os.fstat(stream.fileno()).st_size)
        except ModelFileError as error:
            stream.close()
            raise ModelFileError(f"model file {path}: {error}") from error
        except BaseException:
            stream.close()
            raise
        return cls(path, stream, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._stream.close()

    def read_rows(self, tensor: TensorInfo, start: int, stop: int) -> bytes:
        """Read the packed bytes of rows `start` to `stop` (half-open).

        Raises:
            ModelFileError: The file got shorter since it was opened.
        """
        assert 0 <= start <= stop <= tensor.rows, (tensor, start, stop)
        row_bytes = tensor.size_bytes // tensor.rows
        self._stream.seek(tensor.offset_bytes + start * row_bytes)
        wanted = (stop - start) * row_bytes
        raw = self._stream.read(wanted)
        if len(raw) != wanted:
            raise ModelFileError(
                f"model file {self.path}: tensor {tensor.name!r} ends early; the file changed "
                "while it was open: fetch it again"
            )
        return raw

    def sha256(self) -> str:
        """Digest of the whole file in hexadecimal; reads all of it."""
        self._stream.seek(0)
        return hashlib.file_digest(self._stream, "sha256").hexdigest()

    def integer(self, key: str, *, minimum: int, maximum: int, default: int | None = None) -> int:
        """Look up a whole number within inclusive bounds; `default` stands in for a missing key.

        Raises:
            ModelFileError: Missing without default, of another type or out of bounds.
        """
        value = self._find(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, value, "a whole number")
        self._check_bounds(key, value, minimum, maximum)
        return value

    def number(
        self, key: str, *, minimum: float, maximum: float, default: float | None = None
    ) -> float:
        """Look up a finite number within inclusive bounds; `default` stands in for a missing key.

        Raises:
            ModelFileError: Missing without default, of another type, not finite or out of bounds.
        """
        value = self._find(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self._wrong_type(key, value, "a number")
        self._check_bounds(key, value, minimum, maximum)
        return float(value)

    def text(self, key: str, *, default: str | None = None) -> str:
        """Look up a string; `default` stands in for a missing key.

        Raises:
            ModelFileError: Missing without default or of another type.
        """
        value = self._find(key, default)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Look up a truth value; `default` stands in for a missing key.

        Raises:
            ModelFileError: Of another type.
        """
        value = self._find(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "a truth value")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Look up a list of strings.

        Raises:
            ModelFileError: Missing or of another type.
        """
        return self._list(key, str, "a list of strings")

    def integers(self, key: str) -> tuple[int, ...]:
        """Look up a list of whole numbers.

        Raises:
            ModelFileError: Missing or of another type.
        """
        return self._list(key, int, "a list of whole numbers")

    def numbers(self, key: str) -> tuple[float, ...]:
        """Look up a list of floating-point numbers.

        Raises:
            ModelFileError: Missing or of another type.
        """
        return self._list(key, float, "a list of floating-point numbers")

    def _list(self, key: str, item_type: type[_Item], wanted: str) -> tuple[_Item, ...]:
        value = self._find(key, None)
        if not isinstance(value, tuple):
            raise self._wrong_type(key, value, wanted)
        items = tuple(
            item for item in value if isinstance(item, item_type) and not isinstance(item, bool)
        )
        if len(items) != len(value):
            raise self._wrong_type(key, value, wanted)
        return items

    def _find(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(
                f"model file {self.path}: metadata key {key} is missing: "
                "the file is incomplete; fetch it again or choose another"
            )
        return value

    def _check_bounds(self, key: str, value: float, minimum: float, maximum: float) -> None:
        if not minimum <= value <= maximum:  # NaN compares false and is refused too
            raise ModelFileError(
                f"model file {self.path}: {key} is {value}, outside {minimum} to {maximum}: "
                "the file is damaged or of a kind that the engine cannot run"
            )

    def _wrong_type(self, key: str, value: Value, wanted: str) -> ModelFileError:
        found = type(value).__name__
        if isinstance(value, tuple):
            found = f"a list of {type(value[0]).__name__}" if value else "an empty list"
        return ModelFileError(
            f"model file {self.path}: {key} must be {wanted}, found {found}: choose another file"
        )
