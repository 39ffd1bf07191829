"""Numbers of several processes add up: counters and histograms for ever, gauges while they live."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.families import FAMILIES, Kind
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import Series, Snapshot, Totals
from tests.gateway.ledger_samples import settlement

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the worker
        st.sampled_from(["up/a", "up/b"]),
        st.sampled_from(["apps", "ops", ""]),
        st.sampled_from(["ok", "rejected"]),
        st.integers(0, 10**7),  # ttft
        st.booleans(),
    ),
    max_size=40,
)


def summed(snapshots, *, is_alive: bool = True) -> dict[tuple[str, tuple[str, ...]], list[float]]:
    totals = Totals()
    for snapshot in snapshots:
        totals.add(snapshot.series, is_alive=is_alive)
    return {(one.family, one.labels): one.values for one in totals.series()}


@given(EVENTS)
def test_what_several_workers_counted_is_what_one_would_have_counted(events):
    workers, alone = [Metrics(str(n)) for n in range(3)], Metrics()
    for worker, deployment, team, status, ttft_us, is_stream in events:
        done = settlement(1, status=status, ttft_us=ttft_us, usage={"output": 5})
        for metrics in (workers[worker], alone):
            metrics.note_attempt(deployment, team, done, 0.25 if is_stream else None)
            metrics.note_request("r", 200, 0.5, 0.25)
    together = summed(worker.snapshot() for worker in workers)
    expected = summed([alone.snapshot()])
    assert together.keys() == expected.keys()
    for key, values in together.items():
        # Sums of floats depend on their order in the last place.
        assert [round(value, 6) for value in values] == [round(v, 6) for v in expected[key]], key


def test_a_snapshot_survives_the_way_between_processes():
    metrics = Metrics("w")
    metrics.note_request("r", 200, 0.1, 0.001)
    metrics.note_attempt("up/m", "Équipe", settlement(1, ttft_us=5), 1.0)
    sent = metrics.snapshot()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Snapshot) == sent


def test_the_gauges_of_an_ended_worker_do_not_count():
    snapshot = Snapshot(
        series=[
            Series("fareway_requests_in_flight", (), [3]),
            Series("fareway_loop_stall_max_seconds", (), [0.5]),
            Series("fareway_retries_total", ("Overloaded",), [2]),
        ]
    )
    assert summed([snapshot], is_alive=False) == {("fareway_retries_total", ("Overloaded",)): [2]}


def test_of_a_maximum_the_largest_counts():
    found = summed(
        Snapshot(series=[Series("fareway_loop_stall_max_seconds", (), [late_s])])
        for late_s in (0.02, 0.5, 0.1)
    )
    assert found == {("fareway_loop_stall_max_seconds", ()): [0.5]}


def test_what_no_family_describes_is_left_out():
    odd = [
        Series("fareway_unheard_of_total", (), [1]),
        Series("fareway_retries_total", (), [1]),
        Series("fareway_retries_total", ("a", "b"), [1]),
        Series("fareway_gateway_overhead_seconds", (), [1, 2, 3]),
    ]
    assert summed([Snapshot(series=odd)]) == {}


def test_adding_does_not_change_what_was_added():
    series = [Series("fareway_retries_total", ("x",), [1])]
    assert summed([Snapshot(series=series)] * 3) == {("fareway_retries_total", ("x",)): [3]}
    assert series[0].values == [1]


def test_buckets_ascend_and_labels_never_name_a_person_or_a_secret():
    for name, family in FAMILIES.items():
        assert list(family.buckets) == sorted(set(family.buckets)), name
        assert (family.kind is Kind.HISTOGRAM) == bool(family.buckets), name
        assert (family.kind is Kind.COUNTER) == name.endswith("_total"), name
        assert set(family.labels) <= {
            "team", "deployment", "provider", "status", "route", "reason", "rule", "direction",
            "cache", "kind", "source", "outcome", "process", "limit", "project", "budget", "machine",
            "detector", "mode", "layer", "policy", "certificate",
        }, name  # fmt: skip
