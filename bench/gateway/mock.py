"""The mock upstream as a running program, and what it counted."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from bench.gateway import proc
from bench.gateway.compiled import program
from bench.gateway.faults import BenchFault
from bench.gateway.processes import get


class MockStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start; see `native/mock_upstream.c`.

    Attributes:
        accepted: Connections.
        chats: Chat requests that were read to their end: what the ledger has to hold.
        chat_bytes: Bytes of their bodies.
        streams: Streams begun.
        chunks: Content events sent.
        billed_input_tokens: Fresh prompt tokens of answers that were written to their end.
        billed_cached_tokens: Prompt tokens read from a cache, of the same answers.
        billed_output_tokens: Tokens of the same answers.
        left: Answers that the other side did not wait for.
    """

    accepted: int
    chats: int
    chat_bytes: int
    streams: int
    chunks: int
    billed_input_tokens: int
    billed_cached_tokens: int
    billed_output_tokens: int
    left: int


@dataclass(slots=True, kw_only=True)
class Mock:
    """A running mock upstream.

    Attributes:
        process: The process.
        port: Where it listens.
    """

    process: subprocess.Popen[bytes]
    port: int

    @classmethod
    def start(cls, *, core: int | None, folder: Path) -> Mock:
        """Start one on a free port.

        Raises:
            BenchFault: It does not start.
        """
        command = [str(program("mock_upstream"))]
        with proc.on_core(core), (folder / "mock.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None
        line = cast("bytes", process.stdout.readline())
        if not line.strip().isdigit():
            process.kill()
            raise BenchFault(f"the mock upstream did not start: {line!r}")
        return cls(process=process, port=int(line))

    @property
    def url(self) -> str:
        """Its root, without the `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def stats(self) -> MockStats:
        """Its counters now."""
        return msgspec.json.decode(get(f"{self.url}/__stats"), type=MockStats)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
