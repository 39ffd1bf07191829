"""Every command, option, error code and metric is documented, and the pages point at real things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer.main

from gateway.cli.main import build
from tests.style.tree import REPOSITORY, name_of, tracked_files

DOCS = REPOSITORY / "docs"
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
SOURCE_PATH = re.compile(
    r"`((?:gateway|providers|local_engine|pricing|migrations|tests|tools)/[\w./-]+)`"
)


def page(name: str) -> str:
    """The text of one page."""
    return (DOCS / name).read_text()


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group with the words a person types."""
    for name, command in group.commands.items():
        words = f"{prefix} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands_of(command, words)
        else:
            yield words, command


def command_line() -> Any:
    """The whole command line, every module loaded."""
    return typer.main.get_command(build([], loads_all=True))


def test_every_command_is_documented() -> None:
    text = page("cli.md")
    names = [words for words, _ in commands_of(command_line())]
    assert len(names) > 10
    assert [words for words in names if f"`fareway {words}" not in text] == []


def test_every_option_is_documented() -> None:
    text = page("cli.md")
    missing = [
        f"{words} {option}"
        for words, command in commands_of(command_line())
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help" and f"`{option}" not in text
    ]
    assert missing == []


def test_every_error_code_is_documented_with_its_status() -> None:
    rows = import_module("gateway.http.errors").ERROR_TABLE.values()
    text = page("errors.md")
    missing = [
        f"{row.status} {row.code}"
        for row in rows
        if not re.search(rf"^\| {row.status} \| `{row.code}`", text, re.MULTILINE)
    ]
    assert missing == []


def test_every_error_that_forbids_a_retry_is_documented_as_such() -> None:
    rows = import_module("gateway.http.errors").ERROR_TABLE.values()
    said = page("errors.md").partition("`x-should-retry: false` accompanies ")[2].partition(":")[0]
    statuses = re.findall(r"\b\d{3}\b", said)
    wrong = [
        row.code
        for row in rows
        if row.forbids_retry != (str(row.status) in statuses or f"`{row.code}`" in said)
    ]
    assert wrong == []


def test_no_documented_error_code_is_invented() -> None:
    rows = import_module("gateway.http.errors").ERROR_TABLE.values()
    known = {(str(row.status), row.code) for row in rows}
    written = set(re.findall(r"^\| (\d{3}) \| `(\w+)`", page("errors.md"), re.MULTILINE))
    assert written - known == set()


def test_every_metric_is_documented() -> None:
    families = import_module("gateway.telemetry.families").FAMILIES
    text = page("operations.md")
    assert families
    assert [name for name in families if f"| `{name}` |" not in text] == []


def test_no_documented_metric_is_invented() -> None:
    families = import_module("gateway.telemetry.families").FAMILIES
    written = set(re.findall(r"^\| `(fareway_\w+)` \|", page("operations.md"), re.MULTILINE))
    assert written - set(families) == set()


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{name_of(path)} -> {target}"
        for path in tracked_files()
        if path.suffix == ".md"
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_files_that_pages_name_exist() -> None:
    pages = [*DOCS.rglob("*.md"), REPOSITORY / "README.md"]
    missing = [
        f"{name_of(path)}: {name}"
        for path in pages
        for name in SOURCE_PATH.findall(path.read_text())
        if not (REPOSITORY / name).exists()
    ]
    assert missing == []


def test_pages_name_only_commands_that_exist() -> None:
    known = {words for words, _ in commands_of(command_line())}
    groups = {words.split()[0] for words in known}
    text = "\n".join(path.read_text() for path in [*DOCS.glob("*.md"), REPOSITORY / "README.md"])
    # A page may speak of what is not built yet, in words; a command in code is one to be typed.
    typed = set(re.findall(r"`fareway ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", text))
    unknown = {
        words for words in typed if words not in known and words.split()[0] not in known | groups
    }
    assert unknown == set()
