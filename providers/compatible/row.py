"""What sets one vendor's OpenAI-compatible wire apart: a row of `catalog.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from yarl import URL

from providers.contract import OnDisconnect

_CATALOG = Path(__file__).with_name("catalog.toml")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sets one vendor's OpenAI-compatible wire apart.

    Attributes:
        base_url: The vendor's address, None where the operator names one.
        auth_header: The header that carries the key.
        auth_prefix: What stands before the key in it.
        default_path: Put in when a base URL has no path.
        chat_path: Below the base URL.
        request_id_headers: Where the upstream's id of a request may be, best first.
        asks_for_usage: Whether streams ask for usage.
        renames: Request fields that the vendor knows by another name.
        unsupported: Request fields that it cannot honour, with the reason.
        multimodal: Whether it understands message parts other than text.
        on_disconnect: What to do with it once the client has left, by how it bills: `cancel`, or
            `drain` where it bills to the end anyway and tells the counts only there.
        sends_usage_unasked: Whether it reports usage in every stream, so that clients expect it.
    """

    base_url: str | None = None
    auth_header: str
    auth_prefix: str
    default_path: str
    chat_path: str
    request_id_headers: tuple[str, ...]
    asks_for_usage: bool
    renames: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    unsupported: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    multimodal: bool = True
    on_disconnect: OnDisconnect
    sends_usage_unasked: bool


def load_catalog(path: Path | None = None) -> Mapping[str, Row]:
    """Load the rows, each completed from `openai_compatible`.

    Raises:
        msgspec.ValidationError: A row has a key that no row has, or a value of a wrong type.
    """
    text = (path or _CATALOG).read_text(encoding="utf-8")
    tables = msgspec.convert(tomllib.loads(text), dict[str, dict[str, object]])
    defaults = tables["openai_compatible"]
    return {name: msgspec.convert({**defaults, **table}, Row) for name, table in tables.items()}


def chat_url(base_url: str, row: Row) -> URL:
    """Where chat requests go.

    Args:
        base_url: As the operator wrote it: with or without a path, a last slash or the chat path.
        row: Its paths.

    Raises:
        ValueError: Not an address.
    """
    url = URL(base_url)
    path = url.path.rstrip("/").removesuffix(row.chat_path)
    return url.with_path((path or row.default_path) + row.chat_path, keep_query=True)
