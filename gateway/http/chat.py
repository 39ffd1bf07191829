"""`POST /v1/chat/completions`: authenticate, read, parse, admit, relay."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import anyio
import anyio.to_thread

from gateway import errors
from gateway.admission.admit import Admitted, refusal_error
from gateway.admission.detected import explained, with_detected
from gateway.auth.credentials import Refusal
from gateway.auth.directory import AuthFailure, Principal
from gateway.detect.detection import NOTHING
from gateway.dialects import openai_chat
from gateway.dialects.controls import CONTROL_MARK, NO_CONTROLS, Controls, read_controls
from gateway.http.cycle import Cycle
from gateway.http.errors import error_headers, openai_body, openai_event, row_of
from gateway.http.guard import Ending
from gateway.http.messages import (
    BODY_STALL_S,
    JSON_TYPE,
    ClientGone,
    Headers,
    check_declared_length,
    check_is_json,
    check_length,
    header_lines,
    request_id_lines,
)
from gateway.http.service import Service
from gateway.limits.limiter import Permit, refusal
from gateway.limits.standing import header_lines as limit_lines
from gateway.privacy.model import Sink
from gateway.relay.client_stream import JSON_HEADER, ClientStream
from gateway.relay.exposure import Asked
from gateway.relay.job import Job
from gateway.relay.journal import Booking
from gateway.relay.request_head import RequestHead, attempt_lines
from gateway.routing.ranking import Candidate
from providers.contract import ChatRequest, EgressPermit

logger = logging.getLogger(__name__)

ROUTE = "chat.completions"
RETRY_WHEN_DRAINING_S = 1.0
RETRY_UNCHECKED_S = 5.0
PARSE_HERE_BYTES_MAX = 256 * 1024
PARSE_HERE_OBJECTS_MAX = 4000
"""What is larger is checked on a thread: 256 KiB take 1 to 3 ms with so many objects in them, 7 as
short messages of parts (G8 allows 5)."""

ERROR_EVENT_S = 10.0
"""Longest time that an error event waits for room in the client's socket."""


class ChatCall:
    """One client call, from its first byte to its last.

    Args:
        service: The worker's parts.
        headers: Raw request headers, names in lower case.
        cycle: The connection's side of the call.
    """

    __slots__ = (
        "_accepted_s", "_asked", "_client", "_cycle", "_detected", "_head", "_headers", "_permit",
        "_request_id", "_service", "_trail",
    )  # fmt: skip

    def __init__(self, *, service: Service, headers: Headers, cycle: Cycle) -> None:
        self._service = service
        self._headers = headers
        self._cycle = cycle
        self._request_id = service.new_id()
        self._accepted_s = service.clock.monotonic_s()
        self._client = ClientStream(cycle, service.clock.monotonic_s)
        self._head = RequestHead(
            id_lines=request_id_lines(self._request_id), ready_s=self._accepted_s
        )
        self._permit: Permit | None = None
        self._detected = NOTHING
        trails = service.trails
        self._trail = trails and trails.start(self._request_id, ROUTE, headers)

    async def run(self) -> None:
        """Answer the client, whatever happens."""
        service = self._service
        service.enter()
        status = 200
        try:
            await self._relay(await self._admit())
        except errors.GatewayError as error:
            row = row_of(error)
            status = row.status
            if isinstance(error, errors.PrivacyDenied | errors.PrivateCapacityUnavailable):
                service.metrics.note_denial(row.code)
            await self._send_error(error)
        except ClientGone:
            status = 499
        except Exception:  # the request boundary
            shown_id = self._request_id.hex()
            logger.exception("request %s failed", shown_id)
            status = 500
            await self._send_error(
                errors.InternalFault(
                    f"an internal error; quote request id {shown_id} to the operator"
                )
            )
        finally:
            if self._permit is not None:
                self._permit.close()
            service.leave()
            overhead_s = self._head.overhead_s
            service.metrics.note_request(
                ROUTE, status, service.clock.monotonic_s() - self._accepted_s, overhead_s
            )
            if self._trail is not None:
                self._trail.end(status, overhead_s)

    async def _admit(self) -> Job:
        """Find out who asks for what, and where it may go."""
        service, headers = self._service, self._headers
        if service.is_draining or service.is_superseded:
            raise _not_here(service)
        # Each header's first value, for all that is looked for below.
        first = dict(reversed(headers))
        has_repeats = len(first) != len(headers)
        wall_us = service.clock.wall_us()
        if has_repeats or b"x-api-key" in first or b"api-key" in first:
            found = service.directory.authenticate(headers, now_us=wall_us)
        else:
            authorization = first.get(b"authorization", b"")
            found = service.directory.authenticate_bearer(authorization, now_us=wall_us)
        if isinstance(found, AuthFailure):
            raise refused(found)
        if first.get(b"content-type") != JSON_TYPE or b"content-encoding" in first:
            check_is_json(headers)
        body = self._cycle.take_whole_body()
        has_waited = body is None
        if body is None:
            body = await self._gather_body()
        elif len(body) > service.max_body_bytes:
            check_length(len(body), service.max_body_bytes)
        if len(body) <= PARSE_HERE_BYTES_MAX and body.count(b"{") <= PARSE_HERE_OBJECTS_MAX:
            parsed = openai_chat.parse(body)
        else:
            parsed = await anyio.to_thread.run_sync(openai_chat.parse, body)
            has_waited = True
        del body
        detected = service.detection.look_here(parsed.fields, has_media=parsed.has_media)
        if detected is None:
            detected = await anyio.to_thread.run_sync(
                lambda: service.detection.look(parsed.fields, has_media=parsed.has_media)
            )
            has_waited = True
        if has_waited:  # a client may take its time, and its key be void by now
            wall_us = service.clock.wall_us()
            found = authenticate(service, headers)
        controls = NO_CONTROLS
        if parsed.metadata or CONTROL_MARK in b"\n".join(first):
            controls = read_controls(headers, parsed.metadata)
        if detected is not NOTHING:
            self._detected = detected
            service.metrics.note_detected(detected, enforces=service.detection.orders.enforces)
        given, controls = controls, with_detected(controls, detected)
        self._asked = (found, parsed, controls)
        admitted = service.admission.admit(found, parsed, controls, wall_us=wall_us)
        self._note(admitted)
        if admitted.decision.refusal is not None:
            why = admitted.decision.refusal
            if controls is not given:
                carried = service.admission.admit(found, parsed, given, wall_us=wall_us).tags
                why = explained(why, detected, frozenset(carried))
            raise refusal_error(why)
        if found.limits is not None or not service.limits.book.is_empty:
            await self._take_limits(found, parsed, admitted)
        adapted = ("idempotency-key ignored",) if b"idempotency-key" in first else ()
        return self._job(found, parsed, controls, admitted, adapted=adapted)

    def _note(self, admitted: Admitted) -> None:
        """Say which tags the request has, and leave no trace where they forbid it."""
        self._head.tags = admitted.tags_text
        if self._trail is not None and Sink.TRACES not in admitted.sinks:
            self._trail.forgo_trace()

    async def _take_limits(
        self, principal: Principal, parsed: openai_chat.ParsedChat, admitted: Admitted
    ) -> None:
        """Take what the request needs of its rate limits.

        Raises:
            RateLimitExceeded: One of them has no room now; nothing was taken of any.
            PromptOverLimit: One of them never has so much.
        """
        limiter = self._service.limits
        decision = admitted.decision
        rules = limiter.book.rules(
            team=principal.team,
            project=admitted.project,
            key_id=principal.key_id,
            key=principal.limits,
            model=decision.model or decision.asked,
        )
        if not rules:
            return
        self._permit, shortage, standing = await limiter.admit(
            rules,
            team=principal.team,
            prompt_tokens=parsed.prompt_tokens_estimate,
            prompt_tokens_low=parsed.prompt_tokens_low,
            output_tokens=parsed.max_output_tokens,
            choices=parsed.choices,
        )
        self._head.limits = limit_lines(standing)
        if shortage is not None:
            raise refusal(shortage)

    def _renew(self, candidate: Candidate) -> Candidate | None:
        """What a candidate of before is by now: claims expire and prices change meanwhile."""
        service = self._service
        admitted = service.admission.admit(*self._asked, wall_us=service.clock.wall_us())
        name = candidate.deployment
        if name not in admitted.decision.reachable or name not in admitted.egress.origins:
            return None
        # One that is down by now stays: the attempt finds that out, and others may follow.
        return next((one for one in admitted.candidates if one.deployment == name), candidate)

    def _egress(self, admitted: Admitted) -> EgressPermit:
        """Where the request may be sent now."""
        return admitted.permit_at(self._service.clock.wall_us())

    async def _gather_body(self) -> bytes:
        """A body that did not come with its head."""
        max_bytes = self._service.max_body_bytes
        try:
            check_declared_length(self._headers, max_bytes)
            return await self._cycle.gather_body(max_bytes=max_bytes, stall_s=BODY_STALL_S)
        finally:  # a body that is refused took its client's time, too
            self._head.note_ready(self._service.clock.monotonic_s())

    async def _relay(self, job: Job) -> None:
        service, cycle, client = self._service, self._cycle, self._client
        if cycle.disconnected:  # while a large body was parsed
            raise ClientGone
        guard = service.relays.add(cycle, client, limits=service.relay.limits)
        try:
            await service.relay.run(job, client)
        except asyncio.CancelledError:
            if not guard.took_over():
                raise
        finally:
            service.relays.remove(guard)
        if client.has_left:
            raise ClientGone
        if guard.ending is None or client.is_finished:
            return
        if guard.ending is Ending.CUT:
            raise errors.Draining(
                "this process is shutting down and had to end the answer; try again",
                retry_after_s=RETRY_WHEN_DRAINING_S,
            )
        if guard.ending is Ending.OUT_OF_TIME:
            cycle.abort()
        raise ClientGone

    async def _send_error(self, error: errors.GatewayError) -> None:
        client, head = self._client, self._head
        if client.is_finished:
            return
        if client.is_started:
            # Nobody has to read it: a client that does not shall not hold the request.
            with anyio.move_on_after(ERROR_EVENT_S):
                await client.write(openai_event(error))
            client.finish(b"", is_clean=False)
            return
        head.note_dispatch(self._service.clock.monotonic_s())
        lines = head.lines(
            attempt_lines(error.deployment or "none", error.attempts),
            header_lines(error_headers(error)) + JSON_HEADER,
        )
        await client.send_whole(row_of(error).status, lines, openai_body(error))

    def _job(
        self,
        principal: Principal,
        parsed: openai_chat.ParsedChat,
        controls: Controls,
        admitted: Admitted,
        *,
        adapted: tuple[str, ...],
    ) -> Job:
        decision = admitted.decision
        model = decision.model or decision.asked
        service = self._service
        booking = Booking(
            request_id=self._request_id,
            model=model,
            team=principal.team,
            project=admitted.project,
            key_id=principal.key_id,
            tags=admitted.tags,
            cost_tags=controls.cost_tags,
            route=ROUTE,
            is_stream=parsed.is_stream,
            baseline=service.admission.fleet.baseline(model, service.clock.wall_us()),
        )
        if self._trail is not None:
            self._trail.admit(booking)
        return Job(
            booking=booking,
            candidates=admitted.candidates,
            renew=self._renew,
            egress=partial(self._egress, admitted),
            request=ChatRequest(
                fields=parsed.fields,
                is_stream=parsed.is_stream,
                wants_usage=parsed.wants_usage,
                namespace=self._service.directory.namespace(principal),
                request_id=self._request_id.hex(),
            ),
            asked=Asked(
                prompt_tokens_low=parsed.prompt_tokens_low,
                prompt_tokens_max=parsed.prompt_tokens_max,
                max_output_tokens=parsed.max_output_tokens,
                choices=parsed.choices,
            ),
            prompt_tokens_estimate=parsed.prompt_tokens_estimate,
            allows_empty=parsed.max_output_tokens == 0,
            accepted_s=self._accepted_s,
            head=self._head,
            adapted=adapted,
            permit=self._permit,
            is_narrowed_by_privacy=decision.is_narrowed_by_privacy,
            trail=self._trail,
        )


def _not_here(service: Service) -> errors.Draining:
    """Why this process takes no new request."""
    why = "the configuration has changed"
    if service.is_draining:
        why = "this process is shutting down"
    return errors.Draining(f"{why}; try again", retry_after_s=RETRY_WHEN_DRAINING_S)


def authenticate(service: Service, headers: Headers) -> Principal:
    """Find out who asks.

    Raises:
        InvalidApiKey: Nobody that we know.
        LedgerUnavailable: Nobody that we know while the database has not told all keys.
    """
    found = service.directory.authenticate(headers, now_us=service.clock.wall_us())
    if isinstance(found, AuthFailure):
        raise refused(found)
    return found


def refused(failure: AuthFailure) -> errors.GatewayError:
    """What a client is told whose key opens nothing, or nothing yet."""
    if failure.reason is Refusal.UNCHECKED:
        return errors.LedgerUnavailable(failure.message, retry_after_s=RETRY_UNCHECKED_S)
    return errors.InvalidApiKey(failure.message)
