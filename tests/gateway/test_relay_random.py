"""Random requests against random deployments: whatever happens, each attempt is settled once."""

from __future__ import annotations

import asyncio
import random

import anyio
import httpx
import pytest

from tests.gateway.failure_kinds import KINDS
from tests.gateway.fake_provider import FakeProvider, Step, answer
from tests.gateway.gateway_harness import NOWHERE, body, error_of, running_gateway
from tests.gateway.stream_reading import assemble

pytestmark = pytest.mark.anyio

FAULTS = (*KINDS, KeyError)
REQUESTS = 96
NAMES = ("a", "b", "c")


def script(rng: random.Random) -> list[Step]:
    """Some words, with a pause or an error anywhere."""
    steps: list[Step] = answer(*(f"{rng.random()} " for _ in range(rng.randrange(4))))
    if rng.random() < 0.4:
        steps.insert(rng.randrange(len(steps) + 1), rng.choice([0.0, 0.01, 0.05]))
    if rng.random() < 0.5:
        kind = rng.choice(FAULTS)
        steps = [*steps[: rng.randrange(len(steps) + 1)], kind("scripted")]
    return steps


async def test_every_attempt_is_settled_once_and_nothing_is_left_running(tmp_path, rng):
    providers = {
        name: FakeProvider(name=name, scripts=[script(rng) for _ in range(REQUESTS)])
        for name in NAMES
    }
    seen: dict[str, int] = {}

    async def ask(gateway, seed: int) -> None:
        own = random.Random(seed)
        is_stream = own.random() < 0.7
        request = body(stream=is_stream, usage=is_stream and own.random() < 0.5)
        patience_s = own.choice([10.0, 10.0, own.random() * 0.1])
        with anyio.move_on_after(patience_s):
            try:
                got = await gateway.post(request)
            except httpx.HTTPError as error:
                raise AssertionError("the connection broke") from error
            seen[got.headers["x-fareway-request-id"]] = got.status_code
            if got.status_code != 200:
                assert error_of(got)["message"]
            elif is_stream:
                found = assemble(got.content)
                assert found.is_done is not bool(found.errors)

    async with running_gateway(
        tmp_path, dict.fromkeys(NAMES, NOWHERE), providers=providers
    ) as gateway:
        gateway.set_limits(within_s=0.3, heartbeat_s=0.02)
        before = len(asyncio.all_tasks())
        for _ in range(REQUESTS // 8):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(ask, gateway, rng.randrange(2**32))
        settled = await gateway.settled()  # complains about every attempt not settled exactly once
        calls = [provider.calls for provider in providers.values()]
        assert len(settled) == sum(map(len, calls))
        assert all(one.left == len(one.calls) for one in providers.values())
        by_request: dict[str, list[int]] = {}
        for intent, _ in settled:
            by_request.setdefault(intent.request_id.hex(), []).append(intent.attempt)
        for numbers in by_request.values():
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) <= 3
        assert set(seen) <= set(by_request)
        statuses = {s.status for _, s in settled}
        assert {"ok", "rejected"} <= statuses
        for intent, one in settled:
            assert one.cost_pico_usd is not None
            if one.status in ("not_sent", "rejected", "unknown_billing"):
                assert one.cost_pico_usd == 0, intent
        with anyio.fail_after(5):
            while len(asyncio.all_tasks()) > before:
                await anyio.sleep(0.01)
        assert gateway.service.in_flight == 0
