"""How many requests and tokens a team, a project, a key or a model may have."""

from __future__ import annotations

from typing import Self

from msgspec import to_builtins
from pydantic import Field, model_validator

from gateway.limits.amounts import (
    CONCURRENCY_MAX,
    PER_MINUTE_MAX,
    TOKENS_PER_MINUTE_MAX,
    LimitAmounts,
)
from gateway.settings.scalars import Section


class LimitSettings(Section):
    """How much may be asked at once and per minute."""

    rpm: int | None = Field(default=None, ge=1, le=PER_MINUTE_MAX)
    """Requests per minute."""
    tpm: int | None = Field(default=None, ge=1, le=TOKENS_PER_MINUTE_MAX)
    """Tokens per minute."""
    concurrency: int | None = Field(default=None, ge=1, le=CONCURRENCY_MAX)
    """Requests in flight."""
    rpm_burst: int | None = Field(default=None, ge=1, le=PER_MINUTE_MAX)
    """Requests that may come at once after a rest; unset: a minute's worth."""
    tpm_burst: int | None = Field(default=None, ge=1, le=TOKENS_PER_MINUTE_MAX)
    """Tokens that may come at once after a rest; unset: a minute's worth."""

    @property
    def amounts(self) -> LimitAmounts:
        """The same for the program."""
        return LimitAmounts(
            rpm=self.rpm,
            tpm=self.tpm,
            concurrency=self.concurrency,
            rpm_burst=self.rpm_burst,
            tpm_burst=self.tpm_burst,
        )

    @classmethod
    def of(cls, amounts: LimitAmounts | None) -> LimitSettings | None:
        """The same from the program; None for none."""
        return None if amounts is None else cls.model_validate(to_builtins(amounts))

    @model_validator(mode="after")
    def _burst_of_something(self) -> Self:
        for name in ("rpm", "tpm"):
            if getattr(self, f"{name}_burst") is not None and getattr(self, name) is None:
                raise ValueError(f"{name}_burst needs {name}")
        return self
