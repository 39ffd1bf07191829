"""What the policy says of enforced members, tools and floors, seen at the upstream's socket."""

from __future__ import annotations

import json

import pytest

from gateway.app import asks_more
from gateway.dialects.openai_chat import parse
from gateway.errors import InvalidRequest
from gateway.fleet import build_policy
from tests.gateway.gateway_harness import body, running_gateway
from tests.gateway.settings_text import load_settings, problems_of
from tests.providers.transport_harness import RawServer, answer, read_request

pytestmark = pytest.mark.anyio

ANSWER = json.dumps(
    {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Good day."},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()

TEXT = """
providers:
  router:
    kind: openai_compatible
    base_url: "{url}"
    enforce: {{provider: {{zdr: true, data_collection: deny}}}}
    trust: [{{attribute: zero_retention, evidence: contract, condition: provider.zdr=true}}]
models:
  chat:
    deployments:
      - {{deployment: router/m, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}
teams:
  apps: {{keys: [{{name: app, value_env: APP_KEY}}]}}
privacy:
  tags: {{brief: {{require: [zero_retention]}}, near: {{require: [direct]}}, open: {{}}}}
  tools: {{web_search: {{trust: [zero_retention]}}}}
"""


async def asked(tmp_path, sent, *, tags: str = "", **members):
    """The client's answer, once `sent` holds what the upstream got, if anything."""

    async def serve(reader, writer):
        while True:
            _, raw = await read_request(reader)
            sent.append(json.loads(raw))
            writer.write(answer(ANSWER, "content-type: application/json"))
            await writer.drain()

    headers = {"x-fareway-tags": tags} if tags else {}
    async with RawServer(serve) as upstream:
        text = TEXT.format(url=upstream.url)
        async with running_gateway(tmp_path, {}, text=text) as gateway:
            return await gateway.post(body(**members), **headers)


SENT_BY_CLIENTS = {
    "nothing": ({}, ""),
    "the same": ({"provider": {"zdr": True}}, ""),
    "the opposite": (
        {"provider": {"zdr": False, "data_collection": "allow"}},
        "provider.zdr enforced, provider.data_collection enforced",
    ),
    "something else in its place": ({"provider": "anybody"}, "provider enforced"),
    "another spelling": (
        {"Provider": {"zdr": False}, "provider": {"ZDR": False}},
        "Provider removed, provider.ZDR removed",
    ),
}


# GW-124: a flag that denies data collection is a demand, and no preference.
@pytest.mark.parametrize(("members", "said"), SENT_BY_CLIENTS.values(), ids=SENT_BY_CLIENTS.keys())
async def test_what_is_enforced_goes_out_though_the_client_sent(tmp_path, members, said):
    sent = []
    got = await asked(tmp_path, sent, tags="brief", **members)
    assert got.status_code == 200, got.text
    assert sent[0]["provider"] == {"zdr": True, "data_collection": "deny"}
    assert "Provider" not in sent[0]
    assert got.headers.get("x-fareway-adapted", "") == said


async def test_what_is_not_enforced_stays_the_client_s(tmp_path):
    sent = []
    await asked(tmp_path, sent, provider={"sort": "price", "zdr": False})
    assert sent[0]["provider"] == {"sort": "price", "zdr": True, "data_collection": "deny"}


TOOLS = {
    "one that may": ("brief", {"web_search_options": {}}, None),
    "one that may not": ("brief", {"tools": [{"type": "mcp"}]}, "tool mcp lacks zero_retention"),
    "one that may not, beside one that may": (
        "brief",
        {"web_search_options": {}, "plugins": [{"id": "x"}]},
        "tool other lacks zero_retention",
    ),
    "any, where nothing is required": ("open", {"tools": [{"type": "mcp"}]}, None),
    "none, where the deployment may not": ("near", {}, "lacks direct"),
}


@pytest.mark.parametrize(("tags", "members", "said"), TOOLS.values(), ids=TOOLS.keys())
async def test_a_tagged_request_uses(tmp_path, tags, members, said):
    sent = []
    got = await asked(tmp_path, sent, tags=tags, **members)
    if said is None:
        assert (got.status_code, len(sent)) == (200, 1), got.text
        return
    assert (got.status_code, sent) == (403, [])
    error = got.json()["error"]
    assert error["code"] == "privacy_denied"
    assert said in error["message"]


async def test_an_image_from_an_address_is_not_fetched_for_a_tagged_request(tmp_path):
    sent = []
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    got = await asked(tmp_path, sent, tags="brief", messages=[{"role": "user", "content": [image]}])
    assert (got.status_code, sent) == (403, [])
    assert "tool url_fetch lacks zero_retention" in got.json()["error"]["message"]


def written(provider: str) -> str:
    return f"providers: {{p: {provider}}}\nmodels: {{m: {{deployments: [p/x]}}}}\n"


def claimed(provider: str) -> dict[str, str]:
    """What counts of a deployment, with its condition."""
    [deployment] = build_policy(load_settings(written(provider)).settings).source.deployments
    return {claim.attribute: claim.condition for claim in deployment.claims}


DOCUMENTED = {
    "a vendor": ("{kind: groq}", {"direct": "", "no_train": ""}),
    "a vendor of whom less is known": ("{kind: together}", {"direct": ""}),
    "an aggregator": ("{kind: openrouter}", {"no_train": "provider.data_collection=deny"}),
    "a vendor behind somebody's proxy": ('{kind: groq, base_url: "http://proxy.corp/v1"}', {}),
    "a vendor at another of its hosts": (
        '{kind: openai, base_url: "https://eu.api.openai.com/v1"}',
        {"direct": "", "no_train": ""},
    ),
    "a vendor without a claim": ("{kind: groq, trust: []}", {"direct": ""}),
    "a server": ('{kind: vllm, base_url: "http://10.0.0.1/v1"}', {}),
    "a server at a vendor's host": (
        '{kind: openai_compatible, base_url: "https://api.groq.com/openai/v1"}',
        {},
    ),
}


@pytest.mark.parametrize(("provider", "known"), DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_without_trust_what_is_documented_counts(provider, known):
    assert claimed(provider) == known


BEYOND = {
    "more than the vendor documents": ("{kind: groq, trust: [dpa]}", "`dpa` is more than is"),
    "what holds on a condition, without one": (
        "{kind: openrouter, trust: [no_train]}",
        "`no_train` is more than is documented of openrouter",
    ),
    "a server on a public host": (
        '{kind: vllm, base_url: "https://llm.example.com/v1", trust: [no_train]}',
        "`no_train` is more than is",
    ),
    "an aggregator that is direct": (
        "{kind: openrouter, trust: [{attribute: direct, evidence: x}]}",
        "kind openrouter hands requests on",
    ),
    "an aggregator behind a proxy": (
        '{kind: openrouter, base_url: "http://proxy.corp/v1", trust: [direct]}',
        "kind openrouter hands requests on",
    ),
    "another one by its host": (
        (
            '{kind: openai_compatible, base_url: "https://openrouter.ai/api/v1",'
            " trust: [{attribute: direct, evidence: x}]}"
        ),
        "openrouter.ai hands requests on",
    ),
    "a condition that nothing enforces": (
        (
            '{kind: vllm, base_url: "http://10.0.0.1/v1",'
            " trust: [{attribute: a, condition: provider.zdr=true}]}"
        ),
        "nothing enforces `provider.zdr=true`",
    ),
    "an enforced model": (
        '{kind: vllm, base_url: "http://10.0.0.1/v1", enforce: {model: x}}',
        "model is what clients ask for",
    ),
    "an enforced name that is a path": (
        '{kind: vllm, base_url: "http://10.0.0.1/v1", enforce: {"a.b": x}}',
        "'a.b' is no name of a member",
    ),
    "an enforced fraction": (
        '{kind: vllm, base_url: "http://10.0.0.1/v1", enforce: {a: 0.5}}',
        "providers.p.enforce",
    ),
    "an empty object": (
        '{kind: vllm, base_url: "http://10.0.0.1/v1", enforce: {a: {}}}',
        "enforces nothing",
    ),
}


@pytest.mark.parametrize(("provider", "said"), BEYOND.values(), ids=BEYOND.keys())
def test_a_file_may_not_say(provider, said):
    problems = problems_of(written(provider))
    assert any(said in problem for problem in problems), problems


STATED = {
    "what is documented": "{kind: groq, trust: [no_train, direct]}",
    "more, with evidence": "{kind: groq, trust: [{attribute: dpa, evidence: contract 7}]}",
    "anything of a server in a private network": (
        '{kind: vllm, base_url: "http://10.0.0.1/v1", trust: [no_train]}'
    ),
    "what an aggregator documents, on its condition": (
        "{kind: openrouter, enforce: {provider: {data_collection: deny}},"
        " trust: [{attribute: no_train, condition: provider.data_collection=deny}]}"
    ),
}


@pytest.mark.parametrize("provider", STATED.values(), ids=STATED.keys())
def test_a_file_may_say(provider):
    assert problems_of(written(provider)) == []


def test_a_tool_that_nobody_knows_has_no_settings():
    [problem] = problems_of("privacy: {tools: {web_serch: {}}}\n")
    assert "web_search" in problem


def changed(text: str) -> bool:
    old = TEXT.format(url="http://10.0.0.1/v1")
    return asks_more(load_settings(old).settings, load_settings(text).settings)


def test_a_newer_configuration_may_ask_more_than_an_older_process_can_do():
    text = TEXT.format(url="http://10.0.0.1/v1")
    assert not changed(text)
    assert not changed(text.replace("near:", "far:")), "permits see to tags"
    assert changed(text.replace("deny}", "allow}"))
    assert changed(text + "  sinks: {traces: [open]}\n")
    assert changed(text + "  detect: {mode: enforce, iban: [brief]}\n")
    plain = text.replace("    enforce: {provider: {zdr: true, data_collection: deny}}\n", "")
    assert changed(plain.replace(", condition: provider.zdr=true", ""))


async def test_a_process_that_cannot_do_what_is_asked_now_takes_no_request(tmp_path):
    text = TEXT.format(url="http://127.0.0.1:9/v1")
    async with running_gateway(tmp_path, {}, text=text) as gateway:
        gateway.service.is_superseded = True
        got = await gateway.post(body())
    assert (got.status_code, got.json()["error"]["code"]) == (503, "draining")
    assert "the configuration has changed" in got.json()["error"]["message"]
    assert got.headers["retry-after"] == "1"


REPEATED = {
    "tags in the metadata": '"metadata":{"fareway_tags":"brief","fareway_tags":""}',
    "tags, once in escapes": r'"metadata":{"fareway_tags":"brief","\u0066areway_tags":"open"}',
    "the metadata": '"metadata":{"fareway_tags":"brief"},"metadata":{}',
    "the metadata, then nothing": '"metadata":{"fareway_tags":"brief"},"metadata":null',
}


@pytest.mark.parametrize("members", REPEATED.values(), ids=REPEATED.keys())
def test_what_stands_twice_is_refused(members):
    text = '{"model":"chat","messages":[{"role":"user","content":"hi"}],' + members + "}"
    with pytest.raises(InvalidRequest, match="is given twice; send it once"):
        parse(text.encode())


def test_what_only_looks_like_a_repetition_is_taken():
    told = '"metadata":{"a":"\\"metadata\\"","b":{"fareway_tags":"x","metadata":1},"c":1,"c":2,'
    text = '{"model":"chat","messages":[{"role":"user","content":"hi"}],' + told
    parsed = parse((text + '"fareway_tags":"brief"}}').encode())
    assert parsed.metadata is not None
    assert "fareway_tags" in parsed.metadata
