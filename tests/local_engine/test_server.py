"""The engine server over real sockets: links, faults, drain, and what is left behind."""

from __future__ import annotations

import socket
import struct
import threading

import anyio
import msgspec
import pytest

from local_engine.api import (
    Done,
    EngineBusy,
    EngineClient,
    EngineGone,
    GenerateRequest,
    ProtocolError,
    RequestRejected,
    TextDelta,
)
from local_engine.errors import ModelFileError
from local_engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Drain,
    EngineMessage,
    Fatal,
    Hello,
    MessageReader,
    Refused,
    Submit,
    encode_frame,
)
from tests.local_engine.fake_model import expected_tokens
from tests.local_engine.server_harness import CONFIG, fake_load, serving, slow

pytestmark = pytest.mark.anyio


def request(name: str = "r", **changes) -> GenerateRequest:
    options = {"namespace": b"a", "prompt": "hello there", "max_tokens": 10, "temperature": 0.0}
    return GenerateRequest(id=name, **{**options, **changes})


def wanted_text(prompt: bytes, n_tokens: int) -> str:
    return bytes(expected_tokens(list(prompt), n_tokens, end_bias=-30.0)).decode()


async def ask(client: EngineClient, asked: GenerateRequest) -> tuple[str, Done]:
    text = ""
    async with client.generate(asked) as generation:
        async for batch in generation:
            text += "".join(each.text for each in batch if isinstance(each, TextDelta))
    assert generation.done is not None
    return text, generation.done


async def test_a_link_gives_the_text_of_the_plain_definition() -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        text, done = await ask(client, request())
        assert text == wanted_text(b"hello there", 10)
        assert (done.usage.prompt_tokens, done.usage.output_tokens) == (11, 10)
        await client.close()


async def test_a_tenants_second_request_reports_cached_tokens_and_anothers_none() -> None:
    # ENG-019
    async with serving() as running:
        client = await running.supervisor.client()
        cached = [
            (await ask(client, request(namespace=namespace)))[1].usage.cached_tokens
            for namespace in (b"a", b"a", b"b")
        ]
        assert cached == [0, 8, 0]
        await client.close()


async def test_many_requests_of_two_links_keep_their_own_text() -> None:
    async with serving() as running:
        clients = [await running.supervisor.client() for _ in range(2)]
        answers: dict[int, str] = {}

        async def one(index: int) -> None:
            # The same ids on both links: an id belongs to its link.
            asked = request(f"r{index // 2}", prompt=f"prompt number {index}", max_tokens=20)
            answers[index], _ = await ask(clients[index % 2], asked)

        async with anyio.create_task_group() as tasks:
            for index in range(12):
                tasks.start_soon(one, index)
        for index, text in answers.items():
            assert text == wanted_text(f"prompt number {index}".encode(), 20)
        for client in clients:
            await client.close()


async def test_a_lost_link_aborts_its_requests_and_frees_their_blocks() -> None:
    # ENG-102
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=300)) as generation:
            await anext(generation)
            await client.close()
            with pytest.raises(EngineGone):
                async for _ in generation:
                    pass
        stats = await running.supervisor.stats_when(lambda each: each.aborted == 1)
        assert stats.running == stats.waiting == 0
        assert stats.free_blocks == stats.usable_blocks


async def test_leaving_early_aborts_and_still_learns_exact_usage() -> None:
    # ENG-138
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=300)) as generation:
            await anext(generation)
        assert generation.done.finish_reason == "abort"
        stats = await running.supervisor.stats()
        assert generation.done.usage.output_tokens == stats.generated_tokens > 0
        assert generation.done.busy_s == pytest.approx(stats.busy_s)
        assert client.in_flight == 0
        await client.close()


async def test_a_cancelled_reader_aborts_its_request() -> None:
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        client = await running.supervisor.client()
        with anyio.move_on_after(0.05):
            async with client.generate(request(max_tokens=380)) as generation:
                async for _ in generation:
                    pass
        assert generation.done.finish_reason == "abort"
        await client.close()


async def test_an_abort_that_overtakes_its_request_still_ends_it() -> None:
    gate = threading.Event()
    async with serving(load=fake_load(on_execute=lambda _: gate.wait(10))) as running:
        link = running.supervisor.raw_link()
        link.sendall(
            b"".join(
                map(
                    encode_frame,
                    [
                        Hello(version=PROTOCOL_VERSION),
                        Submit(request=request("first", max_tokens=50)),
                        Submit(request=request("gone", max_tokens=50)),
                        Abort(id="gone"),
                        Abort(id="never was"),
                        Abort(id="first"),
                    ],
                )
            )
        )
        gate.set()
        done = [each for each in await read_until(link, 2) if isinstance(each, Done)]
        assert {each.id: each.finish_reason for each in done} == {"first": "abort", "gone": "abort"}
        link.close()


async def until_dead(client: EngineClient) -> None:
    with anyio.fail_after(5):
        while client.is_alive:
            await anyio.sleep(0.005)


async def read_until(link: socket.socket, n_done: int) -> list[EngineMessage]:
    """Messages of a raw link up to so many last ones."""
    reader = MessageReader(EngineMessage)
    messages: list[EngineMessage] = []
    link.setblocking(False)
    with anyio.fail_after(10):
        while sum(isinstance(each, Done) for each in messages) < n_done:
            await anyio.wait_readable(link)
            data = link.recv(65536)
            assert data, "the engine closed the link"
            messages += reader.feed(data)
    return messages


async def test_refusals_reach_the_caller_as_errors() -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        with pytest.raises(RequestRejected) as caught:
            await ask(client, request(prompt="x" * 500))
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(RequestRejected) as caught:
            await ask(client, request(top_p=7.0))
        assert caught.value.param == "top_p"
        text, _ = await ask(client, request())
        assert text
        await client.close()


async def test_a_full_queue_answers_busy_and_recovers() -> None:
    config = msgspec.structs.replace(CONFIG, max_num_seqs=1, queued_requests_max=2)
    gate = threading.Event()
    async with serving(config, load=fake_load(on_execute=lambda _: gate.wait(10))) as running:
        client = await running.supervisor.client()
        busy: list[EngineBusy] = []

        async def one(index: int) -> None:
            try:
                await ask(client, request(f"r{index}", namespace=b"t%d" % index))
            except EngineBusy as fault:
                busy.append(fault)

        async with anyio.create_task_group() as tasks:
            for index in range(9):
                tasks.start_soon(one, index)
            with anyio.fail_after(10):
                while not busy:
                    await anyio.sleep(0.005)
            gate.set()
        assert all(each.retry_after_s >= 1 for each in busy)
        assert (await ask(client, request()))[1].finish_reason == "length"
        await client.close()


async def test_a_second_request_with_an_id_in_flight_is_refused() -> None:
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=100)) as generation:
            await anext(generation)
            with pytest.raises(RequestRejected, match="in flight"):
                async with client.generate(request()):
                    pass
        await client.close()


async def test_an_id_in_flight_is_refused_whatever_the_client_thinks() -> None:
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        link = running.supervisor.raw_link()
        twice = [Submit(request=request(max_tokens=20))] * 2
        link.sendall(b"".join(map(encode_frame, [Hello(version=PROTOCOL_VERSION), *twice])))
        messages = await read_until(link, 1)
        (refused,) = (each for each in messages if isinstance(each, Refused))
        assert (refused.code, refused.param) == ("invalid_request_error", "id")
        link.close()


async def test_a_client_of_another_protocol_is_told_so() -> None:
    async with serving() as running:
        link = running.supervisor.raw_link()
        link.sendall(encode_frame(Hello(version=PROTOCOL_VERSION + 1)))
        link.setblocking(False)
        await anyio.wait_readable(link)
        (refused,) = MessageReader(EngineMessage).feed(link.recv(65536))
        assert refused.code == "protocol_version"
        await anyio.wait_readable(link)
        assert link.recv(1) == b""
        link.close()


async def test_a_client_raises_when_the_engine_speaks_another_protocol() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        client = EngineClient(ours)
        payload = msgspec.msgpack.encode({"type": "from the future"})
        theirs.sendall(struct.pack(">I", len(payload)) + payload)
        with pytest.raises(ProtocolError):
            await client.connect(timeout_s=5)
        await client.close()


FUZZ = {
    "noise": b"\x00\x00\x00\x04abcd",
    "a huge length": b"\xff" * 8,
    "an unknown type": struct.pack(">I", 12) + msgspec.msgpack.encode({"type": "exec"})[:12],
    "a request before the greeting": encode_frame(Submit(request=request())),
    "half a frame": encode_frame(Hello(version=1))[:-3],
    "nothing": b"",
}


@pytest.mark.parametrize("data", FUZZ.values(), ids=FUZZ.keys())
async def test_a_bad_link_hurts_no_other(data: bytes) -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        bad = running.supervisor.raw_link()
        bad.sendall(data)
        await ask(client, request())
        bad.close()
        assert (await ask(client, request()))[1].finish_reason == "length"
        await client.close()


async def test_random_frames_never_break_the_server(rng) -> None:
    good = [
        encode_frame(Hello(version=PROTOCOL_VERSION)),
        encode_frame(Submit(request=request())),
        encode_frame(Abort(id="r")),
    ]
    async with serving() as running:
        for _ in range(60):
            link = running.supervisor.raw_link()
            data = bytearray(b"".join(rng.choice(good) for _ in range(rng.randint(1, 4))))
            for _ in range(rng.randint(0, 3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            link.sendall(data[: rng.randint(1, len(data))])
            link.close()
        client = await running.supervisor.client()
        assert (await ask(client, request()))[1].finish_reason == "length"
        await client.close()
        stats = await running.supervisor.stats_when(lambda each: not each.running + each.waiting)
        assert stats.free_blocks == stats.usable_blocks


async def test_a_reader_that_sleeps_gets_all_text_in_few_events() -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=300)) as generation:
            with anyio.fail_after(10):
                while generation.done is None:
                    await anyio.sleep(0.01)
            batch = await anext(generation)
            assert len(batch) < 40
            text = "".join(each.text for each in batch if isinstance(each, TextDelta))
            with pytest.raises(StopAsyncIteration):
                await anext(generation)
        assert text == wanted_text(b"hello there", 300)
        await client.close()


async def test_a_link_that_is_not_read_costs_the_engine_little_and_loses_nothing() -> None:
    config = msgspec.structs.replace(CONFIG, max_model_len=4000, queued_requests_max=300)
    async with serving(config, load=fake_load(n_blocks=1200)) as running:
        link = running.supervisor.raw_link()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.sendall(encode_frame(Hello(version=PROTOCOL_VERSION)))
        names = [f"{index:060d}" for index in range(40)]
        for name in names:
            link.sendall(encode_frame(Submit(request=request(name, prompt="x", max_tokens=120))))
        await running.supervisor.stats_when(lambda each: each.finished == len(names))
        texts = dict.fromkeys(names, "")
        for message in await read_until(link, len(names)):
            if isinstance(message, TextDelta):
                texts[message.id] += message.text
        wanted = wanted_text(b"x", 120)
        assert set(texts.values()) == {wanted}
        link.close()


async def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    async with serving(load=fake_load(on_execute=slow(0.003))) as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=40)) as generation:
            await anext(generation)
            running.supervisor.channel.send(Drain(deadline_s=10))
            await running.supervisor.stats_when(lambda each: each.state == "draining")
            with pytest.raises(EngineBusy, match="shutting down"):
                await ask(client, request("late"))
            async for _ in generation:
                pass
        assert generation.done.finish_reason == "length"
        with anyio.fail_after(5):
            await running.ended.wait()
        assert running.status == 0
        await until_dead(client)
        await client.close()


async def test_the_drains_deadline_aborts_what_is_left_with_its_usage() -> None:
    async with serving(load=fake_load(on_execute=slow(0.01))) as running:
        client = await running.supervisor.client()
        async with client.generate(request(max_tokens=380)) as generation:
            await anext(generation)
            running.supervisor.channel.send(Drain(deadline_s=0.05))
            async for _ in generation:
                pass
        assert generation.done.finish_reason == "abort"
        assert generation.done.error == "the engine is shutting down"
        assert generation.done.usage.output_tokens > 0
        with anyio.fail_after(5):
            await running.ended.wait()
        await client.close()


async def test_the_end_of_the_control_socket_ends_the_server() -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        running.supervisor.channel.close()
        with anyio.fail_after(5):
            await running.ended.wait()
        await until_dead(client)
        await client.close()


async def test_links_may_come_while_the_model_is_loading() -> None:
    gate = threading.Event()
    load = fake_load()

    def load_late(config):
        gate.wait(10)
        return load(config)

    async with serving(load=load_late, wait_ready=False) as running:
        assert (await running.supervisor.stats()).state == "starting"
        async with anyio.create_task_group() as tasks:
            clients: list[EngineClient] = []

            async def connect() -> None:
                clients.append(await running.supervisor.client())

            tasks.start_soon(connect)
            await anyio.sleep(0.05)
            assert clients == []
            gate.set()
        assert (await ask(clients[0], request()))[1].finish_reason == "length"
        await clients[0].close()


LOAD_FAULTS = {
    "a bad file": (ModelFileError("the file is corrupt"), "the file is corrupt", True),
    "a defect, whose words stay inside": (
        RuntimeError("secret"),
        "the engine broke: RuntimeError",
        False,
    ),
}


@pytest.mark.parametrize(
    ("fault", "message", "is_permanent"), LOAD_FAULTS.values(), ids=LOAD_FAULTS.keys()
)
async def test_a_model_that_does_not_load_is_fatal(fault, message, is_permanent, caplog) -> None:
    def load(config):
        raise fault

    async with serving(load=load, wait_ready=False) as running:
        fatal = await running.supervisor.wait_for(Fatal)
        assert (fatal.message, fatal.is_permanent) == (message, is_permanent)
        with anyio.fail_after(5):
            await running.ended.wait()
    assert running.status == 1
    assert "secret" not in caplog.text.replace('RuntimeError("secret")', "")


async def test_a_step_that_hangs_shows_in_the_age_of_the_step() -> None:
    # ENG-108
    gate = threading.Event()
    async with serving(load=fake_load(on_execute=lambda _: gate.wait(10))) as running:
        client = await running.supervisor.client()
        assert (await running.supervisor.stats()).step_age_s == 0
        async with client.generate(request(), abort_wait_s=0.01):
            await running.supervisor.stats_when(lambda each: each.step_age_s > 0.02)
        gate.set()
        await running.supervisor.stats_when(lambda each: each.step_age_s == 0)
        await client.close()


async def test_busy_and_idle_time_add_up_to_wall_time_as_seen_from_outside() -> None:
    async with serving() as running:
        client = await running.supervisor.client()
        busy_s = 0.0
        for index in range(4):
            busy_s += (await ask(client, request(f"r{index}")))[1].busy_s
        stats = await running.supervisor.stats()
        assert stats.busy_s == pytest.approx(busy_s)
        assert stats.busy_s + stats.idle_s == pytest.approx(stats.wall_s, abs=1e-6)
        later = await running.supervisor.stats_when(lambda each: each.wall_s > stats.wall_s + 0.02)
        assert later.busy_s == stats.busy_s
        assert later.busy_s + later.idle_s == pytest.approx(later.wall_s, abs=1e-6)
        await client.close()


async def test_no_words_of_a_request_are_ever_logged(caplog) -> None:
    canary = "canary-7f3a"
    caplog.set_level(0)

    def fail(plan) -> None:
        raise RuntimeError(canary)

    async with serving(load=fake_load(on_execute=fail)) as running:
        client = await running.supervisor.client()
        _, done = await ask(client, request(canary, prompt=canary, stop=[canary]))
        assert done.error
        bad = running.supervisor.raw_link()
        bad.sendall(struct.pack(">I", 12) + canary.encode() + b"x")
        await anyio.sleep(0.05)
        bad.close()
        await client.close()
    assert caplog.records
    assert canary not in caplog.text
