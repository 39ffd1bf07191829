"""Attacks by request: each way around a policy that a client might try, and where it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.privacy.attack_range import BODY, Range, is_refused
from tests.privacy.worlds import TAGGED, WORLD, World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# Tags.


async def test_an_untagged_request_carries_the_floor_of_its_team(range_: Range):
    got = await range_.ask(BODY)
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")
    assert got.headers["x-fareway-tags"] == "private"


FLOORS = {
    "of everybody": replace(TAGGED, floor=("card",)),
    "of a team": WORLD,
    "of a key": replace(TAGGED, keys={"apps": ("private",)}),
    "of the key's project": replace(
        TAGGED, projects={"apps": ("card",)}, bound=frozenset({"apps"})
    ),
}


@pytest.mark.parametrize("world", FLOORS.values(), ids=FLOORS.keys())
async def test_a_floor_is_carried_whoever_set_it(range_: Range, world: World):
    await range_.load(world)
    for model in ("chat", "small", "p0/m"):
        assert (await range_.ask({**BODY, "model": model})).status == 200
    for place in range(1, 5):
        got = await range_.ask({**BODY, "model": f"p{place}/m"})
        assert is_refused(got, 403, "privacy_denied")


async def test_a_project_that_is_named_brings_its_floor(range_: Range):
    await range_.load(replace(TAGGED, projects={"apps": ("private",)}))
    got = await range_.ask(BODY, headers=[("x-fareway-project", "unit")])
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")
    got = await range_.ask({**BODY, "metadata": {"fareway_project": "unit"}})
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")


MISTAGGED = {
    "another case": "Private",
    "a misspelt one": "privat",
    "one with a separator": "private;",
    "full-width letters": "\uff50rivate".encode().decode("latin-1"),
    "a known one and an unknown one": "card, secret",
    "a negation": "-private",
    "a wildcard": "*",
}


@pytest.mark.parametrize("text", MISTAGGED.values(), ids=MISTAGGED.keys())
async def test_a_tag_that_does_not_exist_is_an_error_and_goes_nowhere(range_: Range, text: str):
    await range_.load(TAGGED)
    got = await range_.ask(BODY, headers=[("x-fareway-tags", text)])
    assert got.status == 400
    assert range_.touched() == set()


MISPLACED = {
    "a header in the singular": ([("x-fareway-tag", "private")], {}),
    "a header with underscores": ([("x_fareway_tags", "private")], {}),
    "a header without its first letters": ([("fareway-tags", "private")], {}),
    "a member of the body": ([], {"fareway_tags": "private"}),
    "a misspelt key of the metadata": ([], {"metadata": {"fareway_tag": "private"}}),
    "a list in the metadata": ([], {"metadata": {"fareway_tags": ["private"]}}),
    "another case in the metadata": ([], {"metadata": {"Fareway_Tags": "private"}}),
}


@pytest.mark.parametrize(("headers", "more"), MISPLACED.values(), ids=MISPLACED.keys())
async def test_a_tag_in_a_place_where_nobody_reads_it_is_an_error(range_: Range, headers, more):
    await range_.load(TAGGED)
    got = await range_.ask({**BODY, **more}, headers=headers)
    assert got.status == 400
    assert range_.touched() == set()


REMOVALS = {
    "an empty header": ([("x-fareway-tags", "")], {}),
    "another tag in the header": ([("x-fareway-tags", "card")], {}),
    "two headers": ([("x-fareway-tags", "card"), ("x-fareway-tags", "")], {}),
    "an empty field": ([], {"metadata": {"fareway_tags": ""}}),
    "a null field": ([], {"metadata": {"fareway_tags": None}}),
    "a negation": ([("x-fareway-tags", "-private")], {}),
    "a removing header": ([("x-fareway-remove-tags", "private")], {}),
    "tags of somebody else": ([("x-fareway-team", "others")], {}),
}


@pytest.mark.parametrize(("headers", "more"), REMOVALS.values(), ids=REMOVALS.keys())
async def test_nothing_that_a_client_says_removes_a_tag(range_: Range, headers, more):
    got = await range_.ask({**BODY, **more}, headers=headers)
    assert got.status in (200, 400)
    if got.status == 200:
        assert got.headers["x-fareway-deployment"] == "p0/m"


async def test_a_repeated_member_cannot_carry_tags_past_the_reader(range_: Range):
    await range_.load(TAGGED)
    private, none = '{"fareway_tags":"private"}', '{"order":"7"}'
    text = json.dumps(BODY)[:-1]
    for first, second in ((none, private), (private, none), (private, private)):
        got = await range_.ask(f'{text},"metadata":{first},"metadata":{second}}}'.encode())
        assert got.status == 400 or got.headers["x-fareway-deployment"] == "p0/m"
    assert range_.touched() <= {"p0"}


# Names. GW-103, GW-121.

NAMED = {
    "an alias": ("small", 200),
    "a model of everything": ("all", 200),
    "a vendor's deployment": ("p1/m", 403),
    "a vendor's deployment in another case": ("P1/M", 404),
    "full-width letters": ("ｐ1/m", 404),
    "a Cyrillic letter": ("сhat", 404),
    "a zero-width space": ("p1\u200b/m", 404),
    "two slashes": ("p1//m", 404),
    "a way up": ("p0/../p1/m", 404),
    "an address": ("http://127.0.0.1:9/m", 404),
    "a pattern": ("p1/*", 404),
    "a line break": ("p0/m\np1/m", 404),
}


@pytest.mark.parametrize(("name", "status"), NAMED.values(), ids=NAMED.keys())
async def test_a_model_by_any_name_carries_the_floor(range_: Range, name: str, status: int):
    for stream in (False, True):
        got = await range_.ask({**BODY, "model": name, "stream": stream})
        assert got.status == status


QUERIES = [
    "?model=p1/m",
    "?model=p1%2Fm&model=p2/m",
    "?tags=",
    "?x-fareway-tags=",
    "?api_base=http://x",
]


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_decides_nothing(range_: Range, query: str):
    got = await range_.ask(BODY, path=f"/v1/chat/completions{query}")
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")
    got = await range_.ask({**BODY, "model": "p1/m"}, path=f"/v1/chat/completions{query}")
    assert got.status == 403


# Wires. Whatever has no route yet is a 404 and reaches nobody; whatever gets one joins the tests
# above and in `combinations`.

UNBUILT = [
    "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/audio/transcriptions", "/v1/audio/speech", "/v1/images/generations", "/v1/batches",
    "/v1/files", "/v1/moderations", "/v1/realtime", "/v1/assistants", "/v1/fine_tuning/jobs",
    "/v1/engines/p1/completions", "/openai/deployments/p1/chat/completions", "/chat/completions",
    "/v1/chat/completions/p1", "/v1/../p1/v1/chat/completions", "/p1/v1/chat/completions",
    "/v1/p1/chat/completions", "/api/chat", "/api/generate", "/v1beta/models/p1:generateContent",
]  # fmt: skip


@pytest.mark.parametrize("path", UNBUILT)
async def test_a_wire_that_is_not_built_reaches_nobody(range_: Range, path: str):
    body = {**BODY, "input": "x", "prompt": "x", "previous_response_id": "resp_1", "file_id": "f"}
    for model in ("chat", "p1/m"):
        got = await range_.ask({**body, "model": model}, path=path)
        assert got.status == 404
    assert range_.touched() == set()


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE", "OPTIONS"])
async def test_another_method_reaches_nobody(range_: Range, method: str):
    got = await range_.ask(BODY, method=method)
    assert got.status in (400, 405)
    assert range_.touched() == set()


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:{port}/v1/chat/completions", "//127.0.0.1:{port}/v1/chat/completions"],
)
async def test_the_gateway_is_nobodys_proxy(range_: Range, target: str):
    path = target.format(port=range_.recorders["p1"].port)
    got = await range_.ask({**BODY, "model": "p1/m"}, path=path)
    assert got.status in (400, 403, 404)
    assert range_.touched() == set()


@pytest.mark.parametrize("prefix", ["/openai", "/inference"])
async def test_a_vendors_prefix_carries_the_floor(range_: Range, prefix: str):
    got = await range_.ask(BODY, path=f"{prefix}/v1/chat/completions")
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")


# What a body may name. GW-113.

BROUGHT = {
    "api_base": {"api_base": "http://evil.invalid/v1"},
    "base_url": {"base_url": "http://evil.invalid/v1"},
    "api_base in extra_body": {"extra_body": {"api_base": "http://evil.invalid/v1"}},
    "a metadata service": {"base_url": "http://169.254.169.254/latest/meta-data"},
    "fallbacks": {"fallbacks": ["p1/m", {"model": "p2/m"}]},
    "models": {"models": ["p1/m", "p2/m"]},
    "a route": {"route": "fallback"},
    "a provider's order": {"provider": {"order": ["p1"], "allow_fallbacks": True}},
    "a key of its own": {"api_key": "sk-own"},
    "headers": {"extra_headers": {"host": "evil.invalid"}},
    "a proxy": {"proxy": "http://evil.invalid:3128"},
    "a callback": {"callback_url": "http://evil.invalid", "webhook": "http://evil.invalid"},
    "a deployment": {"deployment": "p1/m", "deployment_id": "p1/m", "custom_llm_provider": "p1"},
    "mock": {"mock_response": "hello", "mock_testing_fallbacks": True},
}


@pytest.mark.parametrize("more", BROUGHT.values(), ids=BROUGHT.keys())
async def test_what_a_body_brings_along_leads_nowhere(range_: Range, more):
    for stream in (False, True):
        got = await range_.ask({**BODY, **more, "stream": stream})
        assert got.status in (200, 400)
        assert range_.touched() <= {"p0"}


URLS = ["http://evil.invalid/x.png", "http://169.254.169.254/x", "http://127.0.0.1:{p1}/x.png",
        "file:///etc/passwd", "http://[::ffff:127.0.0.1]:{p1}/x"]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
async def test_the_gateway_fetches_no_url_of_a_body(range_: Range, url: str):
    url = url.format(p1=range_.recorders["p1"].port)
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "file", "file": {"file_url": url, "file_data": url}},
    ]
    got = await range_.ask({**BODY, "messages": [{"role": "user", "content": parts}]})
    assert got.status in (200, 400, 403)
