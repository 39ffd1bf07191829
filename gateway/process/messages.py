"""What the supervisor, its workers and the ledger process say to each other."""

from __future__ import annotations

import msgspec

from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import BudgetRules
from gateway.egress.lists import EgressList

UNUSABLE_DATABASE = "unusable_database"
"""The code of a refusal that no second start of the ledger process would change."""
DATABASE_UNAVAILABLE = "database_unavailable"
"""The code of a call that may be made again: the database did not answer."""


class ConfigSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A checked configuration as the supervisor read it; its files may say something else by now.

    Attributes:
        settings_json: The settings, without secrets, for those are references in the file too.
        digest: Of the settings; equal in supervisor and worker, or the worker refuses.
        name: The file's name, for problems.
        base_dir: Where relative paths begin.
        state_dir: What Fareway keeps on this machine.
    """

    settings_json: bytes
    digest: str
    name: str
    base_dir: str
    state_dir: str


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """First call on a worker: get everything ready, and accept nothing yet.

    The memory of the machine's rate limits travels with it.

    Attributes:
        index: From 0; names the worker's spool directory, and its seat in the memory of limits.
        config: What it serves.
        keys: Every key of the database.
        revision: Of the keys; grows with every change.
        is_complete: Whether the database has told the keys; without it there may be others.
        budgets: Every budget in force, None while the ledger has not told them.
        log_format: `json` or `text`, for the process's log lines; that of the service's start, so
            that all processes write the same after a reload too.
    """

    index: int
    config: ConfigSnapshot
    keys: list[KeyRecord]
    revision: int
    is_complete: bool = True
    budgets: BudgetRules | None = None
    log_format: str = "json"


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Accept connections from these listening sockets, which travel with the call.

    Attributes:
        numbers: What the sockets are called, one each.
    """

    numbers: list[int]


class StopListening(msgspec.Struct, frozen=True, kw_only=True):
    """Leave these listening sockets to another worker; what was accepted stays."""

    numbers: list[int]


class KeysUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of the database, replacing what the worker has; as in `WorkerSetup`."""

    keys: list[KeyRecord]
    revision: int
    is_complete: bool = True


class RecallBudgets(msgspec.Struct, frozen=True, kw_only=True):
    """Give back what is unused in these buckets, for a request that has no room.

    Attributes:
        buckets: Budget and first microsecond of the window, each.
    """

    buckets: list[tuple[int, int]]


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


class WindDown(msgspec.Struct, frozen=True, kw_only=True):
    """Accept no more, answer what comes on standing connections while they last, then end.

    Every connection is told with its next answer that it ends (`connection: close`).

    Attributes:
        idle_s: A connection that asks nothing for so long is closed untold.
        deadline_s: What is left then is cut.
    """

    idle_s: float
    deadline_s: float


class Narrow(msgspec.Struct, frozen=True, kw_only=True):
    """Do from now on only what a newer configuration lets requests do, too.

    Attributes:
        config: The newer one, which new connections are served with elsewhere.
    """

    config: ConfigSnapshot


class LedgerStart(msgspec.Struct, frozen=True, kw_only=True):
    """First call on the ledger process.

    Attributes:
        database_url: With an absolute path.
        spool_dir: Root of the workers' spool directories.
        log_format: `json` or `text`, for the process's log lines.
        keep_events_months: As `retention.events_months`.
        cost_tags: Cost tags that have sums of their own.
        check_hour: As `storage.check_hour`.
        redis_url: Of a Redis that helps with budgets, None for none.
        redis_password: Its password, None for none.
        egress: What it may connect to.
    """

    database_url: str
    spool_dir: str
    log_format: str = "json"
    keep_events_months: int | None = None
    cost_tags: tuple[str, ...] = ()
    check_hour: int | None = None
    redis_url: str | None = None
    redis_password: str | None = None
    egress: EgressList = EgressList()


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
        config_digest: Of the configuration that new connections are served with.
        reload_fault: Why the configuration on disk is not the one that is served, with every
            problem; empty when the last reload went well.
    """

    url: str
    pids: dict[str, int]
    engines: dict[str, str]
    revision: int
    speeds: dict[str, EngineSpeed] = {}
    config_digest: str = ""
    reload_fault: str = ""
