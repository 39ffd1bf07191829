"""OpenRouter: the activity export and the costs of single generations.

Source: the API reference of `GET /api/v1/activity` and `GET /api/v1/generation`, read 2026-11-30.
One credit is one US dollar. What own keys cost at their vendor (`byok_usage_inference`,
`upstream_inference_cost`) is not on OpenRouter's bill and is left to that vendor's. Activity knows
no cache, so prompt tokens are compared with all of ours together. The id of a generation is kept:
it is the one that an attempt of ours has from the answer's header `x-generation-id`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gateway.finance.sources.pages import entries, load_pages
from gateway.finance.sources.rows import (
    MoneyRow,
    SourceFile,
    Wrong,
    to_day,
    to_decimal,
    to_object,
    to_text,
    to_units,
)

_CURRENCY = "USD"


def read_activity(content: bytes, name: str) -> SourceFile:
    """Read the activity of days, per model; problems are in the result."""
    file = SourceFile(name=name)
    for number, place, entry in entries(load_pages(content, file), file):
        try:
            day = to_day(entry.get("date"), "date")
            model = to_text(entry.get("model_permaslug") or entry.get("model"), "model_permaslug")
            prompt = to_units(entry.get("prompt_tokens"), "prompt_tokens")
            output = to_units(entry.get("completion_tokens"), "completion_tokens")
            amount = to_decimal(entry.get("usage"), "usage")
        except Wrong as error:
            file.wrong(place, error)
            continue
        file.days.add(day)
        file.money.append(
            MoneyRow(
                line=number,
                kind="usage",
                day=day,
                model=model,
                units=prompt + output,
                amount=amount,
                currency=_CURRENCY,
                description="activity",
            )
        )
    return file


def read_generations(content: bytes, name: str) -> SourceFile:
    """Read single generations: one object per line, or pages of them."""
    file = SourceFile(name=name)
    seen: set[str] = set()
    for number, page in enumerate(load_pages(content, file), start=1):
        data = page.get("data", page)
        several = cast("list[object]", data) if isinstance(data, list) else [data]
        for entry in several:
            try:
                _generation(file, to_object(entry, "data"), number, seen)
            except Wrong as error:
                file.wrong(number, error)
    return file


def _generation(
    file: SourceFile, fields: Mapping[str, object], number: int, seen: set[str]
) -> None:
    day = to_day(fields.get("created_at"), "created_at")
    prompt = to_units(fields.get("native_tokens_prompt"), "native_tokens_prompt")
    output = to_units(fields.get("native_tokens_completion"), "native_tokens_completion")
    model = to_text(fields.get("model"), "model")
    generation = to_text(fields.get("id"), "id")
    if not generation or generation in seen:
        raise Wrong(f"id {generation!r} is empty or stands twice")
    amount = to_decimal(fields.get("total_cost"), "total_cost")
    seen.add(generation)
    file.days.add(day)
    file.money.append(
        MoneyRow(
            line=number,
            kind="usage",
            day=day,
            model=model,
            units=prompt + output,
            amount=amount,
            currency=_CURRENCY,
            description=generation,
        )
    )
