"""Cores are counted once each, within the container's quota."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from local_engine.cpu_threads import count_usable_cores

if TYPE_CHECKING:
    from pathlib import Path

CPUS = sorted(os.sched_getaffinity(0))


def describe(folder: Path, siblings: list[str]) -> Path:
    for cpu, text in zip(CPUS, siblings, strict=True):
        place = folder / f"cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text)
    return folder


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    topology = describe(tmp_path, ["0-1"] * len(CPUS))
    assert count_usable_cores(topology=topology, quota=tmp_path / "absent") == 1


def test_cores_count_each(tmp_path: Path) -> None:
    topology = describe(tmp_path, [str(cpu) for cpu in CPUS])
    assert count_usable_cores(topology=topology, quota=tmp_path / "absent") == len(CPUS)


def test_without_a_description_each_thread_counts(tmp_path: Path) -> None:
    found = count_usable_cores(topology=tmp_path / "absent", quota=tmp_path / "absent")
    assert found == len(CPUS)


QUOTAS = {
    "no quota": ("max 100000\n", len(CPUS)),
    "half a processor is still one thread": ("50000 100000\n", 1),
    "one processor and a half": ("150000 100000\n", 1),
    "more than there are": ("6400000 100000\n", len(CPUS)),
    "something unreadable": ("?", len(CPUS)),
}


@pytest.mark.parametrize(("text", "cores"), QUOTAS.values(), ids=QUOTAS.keys())
def test_the_quota_bounds_the_count(text: str, cores: int, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    assert count_usable_cores(topology=tmp_path / "absent", quota=quota) == cores
