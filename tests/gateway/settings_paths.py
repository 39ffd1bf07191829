"""The path of every setting, read off the models: `server.port`, `teams.<name>.keys[].name`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from collections.abc import Mapping as AbstractMapping
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel

from gateway.settings.document import Settings
from gateway.settings.json_schema import descriptions


def field_paths(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting below a model, as its path and its description."""
    texts = descriptions(model)
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path, texts.get(name, "")
        yield from _below(field.annotation, path)


def _below(annotation: object, path: str) -> Iterator[tuple[str, str]]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from field_paths(annotation, f"{path}.")
    elif origin is Annotated:
        yield from _below(arguments[0], path)
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _below(argument, path)
    elif origin is tuple:
        yield from _below(arguments[0], f"{path}[]")
    elif origin is AbstractMapping:
        yield from _below(arguments[1], f"{path}.<name>")
