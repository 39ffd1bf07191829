"""Anthropic: the Admin API's cost report and messages usage report, as it returns them.

Source: the API reference of `GET /v1/organizations/cost_report` and `/usage_report/messages`, read
2026-11-30. Amounts are decimal text in the currency's lowest unit: `123.45` of USD is 1.2345
dollars. Costs of the priority tier are not in the cost report, code execution is only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date

from gateway.finance.sources.pages import entries, load_pages
from gateway.finance.sources.rows import (
    OTHER,
    STANDARD,
    MoneyRow,
    SourceFile,
    UsageRow,
    Wrong,
    to_currency,
    to_day,
    to_decimal,
    to_list,
    to_object,
    to_optional_text,
    to_text,
    to_units,
)
from pricing.usage import Meter

_TOKEN_TYPES = {
    "uncached_input_tokens": Meter.INPUT,
    "cache_read_input_tokens": Meter.CACHE_READ,
    "cache_creation.ephemeral_5m_input_tokens": Meter.CACHE_WRITE,
    "cache_creation.ephemeral_1h_input_tokens": Meter.CACHE_WRITE,
    "output_tokens": Meter.OUTPUT,
}
_PER_CENT_PLACES = -2


def read_costs(content: bytes, name: str) -> SourceFile:
    """Read pages of the cost report; problems are in the result."""
    return _read(content, name, _cost)


def read_usage(content: bytes, name: str) -> SourceFile:
    """Read pages of the usage report of messages."""
    return _read(content, name, _usage, is_bill=False)


def _read(
    content: bytes,
    name: str,
    read_result: Callable[[SourceFile, Mapping[str, object], date, int], None],
    *,
    is_bill: bool = True,
) -> SourceFile:
    file = SourceFile(name=name, is_bill=is_bill)
    for number, place, bucket in entries(load_pages(content, file), file):
        try:
            day = to_day(bucket.get("starting_at"), "starting_at")
            results = to_list(bucket.get("results"), "results")
        except Wrong as error:
            file.wrong(place, error)
            continue
        file.days.add(day)
        for index, result in enumerate(results):
            try:
                read_result(file, to_object(result, f"results[{index}]"), day, number)
            except Wrong as error:
                file.wrong(f"{place}.results[{index}]", error)
    return file


def _cost(file: SourceFile, fields: Mapping[str, object], day: date, number: int) -> None:
    currency = to_currency(fields.get("currency"), "currency")
    if currency in ("JPY", "KRW"):
        raise Wrong(f"amounts in {currency} have no hundredths; the report is not understood")
    # Text by the reference; a number would have passed through somebody's float.
    amount = to_decimal(to_text(fields.get("amount"), "amount"), "amount")
    amount = amount.scaleb(_PER_CENT_PLACES)
    token_type = to_optional_text(fields.get("token_type"), "token_type")
    cost_type = to_optional_text(fields.get("cost_type"), "cost_type")
    if token_type and token_type not in _TOKEN_TYPES:
        raise Wrong(f"token_type {token_type!r} is not known")
    is_grouped = bool(cost_type or token_type)
    meter = _TOKEN_TYPES[token_type].value if token_type else OTHER if is_grouped else ""
    model = to_optional_text(fields.get("model"), "model") or (cost_type if is_grouped else "")
    is_credit = amount < 0
    file.money.append(
        MoneyRow(
            line=number,
            kind="credit" if is_credit else "usage",
            day=day,
            model="" if is_credit else model,
            meter="" if is_credit else meter,
            tier=_tier(fields),
            amount=amount,
            currency=currency,
            description=to_optional_text(fields.get("description"), "description"),
        )
    )


def _usage(file: SourceFile, fields: Mapping[str, object], day: date, number: int) -> None:
    model = to_optional_text(fields.get("model"), "model")
    file.usage += [
        UsageRow(line=number, day=day, model=model, meter=meter, tier=_tier(fields), units=units)
        for meter, units in _counts(fields)
        if units
    ]


def _counts(fields: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for name in ("uncached_input_tokens", "cache_read_input_tokens", "output_tokens"):
        yield _TOKEN_TYPES[name].value, to_units(fields.get(name), name)
    written = to_object(fields.get("cache_creation", {}), "cache_creation")
    total = 0
    for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"):
        if written.get(name) is not None:
            total += to_units(written[name], f"cache_creation.{name}")
    yield Meter.CACHE_WRITE.value, total
    tools = to_object(fields.get("server_tool_use") or {}, "server_tool_use")
    if tools.get("web_search_requests") is not None:
        searches = to_units(tools["web_search_requests"], "server_tool_use.web_search_requests")
        yield "web_search_requests", searches


def _tier(fields: Mapping[str, object]) -> str:
    return to_optional_text(fields.get("service_tier"), "service_tier") or STANDARD
