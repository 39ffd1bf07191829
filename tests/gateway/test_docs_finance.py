"""The commands and the mapping in `docs/finance.md` about bills and closes are real."""

from __future__ import annotations

import re
import shlex

import typer.main

from gateway.cli.main import build
from gateway.finance.bill_messages import SourceKind
from gateway.finance.close import CloseStep, _checklist
from gateway.finance.close_messages import CloseDelays
from gateway.finance.sources.generic import parse_mapping
from tests.gateway.finance_books import writing
from tests.gateway.ledger_samples import NOON_US, make_database
from tests.gateway.test_finance_close import sound
from tests.style.tree import REPOSITORY

PAGE = (REPOSITORY / "docs" / "finance.md").read_text()


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [
        shlex.split(line) for line in lines if re.match(r"fareway spend (close|reconcile)", line)
    ]


def test_every_command_of_the_page_has_the_options_that_it_is_given():
    root = typer.main.get_command(build([], loads_all=True))
    found = commands()
    assert len(found) >= 10
    for words in found:
        command, rest = root, words[1:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        given = {word for word in rest if word.startswith("--")}
        assert given <= known, words


def test_the_mapping_of_the_page_is_one():
    [text] = re.findall(r"```yaml\n(columns: .*?)```", PAGE, re.DOTALL)
    mapped, zone = parse_mapping(text, "mapping")
    assert (mapped.currency, mapped.units_per, zone.key) == ("EUR", 1000, "UTC")


def test_every_source_and_every_item_of_the_checklist_is_on_the_page(tmp_path):
    engine = writing(make_database(tmp_path))
    with engine.begin() as connection:
        items = _checklist(connection, "2026-10", CloseStep.HARD, CloseDelays(), sound(), NOON_US)
    engine.dispose()
    for item in items:
        assert re.search(rf"^\| `{item.name}` \|", PAGE, re.MULTILINE), item.name
        may = re.search(rf"^\| `{item.name}` \|.*\| (yes|no) \|$", PAGE, re.MULTILINE)
        assert may is not None
        assert (may[1] == "yes") == (item.is_acceptable or item.name == "delay"), item.name
    for source in SourceKind:
        assert f"`{source.value}`" in PAGE, source
