"""From a tree with lines to `Settings`, with every fault of the models said in our words.

Pydantic says what is wrong and at which path; this module finds the line, the valid keys of that
place and the nearest of them. Where a part is wrong it is left out and the rest validated again, so
that references inside the sound parts can still be checked in the same run.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.settings import nodes
from gateway.settings.document import Settings
from gateway.settings.errors import Problem

PASSES_MAX = 50
Path = tuple[str | int, ...]

_PLAIN_MESSAGES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; put it in quotes",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of `key: value`",
    "mapping_type": "must be a mapping of `key: value`",
    "model_type": "must be a mapping of `key: value`",
    "model_attributes_type": "must be a mapping of `key: value`",
    "too_short": "must not be empty",
    "too_long": "has too many items",
    "string_too_short": "must not be empty",
    "string_too_long": "is too long",
    "finite_number": "must be a finite number",
    "union_tag_not_found": "needs a `kind`",
    "string_pattern_mismatch": "is not in the form that this key takes",
}


def validate(root: nodes.Mapping) -> tuple[Settings, tuple[Problem, ...], nodes.Mapping]:
    """Validate a tree against the models.

    Returns:
        The settings of the parts that are sound, one problem per fault, and the tree of the sound
        parts. The settings are the file's own only when there is no problem.
    """
    problems: list[Problem] = []
    tree = root
    for attempt in range(PASSES_MAX):
        try:
            return Settings.model_validate(nodes.plain(tree)), tuple(problems), tree
        except ValidationError as error:
            details = _without_echoes(error.errors(include_url=False, include_context=True))
            if attempt == 0:
                problems = [_problem(root, detail) for detail in details]
            tree = nodes.without(tree, frozenset(_faulty(tree, detail) for detail in details))
    return Settings(), tuple(problems), nodes.without(root, frozenset({()}))


def _faulty(tree: nodes.Mapping, detail: ErrorDetails) -> Path:
    """What to leave out for the rest to be sound; what lacks a part goes as a whole."""
    path = _path(detail)
    return nodes.known_steps(tree, path[:-1] if detail["type"] == "missing" else path)


def _without_echoes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop "too short" of a list whose items are wrong: pydantic counts only the sound ones."""
    paths = [_path(detail) for detail in details]

    def is_echo(detail: ErrorDetails) -> bool:
        path = _path(detail)
        return detail["type"] == "too_short" and any(
            len(other) > len(path) and other[: len(path)] == path for other in paths
        )

    return [detail for detail in details if not is_echo(detail)]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, None when none is near."""
    matches = difflib.get_close_matches(word[:256], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known word, empty when none is near."""
    match = nearest(word, known)
    return f"; did you mean `{nodes.shorten(match)}`?" if match is not None else ""


def _path(detail: ErrorDetails) -> Path:
    # `[key]` marks that the key itself, not its value, is wrong.
    path = tuple(step for step in detail["loc"] if step != "[key]")
    return (*path, "kind") if detail["type"] == "union_tag_invalid" else path


def _problem(root: nodes.Mapping, detail: ErrorDetails) -> Problem:
    path = _path(detail)
    place = nodes.locate(root, path)
    key_path = place.key_path
    if detail["type"] == "missing":
        key_path = f"{key_path}.{path[-1]}" if key_path else str(path[-1])
    return Problem(
        file=place.file, line=place.line, key_path=key_path, message=_message(path, detail)
    )


def _message(path: Path, detail: ErrorDetails) -> str:
    kind = detail["type"]
    context: Mapping[str, object] = detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return _unknown_key(path)
        case "union_tag_invalid":
            tag, known = str(context.get("tag", "")), _quoted(context.get("expected_tags", ""))
            near = hint(tag, known) or f"; known: {', '.join(known)}"
            return f"is not a kind of provider{near}"
        case "literal_error":
            known = _quoted(context.get("expected", ""))
            return f"must be {_either(known)}{_near_input(detail, known)}"
        case "value_error":
            return str(context.get("error", "is wrong"))
        case _:
            message = detail["msg"].removeprefix("Input should ").replace("be ", "must be ", 1)
            return _PLAIN_MESSAGES.get(kind, message)


def _near_input(detail: ErrorDetails, known: list[str]) -> str:
    # The input itself is never repeated: it may be a secret in the wrong place.
    word = cast("object", detail["input"])
    return hint(word, known) if isinstance(word, str) else ""


def _unknown_key(path: Path) -> str:
    key, known = str(path[-1]), sorted(fields_at(path[:-1]))
    if f"{key}_env" in known:
        return f"unknown key; a secret is never in the file, use `{key}_env` or `{key}_file`"
    message = f"unknown key{hint(key, known)}"
    if nearest(key, known) is None and known:
        message += f"; known here: {', '.join(known)}"
    return message


def _quoted(listed: object) -> list[str]:
    """The words of pydantic's lists, such as `'a', 'b' or 'c'`."""
    return [word for index, word in enumerate(str(listed).split("'")) if index % 2]


def _either(words: list[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1] if words else "") if part)


def fields_at(path: Path) -> frozenset[str]:
    """The keys that a section takes; empty when the path leads to none.

    Args:
        path: Steps from the root, with the tags that pydantic puts in for unions.
    """
    annotation: object = Settings
    for step in path:
        annotation = _step(annotation, step)
    model = _as_model(annotation)
    return frozenset(model.model_fields) if model is not None else frozenset()


def _as_model(annotation: object) -> type[BaseModel] | None:
    options = _options(annotation)
    if len(options) == 1:
        option = options[0]
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _options(annotation: object) -> list[object]:
    """The members of an annotation, without `Annotated`, unions and None around them."""
    origin: object = get_origin(annotation)
    arguments: tuple[object, ...] = get_args(annotation)
    if origin is Annotated:
        return _options(arguments[0])
    if origin is Union or origin is types.UnionType:
        return [
            option
            for argument in arguments
            if argument is not type(None)
            for option in _options(argument)
        ]
    return [annotation]


def _step(annotation: object, step: str | int) -> object:
    options = _options(annotation)
    if len(options) > 1:
        return next((option for option in options if _has_kind(option, step)), None)
    option = options[0]
    model = _as_model(option)
    if model is not None:
        field = model.model_fields.get(str(step))
        return field.annotation if field is not None else None
    arguments: tuple[object, ...] = get_args(option)
    origin: object = get_origin(option)
    if origin is tuple:
        return arguments[0]
    return arguments[1] if len(arguments) == 2 else None


def _has_kind(option: object, step: str | int) -> bool:
    model = _as_model(option)
    if model is None or "kind" not in model.model_fields:
        return False
    annotation = model.model_fields["kind"].annotation
    kinds: tuple[object, ...] = get_args(annotation)
    return get_origin(annotation) is Literal and step in kinds
