"""The top-level packages are this tree's, and starting the gateway stays light."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

from tests.style.tree import PACKAGES, REPOSITORY, package_files, python_files

HEAVY = ("torch", "transformers", "litellm", "tokenizers", "numpy")

# Modules that run in a process of the gateway, and what none of them may load (contract 3 and 10).
LIGHT = {
    "the command line": ("gateway.cli.main", HEAVY),
    "a gateway worker": (
        "gateway.process.worker",
        (*HEAVY, "sqlalchemy", "alembic", "typer", "fastapi"),
    ),
    "the composition root": ("gateway.app", (*HEAVY, "sqlalchemy", "alembic", "typer", "fastapi")),
    "the supervisor": ("gateway.process.supervisor", HEAVY),
    "the ledger process": ("gateway.process.ledger_process", HEAVY),
    "the engine's door": ("local_engine.api", ("torch", "transformers")),
    "the price book": ("pricing.price_book", (*HEAVY, "sqlalchemy", "aiohttp")),
}


def loaded_by(module: str) -> set[str]:
    """Top-level names in `sys.modules` after a fresh interpreter imported one module."""
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(ended.stdout)}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "banned"), LIGHT.values(), ids=LIGHT.keys())
def test_importing_stays_light(module: str, banned: tuple[str, ...]) -> None:
    assert loaded_by(module) & set(banned) == set()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_resolves_to_this_tree(package: str) -> None:
    program = f"import {package}; print(list({package}.__path__))"
    # Outside the tree, so that only the installation decides.
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd="/", capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == str([str(REPOSITORY / package)])


def test_no_other_distribution_brings_our_package_names() -> None:
    owners = importlib.metadata.packages_distributions()
    taken = {package: owners.get(package) for package in PACKAGES}
    # An editable installation lists no files, so an owner is either ours or a stranger.
    assert all(set(names or ["fareway"]) == {"fareway"} for names in taken.values()), taken


def test_every_folder_of_a_package_is_a_package() -> None:
    # Alembic reads its version scripts by path.
    scripts = REPOSITORY / "migrations" / "versions"
    folders = {path.parent for path in package_files()} - {scripts}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    assert [path for path in python_files() if path.name in drawers] == []
