"""The tasks that answer a connection's requests.

A task for each request would cost more than waking the one that answered the request before it on
the same connection, so that task waits for the next one. Requests that take ASGI have tasks of
their own: FastAPI may leave in a task what the next request shall not find there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.errors import InternalFault
from gateway.http.cycle import Cycle
from gateway.http.errors import openai_body
from gateway.relay.client_stream import JSON_HEADER

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

logger = logging.getLogger(__name__)


class Turns:
    """Who answers the requests of one connection."""

    __slots__ = ("_app", "_loop", "_next", "_tasks")

    def __init__(
        self,
        app: ASGI3Application,
        tasks: set[asyncio.Task[None]],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Begin without a task.

        Args:
            app: Answers what no hot route does.
            tasks: Holds the server's tasks while they run.
            loop: Where they run.
        """
        self._app = app
        self._tasks = tasks
        self._loop = loop
        self._next: asyncio.Future[Cycle | None] | None = None  # by which a task waits for it

    def start(self, cycle: Cycle) -> None:
        """Begin to answer a request, behind what the loop has to do already."""
        waiting = self._next
        if cycle.route is not None and waiting is not None and not waiting.done():
            self._next = None
            waiting.set_result(cycle)
            return
        made = cycle.run_asgi(self._app) if cycle.route is None else self._serve(cycle)
        task = self._loop.create_task(made)
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def end(self) -> None:
        """There is no next request; answers in play come to their own end."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def _serve(self, first: Cycle) -> None:
        """Answer a request of a hot route, then the next ones, until cancelled or closed."""
        cycle: Cycle | None = first
        task = asyncio.current_task()
        assert task is not None, "this is run as a task"
        while cycle is not None:
            assert cycle.route is not None, "the others take ASGI"
            cycle.task = task
            try:
                await cycle.route(cycle)
            except Exception:  # the request boundary; routes have their own, inside
                logger.exception("a request failed")
                if not cycle.response_started:
                    fault = InternalFault("an internal error; the operator's log says more")
                    cycle.send_whole(500, JSON_HEADER, openai_body(fault))
            finally:
                if not cycle.response_complete and not cycle.disconnected:
                    cycle.transport.close()  # rather half an answer than one that never ends
            # Whoever cancelled this task meant the request that is over now, and is not waited for.
            if self._next is not None or cycle.transport.is_closing() or task.cancelling():
                return
            self._next = self._loop.create_future()
            try:
                cycle = await self._next
            except asyncio.CancelledError:
                self._next = None
                raise
