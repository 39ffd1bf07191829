"""What leaves the machine of whoever answers is recognised, in every spelling that a server takes."""

from __future__ import annotations

import json

import pytest

from gateway.dialects.openai_chat import parse

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
INLINE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def tools(**members) -> set[str]:
    messages = members.pop("messages", [{"role": "user", "content": "hi"}])
    return set(parse(json.dumps({"model": "m", "messages": messages, **members}).encode()).tools)


def of_part(*parts) -> set[str]:
    return tools(messages=[{"role": "user", "content": list(parts)}])


def of_raw(part: str) -> set[str]:
    content = '{"model":"m","messages":[{"role":"user","content":[' + part + "]}]}"
    return set(parse(content.encode()).tools)


STAYS = {
    "a plain question": {},
    "functions of the client's": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "a custom tool": {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
    "tools of the client's machine": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "no tools": {"tools": []},
    "a search that is switched off": {"enable_search": False, "web_search_options": None},
}


@pytest.mark.parametrize("members", STAYS.values(), ids=STAYS.keys())
def test_this_stays_where_it_is_answered(members):
    assert tools(**members) == set()


LEAVES = {
    "OpenAI's search models": ({"web_search_options": {}}, "web_search"),
    "OpenAI's search tool": ({"tools": [{"type": "web_search_preview_2025_03_11"}]}, "web_search"),
    "Anthropic's search": ({"tools": [{"type": "web_search_20250305"}]}, "web_search"),
    "Groq's search": ({"tools": [{"type": "browser_search"}]}, "web_search"),
    "xAI's search": ({"search_parameters": {"mode": "auto"}}, "web_search"),
    "DashScope's search": ({"enable_search": True}, "web_search"),
    "a page that is fetched": ({"tools": [{"type": "web_fetch_20250910"}]}, "url_fetch"),
    "an interpreter": ({"tools": [{"type": "code_interpreter"}]}, "code_execution"),
    "Anthropic's code": ({"tools": [{"type": "code_execution_20250522"}]}, "code_execution"),
    "a vector store": ({"tools": [{"type": "file_search"}]}, "file_search"),
    "Azure's own data": ({"data_sources": [{"type": "azure_search"}]}, "file_search"),
    "an MCP server": ({"tools": [{"type": "mcp", "server_url": "https://x"}]}, "mcp"),
    "Anthropic's MCP servers": ({"mcp_servers": [{"url": "https://x"}]}, "mcp"),
    "OpenRouter's plugins": ({"plugins": [{"id": "web"}]}, "other"),
    "a type that nobody knows": ({"tools": [{"type": "builtin_function"}]}, "other"),
    "a type that is no text": ({"tools": [{"type": 3}]}, "other"),
    "no type": ({"tools": [{"google_search": {}}]}, "other"),
    "a name without end": ({"tools": [{"type": "function" * 20}]}, "other"),
    "a type in another case": (
        {"tools": [{"type": "function", "Type": "mcp", "function": {"name": "f"}}]},
        "mcp",
    ),
    "one beside functions": (
        {"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "mcp"}]},
        "mcp",
    ),
}


@pytest.mark.parametrize(("members", "tool"), LEAVES.values(), ids=LEAVES.keys())
def test_this_leaves(members, tool):
    assert tools(**members) == {tool}


def test_several_are_all_named():
    assert tools(web_search_options={}, tools=[{"type": "mcp"}]) == {"web_search", "mcp"}


def test_inline_media_are_fetched_from_nowhere():
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    named = {
        "type": "file",
        "file": {"filename": "Übersicht.pdf", "file_data": "data:x;base64,aGk="},
    }
    assert (
        of_part({"type": "text", "text": "see https://example.com"}, INLINE, audio, named) == set()
    )


ADDRESSES = {
    "an image": IMAGE,
    "an image beside an inline one": {**IMAGE, "detail": "low"},
    "an address without an object around it": {"type": "image_url", "image_url": "http://x/a"},
    "a video": {"type": "video_url", "video_url": {"url": "HTTPS://x/a.mp4"}},
    "audio of another wire": {"type": "audio_url", "audio_url": {"url": "  http://x/a"}},
    "a file of the server's": {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    "a bucket": {"type": "image_url", "image_url": {"url": "s3://bucket/a"}},
    "an address without a scheme": {"type": "image_url", "image_url": {"url": "//10.0.0.1/a"}},
    "a document of Anthropic's form": {"type": "document", "source": {"type": "url", "url": "http:x"}},
    "an address in a text part": {"type": "text", "text": "", "image_url": {"url": "http://x/a"}},
}  # fmt: skip


@pytest.mark.parametrize("part", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_an_address_is_fetched(part):
    assert of_part(INLINE, part) == {"url_fetch"}


SPELT = {
    "with slashes escaped": r'{"url":"http:\/\/x\/a"}',
    "with letters escaped": r'{"url":"\u0068ttp://x/a"}',
    "with a tab before it": r'{"url":"\thttp://x/a"}',
    "twice, and the last one is inline": '{"url":"http://x/a","url":"data:image/png;base64,aGk="}',
}


@pytest.mark.parametrize("written", SPELT.values(), ids=SPELT.keys())
def test_an_address_is_found_however_it_is_spelt(written):
    assert of_raw('{"type":"image_url","image_url":' + written + "}") == {"url_fetch"}


def test_of_a_repeated_type_only_what_was_looked_at_is_sent():
    written = b'{"type":"mcp","type":"function","function":{"name":"f"}}'
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[' + written + b"]}"
    parsed = parse(body)
    assert parsed.tools == set()
    assert bytes(parsed.fields["tools"]) == b'[{"type":"function","function":{"name":"f"}}]'
