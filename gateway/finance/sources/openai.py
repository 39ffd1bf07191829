"""OpenAI: the organisation's costs and usage, as the API returns them.

Source: the API reference of `GET /v1/organization/costs` and `/v1/organization/usage/*`, read
2026-11-30. Costs come in days; grouped by line item, an item is `model, input`, `model, cached
input` or `model, output`. Of usage, `input_tokens` contains `input_cached_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal

from gateway.finance.sources.pages import entries, load_pages
from gateway.finance.sources.rows import (
    OTHER,
    STANDARD,
    TOKEN_METERS,
    MoneyRow,
    SourceFile,
    UsageRow,
    Wrong,
    to_currency,
    to_decimal,
    to_list,
    to_object,
    to_optional_text,
    to_text,
    to_units,
    to_unix_day,
)
from pricing.usage import Meter

_ITEM_METERS = {
    "input": Meter.INPUT,
    "cached input": Meter.CACHE_READ,
    "output": Meter.OUTPUT,
}
_NO_GROUP = "group the costs by line_item to compare models"


def read_costs(content: bytes, name: str) -> SourceFile:
    """Read pages of costs; problems are in the result."""
    return _read(content, name, "organization.costs.result", _cost)


def read_usage(content: bytes, name: str) -> SourceFile:
    """Read pages of usage of completions, embeddings, images or transcriptions."""
    return _read(content, name, "organization.usage.", _usage, is_bill=False)


def _read(
    content: bytes,
    name: str,
    kind: str,
    read_result: Callable[[SourceFile, Mapping[str, object], date, int], None],
    *,
    is_bill: bool = True,
) -> SourceFile:
    file = SourceFile(name=name, is_bill=is_bill)
    for number, place, bucket in entries(load_pages(content, file), file):
        try:
            day = to_unix_day(bucket.get("start_time"), "start_time")
            results = to_list(bucket.get("results", bucket.get("result")), "results")
        except Wrong as error:
            file.wrong(place, error)
            continue
        file.days.add(day)
        for index, result in enumerate(results):
            try:
                fields = to_object(result, f"results[{index}]")
                found = to_text(fields.get("object"), "object")
                if not found.startswith(kind):
                    raise Wrong(f"object is {found!r}, must be {kind}…")
                read_result(file, fields, day, number)
            except Wrong as error:
                file.wrong(f"{place}.results[{index}]", error)
    return file


def _cost(file: SourceFile, fields: Mapping[str, object], day: date, number: int) -> None:
    amount = to_object(fields.get("amount"), "amount")
    item = to_optional_text(fields.get("line_item"), "line_item")
    model, meter = _parts(item)
    value = to_decimal(amount.get("value"), "amount.value")
    quantity = fields.get("quantity")
    has_units = quantity is not None and meter in TOKEN_METERS
    file.money.append(
        MoneyRow(
            line=number,
            kind="credit" if value < 0 else "usage",
            day=day,
            model="" if value < 0 else model,
            meter="" if value < 0 else meter,
            units=to_units(quantity, "quantity") if has_units else None,
            amount=value,
            currency=to_currency(amount.get("currency"), "amount.currency"),
            description=item or _NO_GROUP,
        )
    )


def _parts(item: str) -> tuple[str, str]:
    """Model and meter of a line item; both empty when costs were not grouped."""
    model, comma, meter = item.rpartition(", ")
    if comma and meter in _ITEM_METERS:
        return model, _ITEM_METERS[meter].value
    return item, OTHER if item else ""


def _usage(file: SourceFile, fields: Mapping[str, object], day: date, number: int) -> None:
    kind = to_text(fields.get("object"), "object")
    model = to_optional_text(fields.get("model"), "model")
    tier = to_optional_text(fields.get("service_tier"), "service_tier") or STANDARD
    if fields.get("batch") is True:
        tier = "batch"
    tier = STANDARD if tier in ("default", "auto") else tier
    file.usage += [
        UsageRow(line=number, day=day, model=model, meter=meter, tier=tier, units=units)
        for meter, units in _counts(kind, fields)
        if units
    ]


def _counts(kind: str, fields: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    def count(name: str) -> int:
        return to_units(fields[name], name) if fields.get(name) is not None else 0

    if kind.endswith(".completions.result"):
        prompt, cached = to_units(fields.get("input_tokens"), "input_tokens"), 0
        cached = count("input_cached_tokens")
        if cached > prompt:
            raise Wrong(f"input_cached_tokens {cached} is more than input_tokens {prompt}")
        yield Meter.INPUT.value, prompt - cached
        yield Meter.CACHE_READ.value, cached
        yield Meter.OUTPUT.value, to_units(fields.get("output_tokens"), "output_tokens")
        yield "audio_input_tokens", count("input_audio_tokens")
        yield "audio_output_tokens", count("output_audio_tokens")
    elif kind.endswith(".embeddings.result"):
        yield Meter.INPUT.value, to_units(fields.get("input_tokens"), "input_tokens")
    elif kind.endswith(".images.result"):
        yield Meter.IMAGES.value, to_units(fields.get("images"), "images")
    elif kind.endswith(".audio_transcriptions.result"):
        seconds = fields.get("seconds")
        yield Meter.AUDIO_MS.value, to_units(seconds, "seconds", times=Decimal(1000))
    else:
        raise Wrong(f"usage of the kind {kind!r} is not known")
