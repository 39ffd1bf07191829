"""Request controls: `x-fareway-*` headers and `fareway_*` keys of the body's metadata, one grammar.

Controls only narrow. Where a control comes by header and by field, the narrower wins: tags add up,
the smaller ceiling counts; two different projects or strategies contradict each other and are
refused. An unknown `fareway_*` key or `x-fareway-*` header is refused with the nearest name, and so
is one in another case, with `_`, a point or a space for `-`, or in a place where nobody reads it: a
misspelt `x-fareway-tag` or a `fareway_tags` beside `metadata` cannot send private data anywhere.
"""

from __future__ import annotations

import difflib
import json
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gateway.errors import InvalidRequest, UnsupportedParameter
from pricing.errors import PricingError
from pricing.money import PicoUsd, parse_usd

HEADER_PREFIX = "x-fareway-"
FIELD_PREFIX = "fareway_"
CONTROL_MARK = b"fareway"
"""Part of every header's name that is a control, or that is refused as one that is misspelt."""

STRATEGIES = frozenset({"cheapest"})
STRATEGIES_TO_COME = frozenset({"fastest", "balanced"})

_NAME_CHARACTERS = frozenset(string.ascii_lowercase + string.digits + "_.:-")
_VALUE_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_.:-/ ")
_NAME_CHARACTERS_MAX = 64
_SHOWN_CHARACTERS_MAX = 80
_TAGS_MAX = 64
_MISSPELT_PREFIXES = (b"x_fareway", b"x-fareway", b"fareway-", b"fareway_")
_NAMES = ("tags", "cost_tags", "sla", "strategy", "max_usd", "project")
_SEPARATORS = str.maketrans("-. ", "___")


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked of the gateway for one request.

    Attributes:
        tags: Privacy tags to add, unknown ones included: the policy refuses those.
        tags_given: The same in the client's order, for what is said about them.
        cost_tags: Cost tags, sorted by key.
        strategy: Routing strategy, None for the route's own.
        max_pico_usd: Ceiling of the upper-bound quote, None for none.
        project: Project to book on, None for the key's own.
    """

    tags: frozenset[str] = frozenset()
    tags_given: tuple[str, ...] = ()
    cost_tags: tuple[tuple[str, str], ...] = ()
    strategy: str | None = None
    max_pico_usd: PicoUsd | None = None
    project: str | None = None


NO_CONTROLS = Controls()


def read_controls(
    headers: Iterable[tuple[bytes, bytes]], metadata: Mapping[str, msgspec.Raw] | None
) -> Controls:
    """Read and merge the controls of one request.

    Args:
        headers: Raw header pairs, names in lower case.
        metadata: The body's `metadata` member, None when there is none.

    Raises:
        InvalidRequest: An unknown control, a value outside its grammar, or a contradiction.
        UnsupportedParameter: A control that this version cannot honour yet.
    """
    found = list(_header_controls(headers))
    if metadata:
        found.extend(_field_controls(metadata))
    if not found:
        return NO_CONTROLS
    return _merge(found)


def without_controls(metadata: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The metadata that may go upstream: every `fareway_*` key removed."""
    return {key: raw for key, raw in metadata.items() if not key.startswith(FIELD_PREFIX)}


def refuse_repeated(metadata: Mapping[str, msgspec.Raw], written: bytes) -> None:
    """Refuse a control that stands twice in the metadata: nobody can tell which one was meant.

    Args:
        metadata: The body's member.
        written: The same as the client wrote it.

    Raises:
        InvalidRequest: One does.
    """
    if not any(key.startswith(FIELD_PREFIX) for key in metadata):
        return
    seen: set[str] = set()
    for key in keys_of(written):
        if key.startswith(FIELD_PREFIX) and key in seen:
            label = f"metadata.{key[:_SHOWN_CHARACTERS_MAX]}"
            raise InvalidRequest(f"{label} is given twice; send it once", param=label)
        seen.add(key)


def keys_of(written: bytes) -> list[str]:
    """Every key of a JSON object in its order, repeated ones as often as they stand there.

    Raises:
        InvalidRequest: It is nested too deeply to tell.
    """
    keys: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        keys[:] = [key for key, _ in pairs]  # the outermost object comes last

    try:
        json.loads(written, object_pairs_hook=note)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest("metadata is nested too deeply", param="metadata") from error
    return keys


def refuse_misplaced(name: str) -> None:
    """Refuse a member at the top of the body that would be a control inside `metadata`.

    Raises:
        InvalidRequest: It would.
    """
    if _is_like_control(name):
        shown = name[:_SHOWN_CHARACTERS_MAX]
        raise InvalidRequest(
            f"{shown!r} is read only as a header or in `metadata`; move it there", param=shown
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    name: str  # one of _NAMES
    label: str  # as the client wrote it
    text: str


def _header_controls(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[_Found]:
    prefix = HEADER_PREFIX.encode()
    for raw_name, raw_value in headers:
        if not raw_name.startswith(prefix):
            if raw_name.startswith(_MISSPELT_PREFIXES):
                raise _unknown(raw_name.decode("latin-1"), _header_name)
            continue
        label = raw_name.decode("latin-1")
        name = label.removeprefix(HEADER_PREFIX).replace("-", "_")
        if name not in _NAMES:
            raise _unknown(label, _header_name)
        if not raw_value.isascii():
            raise InvalidRequest(f"header {label} holds characters outside ASCII", param=label)
        yield _Found(name=name, label=label, text=raw_value.decode("ascii"))


def _field_controls(metadata: Mapping[str, msgspec.Raw]) -> Iterable[_Found]:
    for key, raw in metadata.items():
        if not _is_like_control(key):
            continue
        label = f"metadata.{key}"
        name = key.removeprefix(FIELD_PREFIX)
        if not key.startswith(FIELD_PREFIX) or name not in _NAMES:
            raise _unknown(label, lambda known: FIELD_PREFIX + known)
        try:
            text = msgspec.json.decode(raw, type=str)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{label} must be a string", param=label) from error
        yield _Found(name=name, label=label, text=text)


def _header_name(name: str) -> str:
    return HEADER_PREFIX + name.replace("_", "-")


def _is_like_control(key: str) -> bool:
    """Whether a key of the body is a control, or was meant to be one."""
    return _plain(key).startswith(FIELD_PREFIX)


def _plain(name: str) -> str:
    """A name without what people get wrong; cut, as a name can be as long as a body."""
    cut = name[:_SHOWN_CHARACTERS_MAX].strip().casefold().translate(_SEPARATORS)
    return cut.removeprefix("metadata_").removeprefix("x_")


def _unknown(label: str, spell: Callable[[str], str]) -> InvalidRequest:
    shown = label[:_SHOWN_CHARACTERS_MAX]
    name = _plain(shown).removeprefix("fareway").lstrip("_")
    near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.0)
    return InvalidRequest(
        f"unknown control {shown!r}; the nearest is {spell(near[0])!r}", param=shown
    )


def _merge(found: Iterable[_Found]) -> Controls:
    tags: dict[str, None] = {}  # in their order
    cost_tags: dict[str, str] = {}
    strategy: str | None = None
    ceiling: PicoUsd | None = None
    project: str | None = None
    for item in found:
        match item.name:
            case "tags":
                tags |= dict.fromkeys(_parse_tags(item))
            case "cost_tags":
                _add_cost_tags(cost_tags, item)
            case "strategy":
                strategy = _agree(strategy, _parse_strategy(item), item)
            case "max_usd":
                limit = _parse_max_usd(item)
                ceiling = limit if ceiling is None else min(ceiling, limit)
            case "project":
                project = _agree(project, _parse_name(item.text, item), item)
            case _:
                raise UnsupportedParameter(
                    f"{item.label} is not available in this version; leave it out",
                    param=item.label,
                )
    return Controls(
        tags=frozenset(tags),
        tags_given=tuple(tags),
        cost_tags=tuple(sorted(cost_tags.items())),
        strategy=strategy,
        max_pico_usd=ceiling,
        project=project,
    )


def _agree(earlier: str | None, value: str, item: _Found) -> str:
    if earlier is not None and earlier != value:
        raise InvalidRequest(
            f"{item.label} says {value!r}, another control of this request says {earlier!r}",
            param=item.label,
        )
    return value


def _parse_tags(item: _Found) -> list[str]:
    given = [_parse_name(part.strip(), item) for part in item.text.split(",") if part.strip()]
    names = list(dict.fromkeys(given))
    if len(names) > _TAGS_MAX:
        raise InvalidRequest(f"{item.label} holds over {_TAGS_MAX} tags", param=item.label)
    return names


def _parse_name(text: str, item: _Found) -> str:
    if not 0 < len(text) <= _NAME_CHARACTERS_MAX or not _NAME_CHARACTERS.issuperset(text):
        raise InvalidRequest(
            f"{item.label}: {text[:80]!r} is no name; use 1 to {_NAME_CHARACTERS_MAX}"
            " of a-z 0-9 _ . : -",
            param=item.label,
        )
    return text


def _add_cost_tags(cost_tags: dict[str, str], item: _Found) -> None:
    for part in item.text.split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        key, value = _parse_name(key.strip(), item), value.strip()
        if (
            not equals
            or not 0 < len(value) <= _NAME_CHARACTERS_MAX
            or not _VALUE_CHARACTERS.issuperset(value)
        ):
            raise InvalidRequest(
                f"{item.label}: write key=value, values of up to {_NAME_CHARACTERS_MAX} letters,"
                " digits, spaces and _ . : - /",
                param=item.label,
            )
        if cost_tags.setdefault(key, value) != value:
            raise InvalidRequest(f"{item.label} gives {key!r} two values", param=item.label)
    if len(cost_tags) > _TAGS_MAX:
        raise InvalidRequest(f"{item.label} holds over {_TAGS_MAX} tags", param=item.label)


def _parse_strategy(item: _Found) -> str:
    if item.text in STRATEGIES_TO_COME:
        raise UnsupportedParameter(
            f"strategy {item.text!r} is not available in this version; use 'cheapest'",
            param=item.label,
        )
    if item.text not in STRATEGIES:
        raise InvalidRequest(f"{item.label}: no strategy {item.text[:40]!r}", param=item.label)
    return item.text


def _parse_max_usd(item: _Found) -> PicoUsd:
    try:
        limit = parse_usd(item.text)
    except PricingError as error:
        raise InvalidRequest(f"{item.label}: {error}", param=item.label) from error
    if limit < 0:
        raise InvalidRequest(f"{item.label} must be 0 or more", param=item.label)
    return limit
