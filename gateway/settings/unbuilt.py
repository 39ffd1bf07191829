"""What the file may say and Fareway cannot do yet; the list may only shrink.

`config check` accepts all of it. `serve` refuses to start while any of it is in use, because a
setting that is read and has no effect would be a promise broken in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.settings.credentials import SecretReference
from gateway.settings.document import Settings
from gateway.settings.errors import Problem
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider
from gateway.settings.validation import Path

BUILT_KINDS = frozenset({"local", "openai_compatible"})

Uses = Iterator[tuple[Path, str]]
"""Paths in use and what to call them."""


def _provider_kinds(settings: Settings) -> Uses:
    for name, provider in settings.providers.items():
        if provider.kind not in BUILT_KINDS:
            yield ("providers", name, "kind"), f"kind {provider.kind}"


def _content_log(settings: Settings) -> Uses:
    if settings.storage.content_log != "none":
        yield ("storage", "content_log"), "a content log"


def _stored_objects(settings: Settings) -> Uses:
    if settings.stored_objects.enabled:
        yield ("stored_objects", "enabled"), "stored objects"


def _slas(settings: Settings) -> Uses:
    for name, model in settings.models.items():
        if model.routing.sla is not None:
            yield ("models", name, "routing", "sla"), "an SLA"


def _strategies(settings: Settings) -> Uses:
    if settings.routing.strategy != "cheapest":
        yield ("routing", "strategy"), f"strategy {settings.routing.strategy}"
    for name, model in settings.models.items():
        if model.routing.strategy not in (None, "cheapest"):
            yield ("models", name, "routing", "strategy"), f"strategy {model.routing.strategy}"


def _hedging(settings: Settings) -> Uses:
    if settings.routing.hedge.enabled:
        yield ("routing", "hedge", "enabled"), "hedging"


def _sinks(settings: Settings) -> Uses:
    sinks = settings.privacy.sinks
    if sinks.content_log:
        yield ("privacy", "sinks", "content_log"), "the content log as a sink"
    if sinks.response_cache:
        yield ("privacy", "sinks", "response_cache"), "the response cache as a sink"
    if sinks.batch_files:
        yield ("privacy", "sinks", "batch_files"), "batch files as a sink"
    if sinks.exports:
        yield ("privacy", "sinks", "exports"), "exports as a sink"


def _secret_stores(settings: Settings) -> Uses:
    for path, source in secret_references(settings):
        if source.ref is not None:
            yield path, "a secret store reference"


def secret_references(settings: Settings) -> Iterator[tuple[Path, SecretReference]]:
    """Every secret that the settings refer to, with the path of the setting in its `_ref` form."""
    yield ("admin", "key_ref"), settings.admin.key
    yield ("secrets", "master_key_ref"), settings.secrets.master_key
    for index, source in enumerate(settings.secrets.previous):
        yield ("secrets", "previous", index, "ref"), source
    storage = settings.storage
    if storage.database_password is not None:
        yield ("storage", "database_password_ref"), storage.database_password
    if storage.redis_password is not None:
        yield ("storage", "redis_password_ref"), storage.redis_password
    if settings.telemetry.otlp_authorization is not None:
        yield ("telemetry", "otlp_authorization_ref"), settings.telemetry.otlp_authorization
    oidc = settings.login.oidc
    if oidc is not None and oidc.client_secret is not None:
        yield ("login", "oidc", "client_secret_ref"), oidc.client_secret
    for name, provider in settings.providers.items():
        source = None if isinstance(provider, LocalProvider) else provider.api_key
        if source is not None:
            yield ("providers", name, "api_key_ref"), source
    for name, team in settings.teams.items():
        for index, key in enumerate(team.keys):
            yield ("teams", name, "keys", index, "value_ref"), key.value
    mail = settings.finance.mail
    if mail is not None and mail.password is not None:
        yield ("finance", "mail", "password_ref"), mail.password
    for index, webhook in enumerate(settings.alerts.webhooks):
        yield ("alerts", "webhooks", index, "secret_ref"), webhook.secret


UNBUILT: Mapping[str, Callable[[Settings], Uses]] = {
    "provider kinds": _provider_kinds,
    "content log": _content_log,
    "stored objects": _stored_objects,
    "slas": _slas,
    "strategies": _strategies,
    "hedging": _hedging,
    "sinks": _sinks,
    "secret stores": _secret_stores,
}
"""The list; a row goes when the thing is built."""


def unbuilt(loaded: LoadedConfig) -> tuple[Problem, ...]:
    """Every use of something that is not built yet, in the order of the file."""
    problems: list[Problem] = []
    for uses in UNBUILT.values():
        for path, what in uses(loaded.settings):
            place = loaded.locate(*path)
            problems.append(place.problem(f"{what}: not built yet, take it out to serve"))
    return tuple(sorted(problems, key=lambda problem: (problem.file, problem.line or 0)))
