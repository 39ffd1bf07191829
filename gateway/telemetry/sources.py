"""Numbers that others keep, as series: read when somebody scrapes, at no cost before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from gateway.budgets.messages import BudgetReport, BudgetScope
from gateway.telemetry.snapshot import Series
from local_engine.api import EngineStats
from pricing.money import PICO_PER_USD

_LEDGER_FIELDS: Mapping[str, tuple[str, int]] = {
    "backlog_bytes": ("fareway_spool_backlog_bytes", 1),
    "backlog_records": ("fareway_spool_backlog_records", 1),
    "backlog_age_ms": ("fareway_spool_oldest_seconds", 1_000),
    "events": ("fareway_ledger_events_total", 1),
    "replays": ("fareway_ledger_replays_total", 1),
    "quarantined": ("fareway_ledger_quarantined_total", 1),
    "lost": ("fareway_ledger_lost_total", 1),
    "failed_rounds": ("fareway_ledger_failed_rounds_total", 1),
    "checked_at_s": ("fareway_ledger_checked_timestamp_seconds", 1),
    "check_findings": ("fareway_ledger_check_findings", 1),
    "pool_grants": ("fareway_budget_slabs_from_redis_total", 1),
    "news_age_ms": ("fareway_news_age_seconds", 1_000),
}
"""Members of the loader's statistics, the metrics that they are, and what to divide them by."""


@runtime_checkable
class _CountsWireFaults(Protocol):
    @property
    def wire_faults(self) -> Mapping[str, int]: ...


def wire_fault_series(providers: Mapping[str, object]) -> Iterator[Series]:
    """Deviations that providers put right, of those that count them.

    Args:
        providers: By name; one with a mapping `wire_faults` from kind to count tells it.
    """
    for name, provider in providers.items():
        if isinstance(provider, _CountsWireFaults):
            for kind, count in provider.wire_faults.items():
                yield Series("fareway_wire_faults_total", (name, kind), [count])


def ledger_series(stats: Mapping[str, object]) -> Iterator[Series]:
    """What the ledger process loaded and what waits.

    Args:
        stats: `LoaderStats` as it comes over the channel.
    """
    for member, (family, divisor) in _LEDGER_FIELDS.items():
        value = stats.get(member)
        if isinstance(value, int | float):
            yield Series(family, (), [value / divisor])


def budget_series(reports: Iterable[BudgetReport]) -> Iterator[Series]:
    """Where budgets stand; not those of keys, which are too many and no label."""
    for report in reports:
        rule, state = report.rule, report.state
        if rule.scope is BudgetScope.KEY:
            continue
        labels = (rule.team, rule.project, rule.name)
        for family, pico_usd in (
            ("fareway_budget_limit_usd", state.limit_pico_usd),
            ("fareway_budget_remaining_usd", state.room_pico_usd),
            ("fareway_reserved_usd", state.reserved_pico_usd),
        ):
            yield Series(family, labels, [pico_usd / PICO_PER_USD])


def engine_series(deployment: str, stats: EngineStats) -> Iterator[Series]:
    """What an engine told at its last sign of life."""
    labels = (deployment,)
    gauges: Mapping[str, float] = {
        "running": stats.running,
        "waiting": stats.waiting,
        "waiting_tokens": stats.queued_tokens,
        "free_blocks": stats.free_blocks,
        "published_blocks": stats.published_blocks,
        "step_age_seconds": stats.step_age_s,
        "generated_tokens_total": stats.generated_tokens,
        "preemptions_total": stats.preemptions,
        "steps_total": stats.steps,
        "busy_seconds_total": stats.busy_s,
        "idle_seconds_total": stats.idle_s,
    }
    for name, value in gauges.items():
        yield Series(f"fareway_engine_{name}", labels, [value])
    if stats.usable_blocks:
        used = 1 - stats.free_blocks / stats.usable_blocks
        yield Series("fareway_engine_kv_used_ratio", labels, [used])
    for source, tokens in (("computed", stats.computed_tokens), ("cached", stats.cached_tokens)):
        yield Series("fareway_engine_prompt_tokens_total", (deployment, source), [tokens])
    outcomes = {"finished": stats.finished, "aborted": stats.aborted, "failed": stats.failed}
    for outcome, count in outcomes.items():
        yield Series("fareway_engine_requests_total", (deployment, outcome), [count])


def process_series(pids: Mapping[str, int], *, proc: Path = Path("/proc")) -> list[Series]:
    """Memory, processor time, descriptors and threads; a process that is gone has none.

    Args:
        pids: Process ids by role.
        proc: Where the kernel tells; nowhere but on Linux.
    """
    found: list[Series] = []
    for role, pid in pids.items():
        try:
            found += _process(role, proc / str(pid))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile
    return found


def _process(role: str, folder: Path) -> Iterable[Series]:
    # The command's name stands in parentheses and may hold anything, so count from its end.
    stat = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    fields = stat.split()
    user_ticks, system_ticks, threads, resident_pages = (int(fields[i]) for i in (11, 12, 17, 21))
    cpu_s = (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")
    resident_bytes = resident_pages * os.sysconf("SC_PAGE_SIZE")
    open_fds = sum(1 for _ in os.scandir(folder / "fd"))
    return (
        Series("fareway_process_resident_memory_bytes", (role,), [resident_bytes]),
        Series("fareway_process_cpu_seconds_total", (role,), [cpu_s]),
        Series("fareway_process_open_fds", (role,), [open_fds]),
        Series("fareway_process_threads", (role,), [threads]),
    )
