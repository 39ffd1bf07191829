"""Section `telemetry`: what the gateway tells about itself, and to whom; never content."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from gateway.settings.credentials import SecretReference, reference
from gateway.settings.scalars import (
    EnvName,
    FilePath,
    Name,
    Section,
    Share,
    StoreReference,
    check_http_url,
)

TRACES_PATH = "/v1/traces"
"""Where a collector takes spans (OTLP/HTTP)."""


def _check_endpoint(value: str) -> str:
    place = "otlp_authorization_env or otlp_authorization_file"
    url = check_http_url(value, credentials=place)
    if url.endswith(TRACES_PATH):
        raise ValueError(f"must end before {TRACES_PATH}, which is added to it")
    return url


Endpoint = Annotated[str, AfterValidator(_check_endpoint)]


class TelemetrySettings(Section):
    """Logs and traces."""

    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line, from every process; `text`: lines for people."""
    access_log: bool = False
    """Whether each request leaves a line in the log: who, where to, how long, what it cost."""
    otlp_endpoint: Endpoint | None = None
    """OTLP/HTTP collector such as `http://127.0.0.1:4318`; spans go to its `/v1/traces`. Needs the
    extra `otel`."""
    otlp_authorization_env: EnvName | None = None
    """Environment variable with the `Authorization` header for the collector."""
    otlp_authorization_file: FilePath | None = None
    """File with the `Authorization` header for the collector."""
    otlp_authorization_ref: StoreReference | None = None
    """Secret store reference of the `Authorization` header for the collector."""
    service_name: Name = "fareway"
    """What spans call this service."""
    sample_ratio: Share = 1.0
    """Share of requests that are traced, of those whose client did not decide it."""

    @property
    def otlp_authorization(self) -> SecretReference | None:
        """Where the collector's `Authorization` header is kept, None when it needs none."""
        return reference(
            self.otlp_authorization_env,
            self.otlp_authorization_file,
            self.otlp_authorization_ref,
            name="otlp_authorization",
        )

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        _ = self.otlp_authorization
        return self
