"""Tests find their part of the suite, and no part leaves out a file that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiers
from tools.run_tests import TIERS

UNIT, SLOW, CI = (TIERS[name].selection for name in ("unit", "slow", "ci"))

FILES = {
    "a file without markers": ("def test_a(): ...\n", {"unit"}),
    "a file of which every test is slow": ("pytestmark = pytest.mark.slow\n", {"slow"}),
    "the same among others, in lines": (
        "pytestmark = [\n    pytest.mark.anyio,\n    pytest.mark.slow,\n]\n",
        {"slow"},
    ),
    "one slow test among others": ("@pytest.mark.slow\ndef test_a(): ...\n", {"unit", "slow"}),
    "one for CI among slow ones": (
        "pytestmark = pytest.mark.slow\n@pytest.mark.ci\ndef test_a(): ...\n",
        {"slow", "ci"},
    ),
    "a case of its own": ("pytest.param(1, marks=pytest.mark.slow)\n", {"unit", "slow"}),
    "a fixture that may be a database": ('params=["sqlite", "postgresql"]\n', {"unit", "slow"}),
    "a fixture of a harness": (
        "from tests.gateway.desk_harness import url\n",
        {"unit", "slow"},
    ),
    "a file for a GPU": ("pytestmark = pytest.mark.gpu\n", set()),
    "a word in a sentence": ("# takes long: slow, ci\n", {"unit"}),
}


@pytest.mark.parametrize(("text", "needing"), FILES.values(), ids=FILES.keys())
def test_a_part_imports_the_files_that_it_needs(
    text: str, needing: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(text)
    selections = {"unit": UNIT, "slow": SLOW, "ci": CI}
    found = {part for part, chosen in selections.items() if not tiers.is_needless(path, chosen)}
    assert found == needing


@pytest.mark.parametrize("selection", ["", "anyio", "not (slow", "slow or somebodys"])
def test_what_is_not_understood_leaves_nothing_out(selection: str, tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("def test_a(): ...\n")
    assert not tiers.is_needless(path, selection)


@pytest.mark.parametrize("name", ["conftest.py", "harness.py", "test_data"])
def test_only_files_of_tests_are_left_out(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("")
    assert not tiers.is_needless(path, SLOW)


def chosen_by(marks: set[str]) -> list[str]:
    """The parts of the suite that take a test with these markers."""
    names = {name: name in marks for name in tiers.MARKERS}
    return [part for part in ("unit", "slow", "ci") if eval(TIERS[part].selection, None, names)]


@pytest.mark.parametrize(
    ("marks", "parts"),
    [
        (set(), ["unit"]),
        ({"slow"}, ["slow"]),
        ({"ci"}, ["ci"]),
        ({"slow", "ci"}, ["ci"]),
        ({"soak"}, []),
        ({"slow", "soak"}, []),
        ({"gpu"}, []),
        ({"live", "ci"}, []),
    ],
)
def test_every_test_belongs_to_one_part_at_most(marks: set[str], parts: list[str]) -> None:
    assert chosen_by(marks) == parts


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_needs_a_server_is_slow(kind: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("slow") is not None) == (kind == "postgresql")


def test_a_marker_that_a_file_does_not_show_is_refused(request: pytest.FixtureRequest) -> None:
    item = request.node
    item.add_marker("live")
    with pytest.raises(pytest.UsageError, match="is marked live by something that its file"):
        tiers.place(item)
