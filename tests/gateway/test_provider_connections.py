"""How providers are reached: what the file may say of it, what is checked before anything is sent."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gateway.process.preflight import require_provider_keys
from gateway.process.provider_connections import transport_options
from gateway.settings.errors import ConfigError
from gateway.settings.loader import LoadedConfig
from providers.transport import TransportOptions
from tests.gateway.settings_text import load_settings, problems_of

CERTIFICATES = Path(__file__).resolve().parents[1] / "providers" / "transport_tls"
SERVER = "providers: {s: {kind: openai_compatible, base_url: 'https://10.0.0.5/v1', %s}}"

REFUSED = {
    "a proxy that is no URL": (
        "proxy_url: proxy.internal",
        "proxy_url: must be a URL that begins with http:// or https://",
    ),
    "a proxy of another kind": (
        "proxy_url: 'socks5://proxy.internal:1080'",
        "proxy_url: must be a URL that begins with http:// or https://",
    ),
    "a proxy with its password": (
        "proxy_url: 'http://user:hunter2@proxy.internal'",
        "proxy_url: must not hold a user name or password; use proxy_credentials_env",
    ),
    "a proxy with a path": (
        "proxy_url: 'http://proxy.internal/v1'",
        ("proxy_url: must be scheme, host and port alone, such as http://proxy.internal:3128"),
    ),
    "credentials without a proxy": (
        "proxy_credentials_env: PROXY",
        "proxy_credentials need a proxy_url",
    ),
    "credentials in two places": (
        "proxy_url: 'http://p', proxy_credentials_env: A, proxy_credentials_file: b",
        "give only one of proxy_credentials_env, proxy_credentials_file and proxy_credentials_ref",
    ),
    "a key without its certificate": (
        "tls: {client_key_file: a.key}",
        "tls: client_key_file needs client_cert_file",
    ),
    "no connection at all": (
        "connections: {max: 0}",
        "connections.max: must be greater than or equal to 1",
    ),
    "a proxy at no port": (
        "proxy_url: 'http://proxy.internal:0'",
        "proxy_url: must have a port from 1 to 65535, or none",
    ),
    "a misspelt file": (
        "tls: {ca_fil: a.pem}",
        "tls.ca_fil: unknown key; did you mean `ca_file`?",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_a_problem_of_its_line(text: str, message: str) -> None:
    problems = problems_of(SERVER % text)
    assert len(problems) == 1
    assert problems[0].startswith("f.yaml:1: providers.s")
    assert message in problems[0]
    assert "hunter2" not in problems[0]


def options_of(text: str, **environ: str) -> TransportOptions:
    """The options of the one provider."""
    config = configured(text)
    provider = config.settings.providers["s"]
    return transport_options(provider, environ=environ, config=config)


def configured(text: str) -> LoadedConfig:
    return load_settings(SERVER % text, base_dir=CERTIFICATES)


def test_what_the_file_says_reaches_the_transport() -> None:
    options = options_of(
        "proxy_url: 'http://proxy.internal:3128/', proxy_credentials_env: PROXY, "
        "connections: {max: 7, waiting_max: 3, keep_alive_s: 2.5}",
        PROXY="user:hunter2",
    )
    assert options.proxy == "http://proxy.internal:3128"
    assert options.proxy_credentials == "user:hunter2"
    assert (options.connections_max, options.waiting_max, options.keep_alive_s) == (7, 3, 2.5)
    assert "hunter2" not in repr(options)


def test_nothing_said_trusts_the_platform_and_uses_no_proxy_of_the_environment() -> None:
    options = options_of(
        "trust: []", HTTPS_PROXY="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1"
    )
    assert (options.proxy, options.proxy_credentials) == (None, None)
    assert options.ssl_context is not None
    assert options.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert options.ssl_context.check_hostname
    # Reading the platform's authorities takes memory and time: once is enough.
    assert options_of("trust: []").ssl_context is options.ssl_context


def test_a_named_authority_is_the_only_one_that_is_trusted() -> None:
    context = options_of("tls: {ca_file: authority.pem}").ssl_context
    assert context is not None
    assert [dict(pair[0] for pair in one["subject"]) for one in context.get_ca_certs()] == [
        {"commonName": "Fareway tests authority"}
    ]


UNUSABLE = {
    "a file that is not there": (
        "tls: {ca_file: nothing.pem}",
        f"f.yaml:1: providers.s.tls.ca_file: cannot read {CERTIFICATES}/nothing.pem: No such file",
    ),
    "a key that is not there": (
        "tls: {client_cert_file: client.pem, client_key_file: nothing.key}",
        f"f.yaml:1: providers.s.tls.client_key_file: cannot read {CERTIFICATES}/nothing.key: No ",
    ),
    "an authority that is none": (
        "tls: {ca_file: upstream.key, client_cert_file: client.pem, client_key_file: client.key}",
        "f.yaml:1: providers.s.tls.ca_file: holds no certificate in PEM form",
    ),
    "a key of another certificate": (
        "tls: {client_cert_file: client.pem, client_key_file: upstream.key}",
        "f.yaml:1: providers.s.tls.client_cert_file: cannot be used with its key: ",
    ),
    "a key that is encrypted": (
        "tls: {client_cert_file: client.pem, client_key_file: client_encrypted.key}",
        "f.yaml:1: providers.s.tls.client_cert_file: cannot be used with its key: the key is encr",
    ),
    "credentials that are not set": (
        "proxy_url: 'http://p', proxy_credentials_env: PROXY",
        "f.yaml:1: providers.s.proxy_credentials_env: environment variable PROXY is not set",
    ),
}


@pytest.mark.parametrize(("text", "message"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_cannot_be_read_stops_the_start(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_provider_keys(configured(text), {})
    assert [str(problem)[: len(message)] for problem in caught.value.problems] == [message]
