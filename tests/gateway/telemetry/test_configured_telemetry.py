"""What the section `telemetry` switches on, and what stops the start."""

from __future__ import annotations

import importlib.metadata

import pytest

from gateway.app import build_trails
from gateway.clock import system_clock
from gateway.process.preflight import require_collector
from gateway.settings.errors import ConfigError
from gateway.settings.unbuilt import unbuilt
from tests.gateway.settings_text import load_settings

HAS_SDK = "opentelemetry-sdk" in {
    found.metadata["Name"] for found in importlib.metadata.distributions()
}
ENDPOINT = "otlp_endpoint: http://127.0.0.1:4318"
AUTHORIZED = f"{ENDPOINT}, otlp_authorization_env: OTLP_TOKEN"


def settings(text: str = ""):
    return load_settings(f"telemetry: {{{text}}}")


def test_by_default_nothing_is_kept_of_a_request():
    assert build_trails(settings(), {}, system_clock()) is None


def test_an_access_log_needs_no_library():
    trails = build_trails(settings("access_log: true"), {}, system_clock())
    assert trails is not None
    assert trails.start(b"0" * 16, "r", []).start_attempt("a/m", 1).traceparent is None


@pytest.mark.skipif(not HAS_SDK, reason="the extra `otel` is not installed")
def test_an_endpoint_traces_requests():
    trails = build_trails(settings(AUTHORIZED), {"OTLP_TOKEN": "Bearer x"}, system_clock())
    assert trails is not None
    trail = trails.start(b"0" * 16, "r", [])
    assert trail.start_attempt("a/m", 1).traceparent is not None
    trails._traces._shut_down()


def test_without_an_endpoint_nothing_is_required():
    require_collector(settings("otlp_authorization_env: OTLP_TOKEN"), {})


def test_an_endpoint_requires_the_library():
    if HAS_SDK:
        require_collector(settings(ENDPOINT), {})
        return
    with pytest.raises(ConfigError, match=r"telemetry.otlp_endpoint.*fareway\[otel\]"):
        require_collector(settings(ENDPOINT), {})


def test_a_collectors_header_that_cannot_be_read_stops_the_start():
    with pytest.raises(ConfigError, match=r"telemetry.otlp_authorization_env.*OTLP_TOKEN"):
        require_collector(settings(AUTHORIZED), {})


def test_a_secret_store_for_the_header_is_not_built_yet():
    config = settings(f"{ENDPOINT}, otlp_authorization_ref: 'vault:a#b'")
    (problem,) = unbuilt(config)
    assert problem.key_path == "telemetry.otlp_authorization_ref"


def test_a_faulty_endpoint_is_told_its_mend():
    with pytest.raises(ConfigError, match="use otlp_authorization_env or otlp_authorization_file"):
        settings("otlp_endpoint: 'http://u:p@h'")
    with pytest.raises(ConfigError, match="must end before /v1/traces, which is added to it"):
        settings("otlp_endpoint: 'http://h:4318/v1/traces/'")


REFUSED = {
    "a share over one": "sample_ratio: 1.5",
    "an endpoint that is no URL": "otlp_endpoint: collector",
    "an endpoint with a password": "otlp_endpoint: 'http://u:p@h'",
    "two places of one secret": "otlp_authorization_env: A, otlp_authorization_file: b",
    "a form that does not exist": "log_format: xml",
    "a key that does not exist": "acces_log: true",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_meaning_is_refused(text):
    with pytest.raises(ConfigError):
        settings(text)
