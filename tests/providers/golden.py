"""Golden wire files: what an upstream sent, beside the events that it means.

`NAME.sse` holds the bytes. `NAME.json` holds the events and how the stream ended, as our codec
gives them, and in `means` what a reader of the bytes finds in them, written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from providers.codecs.openai_reads import ChatReads
from providers.codecs.openai_stream import ChatStream
from providers.codecs.upstream_errors import ErrorContext, error_from_body
from providers.contract import Event, OpaqueDelta, OpaqueRun, UsageReport
from providers.errors import ProviderError

FOLDER = Path(__file__).resolve().parents[1] / "wire" / "openai_compatible"
NAMES = sorted(path.stem for path in FOLDER.glob("*.sse"))
CONTEXT = ErrorContext(
    deployment="up/m1", secrets=["sk-secret"], now=datetime(2026, 11, 30, tzinfo=UTC)
)


def new_stream(**members: Any) -> ChatStream:
    """A decoder for one answer."""
    return ChatStream(
        deployment="up/m1",
        call_id_prefix="call_r_",
        on_error=lambda body: error_from_body(body, context=CONTEXT),
        **members,
    )


def play(reads: Iterable[bytes], stream: ChatStream) -> tuple[list[Event], str]:
    """Feed reads as the provider does: the events, and the class of the error or `ok`."""
    fed = ChatReads(stream=stream)
    events: list[Event] = []
    try:
        for read in reads:
            for found in turns(fed, read):
                events += found
            if stream.failure is not None:
                raise stream.failure
            if stream.is_done:
                break
        else:
            events += fed.end()
        events += stream.close()
    except ProviderError as error:
        return one_by_one(events), type(error).__name__
    return one_by_one(events), "ok"


def turns(fed: ChatReads, read: bytes) -> Iterator[list[Event]]:
    """What each turn of the loop makes of a read, as the provider feeds it."""
    yield fed.feed(read)
    while fed.rest and not fed.stream.is_over:
        yield fed.feed(fed.rest)


def one_by_one(events: Iterable[Event]) -> list[Event]:
    """The same events with each run taken apart; complains about a run that is none."""
    found: list[Event] = []
    for event in events:
        if not isinstance(event, OpaqueRun):
            found.append(event)
            continue
        frames = event.raw.split(b"\n\n")
        assert frames.pop() == b""
        assert len(frames) == event.count
        for frame in frames:
            assert frame.startswith(b"data: {")
            assert b"\n" not in frame
            found.append(OpaqueDelta(raw=frame.removeprefix(b"data: ")))
    return found


def plain(event: Event) -> dict[str, Any]:
    """An event as JSON, members that hold their default left out."""
    found: dict[str, Any] = {"event": type(event).__name__}
    for field in msgspec.structs.fields(event):
        value = getattr(event, field.name)
        is_told_elsewhere = isinstance(event, UsageReport) and field.name == "reported"
        if value is None or value == field.default or is_told_elsewhere:
            continue
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(event, UsageReport) and field.name == "usage":
            value = {str(meter): units for meter, units in value.meters()}
        found[field.name] = value
    return found


def expected(name: str) -> dict[str, Any]:
    """What `NAME.sse` means."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def wire_of(name: str) -> bytes:
    """The bytes of `NAME.sse`."""
    return (FOLDER / f"{name}.sse").read_bytes()


def choices_of(name: str) -> int:
    """How many choices the client of `NAME.sse` had asked for."""
    return expected(name).get("choices", 1)
