"""JSON Schema of `fareway.yaml`, for editors."""

from __future__ import annotations

from gateway.settings.document import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, object]:
    """The schema of the whole file, with each setting's description."""
    schema: dict[str, object] = {"$schema": DIALECT, "title": "fareway.yaml"}
    schema.update((key, value) for key, value in _settings_schema().items() if key != "title")
    return schema


def _settings_schema() -> dict[str, object]:
    return {**Settings.model_json_schema(mode="validation")}
