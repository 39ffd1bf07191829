"""A request that a fault of ours leads astray is refused where it would be sent, and only there."""

from __future__ import annotations

import ast
import functools
import logging
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from gateway.app import narrow_permits
from gateway.egress.destinations import origin
from gateway.privacy.permit import operator_permit
from gateway.privacy.policy import Policy
from providers.contract import AttemptFacts
from providers.errors import NotPermitted
from providers.transport import Transport
from providers.transport.head import place_of
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import UPSTREAM_KEY, body, running_gateway
from tests.gateway.settings_text import load_settings
from tests.providers.transport_harness import LIMITS, RawServer, serve_forever
from tests.style.tree import REPOSITORY

pytestmark = pytest.mark.anyio

TEXT = """
providers:
  ours: {{kind: openai_compatible, base_url: "{ours}", trust: [self_hosted]}}
  vendor: {{kind: openai_compatible, base_url: "{vendor}"}}
models:
  chat:
    deployments:
      - {{deployment: vendor/m, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}
      - {{deployment: ours/m, price: {{input_usd_per_mtok: 9, output_usd_per_mtok: 9}}}}
teams:
  apps: {{tags: [private], keys: [{{name: app, value_env: APP_KEY}}]}}
privacy: {{tags: {{private: {{require: [self_hosted]}}}}}}
"""


def lenient(policy: Policy) -> Policy:
    """The same policy with an evaluator that has lost what its tags require."""
    source = policy.source
    rules = {name: replace(rule, require=frozenset()) for name, rule in source.tags.items()}
    return Policy.of(replace(source, tags=rules))


async def misled(tmp_path, upstream, *, stream: bool):
    """Ask with a private key while the evaluator allows everything."""
    other = FakeProvider(name="ours", scripts=[answer("never asked")])
    text = TEXT.format(ours="http://127.0.0.1:9", vendor=upstream.url)
    async with running_gateway(tmp_path, {}, text=text) as gateway:
        admission = gateway.service.admission
        gateway.service.admission = replace(admission, policy=lenient(admission.policy))
        got = await gateway.post(body(stream=stream))
        [(intent, settlement)] = await gateway.settled()
        metrics = gateway.service.metrics.snapshot()
    assert other.calls == []
    return got, intent, settlement, metrics


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_evaluator_that_lost_its_rules_sends_nothing_to_a_vendor(tmp_path, caplog, stream):
    async with RawServer(serve_forever) as upstream:
        with caplog.at_level(logging.ERROR):
            got, intent, settlement, metrics = await misled(tmp_path, upstream, stream=stream)
        assert upstream.accepted == []
    assert got.status_code == 403
    assert got.json()["error"]["code"] == "privacy_denied"
    assert got.headers["x-fareway-attempts"] == "1", "nobody else is asked"
    assert intent.deployment == "vendor/m"
    assert (settlement.status, settlement.error_code) == ("not_sent", "egress_refused")
    counted = {one.family: one.values for one in metrics.series if one.labels == ("permit",)}
    assert counted == {"fareway_egress_refusals_total": [1]}
    [line] = [one for one in caplog.records if "egress guard" in one.getMessage()]
    assert "vendor/m" in line.getMessage()
    assert "hi" not in line.getMessage().split()
    assert UPSTREAM_KEY not in got.text + caplog.text


async def test_a_policy_that_becomes_stricter_before_the_dispatch_holds_for_it(tmp_path):
    """A request was admitted and is about to be sent when a newer configuration comes."""
    async with RawServer(serve_forever) as upstream:
        text = TEXT.format(ours="http://127.0.0.1:9", vendor=upstream.url).replace(
            "tags: [private], ", ""
        )
        async with running_gateway(tmp_path, {}, text=text) as gateway:
            permits = gateway.service.admission.permits
            newer = load_settings(text.replace("apps: {", "apps: {tags: [private], ")).settings

            class Coming(dict):
                """The providers; the newer configuration comes as an attempt looks for its own."""

                def __getitem__(self, name):
                    if not permits.is_narrowed:
                        narrow_permits(permits, newer)
                    return super().__getitem__(name)

            relay = gateway.service.relay
            gateway.service.relay = replace(relay, providers=Coming(relay.providers))
            got = await gateway.post(body())
            [(intent, settlement)] = await gateway.settled()
        assert upstream.accepted == []
    assert got.status_code == 403
    assert got.json()["error"]["code"] == "privacy_denied"
    assert (intent.deployment, settlement.status) == ("vendor/m", "not_sent")


async def test_a_permit_for_another_place_opens_no_connection() -> None:
    """GW-113: a base URL of somebody else's, whoever brought it in, is not where the request may go."""
    async with RawServer(serve_forever) as server:
        transport = Transport([server.url])
        place = place_of(URL(server.url))
        for origins in ({}, {"a/m": "http://rebind.test:80"}, {"b/m": place}):
            with pytest.raises(NotPermitted):
                await transport.send(
                    URL(server.url), permit=operator_permit("test", origins), deployment="a/m",
                    headers={}, body=b"{}", deadlines=LIMITS, facts=(facts := AttemptFacts()),
                )  # fmt: skip
            assert not facts.was_sent
        assert server.accepted == []
        await transport.close()


hosts = st.sampled_from(
    ["api.example.com", "API.Example.com", "api.example.com.", "127.0.0.1", "[::1]", "[FD00:0::7]",
     "localhost", "xn--bcher-kva.example"]
)  # fmt: skip


@given(
    st.sampled_from(["http", "https"]),
    hosts,
    st.none() | st.integers(1, 65_535),
    st.sampled_from(["", "/", "/v1", "/v1/chat/completions?a=b"]),
)
def test_the_configuration_and_the_transport_call_a_place_by_the_same_name(
    scheme, host, port, path
):
    url = f"{scheme}://{host}{'' if port is None else f':{port}'}{path}"
    assert origin(url) == place_of(URL(url))


@functools.cache
def callers() -> dict[str, set[str]]:
    """The files of ours that call something, by its last name."""
    found: dict[str, set[str]] = {}
    for folder in ("gateway", "providers", "local_engine"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text()
            if not re.search(r"EgressPermit\(|\.generate\(|\.require\(", text):
                continue  # most files; to parse them all takes seconds
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func).rpartition(".")[2]
                    found.setdefault(name, set()).add(path.relative_to(REPOSITORY).as_posix())
    return found


def test_every_road_to_an_engine_demands_a_permit():
    """A transport cannot be asked without one; an engine's client can, so its users are these."""
    roads = {path for path in callers()["generate"] if not path.startswith("local_engine/")}
    assert roads == {"providers/native/local.py", "gateway/process/local_links.py"}
    assert roads <= callers()["require"]


def test_nothing_but_the_policy_makes_permits():
    assert callers()["EgressPermit"] == {"gateway/privacy/permit.py"}
