"""The part of JSON Schema (2020-12) that our models use, checked without another dependency.

A keyword that is not understood is a failure of the test, never ignored. Patterns are searched as
the standard says; `format`, `title`, `description` and `default` are annotations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
# One-valued checks: keyword -> whether a value of the right type passes.
CHECKS: dict[str, tuple[type | tuple[type, ...], Callable[[Any, Any], bool]]] = {
    "minimum": ((int, float), lambda value, bound: value >= bound),
    "maximum": ((int, float), lambda value, bound: value <= bound),
    "exclusiveMinimum": ((int, float), lambda value, bound: value > bound),
    "exclusiveMaximum": ((int, float), lambda value, bound: value < bound),
    "minLength": (str, lambda value, bound: len(value) >= bound),
    "maxLength": (str, lambda value, bound: len(value) <= bound),
    "pattern": (str, lambda value, pattern: re.search(pattern, value) is not None),
    "minItems": (list, lambda value, bound: len(value) >= bound),
    "maxItems": (list, lambda value, bound: len(value) <= bound),
}
ANNOTATIONS = {"title", "description", "default", "format", "$defs", "$schema", "discriminator"}
STRUCTURE = {"type", "enum", "const", "anyOf", "oneOf", "properties", "required"}
STRUCTURE |= {"additionalProperties", "propertyNames", "items", "$ref"}


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    """Paths at which a value breaks a schema, each with the keyword that it breaks."""
    return _faults(schema, value, schema["$defs"], "$")


def _faults(schema: Any, value: Any, definitions: dict[str, Any], path: str) -> list[str]:
    if isinstance(schema, bool):
        return [] if schema else [f"{path}: not allowed"]
    unknown = set(schema) - ANNOTATIONS - STRUCTURE - set(CHECKS)
    assert not unknown, f"{path}: unknown keywords {unknown}"
    found: list[str] = []
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        found += _faults(target, value, definitions, path)
    if "type" in schema and not TYPES[schema["type"]](value):
        return [*found, f"{path}: type"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: enum")
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: const")
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            passed = sum(not _faults(each, value, definitions, path) for each in schema[keyword])
            if passed == 0 or (keyword == "oneOf" and passed > 1):
                found.append(f"{path}: {keyword}")
    for keyword, (kind, passes) in CHECKS.items():
        if keyword in schema and isinstance(value, kind) and not passes(value, schema[keyword]):
            found.append(f"{path}: {keyword}")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found += _faults(schema["items"], item, definitions, f"{path}[{index}]")
    if isinstance(value, dict):
        found += _members(schema, value, definitions, path)
    return found


def _members(
    schema: Any, value: dict[str, Any], definitions: dict[str, Any], path: str
) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{path}.{name}: required" for name in schema.get("required", ()) if name not in value]
    for name, member in value.items():
        found += _faults(schema.get("propertyNames", True), name, definitions, f"{path}.{name}")
        rule = properties.get(name, schema.get("additionalProperties", True))
        found += _faults(rule, member, definitions, f"{path}.{name}")
    return found
