"""The client and the supervisor's side against real engine processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import msgspec
import pytest

from local_engine.api import (
    EngineClient,
    EngineConfig,
    EngineGone,
    EngineProcess,
    GenerateRequest,
    ModelFileError,
    TextDelta,
    spawn_engine,
)

FAKE_ENGINE = "tests.local_engine.fake_engine"


def config(behaviour: str = "slow") -> EngineConfig:
    return EngineConfig(
        model_id="fake",
        path=f"/fake/{behaviour}",
        namespace_key=b"k" * 32,
        block_size=4,
        kv_memory_bytes=2000,
        max_num_seqs=4,
    )


async def connect(engine: EngineProcess) -> EngineClient:
    ours, theirs = socket.socketpair()
    with theirs:
        await engine.control.add_link(theirs)
    client = EngineClient(ours)
    await client.connect(timeout_s=20)
    return client


def request(name: str = "r", **changes) -> GenerateRequest:
    options = {"namespace": b"a", "prompt": "canary-91ab", "max_tokens": 300, "temperature": 0.0}
    return GenerateRequest(id=name, **{**options, **changes})


def test_a_process_that_ends_before_it_was_told_what_to_do_leaves_nothing_behind() -> None:
    # More than a socket buffers, so that sending lasts until the process has ended.
    huge = msgspec.structs.replace(config(), model_id="x" * 4_000_000)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Broken pipe|reset"):
        spawn_engine(huge, module="tests.no_such_module")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_importing_the_api_loads_neither_torch_nor_a_tokenizer() -> None:
    code = (
        "import sys, local_engine.api;"
        "print([name for name in ('torch', 'tokenizers', 'numpy', 'jinja2', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.anyio
@pytest.mark.slow
async def test_an_engine_killed_mid_stream_ends_its_streams_and_leaves_the_client_clean(
    capfd,
) -> None:
    engine = spawn_engine(config(), module=FAKE_ENGINE)
    card = await engine.control.wait_ready(timeout_s=60)
    limits = Path(f"/proc/{engine.pid}/limits").read_text()
    assert "Max core file size        0                    0" in limits
    client = await connect(engine)
    other = await connect(engine)
    assert client.card == card == other.card
    events = 0
    with pytest.raises(EngineGone):
        async with client.generate(request(max_tokens=1500)) as generation:
            async for batch in generation:
                events += sum(isinstance(each, TextDelta) for each in batch)
                if events >= 3:  # a batch may hold several
                    await engine.control.kill()
    assert generation.done is None
    assert events >= 3
    assert not client.is_alive
    assert client.in_flight == 0
    assert await engine.control.wait(timeout_s=10) == -signal.SIGKILL
    assert engine.returncode == -signal.SIGKILL
    assert not engine.control.is_alive
    with pytest.raises(EngineGone):
        await engine.control.ping()
    with pytest.raises(EngineGone):
        async with client.generate(request()):
            pass
    for each in (client, other):
        await each.close()
    assert "canary-91ab" not in capfd.readouterr().err


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_model_that_cannot_be_loaded_is_not_worth_a_restart() -> None:
    engine = spawn_engine(config("corrupt"), module=FAKE_ENGINE)
    with pytest.raises(ModelFileError, match="corrupt"):
        await engine.control.wait_ready(timeout_s=60)
    assert await engine.control.wait(timeout_s=10) == 1


@pytest.mark.anyio
@pytest.mark.slow
async def test_sigterm_drains_and_a_new_process_serves_again(capfd) -> None:
    for _ in range(2):
        engine = spawn_engine(config(), module=FAKE_ENGINE)
        await engine.control.wait_ready(timeout_s=60)
        client = await connect(engine)
        async with client.generate(request(max_tokens=20)) as generation:
            await anext(generation)
            await engine.control.terminate()
            async for _ in generation:
                pass
        assert generation.done.finish_reason == "length"
        assert await engine.control.wait(timeout_s=10) == 0
        await client.close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_engine_dies_with_its_supervisor() -> None:
    code = textwrap.dedent(f"""
        import asyncio, os
        from local_engine.api import EngineConfig, spawn_engine

        async def main():
            engine = spawn_engine(
                EngineConfig(model_id="fake", path="/fake/slow", namespace_key=b"k" * 32),
                module={FAKE_ENGINE!r},
            )
            await engine.control.wait_ready(timeout_s=60)
            print(engine.pid, flush=True)
            os._exit(0)

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        subprocess.run(["sleep", "0.02"], check=True)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the engine outlived its supervisor")


@pytest.mark.anyio
async def test_a_client_whose_engine_never_answers_gives_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        client = EngineClient(ours)
        with pytest.raises(EngineGone, match="did not answer"):
            await client.connect(timeout_s=0.05)
        await client.close()
        assert not client.is_alive


@pytest.mark.anyio
async def test_a_client_that_is_not_connected_says_so() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        client = EngineClient(ours)
        with pytest.raises(EngineGone, match="not connected"):
            async with client.generate(request()):
                pass
        with pytest.raises(EngineGone, match="not connected"):
            assert client.card
        await client.close()


@pytest.mark.anyio
@pytest.mark.slow
async def test_leaving_waits_a_bounded_time_for_an_engine_that_hangs() -> None:
    engine = spawn_engine(config(), module=FAKE_ENGINE)
    await engine.control.wait_ready(timeout_s=60)
    client = await connect(engine)
    with anyio.fail_after(5):
        async with client.generate(request(), abort_wait_s=0.1) as generation:
            await anext(generation)
            os.kill(engine.pid, signal.SIGSTOP)
    assert generation.done is None
    with pytest.raises(EngineGone, match="did not answer"):
        await engine.control.ping(timeout_s=0.1)
    await engine.control.kill()
    assert await engine.control.wait(timeout_s=10) == -signal.SIGKILL
    await client.close()


def resources(pid: int) -> tuple[int, int]:
    """Open descriptors, and resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), int(resident.split()[1])


@pytest.mark.anyio
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_ten_thousand_requests_over_changing_links_leave_the_process_as_it_was(rng) -> None:
    engine = spawn_engine(config("fast"), module=FAKE_ENGINE)
    await engine.control.wait_ready(timeout_s=60)
    ended = {"stop": 0, "length": 0, "abort": 0}

    async def one(client: EngineClient, name: str) -> None:
        leaves_early = rng.random() < 0.3
        asked = request(
            name,
            namespace=rng.choice([b"a", b"b", b"c"]),
            prompt="x" * rng.randint(1, 60),
            max_tokens=rng.randint(1, 12),
        )
        async with client.generate(asked, abort_wait_s=10) as generation:
            async for _ in generation:
                if leaves_early:
                    break
        assert generation.done is not None
        ended[generation.done.finish_reason] += 1

    after_warm_up = None
    for round_number in range(100):
        client = await connect(engine)
        async with anyio.create_task_group() as tasks:
            for index in range(100):
                tasks.start_soon(one, client, f"{round_number}.{index}")
        await client.close()
        stats = await engine.control.ping()
        assert stats.running + stats.waiting == 0
        assert stats.free_blocks == stats.usable_blocks
        if round_number == 20:
            after_warm_up = resources(engine.pid)
    assert sum(ended.values()) == 10_000
    assert ended["abort"] > 500
    descriptors, resident_kib = resources(engine.pid)
    assert after_warm_up is not None
    # The last link may or may not be closed on the engine's side yet.
    assert abs(descriptors - after_warm_up[0]) <= 1
    assert resident_kib - after_warm_up[1] < 8 * 1024
    await engine.control.drain(deadline_s=1)
    assert await engine.control.wait(timeout_s=10) == 0
