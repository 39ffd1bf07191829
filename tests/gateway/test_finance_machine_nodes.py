"""Machines that cost what their facts say: settings, rates, reports."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.focus.parties import parties_of
from gateway.finance.machines.allocation import rate_of
from gateway.finance.machines.declared import declared_machines
from gateway.finance.machines.messages import MachineTerms
from gateway.finance.machines.shown import as_table, machines_document, rate_text
from gateway.fleet import build_fleet
from gateway.settings.prices import NodeSettings
from pricing.money import MICROSECONDS_PER_HOUR, PICO_PER_USD
from pricing.price_book import Basis, PriceVersion
from pricing.usage import Meter
from tests.gateway.finance_books import write, writing
from tests.gateway.machine_books import NOVEMBER, OCTOBER, note_october
from tests.gateway.settings_text import load_settings, problems_of
from tests.gateway.test_finance_machine_books import check_sums, report, served

NODE = (
    "node: {capex_usd: 250000, residual_usd: 50000, life_hours: 43800, power_kw: 8.5, pue: 1.4,"
    " usd_per_kwh: 0.18, colocation_usd_per_month: 730, support_usd_per_year: 8760,"
    " spare_ratio: 0.125}"
)
DEPRECIATION = Fraction(200_000, 43_800)
HOUR = (DEPRECIATION + 2) * Fraction(9, 8) + Fraction("2.142")


def config(price: str) -> str:
    return (
        "providers: {vllm: {kind: openai_compatible, base_url: 'http://10.0.0.5/v1', "
        f"price: {{{price}}}}}}}\nmodels: {{m: {{deployments: [vllm/llama]}}}}\n"
    )


def settings(price: str):
    return load_settings(config(price)).settings


def terms(price: str) -> MachineTerms:
    [one] = declared_machines(settings(price))
    found = one.terms[0].terms
    assert found is not None
    return msgspec.convert(msgspec.to_builtins(found), MachineTerms)  # as the database keeps it


def test_an_hour_costs_what_the_facts_say_to_the_fraction():
    found = terms(f"{NODE}, gpus: 8")
    assert Fraction(found.gpu_usd_per_hour) * 8 == HOUR
    assert rate_of(found, 30 * 24 * 3_600 * 10**6) * MICROSECONDS_PER_HOUR == HOUR * PICO_PER_USD
    assert {one.what: Fraction(one.usd_per_hour) for one in found.parts} == {
        "depreciation": DEPRECIATION,
        "power": Fraction("2.142"),
        "colocation": 1,
        "support": 1,
        "spare": (DEPRECIATION + 2) / 8,
    }


def test_one_more_busy_hour_costs_the_power_unless_it_is_said():
    assert terms(f"{NODE}, gpus: 4").marginal_usd_per_hour == "0.5355"
    assert terms(f"{NODE}, marginal_usd_per_hour: 2").marginal_usd_per_hour == "2"
    assert terms("gpu_usd_per_hour: 3.0, gpus: 4").marginal_usd_per_hour == "3"


def test_what_is_not_known_costs_nothing_and_is_no_part():
    found = terms("node: {capex_usd: 10, life_hours: 10}")
    assert [(one.what, one.usd_per_hour) for one in found.parts] == [("depreciation", "1")]
    assert (found.gpu_usd_per_hour, found.marginal_usd_per_hour) == ("1", "0")


def test_requests_are_priced_by_it_and_exports_know_the_machine():
    read = settings(f"{NODE}, gpus: 8, list: {{gpu_usd_per_hour: 2}}")
    [version] = build_fleet(read).prices.versions("vllm/llama")
    assert isinstance(version, PriceVersion)
    assert version.basis is Basis.GPU_TIME
    rate = version.rates[Meter.GPU_US]
    assert Fraction(rate.pico_usd, rate.per_units) * MICROSECONDS_PER_HOUR == HOUR * PICO_PER_USD
    assert parties_of(read).machines == ("vllm",)


@pytest.mark.anyio
async def test_a_report_shows_the_parts_of_the_rate(tmp_path):
    engine = writing(await write(tmp_path, [served(1)]))
    [machine] = declared_machines(settings(f"{NODE}, gpus: 8"))
    note_october(engine, machine)
    found = report(engine)
    check_sums(found)
    assert found.cost_pico_usd == round(HOUR * PICO_PER_USD * (NOVEMBER - OCTOBER) / (3600 * 10**6))
    [one] = found.machines
    text = rate_text(one)
    assert text.startswith(
        "8 \N{MULTIPLICATION SIGN} 1.191123287671 USD per hour (depreciation 4.566"
    )
    assert "power 2.142, colocation 1, support 1, spare 0.820776255708)" in text
    assert f"vllm: {text}" in as_table(found)
    told = machines_document(found)["machines"][0]
    assert told["gpu_usd_per_hour"] == "1.191123287671"
    assert Fraction(told["gpu_usd_per_hour_exact"]) * 8 == HOUR
    assert told["parts"][1] == {
        "what": "power",
        "usd_per_hour": "2.142",
        "usd_per_hour_exact": "2.142",
    }


PROBLEMS = {
    "two rates": (f"{NODE}, gpu_usd_per_hour: 1", "has gpu_usd_per_hour and node; give only one"),
    "rates by usage too": (f"{NODE}, request_usd: 1", "has rates by usage and by hour"),
    "no life": ("node: {capex_usd: 1}", "capex_usd needs life_hours, 43800 for five years"),
    "no tariff": ("node: {power_kw: 1}", "power_kw and usd_per_kwh belong together"),
    "no power": ("node: {usd_per_kwh: 1}", "power_kw and usd_per_kwh belong together"),
    "nothing": ("node: {pue: 1.2}", "needs a cost, such as capex_usd with life_hours"),
    "more left than paid": (
        "node: {capex_usd: 1, life_hours: 1, residual_usd: 2}",
        "residual_usd is above capex_usd",
    ),
    "a site that draws less": (
        "node: {power_kw: 1, usd_per_kwh: 1, pue: 0.5}",
        "pue must be at least 1",
    ),
    "what no entry can hold": (
        "node: {capex_usd: 0.000000000000000001, life_hours: 999983}",
        "node has too many decimals in all for an exact rate; shorten some",
    ),
}


@pytest.mark.parametrize(("price", "says"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_facts_that_cannot_be_are_told(price: str, says: str):
    [problem] = problems_of(config(price))
    assert says in problem


usd = st.decimals(0, 10**6, places=2, allow_nan=False)


@given(usd, usd, st.integers(1, 10**6), usd, st.integers(1, 64))
def test_what_is_written_down_is_the_exact_rate(capex, colo, life, support, gpus):
    node = NodeSettings(
        capex_usd=capex,
        life_hours=life,
        colocation_usd_per_month=colo,
        support_usd_per_year=support + 1,
    )
    text = f"node: {{{', '.join(f'{k}: {v}' for k, v in node.model_dump().items())}}}, gpus: {gpus}"
    assert Fraction(terms(text).gpu_usd_per_hour) * gpus == node.facts.usd_per_hour
