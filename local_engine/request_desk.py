"""Requests in flight: from a link to the encoder and the step thread, and their messages back.

Everything here runs on the event loop's thread except `_prepare`, which runs on the encoder's, and
`is_cancelled`, which any thread may ask. A request is known from its arrival to its last message,
whatever happens to its link, so that counts and bounds stay right.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

import anyio

from local_engine.engine import Output, log_fault
from local_engine.errors import RequestRejected
from local_engine.frontend import Frontend
from local_engine.links import Link, RequestMessage
from local_engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    ClientMessage,
    Done,
    GenerateRequest,
    GenerationUsage,
    Hello,
    ModelCard,
    Refused,
    Submit,
    Welcome,
)
from local_engine.step_loop import StepLoop

_log = logging.getLogger(__name__)
_BUSY_RETRY_AFTER_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request in flight."""

    key: int
    id: str
    link: Link
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What exists once the model is loaded."""

    card: ModelCard
    frontend: Frontend
    steps: StepLoop


class RequestDesk:
    """Takes requests from links and gives messages back.

    Args:
        loop: The event loop; its thread calls the methods.
        requests_max: Requests in flight, whatever state they are in.
        clock_ns: Monotonic clock in nanoseconds.
        on_empty: Called whenever the last request in flight has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        requests_max: int,
        clock_ns: Callable[[], int],
        on_empty: Callable[[], None],
    ) -> None:
        self.links: set[Link] = set()
        self._loop = loop
        self._requests_max = requests_max
        self._clock_ns = clock_ns
        self._on_empty = on_empty
        self._service: Service | None = None
        self._requests: dict[int, _Request] = {}
        self._n_arrivals = 0
        self._refusal: str | None = "the engine is still loading its model"
        # Links that said hello before the model was there.
        self._unanswered: list[Link] = []
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode")
        self._link_lost = anyio.Event()

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._requests)

    def open(self, service: Service) -> None:
        """The model is loaded: answer greetings and take requests."""
        self._service = service
        self._refusal = None
        for link in self._unanswered:
            self._welcome(link, service.card)
        self._unanswered.clear()

    def refuse_new(self, reason: str) -> None:
        """Refuse every request from now on."""
        self._refusal = reason

    def cut(self, *, error: str) -> None:
        """Abort everything in flight; the last messages still go out."""
        for request in self._requests.values():
            request.is_cancelled = True
        if self._service is not None:
            self._service.steps.abort_all(error=error)

    def close(self) -> None:
        """Close the links once what was written has gone out."""
        self._encoder.shutdown(wait=False, cancel_futures=True)
        for link in list(self.links):
            link.close()

    async def wait_closed(self) -> None:
        """Wait until every link is gone."""
        while self.links:
            self._link_lost = anyio.Event()
            await self._link_lost.wait()

    def new_link(self) -> Link:
        """The protocol of a new link, for its transport."""
        link = Link(on_message=self._on_message, on_lost=self._on_lost)
        self.links.add(link)
        return link

    def is_cancelled(self, key: int) -> bool:
        """Whether nobody waits for this request any more."""
        request = self._requests.get(key)
        return request is None or request.is_cancelled

    def deliver(self, outputs: list[Output]) -> None:
        """Pass messages on to their links; called on any thread."""
        # The loop may be gone while the last step ends; then nobody waits for its messages.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._route, outputs)

    def _route(self, outputs: list[Output]) -> None:
        by_link: defaultdict[Link, list[RequestMessage]] = defaultdict(list)
        for output in outputs:
            request = self._requests.get(output.key)
            if request is None:
                continue
            by_link[request.link].append(output.message)
            if isinstance(output.message, Done | Refused):
                del self._requests[output.key]
                request.link.keys.pop(request.id, None)
        for link, messages in by_link.items():
            link.send(messages)
        if outputs and not self._requests:
            self._on_empty()

    def _on_message(self, link: Link, message: ClientMessage) -> None:
        if not (link.is_greeted or isinstance(message, Hello)):
            _log.warning("closing a link that did not begin with a greeting")
            link.abort()
            return
        match message:
            case Hello(version=version):
                self._greet(link, version)
            case Submit(request=request):
                self._take(link, request)
            case Abort(id=request_id):
                self._cancel(link.keys.get(request_id))
            case _:
                assert_never(message)

    def _on_lost(self, link: Link) -> None:
        self.links.discard(link)
        self._link_lost.set()
        for key in link.keys.values():
            self._cancel(key)

    def _greet(self, link: Link, version: int) -> None:
        if version != PROTOCOL_VERSION:
            message = f"the engine speaks protocol {PROTOCOL_VERSION}, the client {version}"
            link.send_now(Refused(id="", code="protocol_version", message=message))
            link.close()
            return
        link.is_greeted = True
        if self._service is None:
            self._unanswered.append(link)
        else:
            self._welcome(link, self._service.card)

    @staticmethod
    def _welcome(link: Link, card: ModelCard) -> None:
        link.send_now(Welcome(version=PROTOCOL_VERSION, card=card))

    def _take(self, link: Link, request: GenerateRequest) -> None:
        received_ns = self._clock_ns()
        service = self._service
        if self._refusal is not None or service is None:
            link.send([_busy(request.id, self._refusal or "")])
        elif len(self._requests) >= self._requests_max:
            link.send([_busy(request.id, f"{len(self._requests)} requests are in flight")])
        elif request.id in link.keys:
            link.send([_rejected(request.id, "id: a request with this id is in flight", "id")])
        else:
            key = self._n_arrivals
            self._n_arrivals += 1
            self._requests[key] = _Request(key=key, id=request.id, link=link)
            link.keys[request.id] = key
            self._encoder.submit(self._prepare, service, request, key, received_ns)

    def _prepare(
        self, service: Service, request: GenerateRequest, key: int, received_ns: int
    ) -> None:
        """Render, check and encode, on the encoder's thread."""
        try:
            if self.is_cancelled(key):
                self._refuse(key, _unstarted(request.id))
                return
            job = service.frontend.prepare(request, key=key, received_ns=received_ns)
        except RequestRejected as fault:
            self._refuse(
                key,
                Refused(id=request.id, code=fault.code, message=fault.message, param=fault.param),
            )
        except Exception as fault:  # noqa: BLE001 - the boundary of a request; logged right below
            log_fault("preparing a request failed", fault, n_sequences=1)
            self._refuse(key, _unstarted(request.id, error="the engine failed to read the request"))
        else:
            service.steps.submit(job)

    def _refuse(self, key: int, message: Done | Refused) -> None:
        self.deliver([Output(key=key, message=message)])

    def _cancel(self, key: int | None) -> None:
        request = None if key is None else self._requests.get(key)
        if request is not None and self._service is not None:
            # The flag covers a job that is still on its way to the step thread.
            request.is_cancelled = True
            self._service.steps.abort(request.key)


def _busy(request_id: str, message: str) -> Refused:
    return Refused(
        id=request_id, code="engine_busy", message=message, retry_after_s=_BUSY_RETRY_AFTER_S
    )


def _rejected(request_id: str, message: str, param: str) -> Refused:
    return Refused(id=request_id, code="invalid_request_error", message=message, param=param)


def _unstarted(request_id: str, *, error: str | None = None) -> Done:
    """The end of a request of which nothing was computed."""
    return Done(id=request_id, finish_reason="abort", usage=GenerationUsage(), error=error)
