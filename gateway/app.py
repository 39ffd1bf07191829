"""The composition root: from a checked configuration to a worker's service. The only one."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.admission.admit import Admission
from gateway.admission.floors import rules_of_teams
from gateway.auth.directory import KeyDirectory, KeyRecord, KeySnapshot
from gateway.auth.keys import hash_key
from gateway.budgets.holds import Holds
from gateway.channel import Channel
from gateway.clock import Clock, uuid7_maker
from gateway.detection_setup import build_detection
from gateway.egress.destinations import deployment_origins
from gateway.finance.focus.parties import parties_of
from gateway.finance.spend_question import Reporting
from gateway.fleet import Fleet, build_fleet, build_policy
from gateway.health import HealthBoard
from gateway.http.errors import row_of
from gateway.http.service import Service
from gateway.ledger.spool import Durability, SpoolWriter
from gateway.limits.limiter import Limiter
from gateway.limits.memory import LimitMemory
from gateway.limits.rules import LimitBook, TeamLimits
from gateway.limits.shared import Connection, SharedLimits
from gateway.policy_proof import proved_policy
from gateway.privacy.model import PolicySource
from gateway.privacy.permit import Permits
from gateway.privacy.policy import Policy
from gateway.relay.attempts import Relay
from gateway.relay.exposure import Exposures
from gateway.relay.job import RelayLimits
from gateway.relay.journal import Journal
from gateway.relay.retry_budget import RetryBudget
from gateway.settings.database import redis_password
from gateway.settings.declared_keys import fixed_key_records, load_admin_key
from gateway.settings.document import Settings
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalProvider
from gateway.settings.secrets import Label, load_master_keys, resolve
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.snapshot import Series
from gateway.telemetry.sources import wire_fault_series
from gateway.telemetry.traces import Traces, make_traces, otlp_exporter
from gateway.telemetry.trail import Trails
from providers.contract import Deadlines, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a worker needs to recognise keys, hashed.

    Attributes:
        declared: Keys of the configuration file.
        admin_digest: HMAC of the administrator's key.
        peppers: The current one first.
        namespace_key: Tenant namespaces are derived with it.
        pseudonym_key: Names of persons in exports are replaced with it.
        certificate_keys: Certificates of policies are signed with one of them.
        session_key: The dashboard's cookies are signed with it.
        oidc_secret: The client secret at the identity provider, empty for none.
    """

    declared: tuple[KeyRecord, ...]
    admin_digest: bytes | None
    peppers: Sequence[bytes]
    namespace_key: bytes
    session_key: bytes
    pseudonym_key: bytes
    certificate_keys: Sequence[bytes] = ()
    oidc_secret: str = ""

    def hash_token(self, token: bytes) -> bytes:
        """What is kept in place of a new key: its HMAC with the current pepper."""
        return hash_key(self.peppers[0], token)

    def directory(
        self, database_keys: Sequence[KeyRecord], revision: int, *, is_complete: bool = True
    ) -> KeyDirectory:
        """All keys, of the file and of the database.

        Raises:
            ValueError: A key is declared twice.
        """
        snapshot = KeySnapshot(
            revision=revision,
            is_complete=is_complete,
            records=(*self.declared, *database_keys),
            admin_digest=self.admin_digest,
        )
        return KeyDirectory(snapshot, peppers=self.peppers, namespace_key=self.namespace_key)


def load_credentials(config: LoadedConfig, environ: Mapping[str, str]) -> Credentials:
    """Read and hash the keys of the configuration.

    Raises:
        SettingsError: A secret is missing or malformed.
    """
    master = load_master_keys(config, environ=environ, random_bytes=secrets.token_bytes)
    pepper = master.derive(Label.KEY_PEPPER)
    admin = load_admin_key(config, environ=environ, pepper=pepper, random_bytes=secrets.token_bytes)
    return Credentials(
        declared=fixed_key_records(config, environ=environ, pepper=pepper),
        admin_digest=admin.digest,
        peppers=master.derive_all(Label.KEY_PEPPER),
        namespace_key=master.derive(Label.NAMESPACE),
        session_key=master.derive(Label.SESSION),
        pseudonym_key=master.derive(Label.PSEUDONYM),
        certificate_keys=master.derive_all(Label.CERTIFICATE),
        oidc_secret=_oidc_secret(config, environ),
    )


def _oidc_secret(config: LoadedConfig, environ: Mapping[str, str]) -> str:
    oidc = config.settings.login.oidc
    if oidc is None or oidc.client_secret is None:
        return ""
    return resolve(oidc.client_secret, environ=environ, config=config)


def build_service(
    *,
    config: LoadedConfig,
    credentials: Credentials,
    database_keys: Sequence[KeyRecord],
    revision: int,
    providers: Mapping[str, Provider],
    health: HealthBoard,
    spool: SpoolWriter,
    clock: Clock,
    supervisor: Channel | None,
    holds: Holds,
    trails: Trails | None = None,
    limits: Limiter | None = None,
    has_all_keys: bool = True,
    policy: Policy | None = None,
) -> Service:
    """Put a worker's service together; without `limits`, with limits of this process alone.

    Without a `policy`, which must be certified, it is proved here.

    Raises:
        PolicyUnproved: The policy does not hold.
        ValueError: A key is declared twice.
    """
    settings = config.settings
    health.quota_groups = quota_groups(settings)
    rng = random.Random()  # seeded by the kernel
    metrics = Metrics(secrets.token_hex(8))
    new_id = uuid7_maker(clock, rng)
    relay = Relay(
        providers=providers,
        journal=Journal(spool=spool, clock=clock, new_id=new_id),
        limits=relay_limits(settings),
        clock=clock,
        rng=rng,
        metrics=metrics,
        health=health,
        budget=_retry_budget(settings, clock),
        status_of=lambda error: row_of(error).status,
        holds=holds,
        exposures=Exposures(speed=health.speed),
    )
    service = Service(
        directory=credentials.directory(database_keys, revision, is_complete=has_all_keys),
        admission=build_admission(settings, providers, health=health, clock=clock, policy=policy),
        detection=build_detection(settings.privacy.detect),
        limits=limits or build_limiter(config, clock=clock),
        relay=relay,
        metrics=metrics,
        scraper=Scraper(metrics=metrics, supervisor=supervisor),
        clock=clock,
        new_id=new_id,
        max_body_bytes=settings.server.max_body_mib * 1024 * 1024,
        supervisor=supervisor,
        hash_token=credentials.hash_token,
        session_key=credentials.session_key,
        pseudonym_key=credentials.pseudonym_key,
        parties=parties_of(settings),
        login=settings.login,
        oidc_secret=credentials.oidc_secret,
        spool_fault=spool.fault,
        started_s=clock.wall_us() // 1_000_000,
        finance=settings.finance,
        reporting=Reporting.of(settings, base_dir=config.base_dir),
        trails=trails,
    )
    _add_series(service, providers, spool)
    return service


def _add_series(service: Service, providers: Mapping[str, Provider], spool: SpoolWriter) -> None:
    service.metrics.add_source(lambda: wire_fault_series(providers))
    service.metrics.add_source(lambda: _worker_series(service, spool))


def _retry_budget(settings: Settings, clock: Clock) -> RetryBudget:
    return RetryBudget(
        share_ratio=settings.routing.retries.budget_percent / 100.0,
        monotonic_s=clock.monotonic_s,
    )


def build_limiter(
    config: LoadedConfig,
    *,
    clock: Clock,
    memory: LimitMemory | None = None,
    seat: int = 0,
    shared: SharedLimits | None = None,
) -> Limiter:
    """What holds a worker's rate limits.

    Args:
        config: The configuration.
        clock: Time.
        memory: What the machine's workers share, None for memory of this process alone.
        seat: The worker's own in it.
        shared: Where several machines share limits.
    """
    settings = config.settings
    return Limiter(
        build_limit_book(settings),
        memory=memory or LimitMemory(),
        seat=seat,
        workers=settings.server.workers,
        monotonic_s=clock.monotonic_s,
        shared=shared,
    )


def build_limit_book(settings: Settings) -> LimitBook:
    """Every limit of the configuration."""
    teams: dict[str, TeamLimits] = {}
    for name, team in settings.teams.items():
        projects = {
            project: one.limits.amounts
            for project, one in team.projects.items()
            if one.limits is not None
        }
        models = {model: one.amounts for model, one in team.model_limits.items()}
        if team.limits is not None or projects or models:
            own = None if team.limits is None else team.limits.amounts
            teams[name] = TeamLimits(own=own, projects=projects, models=models)
    names: dict[str, tuple[str, ...]] = {}
    for name, model in settings.models.items():
        for deployment in {one.deployment for one in model.deployments}:
            names[deployment] = (*names.get(deployment, ()), name)
    models = {
        name: model.limits.amounts
        for name, model in settings.models.items()
        if model.limits is not None
    }
    return LimitBook(teams=teams, models=models, names=names)


def build_shared_limits(
    config: LoadedConfig, environ: Mapping[str, str], clock: Clock, *, machine: bytes
) -> SharedLimits | None:
    """Limits in Redis; None without `storage.redis`.

    Args:
        config: The configuration.
        environ: The environment, for the password.
        clock: Time.
        machine: Names this machine among all.

    Raises:
        SettingsError: The password cannot be read.
    """
    storage = config.settings.storage
    if storage.redis is None:
        return None
    from gateway.limits.redis_link import RedisLink  # redis-py, for those who use it

    url, password = storage.redis, redis_password(config, environ=environ)

    async def connect() -> Connection:
        return await RedisLink.connect(url, password)

    return SharedLimits(
        connect,
        worker=secrets.token_hex(8),
        machine=machine.hex(),
        now_us=lambda: int(clock.monotonic_s() * 1_000_000),
    )


def build_trails(config: LoadedConfig, environ: Mapping[str, str], clock: Clock) -> Trails | None:
    """What traces and the access log need; None when both are off.

    Raises:
        SettingsError: The collector's `Authorization` header cannot be read.
    """
    telemetry = config.settings.telemetry
    if telemetry.otlp_endpoint is None and not telemetry.access_log:
        return None
    return Trails(
        traces=_build_traces(config, environ),
        has_access_log=telemetry.access_log,
        monotonic_s=clock.monotonic_s,
    )


def _build_traces(config: LoadedConfig, environ: Mapping[str, str]) -> Traces | None:
    telemetry = config.settings.telemetry
    if telemetry.otlp_endpoint is None:
        return None
    authorization = None
    if telemetry.otlp_authorization is not None:
        authorization = resolve(telemetry.otlp_authorization, environ=environ, config=config)
    return make_traces(
        otlp_exporter(telemetry.otlp_endpoint, authorization),
        service_name=telemetry.service_name,
        sample_ratio=telemetry.sample_ratio,
        kinds={name: provider.kind for name, provider in config.settings.providers.items()},
        environ=environ,
    )


def _worker_series(service: Service, spool: SpoolWriter) -> Sequence[Series]:
    unsynced_bytes = spool.position - spool.durable_position
    return (
        Series("fareway_requests_in_flight", (), [service.in_flight]),
        Series("fareway_spool_unsynced_bytes", (), [unsynced_bytes]),
        Series("fareway_workers", (), [1]),
        *_policy_series(service),
        Series("fareway_limits_divided_workers", (), [1 if service.limits.fault else 0]),
        *(
            Series("fareway_limited_total", labels, [count])
            for labels, count in service.limits.limited.items()
        ),
    )


def _policy_series(service: Service) -> Sequence[Series]:
    """Which policy decides, and by which certificate; workers that differ are two series."""
    certificate = service.certificate
    if certificate is None:
        return ()
    labels = (certificate.policy_digest[:12], certificate.digest[:12])
    return (Series("fareway_policy_proved_workers", labels, [1]),)


def build_admission(
    settings: Settings,
    providers: Mapping[str, Provider],
    *,
    health: HealthBoard,
    clock: Clock,
    fleet: Fleet | None = None,
    policy: Policy | None = None,
) -> Admission:
    """What decides about requests; `fareway explain` makes the same one.

    Args:
        settings: The configuration.
        providers: By name.
        health: What is up.
        clock: For claims that expire.
        fleet: Its fleet, None to build it.
        policy: Its policy, which a certificate is about; None to prove it here.

    Raises:
        PolicyUnproved: The policy does not hold.
    """
    policy = policy or proved_policy(settings, clock)
    return Admission(
        fleet=fleet or build_fleet(settings),
        policy=policy,
        permits=build_permits(settings, policy.source),
        teams=rules_of_teams(settings, policy.source),
        providers=providers,
        health=health,
    )


def build_permits(settings: Settings, source: PolicySource) -> Permits:
    """What gives each request its permit.

    Args:
        settings: The configuration.
        source: The policy as it is written, never as it was compiled.
    """
    return Permits(source, origins=_origins(settings, source))


def narrow_permits(permits: Permits, newer: Settings) -> None:
    """Have permits name from now on only what a newer configuration's policy permits, too.

    Raises:
        PolicyError: The newer policy cannot be compiled.
    """
    source = build_policy(newer).source
    permits.narrow(source, origins=_origins(newer, source))


def asks_more(older: Settings, newer: Settings) -> bool:
    """Whether a newer configuration asks of a request what a process of an older one cannot do.

    Permits hold an older process to both policies; detectors, sinks and enforced members are what
    it was made with.
    """
    before, after = older.privacy, newer.privacy
    if (before.detect, before.sinks) != (after.detect, after.sinks):
        return True
    enforced = {name: _enforced_of(older, name) for name in newer.providers}
    return any(_enforced_of(newer, name) != known for name, known in enforced.items())


def _enforced_of(settings: Settings, name: str) -> object:
    provider = settings.providers.get(name)
    return {} if provider is None or isinstance(provider, LocalProvider) else provider.enforce


def _origins(settings: Settings, source: PolicySource) -> Mapping[str, str]:
    return deployment_origins(settings, [one.name for one in source.deployments])


def quota_groups(settings: Settings) -> dict[str, str]:
    """Quota group by provider, for those that have one."""
    return {
        name: provider.quota_group
        for name, provider in settings.providers.items()
        if not isinstance(provider, LocalProvider) and provider.quota_group is not None
    }


def relay_limits(settings: Settings) -> RelayLimits:
    """The relay's settings."""
    timeouts = settings.server.timeouts
    return RelayLimits(
        deadlines=Deadlines(
            connect_s=timeouts.connect_s,
            first_token_s=timeouts.first_token_s,
            between_tokens_s=timeouts.between_tokens_s,
            total_s=timeouts.total_s,
        ),
        attempts_max=settings.routing.retries.attempts,
        within_s=settings.routing.retries.within_s,
        heartbeat_s=settings.server.heartbeat_s,
        is_strict=settings.storage.durability == Durability.STRICT.value,
    )
