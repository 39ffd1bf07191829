"""Keys as `fareway keys list` shows them: rows for programs, columns for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import to_builtins

from gateway.auth.directory import KeyRecord
from gateway.clock import from_microseconds

_COLUMNS = (
    "key_id",
    "team",
    "project",
    "name",
    "state",
    "models",
    "tags",
    "limits",
    "expires_at",
    "source",
)


def key_row(record: KeyRecord, now_us: int) -> dict[str, object]:
    """What is told of a key, by column; never the key itself."""
    is_expired = record.expires_at_us is not None and record.expires_at_us <= now_us
    state = "revoked" if record.disabled else "expired" if is_expired else "active"
    expires_at = None
    if record.expires_at_us is not None:
        expires_at = from_microseconds(record.expires_at_us).isoformat()
    return {
        "key_id": record.key_id,
        "team": record.team,
        "project": record.project or None,
        "name": record.name,
        "state": state,
        "models": None if record.models is None else list(record.models),
        "tags": list(record.tags) or None,
        "limits": None if record.limits is None else to_builtins(record.limits),
        "expires_at": expires_at,
        "source": record.source.value,
    }


_NOT_SET = {"project": "-", "models": "all", "tags": "-", "limits": "-", "expires_at": "never"}


def key_table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Aligned columns under their names, line by line."""
    cells = [
        _COLUMNS,
        *(tuple(_cell(column, row[column]) for column in _COLUMNS) for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(column: str, value: object) -> str:
    if value is None:
        return _NOT_SET[column]
    if isinstance(value, dict):  # limits: rpm=60,concurrency=2
        amounts = cast("dict[str, int]", value)
        return ",".join(f"{name}={amount}" for name, amount in amounts.items())
    return ",".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
