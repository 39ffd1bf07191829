"""JSON Schema of `fareway.yaml`, for editors.

The descriptions are the docstrings below the settings. Pydantic could collect them, and would read
its own source for each section at every start of the gateway; here it is done for who asks.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.settings.document import Settings
from gateway.settings.scalars import Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, object]:
    """The schema of the whole file, with each setting's description."""
    schema: dict[str, object] = {"$schema": DIALECT, "title": "fareway.yaml"}
    schema.update((key, value) for key, value in _settings_schema().items() if key != "title")
    return schema


def descriptions(section: type[Section]) -> Mapping[str, str]:
    """What each setting of a section is for, by its name: the docstring below it."""
    texts: dict[str, str] = {}
    for one in reversed(section.__mro__):
        if issubclass(one, Section):
            texts.update(_stated(one))
    return texts


class _Described(GenerateJsonSchema):
    """Puts the descriptions to the settings of every section."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        properties = cast("dict[str, JsonSchemaValue]", made.get("properties", {}))
        for name, text in descriptions(cast("type[Section]", schema["cls"])).items():
            properties[name].setdefault("description", text)
        return made


def _settings_schema() -> dict[str, object]:
    return {**Settings.model_json_schema(mode="validation", schema_generator=_Described)}


def _stated(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Each setting that a class states itself, and the docstring below it."""
    (statement,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(section))).body
    assert isinstance(statement, ast.ClassDef), "the source of a class"
    for setting, text in itertools.pairwise(statement.body):
        match setting, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                yield name, inspect.cleandoc(doc)
            case _:
                pass
