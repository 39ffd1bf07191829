"""Tools and features that leave the machine of whoever answers a request; pure, for every wire.

A tool that the client runs itself (a function) goes nowhere else. These others are run by the
vendor or by the server: what is searched for, fetched, run or asked of another place goes to where
nobody looked when the deployment was looked at. Each is a destination with trust of its own
(`privacy.tools`), without any by default, and what nobody knows is one, too.

Sources: OpenAI, "Tools" and "Web search"; Anthropic, "Server tools" and "MCP connector"; Groq,
"Compound" and "Browser search"; xAI, "Live search"; OpenRouter, "Web search" and "Plugins"; Azure,
"On your data"; DashScope, "Web search" (2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Tool(StrEnum):
    """A destination that a request can ask its deployment to involve."""

    WEB_SEARCH = "web_search"
    URL_FETCH = "url_fetch"
    """An image, a file or a page that whoever answers fetches from an address in the request."""
    CODE_EXECUTION = "code_execution"
    FILE_SEARCH = "file_search"
    MCP = "mcp"
    IMAGE_GENERATION = "image_generation"
    OTHER = "other"
    """A tool that nobody knows; nobody can vouch for it, either."""


_RUN_BY_CLIENTS: Final = frozenset(
    {
        "function", "custom", "apply_patch", "bash", "computer", "computer_use", "local_shell",
        "memory", "text_editor",
    }
)  # fmt: skip

_TYPES: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        "web_search": Tool.WEB_SEARCH,
        "browser_search": Tool.WEB_SEARCH,
        "google_search": Tool.WEB_SEARCH,
        "live_search": Tool.WEB_SEARCH,
        "x_search": Tool.WEB_SEARCH,
        "web": Tool.WEB_SEARCH,
        "web_fetch": Tool.URL_FETCH,
        "url_context": Tool.URL_FETCH,
        "visit_website": Tool.URL_FETCH,
        "code_execution": Tool.CODE_EXECUTION,
        "code_interpreter": Tool.CODE_EXECUTION,
        "shell": Tool.CODE_EXECUTION,
        "file_search": Tool.FILE_SEARCH,
        "retrieval": Tool.FILE_SEARCH,
        "collections_search": Tool.FILE_SEARCH,
        "azure_search": Tool.FILE_SEARCH,
        "mcp": Tool.MCP,
        "mcp_toolset": Tool.MCP,
        "image_generation": Tool.IMAGE_GENERATION,
    }
)

_MEMBERS: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        "web_search": Tool.WEB_SEARCH,
        "web_search_options": Tool.WEB_SEARCH,
        "search_parameters": Tool.WEB_SEARCH,
        "search_settings": Tool.WEB_SEARCH,
        "search_options": Tool.WEB_SEARCH,
        "enable_search": Tool.WEB_SEARCH,
        "code_execution": Tool.CODE_EXECUTION,
        "container": Tool.CODE_EXECUTION,
        "data_sources": Tool.FILE_SEARCH,
        "tool_resources": Tool.FILE_SEARCH,
        "mcp_servers": Tool.MCP,
        "compound_custom": Tool.OTHER,
        "plugins": Tool.OTHER,
    }
)

MEMBERS: Final = frozenset(_MEMBERS)
"""Members at the top of a body that switch something on which leaves the machine."""

_VERSION: Final = re.compile(r"(_preview)?(_[0-9]{4}_?[0-9]{2}_?[0-9]{2})?\Z")
_CHARACTERS_MAX: Final = 64

_ADDRESS: Final = re.compile(
    # A string that opens with a scheme other than `data:`, with `//`, or with ASCII spelt as an
    # escape, which nobody who means well does.
    rb'"(?:[\s]|\\[tnrf])*(?!data:)'
    rb'(?:[a-z][a-z0-9+.\-]*:[^\s"]|(?:\\?/){2}|[^"\\]{0,24}\\u00[2-7])',
    re.IGNORECASE,
)


def tool_of_type(name: str) -> Tool | None:
    """The tool that an entry of `tools` with this type is, None for one that the client runs.

    Args:
        name: As the client wrote it; dated and preview forms count as what they are a form of.
    """
    if len(name) > _CHARACTERS_MAX:
        return Tool.OTHER
    plain = _VERSION.sub("", name)
    if plain in _RUN_BY_CLIENTS:
        return None
    return _TYPES.get(plain, Tool.OTHER)


def tool_of_member(name: str) -> Tool | None:
    """The tool that a member at the top of a body switches on, None for all others."""
    return _MEMBERS.get(name)


def has_address(part: bytes) -> bool:
    """Whether a part that is not text holds an address that whoever reads it would fetch.

    Args:
        part: JSON of it, or of one of its members, as it is sent. Looked at as bytes and at every
            level, so that of a repeated key each value counts. A title that begins like an address
            counts, too: that keeps tagged requests here, and widens nothing.
    """
    return _ADDRESS.search(part) is not None
