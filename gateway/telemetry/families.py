"""Every metric that Fareway has: name, kind, labels and buckets. One table, nothing else.

A metric is named here or it does not exist: what is collected under another name, with other labels
or with another number of buckets is left out of a scrape. Labels are few and bounded: never a key,
a user, a request, a privacy tag or anything that a client can choose freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a metric's numbers behave."""

    COUNTER = "counter"
    """Only grows; summed over workers, those that have ended included."""
    GAUGE = "gauge"
    """A state; summed over living workers."""
    MAXIMUM = "maximum"
    """A state of which the largest among living workers counts; Prometheus sees a gauge."""
    HISTOGRAM = "histogram"
    """Counts per bucket, then the sum of what was observed; added up as a counter is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric.

    Attributes:
        kind: How its numbers behave.
        help: What it tells, as a phrase.
        labels: Names of its labels, in the order of a series' values.
        buckets: Upper bounds of a histogram, inclusive, ascending, without infinity.
    """

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers a series has: a histogram's buckets, infinity and the sum, else one."""
        return len(self.buckets) + 2 if self.kind is Kind.HISTOGRAM else 1


DURATION_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 900.0,
)  # fmt: skip
TTFT_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
OVERHEAD_BUCKETS_S = (
    0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01, 0.02,
    0.05,
)  # fmt: skip
DECODE_BUCKETS_TPS = (
    1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 200.0, 400.0, 800.0, 2000.0,
)  # fmt: skip
STALL_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
SYNC_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)

_DEPLOYMENT = ("deployment",)
_BUDGET = ("team", "project", "budget")

REQUEST_FAMILIES: Mapping[str, Family] = {
    "fareway_requests_total": Family(
        kind=Kind.COUNTER, help="Client requests.", labels=("route", "status")
    ),
    "fareway_request_duration_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="Request accepted to last byte sent.",
        labels=("route", "status"),
        buckets=DURATION_BUCKETS_S,
    ),
    "fareway_gateway_overhead_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="Time in the gateway before the first dispatch; x-fareway-overhead-ms.",
        buckets=OVERHEAD_BUCKETS_S,
    ),
    "fareway_requests_in_flight": Family(kind=Kind.GAUGE, help="Requests being served."),
    "fareway_policy_denials_total": Family(
        kind=Kind.COUNTER, help="Requests that the privacy policy refused.", labels=("rule",)
    ),
    "fareway_detector_requests_total": Family(
        kind=Kind.COUNTER,
        help="Requests in which a detector found something, or that have an opaque part.",
        labels=("detector", "mode"),
    ),
    "fareway_detector_findings_total": Family(
        kind=Kind.COUNTER,
        help="Different values that detectors found, added up over requests.",
        labels=("detector", "mode"),
    ),
    "fareway_detector_faults_total": Family(
        kind=Kind.COUNTER,
        help="Requests that detectors did not look through to their end.",
        labels=("reason", "mode"),
    ),
    "fareway_egress_refusals_total": Family(
        kind=Kind.COUNTER,
        help="What was to be sent where it must not, by the layer that stopped it.",
        labels=("layer",),
    ),
    "fareway_attempts_total": Family(
        kind=Kind.COUNTER, help="Settled attempts.", labels=("team", "deployment", "status")
    ),
    "fareway_attempt_duration_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="Attempt begun to settled.",
        labels=_DEPLOYMENT,
        buckets=DURATION_BUCKETS_S,
    ),
    "fareway_tokens_total": Family(
        kind=Kind.COUNTER,
        help="Tokens by direction (input, output) and cache (none, read, write).",
        labels=("team", "deployment", "direction", "cache"),
    ),
    "fareway_spend_usd_total": Family(
        kind=Kind.COUNTER,
        help="Booked spend; for alerts and graphs, the ledger has the exact sums.",
        labels=("team", "deployment"),
    ),
    "fareway_unpriced_events_total": Family(
        kind=Kind.COUNTER, help="Attempts whose price is unknown.", labels=_DEPLOYMENT
    ),
    "fareway_time_to_first_token_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="Request accepted to first content event sent, of streams.",
        labels=_DEPLOYMENT,
        buckets=TTFT_BUCKETS_S,
    ),
    "fareway_decode_tokens_per_second": Family(
        kind=Kind.HISTOGRAM,
        help="Output tokens of a stream after the first, by the time since then.",
        labels=_DEPLOYMENT,
        buckets=DECODE_BUCKETS_TPS,
    ),
    "fareway_retries_total": Family(
        kind=Kind.COUNTER,
        help="Further attempts at the same deployment, by the failure before.",
        labels=("reason",),
    ),
    "fareway_fallbacks_total": Family(
        kind=Kind.COUNTER,
        help="Further attempts at another deployment, by the failure before.",
        labels=("reason",),
    ),
    "fareway_retries_refused_total": Family(
        kind=Kind.COUNTER,
        help="Retries that the provider's retry budget had no room for.",
        labels=("provider",),
    ),
    "fareway_limited_total": Family(
        kind=Kind.COUNTER,
        help="Requests that a rate limit of ours refused, by the kind of limit.",
        labels=("limit", "team"),
    ),
    "fareway_wire_faults_total": Family(
        kind=Kind.COUNTER,
        help="Deviations from the wire format that were put right.",
        labels=("provider", "kind"),
    ),
}
"""Of requests and attempts; each worker counts its own."""

WORKER_FAMILIES: Mapping[str, Family] = {
    "fareway_loop_stall_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="How late a timer of the event loop fired; looked at 50 times a second under load.",
        buckets=STALL_BUCKETS_S,
    ),
    "fareway_loop_stall_cpu_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="The part of the lateness in which the loop's own thread was computing.",
        buckets=STALL_BUCKETS_S,
    ),
    "fareway_loop_stall_max_seconds": Family(
        kind=Kind.MAXIMUM, help="The longest lateness since the worker started."
    ),
    "fareway_spool_sync_seconds": Family(
        kind=Kind.HISTOGRAM,
        help="Duration of one fdatasync of the journal.",
        buckets=SYNC_BUCKETS_S,
    ),
    "fareway_spool_unsynced_bytes": Family(
        kind=Kind.GAUGE, help="Bytes of the journal that are with the kernel and not yet on disk."
    ),
    "fareway_limits_divided_workers": Family(
        kind=Kind.GAUGE,
        help="Workers that hold limits by a share of their own, because Redis does not answer.",
    ),
    "fareway_policy_proved_workers": Family(
        kind=Kind.GAUGE,
        help="Workers that decide by a proved privacy policy, by its digest and certificate.",
        labels=("policy", "certificate"),
    ),
    "fareway_workers": Family(
        kind=Kind.GAUGE, help="Workers whose numbers are in this scrape as they are now."
    ),
}
"""Of a worker as a process."""

LEDGER_FAMILIES: Mapping[str, Family] = {
    "fareway_spool_backlog_bytes": Family(
        kind=Kind.GAUGE, help="Bytes in the spools that are not in the database yet."
    ),
    "fareway_spool_backlog_records": Family(
        kind=Kind.GAUGE, help="Records in the spools that are not in the database yet."
    ),
    "fareway_spool_oldest_seconds": Family(
        kind=Kind.GAUGE, help="Age of the oldest record that is not in the database yet."
    ),
    "fareway_ledger_events_total": Family(kind=Kind.COUNTER, help="Entries inserted."),
    "fareway_ledger_replays_total": Family(
        kind=Kind.COUNTER, help="Settlements that were booked before and are not booked twice."
    ),
    "fareway_ledger_quarantined_total": Family(
        kind=Kind.COUNTER, help="Records that could not be booked."
    ),
    "fareway_ledger_lost_total": Family(
        kind=Kind.COUNTER, help="Attempts booked as unknown because their end was never written."
    ),
    "fareway_ledger_failed_rounds_total": Family(
        kind=Kind.COUNTER, help="Rounds of loading that the database did not take."
    ),
    "fareway_ledger_checked_timestamp_seconds": Family(
        kind=Kind.GAUGE, help="When the last daily check of the ledger ended; 0 for never."
    ),
    "fareway_ledger_check_findings": Family(
        kind=Kind.GAUGE, help="How many findings the last daily check of the ledger had."
    ),
    "fareway_budget_slabs_from_redis_total": Family(
        kind=Kind.COUNTER, help="Slabs of budgets that came out of Redis."
    ),
    "fareway_news_age_seconds": Family(
        kind=Kind.GAUGE,
        help="Since keys and budgets were known to be the newest of all machines.",
    ),
}
"""Of the ledger process."""

BUDGET_FAMILIES: Mapping[str, Family] = {
    "fareway_budget_limit_usd": Family(
        kind=Kind.GAUGE, help="What a budget allows in its present window.", labels=_BUDGET
    ),
    "fareway_budget_remaining_usd": Family(
        kind=Kind.GAUGE,
        help="What of it is neither spent, nor reserved, nor exposed by unknown bills.",
        labels=_BUDGET,
    ),
    "fareway_reserved_usd": Family(
        kind=Kind.GAUGE,
        help="What of it is reserved for attempts under way and at workers.",
        labels=_BUDGET,
    ),
}
"""Of budgets' present windows."""

ENGINE_FAMILIES: Mapping[str, Family] = {
    "fareway_engine_running": Family(
        kind=Kind.GAUGE, help="Sequences in the batch.", labels=_DEPLOYMENT
    ),
    "fareway_engine_waiting": Family(
        kind=Kind.GAUGE, help="Sequences in the queue.", labels=_DEPLOYMENT
    ),
    "fareway_engine_waiting_tokens": Family(
        kind=Kind.GAUGE, help="Prompt tokens in the queue.", labels=_DEPLOYMENT
    ),
    "fareway_engine_kv_used_ratio": Family(
        kind=Kind.GAUGE,
        help="Share of the KV blocks that are not free, cached prefixes included.",
        labels=_DEPLOYMENT,
    ),
    "fareway_engine_free_blocks": Family(
        kind=Kind.GAUGE, help="KV blocks that can be had at once.", labels=_DEPLOYMENT
    ),
    "fareway_engine_published_blocks": Family(
        kind=Kind.GAUGE, help="KV blocks that the prefix cache can give.", labels=_DEPLOYMENT
    ),
    "fareway_engine_step_age_seconds": Family(
        kind=Kind.GAUGE, help="Age of the step in progress.", labels=_DEPLOYMENT
    ),
    "fareway_engine_prompt_tokens_total": Family(
        kind=Kind.COUNTER,
        help="Tokens whose keys and values were computed, or came from the prefix cache.",
        labels=("deployment", "source"),
    ),
    "fareway_engine_generated_tokens_total": Family(
        kind=Kind.COUNTER, help="Tokens generated.", labels=_DEPLOYMENT
    ),
    "fareway_engine_preemptions_total": Family(
        kind=Kind.COUNTER, help="Sequences that lost their blocks.", labels=_DEPLOYMENT
    ),
    "fareway_engine_requests_total": Family(
        kind=Kind.COUNTER, help="Requests that ended.", labels=("deployment", "outcome")
    ),
    "fareway_engine_steps_total": Family(
        kind=Kind.COUNTER, help="Steps computed.", labels=_DEPLOYMENT
    ),
    "fareway_engine_busy_seconds_total": Family(
        kind=Kind.COUNTER, help="Seconds inside steps.", labels=_DEPLOYMENT
    ),
    "fareway_engine_idle_seconds_total": Family(
        kind=Kind.COUNTER, help="Seconds between steps.", labels=_DEPLOYMENT
    ),
}
"""Of the embedded engines, as they told at their last sign of life (every 5 seconds)."""

MACHINE_FAMILIES: Mapping[str, Family] = {
    "fareway_machine_busy_ratio": Family(
        kind=Kind.GAUGE,
        help="Part of the time since its engine started in which it computed.",
        labels=_DEPLOYMENT,
    ),
    "fareway_machine_usd_per_hour": Family(
        kind=Kind.GAUGE,
        help="Configured cost of a machine of ours, without what running it costs.",
        labels=("machine",),
    ),
}
"""Of machines of our own; what they cost and who bears it is in `fareway spend machines`."""

_PROCESS = ("process",)

PROCESS_FAMILIES: Mapping[str, Family] = {
    "fareway_process_resident_memory_bytes": Family(
        kind=Kind.GAUGE, help="Memory that a process holds.", labels=_PROCESS
    ),
    "fareway_process_cpu_seconds_total": Family(
        kind=Kind.COUNTER, help="Processor time that a process used.", labels=_PROCESS
    ),
    "fareway_process_open_fds": Family(
        kind=Kind.GAUGE, help="Descriptors that a process has open.", labels=_PROCESS
    ),
    "fareway_process_threads": Family(
        kind=Kind.GAUGE, help="Threads of a process.", labels=_PROCESS
    ),
}
"""Of every process of the tree, as the kernel tells."""

FAMILIES: Mapping[str, Family] = {
    **REQUEST_FAMILIES,
    **WORKER_FAMILIES,
    **LEDGER_FAMILIES,
    **BUDGET_FAMILIES,
    **ENGINE_FAMILIES,
    **MACHINE_FAMILIES,
    **PROCESS_FAMILIES,
}
