"""Retries, fallbacks and the whole request's deadline over real sockets, with every attempt booked."""

from __future__ import annotations

import gc
import time

import anyio
import pytest

from gateway.relay.course import Course
from gateway.relay.retry_budget import BURST
from providers.contract import AttemptFacts
from providers.errors import (
    BadRequest,
    Billing,
    ContentFiltered,
    NotPermitted,
    ProviderError,
    StaleConnection,
)
from providers.transport import Exchange
from tests.gateway.failure_kinds import KINDS
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    NOWHERE,
    UPSTREAM_KEY,
    body,
    config_text,
    error_of,
    running_gateway,
)
from tests.gateway.stream_reading import assemble
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

BUSY = Answer(status=503, body={"error": {"message": "busy"}})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
async def test_every_attempt_is_booked_before_another_one_follows(tmp_path, kind, stream):
    failing = FakeProvider(name="a", scripts=[[kind("scripted")]])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE, "b": NOWHERE}, providers={"a": failing, "b": other}
    ) as gateway:
        got = await gateway.post(body(stream=stream))
        attempts = await gateway.settled()  # complains about any that is not settled exactly once
        sent = [facts.attempt_id for one in (failing, other) for facts in one.facts]
        assert [intent.event_id.hex() for intent, _ in attempts] == sent
        assert [intent.attempt for intent, _ in attempts] == list(range(1, len(sent) + 1))
        for intent, settled in attempts:
            if intent.deployment == "b/m":
                assert (settled.status, settled.quality) == ("ok", "exact")
            elif kind.billing is Billing.NONE:
                assert (settled.status, settled.quality) == ("rejected", "exact")
            else:
                # Nothing is charged from a guess, and the intent's upper bound stays as exposure.
                assert (settled.status, settled.quality) == ("unknown_billing", "unknown")
        ends = {BadRequest: 400, ContentFiltered: 400, NotPermitted: 403}
        assert got.status_code == ends.get(kind, 200)
        assert len(failing.calls) == (2 if kind is StaleConnection else 1)
        assert len(other.calls) == (0 if kind in ends else 1)


async def test_a_stale_connection_is_tried_again_at_once_and_is_an_attempt(tmp_path):
    provider = FakeProvider(name="a", scripts=[[StaleConnection("closed")], answer("x")])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE, "b": NOWHERE}, providers={"a": provider, "b": other}
    ) as gateway:
        got = await gateway.post(body())
        assert (got.headers["x-fareway-deployment"], got.headers["x-fareway-attempts"]) == (
            "a/m",
            "2",
        )
        (_, stale), (_, served) = await gateway.settled()
        assert (stale.status, served.status) == ("unknown_billing", "ok")
        assert other.calls == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_one_deadline_holds_for_all_attempts_and_pauses(tmp_path, stream):
    slow = Chat(think_s=30)
    async with (
        ScriptedUpstream({"m": [slow]}) as first,
        ScriptedUpstream({"m": [slow]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(first_token_s=0.25, total_s=0.4)
        started_s = time.monotonic()
        got = await gateway.post(body(stream=stream))
        took_s = time.monotonic() - started_s
        assert got.status_code == 504
        error = error_of(got)
        assert error["code"] == "upstream_timeout"
        assert "a/m" in error["message"]
        assert "b/m" in error["message"]
        assert "127.0.0.1" not in error["message"]
        assert got.headers["x-should-retry"] == "false"
        assert got.headers["x-fareway-attempts"] == "2"
        assert 0.35 < took_s < 3.0
        (_, late), (_, cut) = await gateway.settled()
        assert (late.error_code, cut.error_code) == ("FirstTokenTimeout", "TotalTimeout")
        assert late.duration_us > 240_000 > cut.duration_us


async def test_no_attempt_starts_after_the_deadline(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=503, headers={"retry-after": "2"})]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(total_s=1.0)
        got = await gateway.post(body())
        assert (got.status_code, got.headers["retry-after"]) == (503, "2")
        assert len(up.requests) == 1


async def test_deployments_of_one_quota_group_wait_together(tmp_path):
    # GW-057.
    limited = Answer(status=429, headers={"retry-after-ms": "200"}, body={})
    async with (
        ScriptedUpstream({"m": [limited]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
    ):
        text = config_text({"a": first.base_url, "b": second.base_url}).replace(
            '"kind":', '"quota_group": "acct1", "kind":'
        )
        async with running_gateway(tmp_path, {}, text=text) as gateway:
            started_s = time.monotonic()
            got = await gateway.post(body())
            assert got.headers["x-fareway-deployment"] == "b/m"
            assert time.monotonic() - started_s >= 0.2
            health = gateway.service.admission.health
            health.note_lack("a/m", asked_s=5.0, is_quota=True)
            assert health.is_paused("b/m")


async def test_a_quota_without_a_wait_pauses_a_deployment_all_the_same(tmp_path):
    # GW-055: which limit it was is in a header of its own.
    async with (
        ScriptedUpstream({"m": [Answer(status=429, body={})]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        for _ in range(3):
            assert (await gateway.post(body())).headers["x-fareway-deployment"] == "b/m"
        assert len(first.requests) == 1
        gateway.set_limits(attempts_max=1)
        got = await gateway.post(body(model="a/m"))
        assert (got.status_code, error_of(got)["code"]) == (429, "upstream_rate_limited")
        assert got.headers["x-fareway-limited-by"] == "provider"
        assert int(got.headers["retry-after"]) >= 1


PRIVATE_FAILURES = {
    "a server that is full": BUSY,
    "a server that is not there": None,
}


@pytest.mark.parametrize("script", PRIVATE_FAILURES.values(), ids=PRIVATE_FAILURES.keys())
async def test_private_requests_wait_for_a_private_deployment(tmp_path, script):
    async with (
        ScriptedUpstream({"m": [script or BUSY]}) as own,
        ScriptedUpstream({"m": [Chat()]}) as vendor,
    ):
        url = NOWHERE if script is None else own.base_url
        more = "privacy: {tags: {private: {require: [self_hosted]}}}"
        text = config_text({"own": url, "vendor": vendor.base_url}, more=more).replace(
            '"own": {', '"own": {"trust": ["self_hosted"], ', 1
        )
        async with running_gateway(tmp_path, {}, text=text) as gateway:
            gateway.set_limits(within_s=0.3)
            got = await gateway.post(body(), x_fareway_tags="private")
            assert (got.status_code, error_of(got)["code"]) == (503, "private_capacity_unavailable")
            assert int(got.headers["retry-after"]) >= 1
            assert "x-should-retry" not in got.headers
            assert vendor.requests == []
            # Without the tag the same failure is followed by the vendor.
            assert (await gateway.post(body())).headers["x-fareway-deployment"] == "vendor/m"


async def test_an_outage_is_not_made_worse_by_retries(tmp_path):
    requests = 40
    async with (
        ScriptedUpstream({"m": [BUSY]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(within_s=60.0, attempts_max=3)
        started_s = time.monotonic()
        codes = set()

        async def ask() -> None:
            codes.add(error_of(await gateway.post(body()))["code"])

        async with anyio.create_task_group() as tasks:
            for _ in range(requests):
                tasks.start_soon(ask)
        took_s = time.monotonic() - started_s
        assert codes == {"no_healthy_deployment"}
        allowed = requests * 1.2 + BURST + took_s + 1
        assert requests + BURST <= len(up.requests) <= allowed < 3 * requests
        assert len(await gateway.settled()) == len(up.requests)
        assert b'fareway_retries_refused_total{provider="a"' in gateway.service.metrics.render()


async def test_all_requests_follow_one_policy_which_goes_with_the_limits(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        for attempts, within_s in ((1, 60.0), (2, 60.0), (3, 0.0)):
            gateway.set_limits(attempts_max=attempts, within_s=within_s)
            relay, before = gateway.service.relay, len(up.requests)
            policy = relay.planner.policy
            await gateway.post(body())
            assert len(up.requests) - before == (attempts if within_s else 1)
            assert gateway.service.relay.planner.policy is policy


async def test_without_budget_another_deployment_still_answers(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        budget = gateway.service.relay.budget
        while budget.has_room("a/m"):
            budget.spend("a/m")
        while budget.has_room("b/m"):
            budget.spend("b/m")
        got = await gateway.post(body())
        assert (got.status_code, got.headers["x-fareway-deployment"]) == (200, "b/m")


OUTPUT_LIMIT = Answer(
    status=400,
    body={"error": {"message": "max_tokens is too large: 64000. This model supports at most 8192 completion tokens."}},
)  # fmt: skip


async def test_a_fallback_with_a_lower_output_limit_is_left_out_and_hides_nothing(tmp_path):
    # GW-047: no loop of 400s, and the client hears of the failure that it can do something about.
    async with (
        ScriptedUpstream({"m": [BUSY, BUSY, Chat(text="back")]}) as first,
        ScriptedUpstream({"m": [OUTPUT_LIMIT]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.hurry()
        gateway.set_limits(attempts_max=2)
        got = await gateway.post(body(max_tokens=64_000))
        assert (got.status_code, error_of(got)["code"]) == (503, "no_healthy_deployment")
        gateway.set_limits(attempts_max=4)
        got = await gateway.post(body(max_tokens=64_000))
        assert (got.status_code, got.headers["x-fareway-deployment"]) == (200, "a/m")
        alone = await gateway.post(body(model="b/m", max_tokens=64_000))
        assert (alone.status_code, error_of(alone)["code"]) == (400, "context_length_exceeded")
        assert error_of(alone)["param"] == "max_tokens"


async def test_after_content_the_first_failure_is_told_and_nobody_continues(tmp_path):
    # GW-040: an answer is never continued by another deployment, so no prefill can be refused.
    async with (
        ScriptedUpstream({"m": [Chat(stall_after=2, stall_s=60)]}) as first,
        ScriptedUpstream({"m": [Answer(status=400, body={"error": "no prefill"})]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(between_tokens_s=0.1)
        found = assemble((await gateway.post(body(stream=True))).content)
        assert [error["code"] for error in found.errors] == ["upstream_timeout"]
        assert second.requests == []


async def test_an_error_names_no_secret_and_no_host(tmp_path):
    leak = {"error": {"message": f"bad {UPSTREAM_KEY} at 127.0.0.1, http://127.0.0.1/v1"}}
    async with (
        ScriptedUpstream({"m": [Answer(status=500, body=leak)]}) as first,
        ScriptedUpstream({"m": [Answer(status=401, body=leak)]}) as second,
        ScriptedUpstream({"m": [Answer(status=400, body=leak)]}) as third,
        running_gateway(
            tmp_path, {"a": first.base_url, "b": second.base_url, "c": third.base_url}
        ) as gateway,
    ):
        gateway.set_limits(attempts_max=2)
        exhausted = await gateway.post(body())
        assert exhausted.status_code == 502
        refused = await gateway.post(body(model="c/m"))
        assert refused.status_code == 400
        for got in (exhausted, refused):
            text = got.text + str(dict(got.headers))
            assert UPSTREAM_KEY not in text
            assert "127.0.0.1" not in got.text


ANSWERS = {
    "an answer": (200, Chat(text="ok")),
    "answers that are none": (502, Wire(steps=(Step(text='HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{"x"'),))),
    "a reset before one": (502, Wire(steps=(Step(delay_s=0.02, ending="reset"),))),
    "an end before one": (502, Wire(steps=(Step(delay_s=0.02, ending="close"),))),
    "no HTTP": (502, Wire(steps=(Step(text="SSH-2.0-OpenSSH\r\n"),))),
    "a reset amid one": (502, Wire(steps=(Step(text="HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), Step(delay_s=0.02, ending="reset")))),
    "an error": (502, Answer(status=500, body={"error": "x"})),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("status", "script"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_attempts_leave_nothing_to_the_collector(tmp_path, status, script, stream):
    """What came of an answer can be large, and workers collect seldom."""
    async with (
        ScriptedUpstream({"m": [script]}) as upstream,
        running_gateway(tmp_path, {"a": upstream.base_url}) as gateway,
    ):
        gateway.hurry()
        gc.freeze()  # what is there already is not looked through
        gc.disable()
        try:
            assert (await gateway.post(body(stream=stream))).status_code == status
            await gateway.wait_idle()
            assert _kept((AttemptFacts, Course, Exchange, ProviderError)) == []
        finally:
            gc.enable()
            gc.unfreeze()


def _kept(kinds: tuple[type, ...]) -> list[object]:
    """What the collector knows of some kinds; by type, as `isinstance` asks an object for its class,
    and libraries have objects that warn when they are asked for anything.
    """
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]
