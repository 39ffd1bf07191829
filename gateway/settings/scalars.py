"""The kinds of value that the configuration is made of, and the base of its sections.

Everything is strict: text is never taken for a number nor a number for text, so that a slip is an
error with a line and not a surprise at run time. Money is `Decimal` from the file to the price
book.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Item = TypeVar("Item")

NAME_CHARACTERS_MAX = 128
USD_MAX = Decimal(10) ** 9
_USD_TEXT = r"[0-9]{1,10}(\.[0-9]{1,18})?([eE]-?[0-9]{1,2})?"
_PRICE_PLACES = 18


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
    )


class TextOrSection(Section):
    """A section that plain text may stand for: the value of its first field."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Let editors accept the short form too."""
        return {"anyOf": [{"type": "string"}, handler(core_schema)]}


def _to_tuple(value: object) -> object:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


Many = Annotated[tuple[Item, ...], BeforeValidator(_to_tuple)]
"""A list in the file, a tuple in the program."""


def one_or_list(value: object) -> object:
    """A tuple of what the file gives, be it a list or one entry without a list around it."""
    return (cast("object", value),) if isinstance(value, dict) else _to_tuple(value)


class OneOrList:
    """Lets editors accept one entry where a list is meant; goes with `one_or_list`."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """See pydantic."""
        schema = handler(core_schema)
        return {"anyOf": [schema["items"], schema]}


def _to_usd(value: object) -> Decimal:
    is_text = isinstance(value, str) and re.fullmatch(_USD_TEXT, value) is not None
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not (is_text or is_number):
        raise ValueError("must be an amount in US dollars such as 0.05")
    amount = Decimal(cast("str | int | Decimal", value))
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_PRICE_PLACES:
        raise ValueError(f"must have at most {_PRICE_PLACES} decimal places")
    return amount


Usd = Annotated[
    Decimal,
    BeforeValidator(_to_usd),
    Field(ge=0, le=USD_MAX),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": f"^{_USD_TEXT}$"},
            ]
        }
    ),
]
"""An exact amount in US dollars, at least 0."""


def _to_float(value: object) -> object:
    # Pydantic's strict float takes whole numbers, but not the Decimal that the loader reads.
    return float(value) if isinstance(value, Decimal) else value


Seconds = Annotated[float, Field(allow_inf_nan=False, gt=0, le=86_400), BeforeValidator(_to_float)]
Milliseconds = Annotated[
    float, Field(allow_inf_nan=False, gt=0, le=3_600_000), BeforeValidator(_to_float)
]
TokensPerSecond = Annotated[
    float, Field(allow_inf_nan=False, gt=0, le=1_000_000), BeforeValidator(_to_float)
]
Gibibytes = Annotated[
    float, Field(allow_inf_nan=False, gt=0, le=65_536), BeforeValidator(_to_float)
]
Percent = Annotated[float, Field(allow_inf_nan=False, ge=0, le=100), BeforeValidator(_to_float)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1), BeforeValidator(_to_float)]
Percentile = Annotated[float, Field(allow_inf_nan=False, gt=0, lt=100), BeforeValidator(_to_float)]


def _to_date(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise ValueError("must be a date such as 2027-06-30")
    return date.fromisoformat(value)


Day = Annotated[date, BeforeValidator(_to_date)]


def _to_instant(value: object) -> object:
    if isinstance(value, str):
        day = _to_date(value) if len(value) == 10 else None
        if isinstance(day, date):
            return datetime.combine(day, time(0), tzinfo=UTC)
        instant = datetime.fromisoformat(value)
        if instant.tzinfo is None:
            raise ValueError("must say its time zone, for example 2027-01-01T00:00:00Z")
        return instant.astimezone(UTC)
    return value


Instant = Annotated[datetime, BeforeValidator(_to_instant)]
"""A moment in UTC; a bare date means its first moment in UTC."""


def _check_name(value: str) -> str:
    if not value or len(value) > NAME_CHARACTERS_MAX:
        raise ValueError(f"a name has 1 to {NAME_CHARACTERS_MAX} characters")
    if value != value.strip() or not value.isprintable():
        raise ValueError("a name has no control characters and no space at its ends")
    if unicodedata.normalize("NFC", value) != value:
        raise ValueError("a name must be in Unicode's composed form (NFC)")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
"""What people call a thing; any script, since GW-149."""


def _check_word(value: str) -> str:
    if any(character in ",;=\"'" or character.isspace() for character in _check_name(value)):
        raise ValueError("a tag or attribute has no spaces, quotes, commas, semicolons or `=`")
    return value


Word = Annotated[str, AfterValidator(_check_word)]
"""A privacy tag or trust attribute: what may stand in a comma-separated header."""


def _check_provider_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError("a provider's name is made of letters, digits, `.`, `_` and `-`")
    return value


ProviderName = Annotated[str, AfterValidator(_check_provider_name)]


def _check_env_name(value: str) -> str:
    # Lower case is refused so that a pasted key is caught here and never echoed as a name.
    if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,127}", value):
        raise ValueError(
            "must name an environment variable in capitals, never hold the secret itself"
        )
    return value


EnvName = Annotated[str, AfterValidator(_check_env_name)]


def _check_path(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError("must be a path")
    return value


FilePath = Annotated[str, AfterValidator(_check_path)]
"""A path as written; `LoadedConfig.resolve` makes it absolute."""


def _check_store_reference(value: str) -> str:
    if not re.fullmatch(r"(vault|awssm):[^\s#]+#[^\s#]+", value):
        raise ValueError("must be a reference such as vault:path#field or awssm:arn#field")
    return value


StoreReference = Annotated[str, AfterValidator(_check_store_reference)]


def split_url(value: str) -> SplitResult:
    """Split a URL and check its port.

    Raises:
        ValueError: It is no URL; the message does not repeat it.
    """
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError("must be a URL; its port, if any, a number up to 65535") from error
    if port == 0:
        raise ValueError("must have a port from 1 to 65535, or none")
    return parts


def check_http_url(value: str, *, credentials: str = "api_key_env or api_key_file") -> str:
    """The URL of an HTTP API without a slash at its end.

    Args:
        value: What the file says.
        credentials: The settings for a user name or password, which it must not hold.

    Raises:
        ValueError: It is no such URL.
    """
    parts = split_url(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"must not hold a user name or password; use {credentials}")
    if parts.query or parts.fragment:
        raise ValueError("must have no query and no fragment")
    if not value.isascii() or any(character.isspace() for character in value):
        raise ValueError("must be ASCII; write an international host in its xn-- form")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(check_http_url)]
