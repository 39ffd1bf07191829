"""Budgets in front of real sockets: who is called, what the client is told, what the intent names."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from gateway.budgets.holds import Holds
from gateway.budgets.messages import BudgetRule, BudgetRules, BudgetScope, BudgetWindow, OnExceed
from gateway.budgets.refills import NOT_CARRIED_OUT
from gateway.budgets.standing import Standing
from gateway.channel import RemoteError
from gateway.clock import system_clock
from gateway.ledger.errors import SpoolError
from gateway.ledger.spool import Durability
from tests.gateway.gateway_harness import body, config_text, error_of, running_gateway
from tests.gateway.test_relay_attempts import BUSY
from tests.support.budget_ledger import MemoryLedger
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio

USD = 10**12


def rule(**changes) -> BudgetRule:
    facts = {
        "budget_id": 1, "name": "team apps, day", "scope": BudgetScope.TEAM, "team": "apps",
        "limit_pico_usd": USD, "window": BudgetWindow.DAY,
    }  # fmt: skip
    return BudgetRule(**{**facts, **changes})


@asynccontextmanager
async def budgeted(folder, upstreams, *rules: BudgetRule, **options):
    """A gateway with budgets; yields it with its ledger."""
    clock = system_clock()
    ledger = MemoryLedger(rules=BudgetRules(rules=rules, revision=1), wall_us=clock.wall_us)
    holds = Holds(
        lease=ledger.lease, standing=Standing(ledger.states, clock.monotonic_s), clock=clock
    )
    holds.follow(ledger.rules)
    async with running_gateway(folder, upstreams, **options) as gateway:
        gateway.service.relay = replace(gateway.service.relay, holds=holds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(holds.run)
            yield gateway, ledger
            tasks.cancel_scope.cancel()


async def test_an_attempt_names_its_lease_and_holds_its_upper_bound(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat(text="yes")]}) as up,
        budgeted(tmp_path, {"a": up.base_url}, rule()) as (gateway, ledger),
    ):
        assert (await gateway.post(body(max_tokens=10))).status_code == 200
        ((intent, settled),) = await gateway.settled()
        assert len(intent.lease_ids) == 1
        assert intent.hold_pico_usd == intent.exposure_pico_usd
        assert intent.hold_pico_usd >= settled.cost_pico_usd > 0
        ledger.book(intent.lease_ids, intent.hold_pico_usd, settled.cost_pico_usd)


async def test_a_blocked_request_is_a_402_that_forbids_retry_and_reaches_nobody(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        budgeted(tmp_path, {"a": up.base_url}, rule(limit_pico_usd=1)) as (gateway, _),
    ):
        for stream in (False, True):
            got = await gateway.post(body(stream=stream, max_tokens=10))
            assert got.status_code == 402
            assert got.headers["x-should-retry"] == "false"
            assert got.headers["x-fareway-deployment"] == "none"
            error = error_of(got)
            assert (error["code"], error["type"]) == ("budget_exceeded", "insufficient_quota")
            assert "'team apps, day' has no room" in error["message"]
        assert up.requests == []
        assert await gateway.settled() == []


async def test_a_fallback_that_has_no_room_ends_with_the_honest_error(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        budgeted(tmp_path, {"a": first.base_url, "b": second.base_url}, rule()) as (
            gateway,
            ledger,
        ),
    ):

        async def close_the_door(request) -> None:
            if len(ledger.requests) == 1:  # the first attempt's slab is all there ever is
                ledger.bucket(1).limit = request.wants[0].at_least_pico_usd

        ledger.before = close_the_door
        gateway.set_limits(attempts_max=2)
        got = await gateway.post(body(max_tokens=10))
        assert got.status_code == 402
        assert (got.headers["x-fareway-deployment"], got.headers["x-fareway-attempts"]) == (
            "a/m",
            "1",
        )
        assert "the attempts before it failed: a/m" in error_of(got)["message"]
        assert second.requests == []
        assert len(await gateway.settled()) == 1


async def test_every_attempt_has_a_hold_of_its_own(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        budgeted(tmp_path, {"a": first.base_url, "b": second.base_url}, rule()) as (gateway, _),
    ):
        gateway.hurry()
        assert (await gateway.post(body(max_tokens=10))).status_code == 200
        (one, _), (other, _) = await gateway.settled()
        assert one.hold_pico_usd < other.hold_pico_usd, "the second deployment is dearer"
        assert one.lease_ids
        assert other.lease_ids


async def test_where_the_first_is_too_dear_a_cheaper_one_is_tried(tmp_path):
    """Expected cost orders the candidates; what has to be held may order them otherwise."""
    async with (
        ScriptedUpstream({"m": [Chat()]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
    ):
        upstreams = {"a": first.base_url, "b": second.base_url}
        text = config_text(upstreams).replace(
            '"output_usd_per_mtok": 2}', '"output_usd_per_mtok": 0.1, "request_usd": 0.01}'
        )
        # `a` costs a cent per request; `b` more per token, and less than that for short answers.
        dear = text.replace('"output_usd_per_mtok": 3', '"output_usd_per_mtok": 4')
        async with budgeted(tmp_path, upstreams, rule(limit_pico_usd=USD // 50), text=dear) as (
            gateway,
            _,
        ):
            got = await gateway.post(body(max_tokens=5_000))
            assert got.status_code == 200
            assert got.headers["x-fareway-deployment"] == "a/m", "b would hold more than two cents"
            ((intent, _),) = await gateway.settled()
            assert intent.hold_pico_usd < USD // 50


async def test_a_deployment_without_a_price_is_refused_under_a_budget_that_blocks(tmp_path):
    async with ScriptedUpstream({"m": [Chat()]}) as up:
        upstreams = {"a": up.base_url}
        text = config_text(upstreams)
        start = text.index(', "price"')
        text = text.replace(text[start : text.index("}}", start) + 1], "", 1)
        async with budgeted(tmp_path, upstreams, rule(), text=text) as (gateway, _):
            got = await gateway.post(body(max_tokens=5))
            assert got.status_code == 402
            assert "known price" in error_of(got)["message"]
            assert up.requests == []


async def test_a_used_up_budget_that_narrows_lets_the_cheapest_alone_be_tried(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        budgeted(
            tmp_path,
            {"a": first.base_url, "b": second.base_url},
            rule(on_exceed=OnExceed.CHEAPEST_ONLY, limit_pico_usd=0),
        ) as (gateway, _),
    ):
        gateway.set_limits(attempts_max=2)
        gateway.hurry()
        got = await gateway.post(body())
        assert got.status_code == 503
        assert {request.path for request in first.requests}
        assert second.requests == [], "it costs more than the cheapest"
        assert all(intent.lease_ids == () for intent, _ in await gateway.settled())


async def test_with_the_ledger_away_the_client_is_told_to_come_back(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        budgeted(tmp_path, {"a": up.base_url}, rule()) as (gateway, ledger),
    ):
        ledger.fault = RemoteError(NOT_CARRIED_OUT, "the ledger process is being started again")
        got = await gateway.post(body(max_tokens=5))
        assert got.status_code == 503
        assert int(got.headers["retry-after"]) >= 1
        assert error_of(got)["code"] == "budget_unavailable"
        assert up.requests == []


async def test_the_narrower_of_budget_and_the_requests_own_ceiling_decides(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        budgeted(tmp_path, {"a": up.base_url}, rule(limit_pico_usd=USD // 100)) as (gateway, _),
    ):
        wide = {"max_tokens": 20_000}  # up to four cents
        got = await gateway.post(body(**wide), x_fareway_max_usd="0.001")
        assert (got.status_code, error_of(got)["code"]) == (400, "max_usd_exceeded")
        got = await gateway.post(body(**wide), x_fareway_max_usd="1")
        assert (got.status_code, error_of(got)["code"]) == (402, "budget_exceeded")


async def test_an_attempt_that_cannot_be_written_down_holds_nothing(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        budgeted(tmp_path, {"a": up.base_url}, rule()) as (gateway, ledger),
    ):

        class FullSpool:
            def append(self, record):
                raise SpoolError("no room")

            async def durable(self, position):
                raise AssertionError("nothing was written")

        relay = gateway.service.relay
        journal = relay.journal
        gateway.service.relay = replace(relay, journal=replace(journal, spool=FullSpool()))
        assert (await gateway.post(body(max_tokens=10))).status_code == 503
        gateway.service.relay = replace(gateway.service.relay, journal=journal)
        in_hand = sum(b.in_hand_pico_usd for b in gateway.service.relay.holds._buckets())
        assert in_hand == ledger.bucket(1).reserved
        assert await gateway.settled() == []


async def test_a_claim_of_a_million_million_tokens_is_no_bill(tmp_path):
    """Known fault: sixteen such answers were more than a roll-up holds."""
    usage = {"prompt_tokens": 5, "completion_tokens": 10**12 - 1, "total_tokens": 10**12 + 4}
    answer = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        ],
    }  # fmt: skip
    async with (
        ScriptedUpstream({"m": [Answer(status=200, body=answer)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}, durability=Durability.GROUP) as gateway,
    ):
        assert (await gateway.post(body())).status_code == 200
        ((intent, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("ok", "estimated")
        assert settled.error_code == f"implausible_usage:output={10**12 - 1}"
        assert settled.cost_pico_usd < USD // 1000
        assert intent.exposure_pico_usd is not None
