"""Each kind of value: what is refused, and that the refusal says the form."""

import pytest

from gateway.settings.credentials import SecretReference
from gateway.settings.document import Settings
from tests.gateway.settings_text import load_settings, problems_of

G = "providers: {g: {kind: groq, "
VALUES_REFUSED = {
    "an amount that is a truth": (G + "price: {request_usd: true}}}", "an amount in US dollars"),
    "an amount in words": (G + "price: {request_usd: 'five'}}}", "an amount in US dollars"),
    "an amount that is not a number": (G + "price: {request_usd: '.nan'}}}", "an amount in US"),
    "more digits than any price has": (
        G + f"price: {{request_usd: 0.{'1' * 19}}}}}}}",
        "18 decimal",
    ),
    "an amount beyond all budgets": (
        G + "price: {request_usd: 1000000001}}}",
        "less than or equal",
    ),
    "a price without a rate": (G + "price: {valid_from: 2027-01-01}}}", "needs a rate"),
    "a public price that says nothing": (
        G + "price: {request_usd: 1, list: {}}}}",
        "list needs a rate",
    ),
    "a public price of another kind": (
        G + "price: {request_usd: 1, list: {gpu_usd_per_hour: 2}}}}",
        "list has gpu_usd_per_hour, but the price beside it is by usage",
    ),
    "a public price by usage beside one by the hour": (
        G + "price: {gpu_usd_per_hour: 2, list: {request_usd: 1}}}}",
        "list has request_usd, but the price beside it is by the hour",
    ),
    "a public price of what is not charged": (
        G + "price: {input_usd_per_mtok: 1, list: {cached_input_usd_per_mtok: 1, image_usd: 1}}}}",
        "list has image_usd, which the price beside it does not charge",
    ),
    "GPUs without their rate": (G + "price: {request_usd: 1, gpus: 2}}}", "belong to gpu_usd_per"),
    "a moment without its zone": (
        G + "price: {request_usd: 1, valid_from: '2027-01-01T00:00:00'}}}",
        "must say its time zone",
    ),
    "a moment that is a number": (G + "price: {request_usd: 1, valid_from: 7}}}", "datetime"),
    "a date in words": (
        G + "trust: [{attribute: a, evidence: x, expires: soon}]}}",
        "a date such as 2027-06-30",
    ),
    "a date that is a number": (
        G + "trust: [{attribute: a, evidence: x, expires: 20270630}]}}",
        "date",
    ),
    "a base URL of another scheme": (G + "base_url: 'ftp://h/v1'}}", "begins with http:// or"),
    "a base URL without a host": (G + "base_url: 'http:///v1'}}", "begins with http:// or"),
    "a base URL with a query": (G + "base_url: 'http://h/v1?key=x'}}", "no query and no fragment"),
    "a base URL with an impossible port": (G + "base_url: 'http://h:99999/v1'}}", "must be a URL"),
    "a base URL beyond ASCII": (G + "base_url: 'http://hôte/v1'}}", "in its xn-- form"),
    "a secret store reference without a field": (
        G + "api_key_ref: 'vault:x'}}",
        "vault:path#field",
    ),
    "an empty path": (G + "api_key_file: ''}}", "must be a path"),
    "a provider's name with a slash": (
        "providers: {a/b: {kind: groq}}",
        "a provider's name is made",
    ),
    "an empty name": ("teams: {'': {}}", "a name has 1 to 128 characters"),
    "a name of 129 characters": (f"teams: {{{'x' * 129}: {{}}}}", "a name has 1 to 128 characters"),
    "a deployment with a space": ("models: {m: {deployments: ['a/b c']}}", "without spaces"),
    "two credentials for Bedrock": (
        "providers: {b: {kind: bedrock, aws_region: eu-west-1, aws_profile: p, api_key_env: K}}",
        "an API key or aws_profile, not both",
    ),
    "a master key from two places": ("secrets: {previous: [{env: A, file: b}]}", "exactly one of"),
    "a fixed key from nowhere": ("teams: {t: {keys: [{name: k}]}}", "needs value_env, value_file"),
    "a database of another kind": (
        "storage: {database: 'mysql://h/d'}",
        "must be sqlite:///FILE or",
    ),
    "a database file with parameters": (
        "storage: {database: 'sqlite:///f.db?mode=ro'}",
        "without parameters",
    ),
    "a Redis of another kind": ("storage: {redis: 'memcached://h'}", "must be redis://host"),
    "a password for Redis in the query": (
        "storage: {redis: 'redis://h:6379/0?password=x'}",
        "must not hold a password",
    ),
    "a password for the database in the query": (
        "storage: {database: 'postgresql://u@h/d?sslmode=require&Password=x'}",
        "must not hold a password",
    ),
    "a password for Redis": ("storage: {redis: 'redis://:x@h:6379'}", "must not hold a password"),
    "a model source of another kind": (
        "providers: {l: {kind: local, models: [{id: x, source: 'http://h/x.gguf'}]}}",
        "is not in the form that this key takes",
    ),
    "an endless duration": ("server: {heartbeat_s: .inf}", "must be a number"),
    "a digest that is none": (
        "providers: {l: {kind: local, models: [{id: x, source: 'hf:a/b', sha256: abc}]}}",
        "is not in the form that this key takes",
    ),
}


@pytest.mark.parametrize(("text", "message"), VALUES_REFUSED.values(), ids=VALUES_REFUSED.keys())
def test_a_value_out_of_its_form_is_refused(text, message):
    (problem,) = problems_of(text)
    assert message in problem


def test_values_may_come_as_lists_too():
    document = {"include": ["a"], "privacy": {"floor": []}, "teams": {"t": {"models": ["m"]}}}
    settings = Settings.model_validate(document)
    assert settings.include == ("a",)
    assert settings.teams["t"].models == ("m",)


def test_where_passwords_are_kept_can_be_said():
    storage = load_settings(
        "storage: {database: 'postgresql://u@h/d', database_password_env: P, redis: 'redis://h', "
        "redis_password_file: f}"
    ).settings.storage
    assert storage.database_password == SecretReference(env="P")
    assert storage.redis_password == SecretReference(file="f")
