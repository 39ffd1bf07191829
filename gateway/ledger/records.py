"""The two lines that each attempt writes to the spool: intent before dispatch, settlement after.

Both are msgspec structs, encoded as canonical msgpack tagged with their kind. A record holds
no content: no prompt, no answer, no key. Money is integer picodollars. None can be part of a
reference cycle, so the garbage collector need not look at them (`gc=False`).

Ranges are checked when a record is decoded, by msgspec; whoever makes a record keeps to them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from pricing.quote import CostLine, Count, PicoUsdAmount, PicoUsdChange

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Small = Annotated[int, Meta(ge=0, lt=2**15)]


class AttemptStatus(StrEnum):
    """How an attempt ended, by what it means for the bill (`finance_policy.md` 2.4)."""

    OK = "ok"
    NOT_SENT = "not_sent"
    """Nothing reached the upstream; costs nothing, exactly."""
    REJECTED = "rejected"
    """The upstream refused before generating; costs nothing, exactly."""
    CLIENT_LEFT = "client_left"
    """The client went away; what was generated until then is charged."""
    INTERRUPTED = "interrupted"
    """The stream broke after content; what is known is charged."""
    UNKNOWN_BILLING = "unknown_billing"
    """The request was sent and no count came back: nothing booked, exposure kept."""


class Intent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="intent",
    tag_field="kind",
    gc=False,
    omit_defaults=True,
):
    """Written before an attempt is dispatched; alone it means that the outcome is unknown.

    Attributes:
        event_id: 16 bytes, UUIDv7, the identity of the attempt in the ledger.
        at_us: Microseconds since the epoch, fixed here for ever.
        request_id: 16 bytes, UUIDv7, the request; also in `x-fareway-request-id`.
        attempt: 1 for the first attempt.
        deployment: `provider/model-id`.
        provider: The provider's name in the configuration.
        upstream_model: The model id at the provider.
        model: The logical model, or the deployment's name when the client asked for it directly.
        team: Team name, empty for the administrator.
        project: Project name, empty for none.
        key_id: Public id of the key.
        tags: Privacy tags of the request, closed and sorted.
        cost_tags: Cost tags, sorted pairs.
        reason: Why this deployment was chosen, one word or phrase from the decision.
        price_version: Identity of the price in force, empty when unpriced.
        exposure_pico_usd: Upper-bound quote, None when it cannot be known.
        is_stream: Whether the client asked for a stream.
        route: The HTTP route, for example `chat.completions`.
        lifetime_s: Seconds after which an unsettled intent counts as lost.
        hold_pico_usd: What the attempt holds in each of its leases until it is booked.
        lease_ids: The leases of the budgets that it counts against, 16 bytes each.
    """

    event_id: Id
    at_us: Count
    request_id: Id
    attempt: Annotated[int, Meta(ge=1, lt=2**15)]
    deployment: str
    provider: str
    upstream_model: str
    model: str
    team: str
    project: str
    key_id: str
    tags: tuple[str, ...]
    cost_tags: tuple[tuple[str, str], ...]
    reason: str
    price_version: str
    exposure_pico_usd: PicoUsdAmount | None
    is_stream: bool
    route: str
    lifetime_s: Annotated[float, Meta(ge=0, le=1e9)]
    hold_pico_usd: PicoUsdAmount = 0
    lease_ids: tuple[Id, ...] = ()


class Settlement(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="settlement",
    tag_field="kind",
    gc=False,
    omit_defaults=True,
):
    """Written once when an attempt ended.

    Attributes:
        event_id: The intent's.
        settled_at_us: Microseconds since the epoch.
        status: An `AttemptStatus` value.
        quality: A `pricing.usage.Quality` value.
        usage: Counts per meter name, zeros left out.
        lines: Cost per meter as charged; their sum is `cost_pico_usd`; empty when unpriced.
        cost_pico_usd: What is booked, None when the price is unknown.
        provider_cost_pico_usd: What the provider says it costs, None when it did not say.
        http_status: What the client got.
        error_code: Machine-readable code, empty when all went well.
        upstream_request_id: The provider's id, empty when it gave none.
        finish_reason: As sent to the client, empty when there was none.
        ttft_us: Request accepted to first content event sent, None when none was sent.
        duration_us: Attempt start to end.
        list_cost_pico_usd: The cost at public prices, None when none is known apart from the price
            that was charged.
        cache_saved_pico_usd: What the cache reads would have cost as fresh input less what they
            cost, None when there were none or that is unknown.
        baseline: What the attempt is compared with, `provider/model-id@price-version`; empty where
            no baseline is named for its model.
        baseline_cost_pico_usd: What the baseline would have cost for what the client got of this
            attempt, 0 where it got nothing; None where that is unknown.
    """

    event_id: Id
    settled_at_us: Count
    status: str
    quality: str
    usage: dict[str, Count]
    lines: tuple[CostLine, ...]
    cost_pico_usd: PicoUsdAmount | None
    provider_cost_pico_usd: PicoUsdAmount | None
    http_status: Small
    error_code: str
    upstream_request_id: str
    finish_reason: str
    ttft_us: Count | None
    duration_us: Count
    list_cost_pico_usd: PicoUsdAmount | None = None
    cache_saved_pico_usd: PicoUsdChange | None = None
    baseline: str = ""
    baseline_cost_pico_usd: PicoUsdAmount | None = None


Record = Intent | Settlement

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


encode: Callable[[Record], bytes] = _encoder.encode
"""Encode a record; the same record always gives the same bytes. No function around the encoder's
own: it runs twice per request."""


def decode(payload: bytes | memoryview) -> Record:
    """Decode a record.

    Raises:
        msgspec.DecodeError: The bytes are no record.
        msgspec.ValidationError: A member has the wrong type.
    """
    return _decoder.decode(payload)
