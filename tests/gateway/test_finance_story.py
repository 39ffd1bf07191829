"""The bridge between two months, and the days that stood out: from real ledgers."""

from __future__ import annotations

import json

import pytest

from gateway.finance.errors import Refused
from gateway.finance.story import load_anomalies, load_bridge
from gateway.finance.story_messages import BridgeEffects, ShowAnomalies, ShowBridge
from gateway.notices.messages import AnomalyWatch
from tests.gateway.finance_books import DAY_US, OCTOBER_US, attempt, write, writing
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_finance_close import USD, at
from tests.gateway.test_ledger_alerts import SECRET, receiving
from tests.gateway.test_notices import declared, sending

pytestmark = pytest.mark.anyio


def sum_of(effects: BridgeEffects) -> int:
    return sum(getattr(effects, name) for name in BridgeEffects.__struct_fields__)


async def test_the_parts_of_a_bridge_sum_to_the_difference_of_the_months(tmp_path):
    november = at("2026-11-10")
    usage = {"input": 600_000, "cache_read": 400_001, "output": 7}
    url = await write(
        tmp_path,
        [
            attempt(1, usage={"input": 1_000_000, "output": 500_000}),
            attempt(2, team="search", model="small", rate=333_333),
            attempt(3, at_us=november, usage=usage, rate=2_600_000),
            attempt(4, at_us=november, team="search", model="small", rate=333_333),
            attempt(5, at_us=november, team="search", model="new", usage={"images": 3}),
        ],
    )
    with writing(url).connect() as connection:
        found = load_bridge(connection, ShowBridge(before="2026-10", after="2026-11"))
        assert sum_of(found.effects) == found.after_pico_usd - found.before_pico_usd
        assert found.effects.other_pico_usd == 0
        assert sum(one.change_pico_usd for one in found.products) == sum_of(found.effects)
        assert all(sum_of(one.effects) == one.change_pico_usd for one in found.products)
        assert {one.deployment for one in found.products} == {
            "openai/gpt-4o",
            "openai/small",
            "openai/new",
        }
        assert found.effects.price_pico_usd > 0
        one_team = ShowBridge(before="2026-10", after="2026-11", team="search")
        team = load_bridge(connection, one_team)
        assert team.before_pico_usd == 333_333 * 1_000_000
        assert sum_of(team.effects) == team.after_pico_usd - team.before_pico_usd
        nothing = load_bridge(connection, ShowBridge(before="2026-01", after="2026-02"))
        assert (sum_of(nothing.effects), nothing.products) == (0, ())


async def month_with_a_dear_day(folder) -> str:
    """Thirty days that cost 2 to 3 USD, and a last one that cost 50, most of it by one key."""
    days = [
        attempt(
            n,
            usage={"input": 800_000 + n * 10_000},
            at_us=OCTOBER_US - (31 - n) * DAY_US,
            key_id="steady",
        )
        for n in range(1, 31)
    ]
    dear = [
        attempt(40, usage={"input": 1_000_000}, at_us=OCTOBER_US, key_id="steady"),
        attempt(41, usage={"input": 19_000_000}, at_us=OCTOBER_US, key_id="runaway"),
    ]
    return await write(folder, days + dear)


async def test_a_day_that_stands_out_is_told_with_team_model_and_keys(tmp_path):
    url = await month_with_a_dear_day(tmp_path)
    query = ShowAnomalies(first_day="2026-10-01", last_day="2026-10-20", excess_pico_usd=USD)
    with writing(url).connect() as connection:
        [one] = load_anomalies(connection, query)
        assert (one.day, one.team, one.amount_pico_usd) == ("2026-10-17", "payments", 50 * USD)
        assert [share.key_id for share in one.keys][0] == "runaway"
        assert one.excess_pico_usd == one.amount_pico_usd - one.expected_pico_usd > 45 * USD
        dearer = ShowAnomalies(
            first_day="2026-10-01", last_day="2026-10-20", excess_pico_usd=60 * USD
        )
        assert load_anomalies(connection, dearer) == ()
        for first, last in (("2026-10-02", "2026-10-01"), ("2026-01-01", "2026-10-01")):
            with pytest.raises(Refused, match="is not one to 62 days"):
                load_anomalies(
                    connection,
                    ShowAnomalies(first_day=first, last_day=last, excess_pico_usd=1),
                )
        for first, last in (("0001-01-01", "0001-01-09"), ("9999-12-30", "9999-12-31")):
            with pytest.raises(Refused, match="date value out of range"):
                load_anomalies(
                    connection,
                    ShowAnomalies(first_day=first, last_day=last, excess_pico_usd=1),
                )
        with pytest.raises(Refused, match="day is out of range"):
            load_anomalies(
                connection,
                ShowAnomalies(first_day="2026-02-30", last_day="2026-03-01", excess_pico_usd=1),
            )


async def test_who_watches_hears_of_each_anomaly_once(tmp_path):
    url = await month_with_a_dear_day(tmp_path)
    clock = FakeClock(wall=at("2026-10-18"))
    async with receiving() as receiver:
        watch = AnomalyWatch(excess_pico_usd=USD, webhooks=("finance",))
        wanted = declared(anomalies=watch, webhooks=(receiver.webhook(),), mail=None)
        for _ in range(2):  # the second after a restart
            async with sending(url, tmp_path, clock, wanted) as sender:
                await sender.look()
                await sender.look()
        [(_, body)] = receiver.got
        document = json.loads(body)
        assert (document["type"], document["team"], document["amount_usd"]) == (
            "spend.anomaly",
            "payments",
            "50",
        )
        assert document["keys"][0] == "runaway"
        assert SECRET.decode() not in body.decode()
