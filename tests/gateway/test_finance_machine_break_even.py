"""Machines beside a vendor's price: the card's figures, what cannot be compared, and how to ask."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from gateway.finance.machines.allocation import Used
from gateway.finance.machines.asking import NoMeaning, question
from gateway.finance.machines.compared import break_even_card
from gateway.finance.machines.messages import HostedPrice, RateKind, ShowMachines
from gateway.finance.machines.shown import as_table, break_even_text, machines_document
from gateway.fleet import Fleet, build_fleet
from gateway.settings.machines import MachineSettings
from tests.gateway.finance_books import write, writing
from tests.gateway.machine_books import HOUR_US, NOVEMBER, OCTOBER, USD, VLLM, note_october
from tests.gateway.settings_text import load_settings, problems_of
from tests.gateway.test_finance_machine_books import report, served

HOSTED = HostedPrice(
    pool="vllm",
    deployment="openai/small",
    price_version="p7",
    rates={"input": (250_000, 1), "cache_read": (25_000, 1), "output": (2_000_000, 1)},
)
USED = Used(
    input_tokens=3 * 10**6,
    cache_write_tokens=10**6,
    cached_input_tokens=10**6,
    output_tokens=10**6,
    reasoning_tokens=10**5,
    requests=9,
)
COST = 10 * USD * 7
HOSTED_COST = 3 * USD // 4 + USD // 40 + 2 * USD


def card(used=USED, hosted=HOSTED, *, cost=COST, up_us=10 * HOUR_US, busy_us=HOUR_US):
    return break_even_card(
        "vllm",
        hosted,
        cost_pico_usd=cost,
        up_us=up_us,
        busy_us=busy_us,
        used=used,
        is_nominal=False,
    )


def test_the_break_even_is_where_the_same_mix_costs_as_much_at_the_vendor():
    found = card()
    assert found.machine_pico_usd_per_hour == 7 * USD
    assert (found.input_tokens, found.cache_write_tokens) == (2 * 10**6, 10**6)
    assert (found.output_tokens, found.reasoning_tokens) == (9 * 10**5, 10**5)
    assert found.hosted_pico_usd == HOSTED_COST
    assert found.saved_pico_usd == HOSTED_COST - COST
    assert found.hosted_pico_usd_per_mtok == HOSTED_COST // 5
    needed = Fraction(7 * USD * 5 * 10**6, HOSTED_COST)
    assert found.break_even_tokens_per_hour == int(needed) + 1
    assert found.tokens_per_hour == 500_000
    assert found.busy_tokens_per_hour == 5 * 10**6
    assert found.break_even_percent == f"{float(Fraction(HOSTED_COST, COST) * 100):.2f}"
    # 12.6 million an hour at 5 million per busy hour.
    assert found.break_even_use_percent == "252.25"
    assert "busy 252.25 % of the time, which it cannot" in break_even_text(found)


def test_a_machine_that_pays_says_so():
    found = card(cost=USD)
    assert found.saved_pico_usd == HOSTED_COST - USD
    assert "there were 500,000, 277.50 % of it" in break_even_text(found)
    assert "which it cannot" not in break_even_text(found)


def test_without_a_speed_nothing_is_said_of_how_busy_it_would_be():
    found = msgspec.structs.replace(card(cost=USD), break_even_use_percent=None)
    assert break_even_text(found).endswith("there were 500,000, 277.50 % of it")


def test_a_machine_without_busy_time_has_no_speed():
    found = card(busy_us=0)
    assert found.busy_tokens_per_hour is None
    assert found.break_even_use_percent == "0.00"


def test_a_machine_that_cost_nothing_breaks_even_at_once():
    found = card(cost=0)
    assert (found.break_even_tokens_per_hour, found.break_even_percent) == (0, None)
    assert break_even_text(found).endswith("busy 0.00 % of the time")


def test_a_vendor_that_gives_it_for_nothing_is_never_caught_up_with():
    found = card(
        hosted=HostedPrice(pool="", deployment="x/free", rates={"input": (0, 1)}),
        used=Used(input_tokens=7),
    )
    assert found.break_even_tokens_per_hour is found.break_even_use_percent is None
    assert "the same use is free there, the machine costs 7 USD per paid hour" in break_even_text(
        found
    )


FAULTS = {
    "no tokens": (Used(attempts=3), HOSTED, "no tokens were used"),
    "no price": (USED, HostedPrice(pool="", deployment="x/y"), "it has no price by usage then"),
    "no rate for what was used": (
        USED,
        HostedPrice(pool="", deployment="x/y", rates={"input": (1, 1)}),
        "no rate for output",
    ),
}


@pytest.mark.parametrize(("used", "hosted", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_compared_says_why(used, hosted, says):
    found = card(used=used, hosted=hosted)
    assert says in found.fault
    assert found.hosted_pico_usd is found.break_even_tokens_per_hour is None
    assert f"not compared, {found.fault}" in break_even_text(found)


@pytest.mark.anyio
async def test_a_report_has_a_card_for_each_pool_that_is_compared(tmp_path):
    engine = writing(await write(tmp_path, [served(1), served(2, team="search")]))
    note_october(engine, VLLM)
    for_all = replace_pool(HOSTED, "")
    assert report(engine).break_even == ()
    assert report(engine, hosted=(replace_pool(HOSTED, "other"),)).break_even == ()
    assert report(engine, hosted=(HOSTED,), teams=("search",)).break_even == ()
    found = report(engine, hosted=(for_all, HOSTED))
    [one] = found.break_even
    assert one.tokens == found.units[0].tokens == 2 * 1_100
    assert one.machine_pico_usd_per_hour == 7 * USD
    assert one.requests == 2
    document = machines_document(found)
    told = document["break_even"][0]
    assert told["machine_usd_per_hour"] == "7"
    assert told["hosted_usd_per_mtok"] == "0.409090909091"
    assert break_even_text(one) in as_table(found)


def replace_pool(hosted: HostedPrice, pool: str) -> HostedPrice:
    return HostedPrice(
        pool=pool,
        deployment=hosted.deployment,
        price_version=hosted.price_version,
        rates=hosted.rates,
    )


CONFIG = """
providers:
  vllm: {kind: openai_compatible, base_url: 'http://10.0.0.5/v1', price: {gpu_usd_per_hour: 3}}
  acme:
    kind: openai_compatible
    base_url: 'https://api.acme.example/v1'
    price: [{input_usd_per_mtok: 1, valid_from: 2026-10-15T00:00:00Z}, {input_usd_per_mtok: 2, valid_from: 2026-11-15T00:00:00Z}]
  bare: {kind: openai_compatible, base_url: 'https://api.bare.example/v1'}
models: {m: {deployments: [vllm/llama, acme/small, bare/big]}}
"""


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    pools = "finance: {machines: {pools: {vllm: {compare_with: acme/small}}}}"
    return build_fleet(load_settings(CONFIG + pools).settings)


def ask(fleet: Fleet, **given) -> ShowMachines:
    asked = {"now_us": NOVEMBER + 20 * 24 * HOUR_US, **given}
    return question(teams=None, usual=MachineSettings(), fleet=fleet, **asked)


def test_what_is_not_said_is_this_month_at_the_configured_rate(fleet):
    found = ask(fleet)
    assert (found.month, found.rate, found.day) == ("2026-11", RateKind.ACTUAL, None)
    [hosted] = found.hosted
    assert (hosted.pool, hosted.deployment) == ("vllm", "acme/small")
    assert hosted.rates == {"input": (2_000_000, 1)}


def test_a_month_that_is_over_is_compared_at_the_prices_of_its_end(fleet):
    found = ask(fleet, month="2026-10", against="acme/small")
    [hosted] = found.hosted
    assert (hosted.pool, hosted.rates) == ("", {"input": (1_000_000, 1)})


def test_a_price_that_was_not_in_force_yet_is_none(fleet):
    [hosted] = ask(fleet, month="2026-09").hosted
    assert (hosted.price_version, hosted.rates) == ("", {})


def test_a_day_names_its_month(fleet):
    found = ask(fleet, day="2026-10-17", rate="standard", against="", now_us=OCTOBER)
    assert (found.month, found.day, found.rate) == ("2026-10", "2026-10-17", RateKind.STANDARD)


NONE = {
    "a month that is none": ({"month": "2026-13"}, "month", "'2026-13' is no month such as"),
    "a day of a month that is none": ({"day": "2026-1"}, "day", "'2026-1' is no month such as"),
    "a day of another month": (
        {"month": "2026-11", "day": "2026-10-01"},
        "day",
        "'2026-10-01' is no day of 2026-11",
    ),
    "a day that no calendar has": ({"day": "2026-11-31"}, "day", "no day of 2026-11"),
    "a day with more behind it": ({"day": "2026-11-300"}, "day", "no day of 2026-11"),
    "a rate that is none": ({"rate": "cheap"}, "rate", "is none of marginal, standard, actual"),
    "an unknown deployment": ({"against": "acme/x"}, "against", "no deployment that a model lists"),
    "one without a price": (
        {"against": "bare/big"},
        "against",
        "bare/big cannot be compared with: no price configured",
    ),
    "a price not in force": (
        {"against": "acme/small", "month": "2026-09"},
        "against",
        "no price in force",
    ),
    "another machine": ({"against": "vllm/llama"}, "against", "is priced by the hour"),
}


@pytest.mark.parametrize(("given", "param", "says"), NONE.values(), ids=NONE.keys())
def test_a_question_without_meaning_says_what_is_wrong(fleet, given, param, says):
    with pytest.raises(NoMeaning, match=says) as told:
        ask(fleet, **given)
    assert told.value.param == param


def test_what_no_usage_can_be_priced_at_is_refused_in_the_file():
    pools = "finance: {machines: {pools: {vllm: {compare_with: bare/big}}}}"
    [problem] = problems_of(CONFIG + pools)
    assert "finance.machines.pools.vllm.compare_with" in problem
    assert problem.endswith("`bare/big` has no price to compare with; give it `price` here")
