"""What every call to one account has in common, put together once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from providers.codecs.enforced import Members
from providers.codecs.upstream_errors import ErrorContext
from providers.compatible.row import Row, chat_url
from providers.contract import AttemptFacts, Capabilities, OnDisconnect
from providers.transport import Transport, TransportOptions, header_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account or server that speaks the wire.

    Attributes:
        name: The provider's name in the configuration.
        base_url: Its address.
        api_key: Our key, None where none is needed; never shown.
        extra_headers: Sent with each request.
        model_capabilities: What single models can do, by the upstream's model name.
        on_disconnect: What the operator says about clients that leave, None for the row's rule.
        enforced: Members of the body that every request has, whatever its client sent.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    model_capabilities: Mapping[str, Capabilities] = field(default_factory=dict[str, Capabilities])
    on_disconnect: OnDisconnect | None = None
    enforced: Members = field(default_factory=dict[str, object])


class Upstream:
    """An account with its vendor's rules, its connections, and what its requests share.

    Attributes:
        account: Whose it is.
        row: How its vendor differs.
        url: Where chat requests go.
        transport: Its connections.
        id_headers: Where the upstream's id of a request may be, best first.
        wire_faults: Deviations from the wire that were put right since the start, by kind.
    """

    __slots__ = (
        "_clock",
        "_headers",
        "_hosts",
        "_lines",
        "_secrets",
        "account",
        "id_headers",
        "row",
        "transport",
        "url",
        "wire_faults",
    )

    def __init__(
        self,
        account: Account,
        row: Row,
        *,
        clock: Callable[[], datetime],
        transport_options: TransportOptions | None,
    ) -> None:
        """Prepare the address and the headers; arguments as `OpenAiCompatibleProvider`.

        Raises:
            ValueError: The base URL is not usable.
        """
        self.account = account
        self.row = row
        self.url = chat_url(account.base_url, row)
        self.transport = Transport([str(self.url)], transport_options)
        self.id_headers = [name.lower().encode() for name in row.request_id_headers]
        self.wire_faults: dict[str, int] = {}
        self._clock = clock
        self._secrets = [
            secret for secret in (account.api_key, *account.extra_headers.values()) if secret
        ]
        self._hosts = [self.url.host] if self.url.host else []
        self._headers = {
            "content-type": "application/json",
            "user-agent": "fareway",
            # A compressor may hold single events back, and to inflate an answer of 3 KB costs
            # half of what sending the request does.
            "accept-encoding": "identity",
            **account.extra_headers,
        }
        if account.api_key:
            self._headers[row.auth_header] = row.auth_prefix + account.api_key
        self._lines: dict[bool, bytes] = {}

    def header_lines(self, facts: AttemptFacts, *, is_stream: bool) -> bytes:
        """The headers of one attempt, each with its line end.

        Raises:
            ValueError: One of them cannot be written. The operator's are looked at with the first
                request, so that a bad key fails its own provider's attempts and nothing else.
        """
        lines = self._lines.get(is_stream)
        if lines is None:
            accept = "text/event-stream" if is_stream else "application/json"
            lines = self._lines[is_stream] = header_lines({**self._headers, "accept": accept})
        # Source: OpenAI, "Debugging requests" (2026-11): the caller's own id of a request. A number
        # that means nothing outside our ledger, so servers that do not know it lose nothing.
        if facts.attempt_id:
            lines = b"%bx-client-request-id: %b\r\n" % (lines, facts.attempt_id.encode())
        if facts.traceparent is not None:
            lines += header_lines({"traceparent": facts.traceparent})
        return lines

    def error_context(
        self, deployment: str, headers: Mapping[str, str], facts: AttemptFacts
    ) -> ErrorContext:
        """What it takes to read an error of this account.

        Args:
            deployment: `provider/model-id`.
            headers: The answer's.
            facts: The attempt's.
        """
        return ErrorContext(
            deployment=deployment,
            secrets=self._secrets,
            hosts=self._hosts,
            now=self._clock(),
            headers=headers,
            request_id=facts.upstream_request_id,
        )

    def count_faults(self, faults: Mapping[str, int]) -> None:
        """Add up deviations that were put right, by kind."""
        for kind, count in faults.items():
            self.wire_faults[kind] = self.wire_faults.get(kind, 0) + count
