"""Attacks by circumstance: servers that are away, reloads, expiry, detectors, other tenants."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.clock import to_microseconds
from gateway.detect.detection import Detection
from gateway.detect.errors import OutOfTime
from gateway.egress.guard import Guard
from gateway.settings.errors import ConfigError
from tests.gateway.gateway_harness import NOWHERE
from tests.privacy.attack_range import BODY, Range, is_refused
from tests.privacy.recorders import Names
from tests.privacy.worlds import OURS, PRIVATE, TAGGED, WORLD, Claim, Tag

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CARD = "4539148803436467"  # made by rule, published by nobody


# Servers of our own that cannot serve.

AWAY = ["429", "500", "503", "cut", "reset", "redirect", "silent", "no http", "400"]


@pytest.mark.parametrize("course", AWAY)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_our_server_failing_in_any_way_sends_nobody_to_a_vendor(
    range_: Range, course, stream
):
    range_.recorders["p0"].course = course
    for _ in range(3):
        got = await range_.ask({**BODY, "stream": stream})
        assert b"says hello" not in got.body or course == "cut"
        assert got.status != 200 or (stream and course == "cut")
    assert range_.recorders["p0"].requests


@pytest.mark.parametrize(
    "url", [NOWHERE, "http://nowhere.internal:80/v1"], ids=["refused", "no name"]
)
async def test_our_server_that_is_not_there_sends_nobody_to_a_vendor(
    range_: Range, url, monkeypatch
):
    await range_.load(replace(WORLD, urls={"p0": url}))
    monkeypatch.setattr(socket, "getaddrinfo", Names({}))
    got = await range_.ask(BODY)
    assert got.status in (502, 503)
    assert range_.touched() == set()


async def test_our_server_known_to_be_down_is_a_503_of_its_own_kind(range_: Range):
    range_.service.admission.health.set_fault("p0/m", "it is away")
    got = await range_.ask(BODY)
    assert is_refused(got, 503, "private_capacity_unavailable")
    assert "retry-after" in got.headers
    assert range_.touched() == set()
    range_.service.admission.health.set_fault("p0/m", None)
    assert (await range_.ask(BODY)).status == 200


async def test_our_server_cooling_down_is_asked_all_the_same_and_nobody_else(range_: Range):
    range_.service.admission.health.note_lack("p0/m", asked_s=60.0, is_quota=False)
    got = await range_.ask(BODY)
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")


CAPACITY = {"429": (429, "upstream_rate_limited"), "503": (503, "private_capacity_unavailable")}


@pytest.mark.parametrize(("course", "expected"), CAPACITY.items(), ids=CAPACITY.keys())
async def test_our_server_at_capacity_is_no_vendors_turn(range_: Range, course, expected):
    range_.recorders["p0"].course = course
    got = await range_.ask(BODY)
    assert is_refused(got, *expected)
    assert "retry-after" in got.headers


async def test_our_server_back_for_one_request_lets_nobody_pass_beside_it(range_: Range):
    """Half-open: one request tries whether it is back, the others of that moment wait or fail."""
    own = range_.recorders["p0"]
    own.course = "503"
    await range_.ask(BODY)
    own.course = "well"
    got = await asyncio.gather(*(range_.ask(BODY) for _ in range(8)))
    assert {one.status for one in got} <= {200, 503}
    assert all(one.headers.get("x-fareway-deployment") in ("p0/m", "none") for one in got)


async def test_no_more_connections_to_our_server_is_no_reason_for_a_vendor(range_: Range):
    limited = replace(WORLD, more={})
    await range_.load(limited)
    text = json.loads(range_.text(limited))
    text["providers"]["p0"]["connections"] = {"max": 1, "waiting_max": 1}
    await range_.load_text(json.dumps(text))
    range_.recorders["p0"].course = "silent"
    got = await asyncio.gather(*(range_.ask(BODY) for _ in range(6)))
    assert {one.status for one in got} <= {502, 503, 504}


# Replacing the configuration. GW-104.


async def test_a_newer_policy_shrinks_what_standing_connections_may_reach(range_: Range):
    await range_.load(TAGGED)
    range_.narrow(replace(TAGGED, teams={"apps": ("private",)}))
    got = await range_.ask(BODY)
    assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")


async def test_a_newer_policy_widens_nothing_for_standing_connections(range_: Range):
    range_.narrow(replace(WORLD, teams={}, tags={name: Tag() for name in PRIVATE}))
    got = await range_.ask({**BODY, "model": "p1/m"})
    assert got.status == 403
    assert (await range_.ask(BODY)).headers["x-fareway-deployment"] == "p0/m"


@pytest.mark.parametrize(
    ("following", "status"), [("p0", 200), ("p1", 503)], ids=["ours follows", "a vendor follows"]
)
async def test_a_newer_policy_counts_for_the_next_attempt_in_flight(
    range_: Range, following, status
):
    # Without a floor at first; the first upstream fails after the policy was replaced.
    trust = {"p0": OURS, "p4": OURS}
    await range_.load(replace(WORLD, teams={}, trust=trust, model=("p4", following)))
    range_.gateway.set_limits(first_token_s=20.0)
    first = range_.recorders["p4"]
    first.course = "silent"
    asked = asyncio.ensure_future(range_.ask(BODY))
    while not first.waiting:
        await asyncio.sleep(0.001)
    range_.narrow(replace(range_.world, floor=("private",)))
    first.course = "503"
    first.answer_waiting()
    got = await asked
    assert got.status == status
    assert first.requests == 1
    first.forget()


async def test_a_policy_file_that_is_broken_leaves_the_old_one_in_force(range_: Range):
    for broken in (
        replace(WORLD, teams={"apps": ("privat",)}),
        replace(WORLD, tags={**PRIVATE, "x": Tag(implies=("x",))}),
        replace(WORLD, floor=("unknown",)),
    ):
        with pytest.raises(ConfigError):
            range_.narrow(broken)
        got = await range_.ask(BODY)
        assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")


# Evidence that expires.


async def test_evidence_that_expires_while_we_run_counts_no_more(range_: Range):
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    claim = Claim(attribute="self_hosted", expires=tomorrow.isoformat())
    await range_.load(replace(WORLD, trust={"p0": (claim,)}))
    assert (await range_.ask(BODY)).status == 200
    end = datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=UTC)
    clock = range_.service.clock
    for offset_us, status in ((-1, 200), (0, 403), (1, 403)):
        at_us = to_microseconds(end) + offset_us
        range_.service.clock = replace(clock, wall_us=lambda at_us=at_us: at_us)
        got = await range_.ask(BODY)
        assert got.status == status, offset_us
    range_.service.clock = clock


# Detectors.


class _Broken:
    """A scanner of which every part fails."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def __getattr__(self, name: str):
        raise self._fault


async def test_detectors_that_crash_or_run_out_of_time_add_what_on_error_says(range_: Range):
    detect = {"mode": "enforce", "payment_card": ["card"], "on_error": ["private"]}
    world = replace(TAGGED, more={"privacy": {
        "tags": {name: rule.written() for name, rule in PRIVATE.items()}, "detect": detect}})  # fmt: skip
    await range_.load(world)
    orders = range_.service.detection.orders
    for fault in (RuntimeError("broken"), OutOfTime(), MemoryError(), RecursionError()):
        range_.service.detection = Detection(orders, scanner=_Broken(fault))
        got = await range_.ask(BODY)
        assert (got.status, got.headers.get("x-fareway-deployment")) == (200, "p0/m"), fault


async def test_a_card_in_an_untagged_request_makes_it_private(range_: Range):
    detect = {"mode": "enforce", "payment_card": ["card"]}
    await range_.load(replace(TAGGED, more={"privacy": {
        "tags": {name: rule.written() for name, rule in PRIVATE.items()}, "detect": detect}}))  # fmt: skip
    for content in (f"pay {CARD}", "\u200b".join(CARD), f"{CARD[:8]} {CARD[8:]}"):
        got = await range_.ask({**BODY, "messages": [{"role": "user", "content": content}]})
        assert (got.status, got.headers["x-fareway-deployment"]) == (200, "p0/m")
        got = await range_.ask(
            {**BODY, "model": "p1/m", "messages": [{"role": "user", "content": content}]}
        )
        assert got.status == 403
        assert CARD.encode() not in got.body


# Another tenant's words. GW-131.


async def test_another_tenants_same_prompt_is_asked_anew(range_: Range):
    first = await range_.ask(BODY)
    second = await range_.ask(BODY, team="others", headers=[("x-fareway-tags", "private")])
    assert (first.status, second.status) == (200, 200)
    assert range_.recorders["p0"].requests == 2, "the second answer came from somewhere else"


# Telemetry.


def test_an_exporter_that_points_elsewhere_is_stopped_in_the_process():
    guard = Guard([])
    with pytest.raises(OSError):
        guard.check_name("collector.evil.invalid", 4318)
    with pytest.raises(OSError):
        guard.check_address(socket.AF_INET, ("93.184.216.34", 4318))
    assert guard.refused == 2
