"""What is told of a download while pip moves and removes its own files."""

from __future__ import annotations

import threading
from pathlib import Path

from local_engine.model_sources import _largest_size


def test_the_largest_file_below_a_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "small").write_bytes(b"1")
    (tmp_path / "a" / "b" / "large").write_bytes(b"123")
    assert _largest_size(tmp_path) == 3
    assert _largest_size(tmp_path / "none") == 0


def test_folders_that_vanish_meanwhile_are_no_fault(tmp_path: Path) -> None:
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            folder = tmp_path / "pip-unpack" / "deep"
            folder.mkdir(parents=True, exist_ok=True)
            folder.rmdir()
            folder.parent.rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {_largest_size(tmp_path) for _ in range(3_000)} == {0}
    finally:
        is_over.set()
        thread.join()
