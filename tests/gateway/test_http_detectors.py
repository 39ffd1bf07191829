"""Detectors in front of real requests: what is found adds tags before anything is decided."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.detect.errors import OutOfTime
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    NOWHERE,
    body,
    config_text,
    error_of,
    running_gateway,
)

pytestmark = pytest.mark.anyio

CARD = "4539148803436467"  # made by rule, published by nobody
TAGS = "tags: {card: {require: [self_hosted]}, never: {deny: true}, file: {require: [self_hosted]}}"


def text(detect: str) -> str:
    privacy = f"privacy: {{{TAGS}, detect: {detect}}}" if detect else f"privacy: {{{TAGS}}}"
    return config_text({"a": NOWHERE}, more=privacy)


def vendor() -> dict[str, FakeProvider]:
    return {"a": FakeProvider(name="a", scripts=[answer("hello")])}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def encoded(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode()


TOOL_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "t1",
            "type": "function",
            "function": {"name": "pay", "arguments": json.dumps({"card": CARD})},
        }
    ],
}
SCHEMA = {"type": "object", "properties": {"number": {"type": "string", "examples": [CARD]}}}
TOOL = {"type": "function", "function": {"name": "pay", "description": "d", "parameters": SCHEMA}}
URL = {"url": f"data:text/plain;base64,{encoded('card ' + CARD)}"}

# GW-129: every string of a body is looked at, wherever it stands and however it is written.
POSITIONS: dict[str, tuple[dict[str, Any], str]] = {
    "the arguments of a tool call in the history": (
        {"messages": [TOOL_CALL, {"role": "tool", "tool_call_id": "t1", "content": "ok"}, user("again")]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    "a system message": ({"messages": [{"role": "system", "content": CARD}, user("x")]}, "messages[0].content"),
    "the result of a tool": (
        {"messages": [user("x"), {"role": "tool", "tool_call_id": "t", "content": f"paid with {CARD}"}]},
        "messages[1].content",
    ),
    "a content part": ({"messages": [user([{"type": "text", "text": CARD}])]}, "messages[0].content[0].text"),
    "a name": ({"messages": [{"role": "user", "name": CARD, "content": "x"}]}, "messages[0].name"),
    "a tool's description": (
        {"tools": [{"type": "function", "function": {"name": "f", "description": f"e.g. {CARD}"}}]},
        "tools[0].function.description",
    ),
    "an example in a tool's schema": (
        {"tools": [TOOL]}, "tools[0].function.parameters.properties.(member 1).examples[0]",
    ),
    "a key of an object": (
        {"metadata": {f"n{CARD}": "x"}}, "metadata.(member 1) (its name)",
    ),
    "metadata": ({"metadata": {"order": CARD}}, "metadata.(member 1)"),
    "user": ({"user": CARD}, "user"),
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [CARD]}}}},
        "response_format.json_schema.schema.enum[0]",
    ),
    "base64 in a text": ({"messages": [user(f"see {encoded('my card: ' + CARD)}")]}, "messages[0].content (base64)"),
    "base64 of base64": ({"messages": [user(encoded(encoded("my card: " + CARD)))]}, "messages[0].content (base64)"),
    "a data URL": (
        {"messages": [user([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": URL}])]},
        "messages[0].content[1].image_url.url (base64)",
    ),
    "a file's name": (
        {"messages": [user([{"type": "file", "file": {"filename": f"{CARD}.pdf", "file_id": "f"}}])]},
        "messages[0].content[0].file.filename",
    ),
    "escapes within arguments": (
        {
            "messages": [
                {**TOOL_CALL, "tool_calls": [{"id": "t", "type": "function", "function": {"name": "p",
                    "arguments": '{"c":"' + "".join(f"\\u{ord(one):04x}" for one in CARD) + '"}'}}]},
                user("x"),
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
    ),
    "two messages": (
        {"messages": [user(f"my card is {CARD[:9]}"), user(f"{CARD[9:]} and thanks")]},
        "messages[0].content to messages[1].content",
    ),
    "four parts": (
        {"messages": [user([{"type": "text", "text": CARD[place : place + 4]} for place in range(0, 16, 4)])]},
        "messages[0].content[0].text to messages[0].content[3].text",
    ),
    "zero-width characters between the digits": ({"messages": [user("\u200b".join(CARD))]}, "messages[0].content"),
    "full-width digits": (
        {"messages": [user(CARD.translate({code: code + 0xFEE0 for code in range(48, 58)}))]}, "messages[0].content",
    ),
    "look-alikes of digits": ({"messages": [user(CARD.replace("1", "l").replace("0", "О"))]}, "messages[0].content"),
    "spaces between all digits": ({"messages": [user(" ".join(CARD))]}, "messages[0].content"),
    "soft hyphens and dashes": ({"messages": [user("4539\u00ad\u20111488\u20110343\u20116467")]}, "messages[0].content"),
    "a number in a member that nobody knows": ({"x_number": int(CARD)}, "(member 2)"),
}  # fmt: skip


async def test_every_string_of_a_body_is_looked_at(tmp_path):
    providers = vendor()
    config = text("{mode: enforce, payment_card: [card]}")
    async with (
        running_gateway(tmp_path, {"a": NOWHERE}, providers=providers, text=config) as gateway,
        gateway.client() as client,
    ):
        for position, (changes, path) in POSITIONS.items():
            sent = body(**changes)
            got = await client.post("/v1/chat/completions", json=sent)
            assert got.status_code == 403, (position, got.text)
            error = error_of(got)
            assert error["code"] == "privacy_denied", position
            assert error["param"] == path, position
            assert f"card by payment_card at {path}" in error["message"], position
            assert CARD not in got.text, position
            assert got.headers["x-fareway-tags"] == "card", position
    assert providers["a"].calls == []


async def test_a_repeated_key_does_not_hide_what_an_upstream_may_read(tmp_path):
    providers = vendor()
    config = text("{mode: enforce, payment_card: [card]}")
    arguments = f'"arguments":"{CARD}","arguments":"{{}}"'
    raw = (
        '{"model":"chat","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"t",'
        f'"type":"function","function":{{"name":"p",{arguments}}}}}]}},'
        '{"role":"user","content":"x"}]}'
    )
    async with (
        running_gateway(tmp_path, {"a": NOWHERE}, providers=providers, text=config) as gateway,
        gateway.client() as client,
    ):
        got = await client.post(
            "/v1/chat/completions",
            content=raw.encode(),
            headers={"content-type": "application/json"},
        )
        assert got.status_code == 403
    assert providers["a"].calls == []


MODES: Mapping[str, tuple[str, int, str]] = {
    "without the section": ("", 200, "observe"),
    "observing": ("{mode: observe, payment_card: [card]}", 200, "observe"),
    "enforcing": ("{mode: enforce, payment_card: [card]}", 403, "enforce"),
    "enforcing something else": ("{mode: enforce, iban: [card]}", 200, "enforce"),
    "with the number allowed": (
        "{mode: enforce, payment_card: [card], allow: ['4539-1488-0343-6467']}", 200, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("detect", "status", "mode"), MODES.values(), ids=MODES.keys())
async def test_a_find_adds_tags_only_where_it_is_ordered_to(tmp_path, detect, status, mode):
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers=vendor(), text=text(detect)
    ) as gateway:
        got = await gateway.post(body(messages=[user(f"charge {CARD}")]))
        assert got.status_code == status, got.text
        assert got.headers["x-fareway-tags"] == ("card" if status == 403 else "")
        metrics = gateway.service.metrics.render().decode()
        line = f'fareway_detector_requests_total{{detector="payment_card",mode="{mode}"}} 1'
        assert (line in metrics) == bool(mode)


async def test_published_test_numbers_count_only_where_that_is_wanted(tmp_path):
    published = body(messages=[user("4111 1111 1111 1111 and 4242424242424242")])
    for detect, status in (
        ("{mode: enforce, payment_card: [card]}", 200),
        ("{mode: enforce, payment_card: [card], published_examples: detect}", 403),
    ):
        async with running_gateway(
            tmp_path / str(status), {"a": NOWHERE}, providers=vendor(), text=text(detect)
        ) as gateway:
            assert (await gateway.post(published)).status_code == status


IMAGE = {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png"}}
OPAQUE = {
    "an image": (IMAGE, "{image: [card]}", 403),
    "audio": ({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}, "{audio: [card]}", 403),
    "a file": ({"type": "file", "file": {"file_id": "f"}}, "{file: [card]}", 403),
    "something that is not known": ({"type": "hologram", "hologram": {}}, "{file: [card]}", 403),
    "an image where only files matter": (IMAGE, "{file: [card]}", 200),
    "text": ({"type": "text", "text": "x"}, "{image: [card], audio: [card], file: [card]}", 200),
}  # fmt: skip


@pytest.mark.parametrize(("part", "opaque", "status"), OPAQUE.values(), ids=OPAQUE.keys())
async def test_parts_that_cannot_be_read_add_their_tags(tmp_path, part, opaque, status):
    config = text(f"{{mode: enforce, opaque_parts: {opaque}}}")
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers=vendor(), text=config
    ) as gateway:
        got = await gateway.post(body(messages=[user([{"type": "text", "text": "see"}, part])]))
        assert got.status_code == status, got.text
        if status == 403:
            assert "parts cannot be read" in got.json()["error"]["message"]


async def test_what_could_not_be_looked_through_gets_the_tags_of_all_detectors(tmp_path):
    """A tag may be missing for want of time only if the operator says so."""
    outcomes = {
        "{mode: enforce, payment_card: [card], timeout_ms: 0.0001}": 403,
        "{mode: enforce, payment_card: [card], timeout_ms: 0.0001, on_error: []}": 200,
        "{mode: enforce, timeout_ms: 0.0001, on_error: [never]}": 403,
        "{mode: observe, payment_card: [card], timeout_ms: 0.0001}": 200,
    }
    many = " ".join(["2024-05-12 10:33:21"] * 100)
    for number, (detect, status) in enumerate(outcomes.items()):
        async with running_gateway(
            tmp_path / str(number), {"a": NOWHERE}, providers=vendor(), text=text(detect)
        ) as gateway:
            got = await gateway.post(body(messages=[user(many)]))
            assert got.status_code == status, (detect, got.text)
            mode = "observe" if "observe" in detect else "enforce"
            line = f'fareway_detector_faults_total{{mode="{mode}",reason="{OutOfTime.reason}"}} 1'
            metrics = gateway.service.metrics.render().decode()
            assert (
                line in metrics
                or line.replace(
                    f'mode="{mode}",reason="timeout"', f'reason="timeout",mode="{mode}"'
                )
                in metrics
            )
            if status == 403:
                assert "detectors did not finish (timeout)" in got.json()["error"]["message"]


async def test_a_long_body_is_looked_at_on_a_thread_and_found_all_the_same(tmp_path):
    config = text("{mode: enforce, payment_card: [card], timeout_ms: 1000}")
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers=vendor(), text=config
    ) as gateway:
        long = "All work and no play makes a dull day. " * 5000
        assert (await gateway.post(body(messages=[user(long)]))).status_code == 200
        got = await gateway.post(body(messages=[user(long), user(f"and {CARD}.")]))
        assert got.status_code == 403
        assert error_of(got)["param"] == "messages[1].content"


async def test_a_detector_of_the_operators_own(tmp_path):
    custom = "[{name: project_code, pattern: '^PRJ-[0-9]{4}$', tags: [card], min_count: 2}]"
    config = text(f"{{mode: enforce, custom: {custom}}}")
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers=vendor(), text=config
    ) as gateway:
        one = [user("PRJ-1234"), user("x PRJ-5678"), user("PRJ-1234")]
        assert (await gateway.post(body(messages=one))).status_code == 200
        got = await gateway.post(body(messages=[*one, user("PRJ-9999")]))
        assert got.status_code == 403
        assert "card by project_code at messages[0].content" in got.json()["error"]["message"]


async def test_a_tag_that_the_request_carries_anyway_is_not_blamed_on_a_detector(tmp_path):
    config = text("{mode: enforce, payment_card: [card]}")
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers=vendor(), text=config
    ) as gateway:
        got = await gateway.post(body(messages=[user(CARD)]), x_fareway_tags="card")
        assert got.status_code == 403
        assert "payment_card" not in got.text
