"""`POST /v1/chat/completions`: authenticate, read, parse, admit, relay."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import anyio
import anyio.to_thread

from gateway import errors
from gateway.admission.admit import Admitted, refusal_error
from gateway.auth.directory import AuthFailure, Principal
from gateway.dialects import openai_chat
from gateway.dialects.controls import Controls, read_controls
from gateway.http.errors import error_headers, openai_body, openai_event, row_of
from gateway.http.messages import ClientGone, Headers, Receive, check_is_json, header, read_body
from gateway.http.service import Service
from gateway.relay.attempts import Candidate, Job, header_text
from gateway.relay.client_stream import ClientStream, Send
from gateway.relay.journal import Booking
from gateway.routing.ranking import Candidate as Ranked
from pricing.price_book import Unpriced
from providers.contract import ChatRequest

logger = logging.getLogger(__name__)

ROUTE = "chat.completions"
RETRY_WHEN_DRAINING_S = 1.0
PARSE_HERE_BYTES_MAX = 256 * 1024
"""Larger bodies are checked on a thread; 1 MiB of short messages takes 9 ms (G8 allows 5)."""

ERROR_EVENT_S = 10.0
"""Longest time that an error event waits for room in the client's socket."""


@dataclass(slots=True, kw_only=True)
class ChatCall:
    """One client call, from its first byte to its last.

    Attributes:
        service: The worker's parts.
        headers: Raw request headers, names in lower case.
        receive: ASGI's.
        send: ASGI's.
    """

    service: Service
    headers: Headers
    receive: Receive
    send: Send

    async def run(self) -> None:
        """Answer the client, whatever happens."""
        service = self.service
        request_id = service.new_id()
        client = ClientStream(self.send, service.clock.monotonic_s)
        base = request_id_headers(request_id)
        accepted_s = service.clock.monotonic_s()
        service.enter()
        status = 200
        try:
            await self._answer(request_id, client, base, accepted_s)
        except errors.GatewayError as error:
            status = row_of(error).status
            await _send_error(client, error, self._completed(base, accepted_s))
        except ClientGone:
            status = 499
        except Exception:  # the request boundary
            logger.exception("request %s failed", request_id.hex())
            status = 500
            fault = errors.InternalFault(
                f"an internal error; quote request id {request_id.hex()} to the operator"
            )
            await _send_error(client, fault, self._completed(base, accepted_s))
        finally:
            service.leave()
            service.metrics.requests.labels(route=ROUTE, status=str(status)).inc()

    def _completed(
        self, base: list[tuple[bytes, bytes]], accepted_s: float
    ) -> list[tuple[bytes, bytes]]:
        """The headers of an error, with those that the refused request did not live to get."""
        known = {name for name, _ in base}
        overhead_s = self.service.clock.monotonic_s() - accepted_s
        facts = ((b"x-fareway-tags", b""), _overhead_header(overhead_s))
        return [*base, *(fact for fact in facts if fact[0] not in known)]

    async def _answer(
        self,
        request_id: bytes,
        client: ClientStream,
        base: list[tuple[bytes, bytes]],
        accepted_s: float,
    ) -> None:
        service = self.service
        if service.is_draining:
            raise errors.Draining(
                "this process is shutting down; try again", retry_after_s=RETRY_WHEN_DRAINING_S
            )
        principal = authenticate(service, self.headers)
        check_is_json(self.headers)
        body = await read_body(self.receive, self.headers, max_bytes=service.max_body_bytes)
        parsed = await _parse(body)
        del body
        controls = read_controls(self.headers, parsed.metadata)
        admitted = service.admission.admit(
            principal, parsed, controls, wall_us=service.clock.wall_us()
        )
        base.append((b"x-fareway-tags", header_text(",".join(admitted.tags))))
        if admitted.decision.refusal is not None:
            raise refusal_error(admitted.decision.refusal)
        job = self._job(request_id, principal, parsed, controls, admitted, base, accepted_s)
        await self._relay(job, client)

    async def _relay(self, job: Job, client: ClientStream) -> None:
        failure: errors.GatewayError | None = None
        async with anyio.create_task_group() as tasks:
            scope = tasks.cancel_scope
            self.service.relays[client] = scope
            tasks.start_soon(self._watch_client, scope)
            try:
                await self.service.relay.run(job, client)
            except errors.GatewayError as error:
                failure = error  # raised outside, so that the task group does not wrap it
            finally:
                del self.service.relays[client]
            scope.cancel()
        if failure is not None:
            raise failure
        if client.is_cut and not client.is_finished:
            raise errors.Draining(
                "this process is shutting down and had to end the answer; try again",
                retry_after_s=RETRY_WHEN_DRAINING_S,
            )
        if not client.is_finished:
            raise ClientGone

    async def _watch_client(self, scope: anyio.CancelScope) -> None:
        """Cancel the attempt, and with it the upstream, when the client leaves."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                scope.cancel()
                return

    def _job(
        self,
        request_id: bytes,
        principal: Principal,
        parsed: openai_chat.ParsedChat,
        controls: Controls,
        admitted: Admitted,
        base: list[tuple[bytes, bytes]],
        accepted_s: float,
    ) -> Job:
        service = self.service
        decision = admitted.decision
        overhead_s = service.clock.monotonic_s() - accepted_s
        service.metrics.overhead.observe(overhead_s)
        base.append(_overhead_header(overhead_s))
        adapted: tuple[str, ...] = ()
        if header(self.headers, b"idempotency-key") is not None:
            adapted = ("idempotency-key ignored",)
        booking = Booking(
            request_id=request_id,
            model=decision.model or decision.asked,
            team=principal.team,
            project=admitted.project,
            key_id=principal.key_id,
            tags=admitted.tags,
            cost_tags=controls.cost_tags,
            route=ROUTE,
            is_stream=parsed.is_stream,
        )
        return Job(
            booking=booking,
            candidates=self._ordered(decision.candidates),
            request=ChatRequest(
                fields=parsed.fields,
                is_stream=parsed.is_stream,
                wants_usage=parsed.wants_usage,
                namespace=service.directory.namespace(principal),
                request_id=request_id.hex(),
            ),
            prompt_tokens_estimate=parsed.prompt_tokens_estimate,
            allows_empty=parsed.max_output_tokens == 0,
            accepted_s=accepted_s,
            headers=tuple(base),
            adapted=adapted,
        )

    def _ordered(self, ranked: tuple[Ranked, ...]) -> list[Candidate]:
        """The decision's order, with deployments that asked for a pause behind all others."""
        is_paused = self.service.admission.health.is_paused
        return [
            Candidate(
                deployment=one.deployment,
                price=one.price,
                exposure_pico_usd=None
                if isinstance(one.quote, Unpriced)
                else one.quote.upper_bound_pico_usd,
                reason=one.reason,
            )
            for one in sorted(ranked, key=lambda one: is_paused(one.deployment))
        ]


def authenticate(service: Service, headers: Headers) -> Principal:
    """Find out who asks.

    Raises:
        InvalidApiKey: Nobody that we know.
    """
    found = service.directory.authenticate(headers, now_us=service.clock.wall_us())
    if isinstance(found, AuthFailure):
        raise errors.InvalidApiKey(found.message)
    return found


async def _parse(body: bytes) -> openai_chat.ParsedChat:
    """Check a body, off the event loop where that takes milliseconds."""
    if len(body) <= PARSE_HERE_BYTES_MAX:
        return openai_chat.parse(body)
    return await anyio.to_thread.run_sync(openai_chat.parse, body)


def request_id_headers(request_id: bytes) -> list[tuple[bytes, bytes]]:
    """The headers that name a request."""
    text = request_id.hex().encode()
    return [(b"x-fareway-request-id", text), (b"x-request-id", text)]


def _overhead_header(overhead_s: float) -> tuple[bytes, bytes]:
    return (b"x-fareway-overhead-ms", f"{overhead_s * 1000:.2f}".encode())


async def _send_error(
    client: ClientStream, error: errors.GatewayError, base: list[tuple[bytes, bytes]]
) -> None:
    if client.is_finished:
        return
    if client.is_started:
        # Nobody has to read it: a client that does not shall not hold the request.
        with anyio.move_on_after(ERROR_EVENT_S):
            await client.write(openai_event(error))
            await client.finish(is_clean=False)
        return
    headers = [
        *base,
        (b"x-fareway-deployment", header_text(error.deployment or "none")),
        (b"x-fareway-attempts", str(error.attempts).encode()),
        *error_headers(error),
        (b"content-type", b"application/json"),
    ]
    await client.send_whole(row_of(error).status, headers, openai_body(error))
