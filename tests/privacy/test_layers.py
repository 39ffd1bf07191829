"""The evaluator alone, and permits alone: each stops what the other one would let through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.clock import to_microseconds
from tests.privacy.attack_range import BODY, Range
from tests.privacy.worlds import OURS, PRIVATE, TAGGED, WORLD, Claim, Tag

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VENDOR = {**BODY, "model": "p1/m"}
TAG = ("x-fareway-tags", "private")
UNIT = ("x-fareway-project", "unit")
LAYERS: dict[str, Callable[[Range], None]] = {
    "the evaluator alone": Range.disarm,
    "permits alone": Range.mislead,
}
alone = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


async def is_kept_from_vendors(range_: Range, **asked) -> bool:
    """Whether nothing of a request for a vendor, nor of one for a model, comes to a vendor."""
    range_.forget()
    for body in (VENDOR, BODY, {**BODY, "stream": True}):
        await range_.ask(body, **asked)
    return range_.touched() <= {"p0"}


@alone
async def test_a_claim_that_expires_counts_no_more(range_: Range, layer):
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    claim = Claim(attribute="self_hosted", expires=tomorrow.isoformat())
    await range_.load(replace(WORLD, trust={"p0": (claim,)}, model=("p0",)))
    layer(range_)
    assert (await range_.ask(BODY)).status == 200
    end_us = to_microseconds(datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=UTC))
    range_.service.clock = replace(range_.service.clock, wall_us=lambda: end_us)
    range_.forget()
    assert (await range_.ask(BODY)).status == 403
    assert range_.touched() == set()


@alone
async def test_a_denying_tag_goes_nowhere(range_: Range, layer):
    tags = {"never": Tag(deny=True), "secret": Tag(implies=("never",))}
    await range_.load(replace(TAGGED, tags=tags, trust={"p0": OURS, "p1": OURS}))
    layer(range_)
    for tag in tags:
        range_.forget()
        assert (await range_.ask(BODY, headers=[("x-fareway-tags", tag)])).status == 403
        assert range_.touched() == set()


@alone
async def test_an_implied_tag_counts(range_: Range, layer):
    await range_.load(TAGGED)
    layer(range_)
    assert await is_kept_from_vendors(range_, headers=[("x-fareway-tags", "card")])


@alone
async def test_what_was_decided_for_other_tags_is_not_what_is_remembered(range_: Range, layer):
    await range_.load(TAGGED)
    layer(range_)
    for body in (VENDOR, BODY):
        assert (await range_.ask(body)).status == 200
    assert await is_kept_from_vendors(range_, headers=[TAG])


@alone
async def test_what_was_decided_for_another_team_is_not_what_is_remembered(range_: Range, layer):
    layer(range_)
    for body in (VENDOR, BODY):
        assert (await range_.ask(body, team="others")).status == 200
    assert await is_kept_from_vendors(range_)


@alone
async def test_what_was_decided_without_a_project_is_not_what_is_remembered(range_: Range, layer):
    await range_.load(replace(TAGGED, projects={"apps": ("private",)}))
    layer(range_)
    for body in (VENDOR, BODY):
        assert (await range_.ask(body)).status == 200
    assert await is_kept_from_vendors(range_, headers=[UNIT])


@alone
async def test_a_floor_of_everybody_counts(range_: Range, layer):
    await range_.load(replace(TAGGED, floor=("private",), tags=PRIVATE))
    layer(range_)
    assert await is_kept_from_vendors(range_)
