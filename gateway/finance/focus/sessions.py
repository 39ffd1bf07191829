"""Exports that are read piece by piece by another process, at the reader's pace.

Each runs in a thread with a connection and one read transaction of its own. A piece is handed over
when it is asked for; nobody asking for a while ends the export, as does closing it, so that a
reader that died holds no transaction open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.from_thread
import anyio.to_thread
import sqlalchemy as sa
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from gateway.clock import Clock
from gateway.finance.errors import FinanceError
from gateway.finance.focus.books import open_export
from gateway.finance.focus.order import ExportRequest, FileFormat
from gateway.finance.focus.streams import send_csv, send_parquet
from gateway.ledger.errors import BadQuery, DatabaseUnavailable, LedgerError
from gateway.ledger.reading import read_ledger

logger = logging.getLogger(__name__)

OPEN_MAX = 4
IDLE_S = 60.0


class _NobodyReads(Exception):
    """The reader has closed the export, or has not asked for long."""


@dataclass(slots=True, kw_only=True)
class _Session:
    """An export under way.

    Attributes:
        pieces: Where its pieces come from.
        fault: Why it ended before its end, None while it goes well.
    """

    pieces: MemoryObjectReceiveStream[bytes]
    fault: LedgerError | FinanceError | None = None


@dataclass(slots=True, kw_only=True)
class ExportSessions:
    """All exports under way in this process.

    Attributes:
        database_url: Where the ledger is.
        tasks: Runs them; lives longer than this.
        clock: Time.
        idle_s: Longest time between two questions for a piece.
    """

    database_url: str
    tasks: TaskGroup
    clock: Clock
    idle_s: float = IDLE_S
    _open: dict[int, _Session] = field(default_factory=dict)
    _last: int = 0

    async def open(self, request: ExportRequest) -> int:
        """Begin an export; returns its number.

        Raises:
            DatabaseUnavailable: Too many are under way.
        """
        if len(self._open) >= OPEN_MAX:
            raise DatabaseUnavailable(
                f"{OPEN_MAX} exports are under way already; try again when one has ended"
            )
        send, receive = anyio.create_memory_object_stream[bytes](0)
        session = _Session(pieces=receive)
        self._last += 1
        self._open[self._last] = session
        self.tasks.start_soon(self._run, self._last, session, request, send)
        return self._last

    async def next(self, number: int) -> bytes:
        """The next piece; empty at the end.

        Raises:
            BadQuery: There is no such export, or no longer.
            LedgerError: The ledger could not be read to the end.
        """
        session = self._open.get(number)
        if session is None:
            raise BadQuery(f"export {number} is over, or nobody asked for it for too long")
        try:
            return await session.pieces.receive()
        except anyio.EndOfStream:
            self._forget(number)
        if isinstance(session.fault, FinanceError):
            raise BadQuery(str(session.fault)) from session.fault
        if session.fault is not None:
            raise session.fault
        return b""

    def close(self, number: int) -> None:
        """End an export; nothing happens where it is over already."""
        self._forget(number)

    def _forget(self, number: int) -> None:
        session = self._open.pop(number, None)
        if session is not None:
            session.pieces.close()

    async def _run(
        self,
        number: int,
        session: _Session,
        request: ExportRequest,
        send: MemoryObjectSendStream[bytes],
    ) -> None:
        async def hand_over(piece: bytes) -> None:
            with anyio.move_on_after(self.idle_s) as waiting:
                await send.send(piece)
            if waiting.cancelled_caught:
                raise _NobodyReads

        def push(piece: bytes) -> None:
            anyio.from_thread.run(hand_over, piece)

        def read() -> None:
            read_ledger(self.database_url, _send, request, push, self.clock.wall_us())

        with send:
            try:
                await anyio.to_thread.run_sync(read)
            except anyio.BrokenResourceError:
                logger.info("export %d: its reader has left", number)
            except _NobodyReads:
                logger.info("export %d: nobody asked for %g s", number, self.idle_s)
                self._forget(number)
            except (LedgerError, FinanceError) as error:
                session.fault = error
            except Exception:  # a fault of ours must not end what else this process does
                logger.exception("export %d failed", number)
                session.fault = DatabaseUnavailable("the export failed; the log says why")


def _send(
    connection: sa.Connection, request: ExportRequest, push: Callable[[bytes], None], now_us: int
) -> None:
    export = open_export(
        connection,
        request.order,
        parties=request.parties,
        pseudonym_key=request.pseudonym_key,
        now_us=now_us,
    )
    if request.form is FileFormat.CSV:
        send_csv(connection, export, push)
    else:
        send_parquet(connection, export, push)
