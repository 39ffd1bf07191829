"""Attempts over real sockets: who is called after whom, and what each is booked as."""

from __future__ import annotations

import errno
import json

import pytest

from gateway.ledger.spool import Durability, KernelFiles
from providers.errors import ConnectionLost, ContextTooLong, Overloaded
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import NOWHERE, UPSTREAM_KEY, body, error_of, running_gateway
from tests.gateway.stream_reading import assemble
from tests.gateway.upstream_wires import CONTENT, events
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step

pytestmark = pytest.mark.anyio


BUSY = Answer(status=503, body={"error": {"message": "busy"}}, headers={"x-request-id": "P-1"})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_failing_deployment_is_followed_by_the_next_and_each_attempt_is_booked(
    tmp_path, stream
):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 200
        assert got.headers["x-fareway-deployment"] == "b/m"
        assert got.headers["x-fareway-attempts"] == "2"
        # GW-045: nothing of the first upstream's answer is in the second one's.
        assert got.headers["x-request-id"] == got.headers["x-fareway-request-id"]
        (lost, refused), (won, settled) = await gateway.settled()
        assert lost.request_id == won.request_id
        assert (lost.attempt, won.attempt) == (1, 2)
        assert (refused.status, refused.quality, refused.cost_pico_usd) == ("rejected", "exact", 0)
        assert (refused.http_status, refused.upstream_request_id) == (503, "P-1")
        assert (settled.status, settled.quality) == ("ok", "exact")
        line = second.bill[0]
        cost = line.prompt_tokens * 1_000_000 + line.completion_tokens * 3_000_000
        assert settled.cost_pico_usd == cost
        assert line.attempt_id == won.event_id.hex()
        ids = [request.headers["x-client-request-id"] for request in first.requests]
        assert ids == [lost.event_id.hex()]


async def test_only_the_decisions_deployments_are_called(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [BUSY]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(attempts_max=5, within_s=0.3)
        got = await gateway.post(body(model="a/m"))
        assert got.status_code == 503
        assert error_of(got)["code"] == "no_healthy_deployment"
        assert len(first.requests) >= 1
        assert second.requests == []


ENDS_AT_ONCE = {
    "a malformed request": (
        Answer(status=400, body={"error": {"message": "no such tool", "param": "tools"}}),
        400,
    ),
    "an error event before any content (GW-029)": (
        events(
            ": hb\n\n",
            'event: error\ndata: {"error":{"message":"invalid","type":"invalid_request_error","code":400}}\n\n',
        ),
        400,
    ),
}


@pytest.mark.parametrize(("script", "status"), ENDS_AT_ONCE.values(), ids=ENDS_AT_ONCE.keys())
async def test_a_callers_fault_is_shown_and_nobody_else_is_asked(tmp_path, script, status):
    async with (
        ScriptedUpstream({"m": [script]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=True))
        assert got.status_code == status
        assert got.headers["content-type"] == "application/json"
        assert error_of(got)["type"] == "invalid_request_error"
        assert second.requests == []
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.cost_pico_usd) == ("rejected", 0)


BREAKS = {
    "a reset": Chat(end_after=2, ending="reset"),
    "an early end": Chat(end_after=2, ending="close"),
    "an error event": Chat(end_after=2, ending="error"),
    "garbage": events(CONTENT, CONTENT, "data: {broken\n\n"),
    "a stall": Chat(stall_after=2, stall_s=60),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS.keys())
async def test_after_content_there_is_one_error_event_no_end_mark_and_no_fallback(tmp_path, script):
    async with (
        ScriptedUpstream({"m": [script]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(between_tokens_s=0.3)
        got = await gateway.post(body(stream=True, usage=True))
        assert got.status_code == 200
        found = assemble(got.content)
        assert found.texts[0] in ("Hello there,", "aa")
        assert not found.is_done
        assert [error["code"] for error in found.errors] in (
            ["upstream_error"],
            ["upstream_timeout"],
        )
        assert "a/m" in found.errors[0]["message"]
        assert UPSTREAM_KEY not in got.text
        assert second.requests == []
        ((_, settled),) = await gateway.settled()
        # GW-065: nothing is charged from a guess.
        assert (settled.status, settled.quality) == ("interrupted", "unknown")
        assert settled.cost_pico_usd == 0
        assert settled.ttft_us is not None


async def test_counts_of_a_stream_that_broke_are_kept(tmp_path):
    # GW-084.
    counted = CONTENT.replace("}]}", '}],"usage":{"prompt_tokens":50,"completion_tokens":1}}')
    async with (
        ScriptedUpstream({"m": [events(counted)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        found = assemble((await gateway.post(body(stream=True))).content)
        assert len(found.errors) == 1
        ((_, settled),) = await gateway.settled()
        assert settled.usage == {"input": 50, "output": 1}
        assert (settled.status, settled.quality) == ("interrupted", "estimated")
        assert settled.cost_pico_usd == 52_000_000


async def test_role_chunks_and_metadata_do_not_commit_an_attempt(tmp_path):
    preamble = (
        'data: {"id":"","choices":[],"prompt_filter_results":[]}\n\n'
        'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    )
    async with (
        ScriptedUpstream({"m": [events(": hi\n\n", preamble, Step(delay_s=0.05))]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        assert got.headers["x-fareway-deployment"] == "b/m"
        assert (found.texts, found.is_done) == ({0: "from b"}, True)
        assert all("prompt_filter_results" not in chunk for chunk in found.chunks)
        (_, lost), _ = await gateway.settled()
        assert lost.status == "unknown_billing"
        assert lost.ttft_us is None


async def test_a_quota_pauses_a_deployment_for_the_requests_that_follow(tmp_path):
    # GW-053 (the client's side is in test_http_chat), GW-051.
    limited = Answer(status=429, headers={"retry-after": "30"}, body={"error": {"message": "slow"}})
    async with (
        ScriptedUpstream({"m": [limited]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        for _ in range(3):
            assert (await gateway.post(body())).headers["x-fareway-deployment"] == "b/m"
        assert len(first.requests) == 1
        gateway.service.admission.health.note_lack("a/m", asked_s=1.0, is_quota=False)
        assert gateway.service.admission.health.is_paused("a/m")
        # Where it is the only one it is still asked: that is how its return is found out.
        assert (await gateway.post(body(model="a/m"))).status_code == 429
        assert len(first.requests) == 2


async def test_nothing_is_dispatched_when_the_spool_takes_nothing(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url, "b": up.base_url}) as gateway,
    ):
        await gateway.service.relay.journal.spool.close()
        got = await gateway.post(body())
        assert got.status_code == 503
        assert error_of(got)["code"] == "ledger_unavailable"
        assert got.headers["retry-after"] == "5"
        assert up.requests == []


async def test_strict_intents_are_on_disk_before_dispatch(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("x")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers={"a": provider}, durability=Durability.STRICT
    ) as gateway:
        gateway.set_limits(is_strict=True)
        spool = gateway.service.relay.journal.spool
        positions = []
        inner = provider._play

        async def look(script):
            positions.append((spool.durable_position, spool.position))
            async for batch in inner(script):
                yield batch

        provider._play = look
        assert (await gateway.post(body())).status_code == 200
        ((durable, written),) = positions
        assert durable == written > 0


class BrokenDisk(KernelFiles):
    """Takes records, and loses them."""

    def sync(self, descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")


async def test_a_strict_intent_that_the_disk_lost_is_not_dispatched(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("x")])
    async with running_gateway(
        tmp_path,
        {"a": NOWHERE},
        providers={"a": provider},
        durability=Durability.STRICT,
        files=BrokenDisk(),
    ) as gateway:
        gateway.set_limits(is_strict=True)
        got = await gateway.post(body())
        assert got.status_code == 503
        assert error_of(got)["code"] == "ledger_unavailable"
        assert provider.calls == []
        async with gateway.client() as client:
            ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert "failed for good" in ready.json()["reasons"][0]


async def test_a_spool_that_fails_under_way_costs_neither_the_answer_nor_the_intent(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("x", "y")])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        spool = gateway.service.relay.journal.spool
        inner = provider._play

        async def close_first(script):
            await spool.close()
            async for batch in inner(script):
                yield batch

        provider._play = close_first
        got = await gateway.post(body())
        assert got.status_code == 200
        assert json.loads(got.content)["choices"][0]["message"]["content"] == "xy"
        assert "x-fareway-cost-usd" not in got.headers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_fault_of_ours_after_dispatch_is_not_booked_as_free(tmp_path, stream, caplog):
    provider = FakeProvider(name="a", scripts=[[KeyError("canary-prompt")]])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 500
        error = error_of(got)
        assert error["code"] == "internal_error"
        assert got.headers["x-fareway-request-id"] in error["message"]
        assert "canary" not in got.text
        assert "Traceback" not in got.text
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("unknown_billing", "unknown")
        assert (settled.http_status, settled.error_code) == (500, "internal_error")
        assert "Traceback" in caplog.text


FRAMELESS_FAILURES = {
    "before content: the next one": ([Overloaded("full", retry_after_s=1)], "b", None),
    "before content, outcome unknown: the next one": ([ConnectionLost("died")], "b", None),
    "a prompt too long for it: the next one": ([ContextTooLong("too long")], "b", None),
    "after content: an error event": ([*answer("x")[:1], ConnectionLost("died")], None, "x"),
}


@pytest.mark.parametrize(
    ("script", "served_by", "text"), FRAMELESS_FAILURES.values(), ids=FRAMELESS_FAILURES.keys()
)
async def test_a_failing_engine(tmp_path, script, served_by, text):
    engine = FakeProvider(name="a", scripts=[script])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE, "b": NOWHERE}, providers={"a": engine, "b": other}
    ) as gateway:
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        if served_by:
            assert (found.texts, found.is_done) == ({0: "from b"}, True)
        else:
            assert (found.texts, found.is_done, len(found.errors)) == ({0: text}, False, 1)
        assert engine.left == len(engine.calls) == 1


async def test_after_many_failures_of_every_kind_no_socket_and_no_request_is_left(tmp_path):
    # GW-059.
    scripts = [
        Answer(status=429, filler_bytes=300_000, body={"error": {"message": "x"}}),
        Chat(end_after=1, ending="reset"),
        events(CONTENT, "data: {broken\n\n"),
        Answer(status=500, body={}),
    ] * 5
    async with (
        ScriptedUpstream({"m": [*scripts, Chat(text="still here")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(attempts_max=1)
        for _ in scripts:
            await gateway.post(body(stream=True))
        got = await gateway.post(body(stream=True))
        assert assemble(got.content).texts == {0: "still here"}
        assert len(await gateway.settled()) == len(scripts) + 1
        assert up.open_connections <= 2
        assert gateway.service.in_flight == 0
