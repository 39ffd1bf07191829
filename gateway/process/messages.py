"""What the supervisor, its workers and the ledger process say to each other."""

from __future__ import annotations

import msgspec

from gateway.auth.directory import KeyRecord


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """First call on a worker; the listening socket travels with it.

    Attributes:
        index: From 0; names the worker's spool directory.
        config_path: The configuration file, None for the built-in defaults.
        config_digest: The worker refuses settings with another digest than the supervisor's.
        keys: Every key of the database.
        revision: Of the keys; grows with every change.
    """

    index: int
    config_path: str | None
    config_digest: str
    keys: list[KeyRecord]
    revision: int


class KeysUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of the database, replacing what the worker has."""

    keys: list[KeyRecord]
    revision: int


class EngineLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link to an engine; its socket travels with it.

    Attributes:
        provider: The provider's name in the configuration.
        model_id: The model that the engine runs.
    """

    provider: str
    model_id: str


class EngineFault(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that is not there, and why, for `/readyz` and for error messages."""

    provider: str
    model_id: str
    reason: str


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse new requests, finish those in flight until the deadline, then end."""

    deadline_s: float


class LedgerStart(msgspec.Struct, frozen=True, kw_only=True):
    """First call on the ledger process.

    Attributes:
        database_url: With an absolute path.
        spool_dir: Root of the workers' spool directories.
    """

    database_url: str
    spool_dir: str


class EngineSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measured speed of an engine, in whole tokens per busy second; quotes are made from it."""

    prefill_tps: int
    decode_tps: int


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the admin socket tells about the running gateway.

    Attributes:
        url: Where it listens.
        pids: Process ids by role (`supervisor`, `ledger`, `worker-0`, `engine-local/...`).
        engines: State per local deployment: `ready`, `starting`, or a sentence that says why not.
        revision: Of the keys.
        speeds: Per local deployment that was measured, as one worker knows it.
    """

    url: str
    pids: dict[str, int]
    engines: dict[str, str]
    revision: int
    speeds: dict[str, EngineSpeed] = {}
