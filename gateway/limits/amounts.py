"""What a limit allows, as it is configured and as it is kept with a key."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PER_MINUTE_MAX = 1_000_000_000
TOKENS_PER_MINUTE_MAX = 1_000_000_000_000
CONCURRENCY_MAX = 1_000_000

_Requests = Annotated[int, Meta(ge=1, le=PER_MINUTE_MAX)]
_Tokens = Annotated[int, Meta(ge=1, le=TOKENS_PER_MINUTE_MAX)]


class LimitAmounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one team, project, key or model; None is unlimited.

    Attributes:
        rpm: Requests per minute.
        tpm: Tokens per minute.
        concurrency: Requests in flight.
        rpm_burst: Requests that may come at once after a rest; None for a minute's worth.
        tpm_burst: Tokens that may come at once after a rest; None for a minute's worth.
    """

    rpm: _Requests | None = None
    tpm: _Tokens | None = None
    concurrency: Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] | None = None
    rpm_burst: _Requests | None = None
    tpm_burst: _Tokens | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.rpm is None and self.tpm is None and self.concurrency is None
