"""The reader takes well-formed files and refuses every other with a `ModelFileError`."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.errors import ModelFileError
from local_engine.model_file import ModelFile
from local_engine.quantisation import dequantise
from tests.support.tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def entry(name: str, *, dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    head = text(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def build(
    *,
    pairs: tuple[bytes, ...] = (),
    entries: tuple[bytes, ...] = (),
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
    data: bytes = b"\0" * 64,
) -> bytes:
    counts = (
        len(entries) if tensor_count is None else tensor_count,
        len(pairs) if key_count is None else key_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return header + b"\0" * (-len(header) % 32) + data


HOSTILE = {
    "an empty file": (b"", "not a GGUF file"),
    "another format": (b"PK\3\4" + b"\0" * 64, "not a GGUF file"),
    "a header cut after the magic": (b"GGUF", "ends inside version"),
    "the first version of the format": (build(version=1), "version 1"),
    "a big-endian file": (build(version=3 << 24), "big-endian"),
    "a tensor count near 2**64": (build(tensor_count=2**64 - 1), "tensor count is 18446744"),
    "a key count near 2**64": (build(key_count=2**64 - 1), "metadata key count is"),
    "more keys than the file holds": (build(key_count=9), "damaged|ends inside"),
    "a string of 2**63 bytes": (build(pairs=(struct.pack("<Q", 2**63),)), "claims 9223372036854"),
    "a key longer than allowed": (build(pairs=(text("k" * 2_000),)), "claims 2000 bytes"),
    "a value longer than the file": (
        build(pairs=(pair("k", STRING, struct.pack("<Q", 10_000)),)),
        "ends inside k",
    ),
    "a key that is not UTF-8": (
        build(pairs=(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", BOOL, 1),)),
        "not UTF-8",
    ),
    "a key that appears twice": (
        build(pairs=(pair("k", BOOL, b"\1"), pair("k", BOOL, b"\0"))),
        "'k' appears twice",
    ),
    "a value of an unknown type": (build(pairs=(pair("k", 99, b""),)), "unknown type 99"),
    "a list of lists": (
        build(pairs=(pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1)),)),
        "a list of lists",
    ),
    "a list of 2**62 numbers": (
        build(pairs=(pair("k", ARRAY, struct.pack("<IQ", U64, 2**62)),)),
        "item count of 'k' is",
    ),
    "a list longer than the file": (
        build(pairs=(pair("k", ARRAY, struct.pack("<IQ", U64, 1_000_000)),)),
        "ends inside k",
    ),
    "a list of strings longer than the file": (
        build(pairs=(pair("k", ARRAY, struct.pack("<IQ", STRING, 1_000_000)),)),
        "ends inside|claims",
    ),
    "alignment 0": (
        build(pairs=(pair("general.alignment", U32, struct.pack("<I", 0)),)),
        "general.alignment is 0",
    ),
    "odd alignment": (
        build(pairs=(pair("general.alignment", U32, struct.pack("<I", 33)),)),
        "general.alignment is 33",
    ),
    "negative alignment": (
        build(pairs=(pair("general.alignment", I32, struct.pack("<i", -32)),)),
        "general.alignment is -32",
    ),
    "alignment that is text": (
        build(pairs=(pair("general.alignment", STRING, text("32")),)),
        "general.alignment is '32'",
    ),
    "a tensor without dimensions": (build(entries=(entry("t", dims=()),)), "0 dimensions"),
    "a tensor of 2**31 dimensions": (
        build(entries=(text("t") + struct.pack("<I", 2**31),)),
        "2147483648 dimensions",
    ),
    "an empty dimension": (build(entries=(entry("t", dims=(4, 0)),)), "empty dimension"),
    "a product that overflows 64 bits": (
        build(entries=(entry("t", dims=(2**32, 2**32, 2**32)),)),
        "more than the whole file",
    ),
    "a product that wraps to a small one": (
        build(entries=(entry("t", dims=(2**63, 2)),)),
        "more than the whole file",
    ),
    "rows that blocks do not fill": (
        build(entries=(entry("t", dims=(33,), kind=8),)),
        "do not fill",
    ),
    "a block type to come": (build(entries=(entry("t", dims=(256,), kind=12),)), "Q4_K"),
    "an offset that is not aligned": (
        build(entries=(entry("t", offset=4),)),
        "not a multiple of 32",
    ),
    "an offset beyond the file": (
        build(entries=(entry("t", offset=2**63),)),
        "ends at byte",
    ),
    "data that ends after the file": (
        build(entries=(entry("t", dims=(16,), offset=32),)),
        "ends at byte",
    ),
    "two tensors of one name": (
        build(entries=(entry("t"), entry("t", offset=32))),
        "'t' appears twice",
    ),
    "two tensors that overlap": (
        build(entries=(entry("a", dims=(16,)), entry("b", offset=32))),
        "'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize(("raw", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_with_a_sentence(
    raw: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=message) as caught:
        ModelFile.open(path)
    assert str(path) in str(caught.value)


def test_the_builder_of_these_cases_makes_files_that_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "fine.gguf"
    numbers = struct.pack("<IQ3i", I32, 3, -1, 0, 7)
    pairs = (pair("k", ARRAY, numbers), pair("f", F32, struct.pack("<f", 0.5)))
    entries = (entry("a", dims=(4, 2)), entry("b", offset=32))
    path.write_bytes(build(pairs=pairs, entries=entries))
    with ModelFile.open(path) as file:
        assert file.integers("k") == (-1, 0, 7)
        assert file.number("f", minimum=0, maximum=1) == 0.5
        assert file.tensors["a"].shape == (2, 4)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: No such file"):
        ModelFile.open(tmp_path / "absent.gguf")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", quant="Q8_0")


def test_metadata_and_tensors_agree_with_the_reference_reader(tiny: Path) -> None:
    reference = gguf.GGUFReader(tiny)
    with ModelFile.open(tiny) as file:
        assert {tensor.name for tensor in reference.tensors} == file.tensors.keys()
        for tensor in reference.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            raw = file.read_rows(info, 0, info.rows)
            assert raw == tensor.data.tobytes()
        for key, field in reference.fields.items():
            if not key.startswith("GGUF."):
                expected = field.contents()
                value = file.metadata[key]
                assert (list(value) if isinstance(value, tuple) else value) == expected


def test_rows_are_read_apart_as_they_are_together(tiny: Path) -> None:
    with ModelFile.open(tiny) as file:
        info = file.tensors["token_embd.weight"]
        together = file.read_rows(info, 0, info.rows)
        apart = [file.read_rows(info, row, row + 1) for row in range(info.rows)]
        assert b"".join(apart) == together
        assert math.prod(info.shape) == dequantise(together, info.block_type).size


def test_a_file_that_shrinks_while_open_is_an_error(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinking.gguf"
    path.write_bytes(tiny.read_bytes())
    with ModelFile.open(path) as file:
        with path.open("r+b") as writer:
            writer.truncate(path.stat().st_size // 2)
        last = max(file.tensors.values(), key=lambda info: info.offset_bytes)
        with pytest.raises(ModelFileError, match="ends early"):
            file.read_rows(last, 0, last.rows)


WRONG_TYPES = {
    "text where a number belongs": ("integer", STRING, text("7")),
    "a truth value where a number belongs": ("integer", BOOL, b"\1"),
    "a list where a number belongs": ("integer", ARRAY, struct.pack("<IQi", I32, 1, 7)),
    "a fraction where a whole number belongs": ("integer", F32, struct.pack("<f", 7)),
    "a number out of bounds": ("integer", U32, struct.pack("<I", 10**9)),
    "not a number": ("number", F32, struct.pack("<f", math.nan)),
    "infinity": ("number", F32, struct.pack("<f", math.inf)),
    "a number where text belongs": ("text", U32, struct.pack("<I", 7)),
    "a number where a truth value belongs": ("flag", U32, struct.pack("<I", 1)),
    "bytes where scores belong": ("numbers", ARRAY, struct.pack("<IQB", 0, 1, 7)),
    "truth values where numbers belong": ("integers", ARRAY, struct.pack("<IQB", BOOL, 1, 1)),
    "numbers where tokens belong": ("texts", ARRAY, struct.pack("<IQi", I32, 1, 7)),
    "text where a list belongs": ("texts", STRING, text("x")),
}


@pytest.mark.parametrize(
    ("accessor", "kind", "payload"), WRONG_TYPES.values(), ids=WRONG_TYPES.keys()
)
def test_a_value_of_the_wrong_type_is_refused_by_key(
    accessor: str, kind: int, payload: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(build(pairs=(pair("some.key", kind, payload),)))
    with ModelFile.open(path) as file:
        calls = {
            "integer": lambda: file.integer("some.key", minimum=0, maximum=1_000),
            "number": lambda: file.number("some.key", minimum=0, maximum=1_000),
            "text": lambda: file.text("some.key"),
            "flag": lambda: file.flag("some.key", default=False),
            "texts": lambda: file.texts("some.key"),
            "integers": lambda: file.integers("some.key"),
            "numbers": lambda: file.numbers("some.key"),
        }
        with pytest.raises(ModelFileError, match=r"some\.key"):
            calls[accessor]()


def test_a_missing_key_is_an_error_unless_there_is_a_default(tiny: Path) -> None:
    with ModelFile.open(tiny) as file:
        assert file.integer("absent", minimum=0, maximum=9, default=3) == 3
        with pytest.raises(ModelFileError, match="absent is missing"):
            file.integer("absent", minimum=0, maximum=9)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_mutated_header_is_read_or_refused_but_never_worse(
    data: st.DataObject, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(tiny.read_bytes())
    header = 14_000
    edits = st.tuples(
        st.integers(0, header), st.one_of(st.binary(min_size=1, max_size=9), st.just(b"\xff" * 8))
    )
    for position, replacement in data.draw(st.lists(edits, min_size=1, max_size=4)):
        raw[position : position + len(replacement)] = replacement
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(raw))))
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(raw[:cut])
    try:
        file = ModelFile.open(path)
    except ModelFileError:
        return
    with file:
        for info in file.tensors.values():
            assert len(file.read_rows(info, 0, info.rows)) == info.size_bytes


def test_hostile_files_cost_no_memory(tmp_path: Path) -> None:
    """Every hostile file is refused under an address space hardly larger than Python's own."""
    for number, (raw, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{number}.gguf").write_bytes(raw)
    # A sparse file of 8 GiB gives the claims something to point into.
    for number, pairs in enumerate(
        [
            (pair("k", ARRAY, struct.pack("<IQ", U64, 2**30)),),
            (pair("k", STRING, struct.pack("<Q", 2**32)),),
            (pair("k", ARRAY, struct.pack("<IQ", STRING, 2**30)),),
        ]
    ):
        with (tmp_path / f"sparse{number}.gguf").open("wb") as file:
            file.write(build(pairs=pairs))
            file.truncate(8 * 2**30)
    script = """
import pathlib, resource, sys
from local_engine.errors import ModelFileError
from local_engine.model_file import ModelFile
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
refused = 0
for path in pathlib.Path(sys.argv[1]).glob("*.gguf"):
    try:
        ModelFile.open(path)
    except ModelFileError:
        refused += 1
print(refused)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == str(len(HOSTILE) + 3), done.stderr
