"""Start the whole service of a configuration: what `serve` and `quickstart` share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.clock import Clock
from gateway.egress.launchers import NO_NETWORK, guarded_pip
from gateway.egress.lists import own
from gateway.process.admin_socket import AlreadyRunning, ensure_alone
from gateway.process.engines import FILE_SOURCE, EngineSpec, EngineSupervisor
from gateway.process.launch import HeadStart
from gateway.process.listeners import CannotListen, bind
from gateway.process.preflight import ServeError, check
from gateway.process.supervisor import Supervisor
from gateway.settings.declared_keys import load_admin_key
from gateway.settings.document import Settings
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import LocalModelSettings, LocalProvider
from gateway.settings.secrets import Label
from local_engine.api import EngineConfig, spawn_engine
from local_engine.model_store import ModelStore, OnProgress, default_root

DEFAULT_KV_BYTES = 1024**3
BYTES_PER_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A service that can be started.

    Attributes:
        supervisor: Runs it.
        admin_key_once: The administrator's key when it was made just now; it is shown once.
    """

    supervisor: Supervisor
    admin_key_once: str | None


def model_store(settings: Settings | None = None) -> ModelStore:
    """Where this machine keeps model files: the platform's cache folder.

    Args:
        settings: What pip may connect to beside its own index, None for nothing.
    """
    pip = guarded_pip(None if settings is None else settings.egress)
    return ModelStore(default_root(), pip=pip)


def prepare(
    config: LoadedConfig,
    *,
    config_path: Path | None,
    environ: Mapping[str, str],
    clock: Clock,
    on_ready: Callable[[str], None],
    on_progress: OnProgress,
    head_start: HeadStart | None = None,
    on_set_up: Callable[[str], None] | None = None,
) -> Prepared:
    """Check everything that can be checked before a process is told what to do; bind the port.

    The administrator's key is made last: it is shown once, so nothing after it may fail.

    Args:
        config: The configuration.
        config_path: Its file, None for the built-in defaults.
        environ: The environment.
        clock: Time.
        on_ready: Called with the base URL once the service answers.
        on_progress: Told about downloads.
        head_start: Children that are under way already.
        on_set_up: Called with the link that makes the first administrator, while there is nobody.

    Raises:
        ServeError: The configuration asks for what is not built, a gateway of this configuration
            runs already, a folder cannot be made, or the port is taken.
        SettingsError: A secret is missing or malformed.
        PolicyUnproved: The privacy policy does not hold, or its certificate cannot be written.
    """
    master = check(config, environ=environ, clock=clock)
    try:
        ensure_alone(config.spool_dir)
    except AlreadyRunning as error:
        raise ServeError(str(error)) from error
    pepper = master.derive(Label.KEY_PEPPER)
    namespace_key = master.derive(Label.DIGEST)
    engines = EngineSupervisor(
        specs=[
            _spec(name, provider, model, config=config, namespace_key=namespace_key)
            for name, provider in config.settings.providers.items()
            if isinstance(provider, LocalProvider)
            for model in provider.models
        ],
        store=model_store(config.settings),
        clock=clock,
        on_progress=on_progress,
        spawn=partial(spawn_engine, launcher=NO_NETWORK),
    )
    server = config.settings.server
    own([server.host])
    try:
        listeners = bind(server.host, server.port, count=server.workers)
    except CannotListen as error:
        raise ServeError(str(error)) from error
    supervisor = Supervisor(
        loaded=config,
        config_path=config_path,
        engines=engines,
        listeners=listeners,
        environ=environ,
        clock=clock,
        on_ready=on_ready,
        head_start=head_start or HeadStart(),
    )
    if on_set_up is not None:
        supervisor.on_set_up = on_set_up
    admin = load_admin_key(config, environ=environ, pepper=pepper, random_bytes=secrets.token_bytes)
    return Prepared(supervisor=supervisor, admin_key_once=admin.text_once)


def _source(config: LoadedConfig, model: LocalModelSettings) -> str:
    """Where a model's file comes from, a path made absolute as every path of the settings."""
    if not model.source.startswith(FILE_SOURCE):
        return model.source
    return f"{FILE_SOURCE}{config.resolve(model.source.removeprefix(FILE_SOURCE))}"


def _spec(
    name: str,
    provider: LocalProvider,
    model: LocalModelSettings,
    *,
    config: LoadedConfig,
    namespace_key: bytes,
) -> EngineSpec:
    kv_memory_bytes = DEFAULT_KV_BYTES
    if model.kv_memory_gib is not None:
        kv_memory_bytes = int(model.kv_memory_gib * BYTES_PER_GIB)

    def make_config(path: str) -> EngineConfig:
        return EngineConfig(
            model_id=model.id,
            path=path,
            namespace_key=namespace_key,
            device=provider.device,
            max_model_len=model.max_model_len,
            max_num_seqs=model.max_num_seqs,
            kv_memory_bytes=kv_memory_bytes,
            log_format=config.settings.telemetry.log_format,
        )

    return EngineSpec(
        provider=name,
        model_id=model.id,
        source=_source(config, model),
        make_config=make_config,
        sha256=model.sha256,
    )
