"""The embedded engine as a provider: over a scripted engine on a real socket, and a real process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from local_engine import protocol
from local_engine.api import EngineClient, EngineConfig, GenerationUsage, ModelCard, spawn_engine
from pricing.usage import Usage
from providers.contract import (
    AttemptFacts,
    ChatRequest,
    Deadlines,
    Finished,
    TextDelta,
    UsageReport,
)
from providers.errors import (
    BadRequest,
    ConnectionLost,
    ContextTooLong,
    FirstTokenTimeout,
    Overloaded,
    ProviderError,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)
from providers.native.local import EngineLink, LocalProvider
from tests.providers.permits import engine_permit

pytestmark = pytest.mark.anyio

CARD = ModelCard(
    model_id="tiny", file_digest="00" * 32, context_window=512, vocab_size=256, device="cpu",
    dtype="float32", block_size=16, n_blocks=64, running_max=4, has_chat_template=True,
)  # fmt: skip
Script = Callable[[str], Sequence[msgspec.Struct | float]]

PERMIT = engine_permit("local/tiny")


def limits(**changes: float) -> Deadlines:
    return Deadlines(
        **{
            "connect_s": 1.0,
            "first_token_s": 5.0,
            "between_tokens_s": 5.0,
            "total_s": 9.0,
            **changes,
        }
    )


def chat(**fields: bytes) -> ChatRequest:
    raw = {
        name: msgspec.Raw(value)
        for name, value in {"messages": b'[{"role":"user","content":"hi"}]', **fields}.items()
    }
    return ChatRequest(
        fields=raw, is_stream=True, wants_usage=True, namespace=b"n" * 16, request_id="r1"
    )


class ScriptedEngine:
    """The far end of a link: greets, answers each submission by a script, obeys aborts."""

    def __init__(self, sock: socket.socket, script: Script) -> None:
        self.aborted: list[str] = []
        self.submitted: list[protocol.GenerateRequest] = []
        self._sock = sock
        self._script = script

    async def run(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._sock)
        messages = protocol.MessageReader(protocol.Hello | protocol.Submit | protocol.Abort)
        try:
            while data := await reader.read(65536):
                for message in messages.feed(data):
                    if isinstance(message, protocol.Hello):
                        welcome = protocol.Welcome(version=protocol.PROTOCOL_VERSION, card=CARD)
                        writer.write(protocol.encode_frame(welcome))
                    elif isinstance(message, protocol.Submit):
                        self.submitted.append(message.request)
                        await self._play(writer, message.request.id)
                    else:
                        self.aborted.append(message.id)
                        writer.write(
                            protocol.encode_frame(done(message.id, reason="abort", output=3))
                        )
        except ConnectionError:
            pass  # the test ended the link
        finally:
            writer.close()

    async def _play(self, writer: asyncio.StreamWriter, call_id: str) -> None:
        for step in self._script(call_id):
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                writer.write(protocol.encode_frame(step))


def text(call_id: str, words: str, count: int) -> protocol.TextDelta:
    return protocol.TextDelta(id=call_id, text=words, output_tokens=count)


def done(
    call_id: str, *, reason: str = "stop", output: int = 2, error: str | None = None
) -> protocol.Done:
    usage = GenerationUsage(prompt_tokens=20, cached_tokens=16, output_tokens=output)
    return protocol.Done(id=call_id, finish_reason=reason, usage=usage, busy_s=0.25, error=error)


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[tuple[LocalProvider, ScriptedEngine, EngineLink]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    scripted = ScriptedEngine(theirs, script)
    task = asyncio.create_task(scripted.run())
    client = EngineClient(ours)
    link = EngineLink(client=client, card=await client.connect())
    provider = LocalProvider("local", {"tiny": link})
    try:
        yield provider, scripted, link
    finally:
        await provider.close()
        await task


async def collect(
    provider: LocalProvider,
    request: ChatRequest | None = None,
    *,
    facts: AttemptFacts | None = None,
    deadlines: Deadlines | None = None,
) -> list:
    events = []
    async with provider.stream(
        "tiny",
        request or chat(),
        permit=PERMIT,
        deadlines=deadlines or limits(),
        facts=facts or AttemptFacts(),
    ) as batches:
        async for batch in batches:
            events += batch
    return events


async def test_a_generation_becomes_events_with_exact_usage() -> None:
    def script(call_id: str) -> Sequence[msgspec.Struct | float]:
        return [
            protocol.Accepted(id=call_id, prompt_tokens=20, cached_tokens=16),
            text(call_id, "Hel", 1),
            0.01,
            text(call_id, "lo", 2),
            text(call_id, "", 2),
            done(call_id),
        ]

    facts = AttemptFacts()
    async with engine(script) as (provider, scripted, _):
        events = await collect(provider, chat(temperature=b"0", max_tokens=b"9"), facts=facts)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"
    assert events[-2] == Finished(reason="stop")
    usage = Usage(input_tokens=4, cache_read_tokens=16, output_tokens=2, gpu_us=250_000)
    assert events[-1] == UsageReport(usage=usage)
    assert (facts.was_sent, facts.upstream_model, facts.gpu_busy_us, facts.closing_usage) == (
        True,
        "tiny",
        250_000,
        None,
    )
    [sent] = scripted.submitted
    assert (sent.namespace, sent.temperature, sent.max_tokens) == (b"n" * 16, 0.0, 9)


async def test_leaving_early_aborts_and_learns_the_exact_usage() -> None:
    facts = AttemptFacts()
    async with engine(lambda call_id: [text(call_id, "a", 1)]) as (provider, scripted, _):
        async with provider.stream(
            "tiny", chat(), permit=PERMIT, deadlines=limits(), facts=facts
        ) as batches:
            await anext(batches)
        assert scripted.aborted == [scripted.submitted[0].id]
    assert facts.closing_usage is not None
    assert facts.closing_usage.usage == Usage(
        input_tokens=4, cache_read_tokens=16, output_tokens=3, gpu_us=250_000
    )
    assert facts.gpu_busy_us == 250_000


async def test_a_cancelled_attempt_aborts_too() -> None:
    facts = AttemptFacts()
    async with engine(lambda _: []) as (provider, scripted, _):
        task = asyncio.create_task(collect(provider, facts=facts))
        while not scripted.submitted:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scripted.aborted
    assert facts.closing_usage is not None


def refused(**members: object) -> Script:
    return lambda call_id: [protocol.Refused(id=call_id, **members)]


FAILURES = {
    "too long": (refused(code="context_length_exceeded", message="too long", param="messages"), ContextTooLong, {"param": "messages", "message": "too long"}),
    "a bad value": (refused(code="invalid_request_error", message="top_p: no", param="top_p"), BadRequest, {"param": "top_p"}),
    "a full queue": (refused(code="engine_busy", message="full", retry_after_s=3.0), Overloaded, {"retry_after_s": 3.0}),
    "the engine's own fault": (lambda call_id: [text(call_id, "a", 1), done(call_id, reason="abort", error="oops")], UpstreamFault, {}),
}  # fmt: skip


@pytest.mark.parametrize(("script", "kind", "members"), FAILURES.values(), ids=FAILURES.keys())
async def test_what_the_engine_refuses(
    script: Script, kind: type[ProviderError], members: dict[str, object]
) -> None:
    async with engine(script) as (provider, _, _):
        with pytest.raises(kind) as caught:
            await collect(provider)
    assert {name: getattr(caught.value, name) for name in members} == members


async def test_a_broken_generation_is_metered() -> None:
    facts = AttemptFacts()
    async with engine(FAILURES["the engine's own fault"][0]) as (provider, _, _):
        with pytest.raises(UpstreamFault):
            await collect(provider, facts=facts)
    assert facts.closing_usage is not None
    assert facts.closing_usage.usage.output_tokens == 2


TIMEOUTS = {
    "no content": (lambda call_id: [protocol.Accepted(id=call_id, prompt_tokens=1, cached_tokens=0)], {"first_token_s": 0.1}, FirstTokenTimeout),
    "silence amid content": (lambda call_id: [text(call_id, "a", 1)], {"between_tokens_s": 0.1}, StreamStalled),
    "too long in all": (lambda call_id: [text(call_id, "a", 1)], {"total_s": 0.1}, TotalTimeout),
}  # fmt: skip


@pytest.mark.parametrize(("script", "changes", "kind"), TIMEOUTS.values(), ids=TIMEOUTS.keys())
async def test_deadlines(
    script: Script, changes: dict[str, float], kind: type[ProviderError]
) -> None:
    async with engine(script) as (provider, scripted, _):
        with pytest.raises(kind):
            await collect(provider, deadlines=limits(**changes))
        assert scripted.aborted


async def test_without_an_engine_nothing_is_sent() -> None:
    provider = LocalProvider("local", {"tiny": EngineLink(retry_after_s=2.0)})
    facts = AttemptFacts()
    with pytest.raises(Unavailable) as caught:
        await collect(provider, facts=facts)
    assert (caught.value.retry_after_s, facts.was_sent) == (2.0, False)


async def test_a_new_engine_takes_over_on_the_same_link() -> None:
    def script(call_id: str) -> Sequence[msgspec.Struct]:
        return [text(call_id, "a", 1), done(call_id)]

    async with engine(script) as (_, _, fresh):
        link = EngineLink()
        provider = LocalProvider("local", {"tiny": link})
        link.client = fresh.client
        assert len(await collect(provider)) == 3


async def test_bad_requests_never_reach_the_engine() -> None:
    facts = AttemptFacts()
    async with engine(lambda _: []) as (provider, scripted, _):
        with pytest.raises(BadRequest):
            await collect(provider, chat(tools=b'[{"type":"function"}]'), facts=facts)
        assert (scripted.submitted, facts.was_sent) == ([], False)


async def test_capabilities_name_the_fields_and_the_window() -> None:
    link = EngineLink()
    provider = LocalProvider("local", {"tiny": link})
    assert provider.capabilities("tiny").context_window_tokens is None
    link.card = CARD
    able = provider.capabilities("tiny")
    assert (able.context_window_tokens, able.is_open, able.multimodal) == (512, False, False)
    assert "temperature" in able.supported
    assert "tools" not in able.supported
    assert provider.capabilities("other").context_window_tokens is None


@pytest.mark.slow
async def test_an_engine_process_that_is_killed_amid_a_stream_is_a_lost_connection(
    tmp_path: Path,
) -> None:
    config = EngineConfig(
        model_id="tiny", path=str(tmp_path / "slow"), namespace_key=b"k" * 32, kv_memory_bytes=65536
    )
    process = spawn_engine(config, module="tests.local_engine.fake_engine")
    card = await process.control.wait_ready(timeout_s=60)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    await process.control.add_link(theirs)
    theirs.close()
    client = EngineClient(ours)
    await client.connect()
    provider = LocalProvider("local", {"tiny": EngineLink(client=client, card=card)})
    facts = AttemptFacts()
    with pytest.raises(ConnectionLost):
        async with provider.stream(
            "tiny", chat(max_tokens=b"4000"), permit=PERMIT, deadlines=limits(), facts=facts
        ) as batches:
            async for batch in batches:
                if any(isinstance(event, TextDelta) for event in batch):
                    await process.control.kill()
    assert facts.closing_usage is None
    await process.control.wait(timeout_s=10)
    with pytest.raises(Unavailable):
        await collect(provider)
    await provider.close()
