"""Setting up does its work once, and says what is missing."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from tools import prepare_venv

FAULTS = {
    "no network": ("Temporary failure in name resolution", "index cannot be reached"),
    "an index without the package": ("x==1 (from versions: none)", "index cannot be reached"),
    "a foreign certificate": ("SSLError(CERTIFICATE_VERIFY_FAILED); Max retries", "certificate"),
    "a full disk": ("OSError: [Errno 28] No space left on device", "disk is full"),
    "no wheel for this machine": (
        "(from versions: 1.0)\nNo matching distribution found for x==2",
        "no build of a pinned package",
    ),
    "anything else": ("segmentation fault", "the lines above say why"),
}


@pytest.mark.parametrize(("log", "sentence"), FAULTS.values(), ids=FAULTS.keys())
def test_a_failed_installation_is_explained(log: str, sentence: str) -> None:
    assert sentence in prepare_venv.explain(log)


def finished(venv: Path, digest: str, extras: list[str]) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / prepare_venv.STAMP).write_text(json.dumps({"digest": digest, "extras": extras}))


def test_a_finished_installation_is_recognised_by_its_digest(tmp_path: Path) -> None:
    finished(tmp_path, "d1", ["local", "dev"])
    assert prepare_venv.installed_extras(tmp_path, "d1") == {"local", "dev"}
    assert prepare_venv.installed_extras(tmp_path, "d2") == frozenset()


def test_an_unfinished_or_broken_installation_counts_as_none(tmp_path: Path) -> None:
    assert prepare_venv.installed_extras(tmp_path, "d1") == frozenset()
    finished(tmp_path, "d1", ["local"])
    (tmp_path / prepare_venv.STAMP).write_text('{"digest": "d1", "ext')
    assert prepare_venv.installed_extras(tmp_path, "d1") == frozenset()


def test_the_digest_follows_the_pins_and_the_python(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    for name in prepare_venv.SOURCES:
        (tmp_path / name).write_text("a")
    first = prepare_venv.stamp_of(tmp_path, (3, 11))
    assert prepare_venv.stamp_of(tmp_path, (3, 11)) == first
    assert prepare_venv.stamp_of(tmp_path, (3, 12)) != first
    (tmp_path / "constraints.txt").write_text("b")
    assert prepare_venv.stamp_of(tmp_path, (3, 11)) != first


def test_a_python_without_ensurepip_is_named_with_its_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(prepare_venv.SetUpError, match=r"ensurepip.*apt install"):
        prepare_venv.create(tmp_path / "venv")
