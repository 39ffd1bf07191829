"""Pieces of an upstream's event stream, for scripts that go byte by byte."""

from __future__ import annotations

from tests.support.scripted_upstream import Step, Wire

SSE_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CONTENT = (
    'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)
STOP = 'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def events(*parts: str | Step) -> Wire:
    """An event stream, part by part, then the end of the connection."""
    steps = [part if isinstance(part, Step) else Step(text=part) for part in parts]
    return Wire(steps=(Step(text=SSE_HEAD), *steps, Step(ending="close")))
