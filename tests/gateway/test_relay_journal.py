"""What is booked for every way in which an attempt can end (`finance_policy.md` 2.4)."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from msgspec import structs

from gateway.budgets.holds import NO_HOLD
from gateway.errors import LedgerUnavailable
from gateway.ledger.errors import SpoolError, SpoolFull
from gateway.ledger.price_label import is_nominal
from gateway.ledger.records import AttemptStatus, Intent, Settlement, decode, encode
from gateway.relay.journal import Booking, Journal, Outcome
from pricing.baseline import Baseline
from pricing.money import PicoUsd, rate_per_hour_us, rate_per_mtok, rate_per_unit
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.usage import Meter, Usage
from providers.contract import UsageReport
from tests.gateway.ledger_samples import FakeClock, open_spool

pytestmark = pytest.mark.anyio

PRICE = PriceVersion(
    rates={
        Meter.INPUT: rate_per_mtok("3"),
        Meter.CACHE_READ: rate_per_mtok("0.30"),
        Meter.CACHE_WRITE: rate_per_mtok("3.75"),
        Meter.OUTPUT: rate_per_mtok("15"),
    },
    source="test",
    basis=Basis.TOKENS,
)
BOOKING = Booking(
    request_id=b"r" * 16, model="chat", team="apps", project="", key_id="k", tags=("private",),
    cost_tags=(("env", "prod"),), route="chat.completions", is_stream=True,
)  # fmt: skip


class MemorySpool:
    """Keeps records; can be told to refuse them, or to have a disk that hangs or fails."""

    def __init__(self) -> None:
        self.records: list[Intent | Settlement] = []
        self.refuses = False
        self.disk: str = "works"

    def append(self, record):
        if self.refuses:
            raise SpoolFull("no room")
        self.records.append(record)
        return len(self.records)

    async def durable(self, position):
        assert position <= len(self.records)
        if self.disk == "fails":
            raise SpoolError("the disk failed")
        if self.disk == "hangs":
            await anyio.sleep_forever()


def journal(spool=None, clock=None):
    time = clock or FakeClock()
    ids = iter(range(1, 10**6))
    return Journal(
        spool=spool or MemorySpool(), clock=time.clock,
        new_id=lambda: next(ids).to_bytes(16, "big"),
    )  # fmt: skip


def begin(made: Journal, price=PRICE, booking=BOOKING, **changes):
    facts = {
        "attempt": 1,
        "deployment": "up/org/m",
        "reason": "cheapest",
        "lifetime_s": 960.0,
        "hold": NO_HOLD,
    }
    return made.open(
        booking, **{"price": price, "exposure_pico_usd": PicoUsd(77), **facts, **changes}
    )


def report(**counts) -> UsageReport:
    sound = counts.pop("is_consistent", True)
    cost = counts.pop("provider_cost_usd", None)
    return UsageReport(usage=Usage(**counts), is_consistent=sound, provider_cost_usd=cost)


COUNTS = {"input_tokens": 100, "output_tokens": 10}
COST = 100 * 3_000_000 + 10 * 15_000_000
S = AttemptStatus
FINAL = {"usage": report(**COUNTS), "is_usage_final": True}
PASSED = {"output_tokens_estimate": 10, "prompt_tokens_estimate": 100}

TRUTH = {
    "not sent: nothing, exactly": (S.NOT_SENT, {}, ({}, 0, "exact")),
    "not sent, whatever would be estimated": (S.NOT_SENT, PASSED, ({}, 0, "exact")),
    "refused before generating: nothing, exactly": (S.REJECTED, PASSED, ({}, 0, "exact")),
    "success: as reported": (S.OK, FINAL, (COUNTS, COST, "exact")),
    "success with counts that contradict each other": (
        S.OK,
        {"usage": report(**COUNTS, is_consistent=False), "is_usage_final": True},
        (COUNTS, COST, "estimated"),
    ),
    "success without counts: what passed": (S.OK, PASSED, (COUNTS, COST, "estimated")),
    "an empty answer without counts is never charged from a guess": (
        S.OK, {"prompt_tokens_estimate": 100}, ({}, 0, "unknown"),
    ),
    "an empty answer with counts: as reported": (
        S.OK,
        {"usage": report(input_tokens=100), "is_usage_final": True},
        ({"input_tokens": 100}, 300_000_000, "exact"),
    ),
    "cut by the client: what passed": (S.CLIENT_LEFT, PASSED, (COUNTS, COST, "estimated")),
    "cut by the client before anything passed": (
        S.CLIENT_LEFT, {"prompt_tokens_estimate": 100}, ({}, 0, "unknown"),
    ),
    "cut by the client, counts until then": (
        S.CLIENT_LEFT, {"usage": report(**COUNTS)}, (COUNTS, COST, "estimated"),
    ),
    "cut by the client, the engine told the whole": (S.CLIENT_LEFT, FINAL, (COUNTS, COST, "exact")),
    "broken off with counts (GW-084)": (
        S.INTERRUPTED, {"usage": report(**COUNTS), **PASSED}, (COUNTS, COST, "estimated"),
    ),
    "broken off without counts: nothing booked (GW-065)": (
        S.INTERRUPTED, PASSED, ({}, 0, "unknown"),
    ),
    "sent and never answered": (S.UNKNOWN_BILLING, PASSED, ({}, 0, "unknown")),
}  # fmt: skip


@pytest.mark.parametrize(("status", "facts", "booked"), TRUTH.values(), ids=TRUTH.keys())
def test_what_an_attempt_is_booked_as(status, facts, booked):
    made = journal()
    found = made.settle(begin(made), Outcome(status=status, **facts))
    names = {"input_tokens": "input", "output_tokens": "output"}
    usage, cost, quality = booked
    assert found.usage == {names[name]: count for name, count in usage.items()}
    assert (found.cost_pico_usd, found.quality, found.status) == (cost, quality, status.value)
    assert sum(line.cost_pico_usd for line in found.lines) == found.cost_pico_usd


def test_cached_tokens_are_charged_once_and_at_their_own_rate():
    # GW-067: 9 fresh, 17,102 read, 100 out at 3, 0.30 and 15 USD per million.
    made = journal()
    usage = report(input_tokens=9, cache_read_tokens=17_102, output_tokens=100)
    found = made.settle(begin(made), Outcome(status=S.OK, usage=usage, is_usage_final=True))
    assert found.cost_pico_usd == 6_657_600_000


def test_written_tokens_are_charged_once():
    # GW-069: of 2,000 prompt tokens 500 were read and 300 written.
    made = journal()
    usage = report(input_tokens=1_200, cache_read_tokens=500, cache_write_tokens=300)
    found = made.settle(begin(made), Outcome(status=S.OK, usage=usage, is_usage_final=True))
    assert found.cost_pico_usd == 4_875_000_000


def test_an_unknown_price_is_no_price_and_the_counts_are_kept():
    made = journal()
    opened = begin(made, price=Unpriced(reason="no price"), exposure_pico_usd=None)
    found = made.settle(opened, Outcome(status=S.OK, **FINAL))
    assert (found.cost_pico_usd, found.lines) == (None, ())
    assert found.usage == {"input": 100, "output": 10}
    assert made.spool.records[0].price_version == ""


def test_a_count_without_a_rate_makes_the_attempt_unpriced():
    made = journal()
    free = PriceVersion(rates={Meter.INPUT: rate_per_mtok("3")}, source="t", basis=Basis.TOKENS)
    found = made.settle(begin(made, price=free), Outcome(status=S.OK, **FINAL))
    assert found.cost_pico_usd is None


def test_public_prices_and_what_the_cache_saved_are_written_down_too():
    made = journal()
    price = PriceVersion(
        rates=PRICE.rates, list_rates={Meter.INPUT: rate_per_mtok("4")}, source="t"
    )
    usage = report(input_tokens=100, cache_read_tokens=10, output_tokens=1)
    found = made.settle(
        begin(made, price=price), Outcome(status=S.OK, usage=usage, is_usage_final=True)
    )
    assert found.cost_pico_usd == 100 * 3_000_000 + 10 * 300_000 + 15_000_000
    assert found.list_cost_pico_usd == found.cost_pico_usd + 100 * 1_000_000
    assert found.cache_saved_pico_usd == 10 * 2_700_000
    plain = made.settle(begin(made), Outcome(status=S.OK, **FINAL))
    assert (plain.list_cost_pico_usd, plain.cache_saved_pico_usd) == (None, None)


def test_machine_time_is_charged_by_the_microsecond():
    made = journal()
    price = PriceVersion(
        rates={Meter.GPU_US: rate_per_hour_us("3.60")}, source="t", basis=Basis.GPU_TIME
    )
    usage = report(**COUNTS, gpu_us=2_000_000)
    found = made.settle(
        begin(made, price=price), Outcome(status=S.OK, usage=usage, is_usage_final=True)
    )
    assert found.cost_pico_usd == 2_000_000_000
    assert found.usage["gpu_us"] == 2_000_000


FEE = PriceVersion(
    rates={
        Meter.INPUT: rate_per_mtok("3"),
        Meter.OUTPUT: rate_per_mtok("15"),
        Meter.REQUESTS: rate_per_unit("0.01"),
    },
    source="t",
    basis=Basis.TOKENS,
)


def test_a_fee_per_request_is_charged_once_where_something_was_answered():
    """Known fault: it was quoted and never booked, since no upstream counts requests."""
    made = journal()
    found = made.settle(begin(made, price=FEE), Outcome(status=S.OK, **FINAL))
    assert found.cost_pico_usd == COST + 10**10
    assert found.usage["requests"] == 1
    refused = made.settle(begin(made, price=FEE), Outcome(status=S.REJECTED))
    assert (refused.cost_pico_usd, refused.usage) == (0, {})
    counted = report(**COUNTS, requests=2)
    twice = made.settle(
        begin(made, price=FEE), Outcome(status=S.OK, usage=counted, is_usage_final=True)
    )
    assert twice.cost_pico_usd == COST + 2 * 10**10


def test_counts_that_no_ledger_could_hold_leave_the_attempt_unpriced():
    made = journal()
    usage = report(output_tokens=10**12 - 1)
    found = made.settle(begin(made), Outcome(status=S.OK, usage=usage, is_usage_final=True))
    assert (found.cost_pico_usd, found.lines) == (None, ())
    assert decode(encode(found)) == found


PROVIDER_COSTS = {
    "the upstream's own cost, every digit": ("0.000123456789", 123_456_789),
    "none": (None, None),
    "one that no ledger could hold is left out": ("9" * 30, None),
    "one that is no number is left out": ("much", None),
}


@pytest.mark.parametrize(("text", "pico_usd"), PROVIDER_COSTS.values(), ids=PROVIDER_COSTS.keys())
def test_the_upstreams_own_cost_is_kept_beside_ours(text, pico_usd):
    made = journal()
    usage = report(**COUNTS, provider_cost_usd=text)
    found = made.settle(begin(made), Outcome(status=S.OK, usage=usage, is_usage_final=True))
    assert (found.provider_cost_pico_usd, found.cost_pico_usd) == (pico_usd, COST)


def test_an_intent_says_all_that_a_loader_needs_when_nothing_follows():
    time = FakeClock()
    made = journal(clock=time)
    begin(made, attempt=2)
    intent = made.spool.records[0]
    assert (intent.provider, intent.upstream_model) == ("up", "org/m")
    assert (intent.deployment, intent.attempt, intent.reason) == ("up/org/m", 2, "cheapest")
    assert (intent.exposure_pico_usd, intent.lifetime_s) == (77, 960.0)
    assert (intent.at_us, intent.price_version) == (time.wall, PRICE.version_id)
    assert (intent.team, intent.tags, intent.cost_tags) == (
        "apps",
        ("private",),
        (("env", "prod"),),
    )


def test_durations_come_from_the_clock_that_never_goes_back():
    time = FakeClock()
    made = journal(clock=time)
    opened = begin(made)
    time.pass_s(2.5)
    time.wall -= 3_600_000_000
    assert made.settle(opened, Outcome(status=S.OK, **FINAL)).duration_us == 2_500_000


def test_what_an_upstream_names_is_cut():
    made = journal()
    found = made.settle(
        begin(made),
        Outcome(
            error_code="e" * 70_000, finish_reason="f" * 70_000, upstream_request_id="i" * 9999
        ),
    )
    lengths = (len(found.error_code), len(found.finish_reason), len(found.upstream_request_id))
    assert lengths == (64, 64, 200)


NAMES = {
    "a plain name": ("stop", "stop"),
    "every printable character but the space": ("!~" * 9, "!~" * 9),
    "a space": ("my secret", "unnamed"),
    "a line break": ("a\nb", "unnamed"),
    "a control character": ("a\x7f", "unnamed"),
    "a letter beyond ASCII": ("gr\u00fc\u00df", "unnamed"),
    "what is no name only beyond the limit": ("n" * 64 + " tail", "n" * 64),
}


@pytest.mark.parametrize(("text", "kept"), NAMES.values(), ids=NAMES.keys())
def test_what_an_upstream_names_is_kept_where_it_can_be_no_content(text, kept):
    made = journal()
    found = made.settle(begin(made), Outcome(finish_reason=text, error_code=text))
    assert (found.finish_reason, found.error_code) == (kept, kept)


def test_nothing_is_dispatched_without_its_intent():
    spool = MemorySpool()
    spool.refuses = True
    with pytest.raises(LedgerUnavailable, match="nothing is dispatched") as caught:
        begin(journal(spool))
    assert isinstance(caught.value.__cause__, SpoolError)
    assert caught.value.retry_after_s == 5.0


@pytest.mark.parametrize("disk", ["fails", "hangs"])
async def test_a_strict_spool_that_cannot_sync_refuses_the_attempt(disk):
    spool = MemorySpool()
    made = replace(journal(spool), durable_wait_s=0.02)
    opened = begin(made)
    await made.wait_durable(opened)
    spool.disk = disk
    with pytest.raises(LedgerUnavailable):
        await made.wait_durable(opened)


async def test_a_strict_intent_is_on_disk_when_the_wait_is_over(tmp_path):
    spool = open_spool(tmp_path / "spool")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(spool.run)
        made = journal(spool)
        opened = begin(made)
        assert spool.durable_position < opened.position
        await made.wait_durable(opened)
        assert spool.durable_position >= opened.position
        await spool.close()
        tasks.cancel_scope.cancel()


def test_the_intent_says_when_its_price_is_nominal():
    made = journal()
    begin(made, price=replace(PRICE, is_nominal=True))
    assert is_nominal(made.spool.records[0].price_version)
    begin(made)
    assert not is_nominal(made.spool.records[1].price_version)


DEAR = PriceVersion(
    rates={Meter.INPUT: rate_per_mtok("30"), Meter.OUTPUT: rate_per_mtok("150")}, source="baseline"
)
SENT = {"ttft_us": 1}
COMPARED = {
    "an answer: its counts at the baseline's rates": (S.OK, FINAL | SENT, 10 * COST),
    "an answer without counts of the upstream: those that passed": (S.OK, PASSED | SENT, 10 * COST),
    "a client that left: what was generated until then": (S.CLIENT_LEFT, PASSED, 10 * COST),
    "broken after content went out": (
        S.INTERRUPTED, {"usage": report(**COUNTS), **SENT}, 10 * COST,
    ),
    "broken before content went out: its cost counts against the saving": (
        S.INTERRUPTED, {"usage": report(**COUNTS)}, 0,
    ),
    "an empty answer that is asked for again": (
        S.OK, {**FINAL, "error_code": "empty_answer"}, 0,
    ),
    "refused": (S.REJECTED, {}, 0),
    "not sent": (S.NOT_SENT, {}, 0),
    "an unknown bill": (S.UNKNOWN_BILLING, PASSED, 0),
    "an answer whose counts nobody knows": (S.OK, SENT, None),
}  # fmt: skip


@pytest.mark.parametrize(("status", "facts", "cost"), COMPARED.values(), ids=COMPARED.keys())
def test_what_an_attempt_is_compared_with(status, facts, cost):
    made = journal()
    booking = structs.replace(BOOKING, baseline=Baseline(deployment="b/m", price=DEAR))
    found = made.settle(begin(made, booking=booking), Outcome(status=status, **facts))
    assert (found.baseline, found.baseline_cost_pico_usd) == (f"b/m@{DEAR.version_id}", cost)


def test_without_a_baseline_nothing_is_compared():
    made = journal()
    found = made.settle(begin(made), Outcome(status=S.OK, **FINAL, **SENT))
    assert (found.baseline, found.baseline_cost_pico_usd) == ("", None)


UNKNOWN_COSTS = {
    "its own price is unknown": (Unpriced(reason="no price"), DEAR),
    "that of the baseline is unknown": (PRICE, Unpriced(reason="no price")),
    "the baseline has no rate for what was used": (
        PRICE, PriceVersion(rates={Meter.INPUT: rate_per_mtok("1")}, source="t"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("price", "other"), UNKNOWN_COSTS.values(), ids=UNKNOWN_COSTS.keys())
def test_what_cannot_be_compared_names_its_baseline_and_no_cost(price, other):
    made = journal()
    booking = structs.replace(BOOKING, baseline=Baseline(deployment="b/m", price=other))
    opened = begin(made, booking=booking, price=price)
    found = made.settle(opened, Outcome(status=S.OK, **FINAL, **SENT))
    assert found.baseline.startswith("b/m@")
    assert found.baseline_cost_pico_usd is None
