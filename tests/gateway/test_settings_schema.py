"""The models' other faces: the JSON Schema for editors and the page that explains each setting."""

import functools
import json

import pytest
import yaml

from gateway.settings.json_schema import config_schema
from gateway.settings.loader import template
from tests.gateway.settings_paths import field_paths
from tests.gateway.settings_text import EXAMPLE, REPOSITORY
from tests.support.json_schema import faults

SHIPPED = {
    "fareway.example.yaml": EXAMPLE.read_text(),
    "the built-in defaults": template("default.yaml"),
    "the file that init writes": template("starter.yaml"),
}


schema = functools.cache(config_schema)


@functools.cache
def settings() -> list[tuple[str, str]]:
    """Path and description of every setting."""
    return list(field_paths())


def as_json(text):
    """A file as an editor sees it: dates are text."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


@pytest.mark.parametrize("text", SHIPPED.values(), ids=SHIPPED.keys())
def test_the_json_schema_accepts_every_file_that_is_shipped(text):
    assert faults(schema(), as_json(text)) == []


REFUSED = {
    "an unknown section": {"servr": {}},
    "an unknown key": {"server": {"prot": 1}},
    "a port out of range": {"server": {"port": 70_000}},
    "a duration of zero": {"server": {"heartbeat_s": 0}},
    "a word out of a closed set": {"storage": {"durability": "never"}},
    "an unknown kind of provider": {"providers": {"x": {"kind": "nobody"}}},
    "a key of another kind": {"providers": {"x": {"kind": "local", "base_url": "http://x"}}},
    "a price that is a word": {"providers": {"x": {"kind": "groq", "price": {"request_usd": "x"}}}},
    "a model without deployments": {"models": {"m": {}}},
    "a list that is text": {"privacy": {"floor": "private"}},
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED.keys())
def test_the_json_schema_refuses_what_the_loader_refuses(document):
    assert faults(schema(), document) != []


def test_every_setting_has_a_description():
    assert [path for path, description in settings() if not description] == []


def test_every_setting_is_documented():
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    paths = {path for path, _ in settings()}
    assert len(paths) > 150
    assert sorted(path for path in paths if f"`{path}`" not in text) == []


def test_the_page_documents_nothing_that_is_not_a_setting():
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert sorted(rows - {path for path, _ in settings()}) == []
