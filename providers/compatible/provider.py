"""A provider for one account at any server with an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from providers.compatible.call import StreamCall, WholeCall
from providers.compatible.row import Row
from providers.compatible.upstream import Account, Upstream
from providers.contract import (
    AttemptFacts,
    Batch,
    Capabilities,
    ChatRequest,
    Deadlines,
    EgressPermit,
    OnDisconnect,
)
from providers.transport import TransportOptions


class OpenAiCompatibleProvider:
    """A provider for one account; implements `contract.Provider`.

    Attributes:
        name: The name in the configuration.
        on_disconnect: What to do once the client has left: the operator's word, else the vendor's
            rule.
        sends_usage_unasked: Whether the vendor reports usage in every stream.
        wire_faults: Deviations from the wire that were put right since the start, by kind.
    """

    def __init__(
        self,
        account: Account,
        row: Row,
        *,
        clock: Callable[[], datetime],
        transport_options: TransportOptions | None = None,
    ) -> None:
        """Prepare addresses and headers; nothing is opened yet.

        Args:
            account: Whom to call.
            row: How its vendor differs.
            clock: The present instant in UTC, for dates in `Retry-After`.
            transport_options: How connections are made.

        Raises:
            ValueError: The base URL is not usable.
        """
        # Plain attributes, since each attempt asks for all of them.
        self.name = account.name
        self.on_disconnect: OnDisconnect = account.on_disconnect or row.on_disconnect
        self.sends_usage_unasked = row.sends_usage_unasked
        self._upstream = Upstream(account, row, clock=clock, transport_options=transport_options)
        self.wire_faults = self._upstream.wire_faults
        self._model_capabilities = account.model_capabilities
        self._capabilities = Capabilities(unsupported=row.unsupported, multimodal=row.multimodal)

    def capabilities(self, model_id: str) -> Capabilities:
        """What the model can do; what the wire offers, where nobody said otherwise."""
        return self._model_capabilities.get(model_id, self._capabilities)

    def stream(
        self,
        model_id: str,
        request: ChatRequest,
        *,
        permit: EgressPermit,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        """Send the request; leaving the context closes the socket of an unfinished answer.

        Raises:
            ProviderError: The attempt failed; on entry, or while iterating.
        """
        call = StreamCall if request.is_stream else WholeCall
        return call(self._upstream, model_id, request, permit, deadlines, facts)

    async def close(self) -> None:
        """Close pooled connections."""
        await self._upstream.transport.close()
