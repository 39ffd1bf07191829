"""Every place that a configuration has this service connect to; pure.

The guard of each process takes its part of the list. What is not configured is not on it: a body, a
header or a discovery document of somebody else adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlsplit

from gateway.egress.lists import EgressList
from gateway.egress.places import PORTS, Place, index_hosts, place_of_url
from gateway.finance.machines.declared import watched_machines
from gateway.settings.document import Settings
from gateway.settings.egress import split_place
from gateway.settings.hosts import is_publicly_routable, vendor_domain
from gateway.settings.providers import (
    BedrockProvider,
    LocalProvider,
    ProviderSettings,
    VendorProvider,
    base_url_of,
)
from gateway.settings.storage import SQLITE_PREFIX
from gateway.settings.trust import SELF_HOSTED, TrustClaim, claims_attribute
from providers.addresses import Reach
from providers.contract import ENGINE

_HUB = "https://huggingface.co"
_HUB_PLACES = ("huggingface.co:443", "*.huggingface.co:443", "*.hf.co:443")
"""The hub and where it keeps large files."""
_MAIL_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_VENDOR_URLS = {
    "anthropic": "https://api.anthropic.com",
    "replicate": "https://api.replicate.com",
}
"""Of kinds that have no row in the catalogue of compatible vendors."""


class Role(StrEnum):
    """Which process connects; an engine never does."""

    SUPERVISOR = "supervisor"
    WORKER = "worker"
    LEDGER = "ledger"
    COMMAND = "command"
    """A command beside the service."""
    DOWNLOAD = "download"
    """pip, fetching a model's file."""


class Purpose(StrEnum):
    """What for."""

    PROVIDER = "provider"
    PROXY = "proxy"
    DATABASE = "database"
    REDIS = "redis"
    IDENTITY = "identity"
    TRACES = "traces"
    WEBHOOK = "webhook"
    MAIL = "mail"
    MODELS = "models"
    OPERATOR = "operator"


_ROLES: Mapping[Purpose, frozenset[Role]] = {
    Purpose.PROVIDER: frozenset({Role.WORKER}),
    Purpose.PROXY: frozenset({Role.WORKER}),
    Purpose.DATABASE: frozenset({Role.LEDGER, Role.COMMAND}),
    Purpose.REDIS: frozenset({Role.WORKER, Role.LEDGER, Role.COMMAND}),
    Purpose.IDENTITY: frozenset({Role.WORKER, Role.COMMAND}),
    Purpose.TRACES: frozenset({Role.WORKER}),
    Purpose.WEBHOOK: frozenset({Role.LEDGER}),
    Purpose.MAIL: frozenset({Role.LEDGER}),
    Purpose.MODELS: frozenset({Role.SUPERVISOR, Role.COMMAND, Role.DOWNLOAD}),
    Purpose.OPERATOR: frozenset(Role),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A place that may be connected to.

    Attributes:
        host: A name in lower case, `*.` before it for all names below it, or an address.
        port: The TCP port.
        purpose: What for.
        setting: Where the configuration says so, its keys joined by dots.
        reach: Where the machines behind a name may stand.
        roles: Processes that connect to it.
    """

    host: str
    port: int
    purpose: Purpose
    setting: str
    reach: Reach = Reach.ANY
    roles: frozenset[Role] = frozenset()

    @property
    def place(self) -> str:
        """`host:port`, as `egress.allow` takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def destinations(
    settings: Settings, *, environ: Mapping[str, str] | None = None, today: date | None = None
) -> tuple[Destination, ...]:
    """Every destination of a configuration, sorted by purpose and place, each once.

    Args:
        settings: The configuration.
        environ: For what pip, the hub's library and PostgreSQL's driver read there, None for none
            of it.
        today: For claims that expire; None takes them as they stand.
    """
    found = {
        (one.purpose, one.host, one.port): one
        for one in _all(settings, environ or {}, today)
        if one.host
    }
    return tuple(found[key] for key in sorted(found))


def for_role(listed: tuple[Destination, ...], role: Role) -> tuple[Destination, ...]:
    """Those that one kind of process connects to."""
    return tuple(one for one in listed if role in one.roles)


def egress_list(
    settings: Settings,
    role: Role,
    *,
    environ: Mapping[str, str] | None = None,
    today: date | None = None,
    more: Iterable[Destination] = (),
) -> EgressList:
    """What one kind of process may connect to under a configuration.

    Args:
        settings: The configuration.
        role: Which process.
        environ: As `destinations`.
        today: As `destinations`.
        more: What it needs beside.
    """
    listed = for_role(destinations(settings, environ=environ, today=today), role)
    return EgressList(
        places=tuple(Place(one.host, one.port, one.reach) for one in (*listed, *more)),
        is_enforced=settings.egress.mode == "enforce",
    )


def provider_url(provider: ProviderSettings) -> str | None:
    """Where a provider's requests go; None for the embedded engine, and where nobody knows."""
    stated = base_url_of(provider)
    if stated is not None:
        return stated
    if isinstance(provider, BedrockProvider):
        return f"https://bedrock-runtime.{provider.aws_region}.amazonaws.com"
    if not isinstance(provider, VendorProvider):
        return None
    if provider.kind in _VENDOR_URLS:
        return _VENDOR_URLS[provider.kind]
    # Imported when a vendor is configured without an address: it brings the transport along.
    from providers.compatible.row import load_catalog

    row = load_catalog().get(provider.kind)
    return None if row is None else row.base_url


def origin(url: str) -> str:
    """Scheme, host and port of a URL, the port written out: what a permit names a server by."""
    parts = urlsplit(url)
    host = normal_host(parts.hostname or "")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{parts.port or PORTS[parts.scheme]}"


def deployment_origins(settings: Settings, deployments: Iterable[str]) -> Mapping[str, str]:
    """Where each deployment is, as permits name places; without those that nobody knows.

    Args:
        settings: The configuration.
        deployments: Names, `provider/model-id`.
    """
    places: dict[str, str] = {}
    for name, provider in settings.providers.items():
        if isinstance(provider, LocalProvider):
            places[name] = ENGINE
        elif (url := provider_url(provider)) is not None:
            places[name] = origin(url)
    found: dict[str, str] = {}
    for deployment in deployments:
        place = places.get(deployment.partition("/")[0])
        if place is not None:
            found[deployment] = place
    return found


def provider_reach(settings: Settings, name: str, *, today: date | None = None) -> Reach:
    """Where the machines behind a provider's name may stand.

    Args:
        settings: The configuration.
        name: The provider's.
        today: For claims that expire.
    """
    provider = settings.providers[name]
    url = provider_url(provider)
    if url is None or isinstance(provider, LocalProvider):
        return Reach.ANY
    if provider.resolves_to is not None:
        return Reach(provider.resolves_to)
    host = urlsplit(url).hostname or ""
    if _is_address(host):
        return Reach.ANY  # it is what the operator wrote, and judged by that
    claims = [claim for claim in _self_hosted_claims(settings, name) if _counts(claim, today)]
    if isinstance(provider, VendorProvider | BedrockProvider) or vendor_domain(host) is not None:
        return Reach.PUBLIC
    if not claims:
        return Reach.PUBLIC if is_publicly_routable(host) else Reach.ANY
    has_proof = all(claim.evidence and claim.expires is not None for claim in claims)
    return Reach.ANY if has_proof else Reach.PRIVATE


def _self_hosted_claims(settings: Settings, name: str) -> Iterator[TrustClaim]:
    """Every claim of the provider, or of one of its deployments, that it is one's own."""
    stated = [settings.providers[name].trust]
    for model in settings.models.values():
        stated += [entry.trust for entry in model.deployments if entry.provider == name]
    for claims in stated:
        claim = claims_attribute(claims, SELF_HOSTED)
        if claim is not None:
            yield claim


def _counts(claim: TrustClaim, today: date | None) -> bool:
    return today is None or claim.expires is None or today < claim.expires


def _all(
    settings: Settings, environ: Mapping[str, str], today: date | None
) -> Iterator[Destination]:
    yield from _of_providers(settings, today)
    yield from _of_storage(settings, environ)
    yield from _of_login(settings)
    telemetry = settings.telemetry
    if telemetry.otlp_endpoint is not None:
        yield _from_url(telemetry.otlp_endpoint, Purpose.TRACES, "telemetry.otlp_endpoint")
    for index, webhook in enumerate(settings.alerts.webhooks):
        yield _from_url(webhook.url, Purpose.WEBHOOK, f"alerts.webhooks.{index}.url")
    mail = settings.finance.mail
    if mail is not None:
        port = mail.port or _MAIL_PORTS[mail.security]
        yield _made(mail.host, port, Purpose.MAIL, "finance.mail.host")
    yield from _of_models(settings, environ)
    for index, place in enumerate(settings.egress.allow):
        yield _made(*split_place(place), Purpose.OPERATOR, f"egress.allow.{index}")


def _of_providers(settings: Settings, today: date | None) -> Iterator[Destination]:
    watched = {one.provider for one in watched_machines(settings)}
    for name, provider in settings.providers.items():
        if isinstance(provider, LocalProvider):
            continue
        # The supervisor looks at servers that are watched.
        more = frozenset({Role.SUPERVISOR}) if name in watched else frozenset[Role]()
        if provider.proxy_url is not None:
            # The proxy is what we connect to; it alone looks the upstream's name up.
            made = _from_url(provider.proxy_url, Purpose.PROXY, f"providers.{name}.proxy_url")
            yield replace(made, roles=made.roles | more)
            continue
        url = provider_url(provider)
        if url is not None:
            made = _from_url(
                url,
                Purpose.PROVIDER,
                f"providers.{name}",
                reach=provider_reach(settings, name, today=today),
            )
            yield replace(made, roles=made.roles | more)


def _of_storage(settings: Settings, environ: Mapping[str, str]) -> Iterator[Destination]:
    storage = settings.storage
    if not storage.database.startswith(SQLITE_PREFIX):
        parts = urlsplit(storage.database)
        query = dict(parse_qsl(parts.query))
        port = str(parts.port or query.get("port") or environ.get("PGPORT") or "")
        hosts = ",".join(filter(None, (parts.hostname, query.get("host")))).split(",")
        for host in hosts:
            if host.startswith("/"):
                continue  # a Unix socket, which leads to no network
            number = int(port) if port.isascii() and port.isdigit() else PORTS["postgresql"]
            yield _made(host, number, Purpose.DATABASE, "storage.database")
    if storage.redis is not None:
        yield _from_url(storage.redis, Purpose.REDIS, "storage.redis")


def _of_login(settings: Settings) -> Iterator[Destination]:
    oidc = settings.login.oidc
    if oidc is None:
        return
    issuer = _from_url(oidc.issuer, Purpose.IDENTITY, "login.oidc.issuer")
    yield issuer
    for index, host in enumerate(oidc.hosts):
        yield _made(host, issuer.port, Purpose.IDENTITY, f"login.oidc.hosts.{index}")


def _of_models(settings: Settings, environ: Mapping[str, str]) -> Iterator[Destination]:
    has_download = False
    for name, provider in settings.providers.items():
        if not isinstance(provider, LocalProvider):
            continue
        for index, model in enumerate(provider.models):
            setting = f"providers.{name}.models.{index}.source"
            yield from of_source(model.source, setting, environ)
            has_download = has_download or not model.source.startswith("file:")
    if has_download:
        yield from environment_proxies(environ)


def of_source(source: str, setting: str, environ: Mapping[str, str]) -> Iterator[Destination]:
    """What fetching a model's file connects to, without the environment's proxies.

    Args:
        source: As `providers.*.models.*.source`.
        setting: Where it is written.
        environ: `HF_ENDPOINT`, `PIP_INDEX_URL` and `PIP_EXTRA_INDEX_URL` name other places.
    """
    if source.startswith("hf:"):
        endpoint = environ.get("HF_ENDPOINT") or _HUB
        if endpoint.rstrip("/") != _HUB:
            yield _from_url(endpoint, Purpose.MODELS, setting)
            return
        for place in _HUB_PLACES:
            yield _made(*split_place(place), Purpose.MODELS, setting)
    elif source.startswith("pypi:"):
        indexes = f"{environ.get('PIP_INDEX_URL', '')} {environ.get('PIP_EXTRA_INDEX_URL', '')}"
        for url in indexes.split():
            yield _from_url(url, Purpose.MODELS, setting)
        if not environ.get("PIP_INDEX_URL"):
            for host in index_hosts():
                yield _made(host, 443, Purpose.MODELS, setting)


def environment_proxies(environ: Mapping[str, str]) -> Iterator[Destination]:
    """What downloads go through, where the machine's own tools do; nothing else does."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "PIP_PROXY"):
        for written in (name, name.lower()):
            if environ.get(written):
                yield _from_url(environ[written], Purpose.MODELS, f"environment.{written}")


def _from_url(url: str, purpose: Purpose, setting: str, *, reach: Reach = Reach.ANY) -> Destination:
    host, port = place_of_url(url) or ("", 0)
    return _made(host, port, purpose, setting, reach=reach)


def _made(
    host: str, port: int, purpose: Purpose, setting: str, *, reach: Reach = Reach.ANY
) -> Destination:
    return Destination(
        host=normal_host(host),
        port=port,
        purpose=purpose,
        setting=setting,
        reach=reach,
        roles=_ROLES[purpose],
    )


def normal_host(host: str) -> str:
    """A host in the one form that hosts are compared in."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
