"""A plan decides what `decide` decides, or nothing; and it does decide where nothing is special."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from gateway.routing.decision import decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.plan import NO_DEMANDS, Demands, Plan
from gateway.routing.planning import make_plan
from gateway.routing.refusal import RefusalCode
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.money import Rate
from pricing.price_book import PriceBook, PriceVersion, Unpriced
from pricing.quote import MeasuredSpeed
from pricing.usage import Meter
from providers.contract import Capabilities
from tests.gateway.routing_.fleets import (
    CHEAP,
    DEAR,
    GPU_PRICE,
    NOW,
    OWN,
    UNKNOWN,
    ask,
    fleet,
    price,
)

NAMES = [f"p{place}/m" for place in range(6)]


def plan_of(snapshot: FleetSnapshot, **changes) -> Plan | None:
    base = {
        "model": "chat",
        "allowed": frozenset(snapshot.deployments),
        "scope": KeyScope(),
        "now": NOW,
    }
    return make_plan(snapshot, **{**base, **changes})


def planned(plan: Plan, needs: RequestNeeds, max_pico_usd: int | None = None):
    assert needs.max_prompt_tokens is not None
    return plan.decide(
        prompt_tokens=needs.prompt_tokens_estimate,
        max_prompt_tokens=needs.max_prompt_tokens,
        max_output_tokens=needs.max_output_tokens,
        fields=needs.fields,
        has_media=needs.has_media,
        n=needs.n,
        max_pico_usd=max_pico_usd,
    )


def needs_of(**changes) -> RequestNeeds:
    base = {"prompt_tokens_estimate": 1000, "max_prompt_tokens": 3000, "max_output_tokens": 100}
    return RequestNeeds(**{**base, **changes})


# Few values of each, so that ties, crossings and exact fits come up.
rates = st.sampled_from([0, 1, 2, 50, 51])
linear_prices = st.builds(
    lambda prompt, output, fee: PriceVersion(
        rates={
            Meter.INPUT: Rate(pico_usd=prompt),
            Meter.OUTPUT: Rate(pico_usd=output),
            Meter.REQUESTS: Rate(pico_usd=fee),
        },
        source="test",
    ),
    rates, rates, st.sampled_from([0, 7, 100_000]),
)  # fmt: skip
ROUNDED = PriceVersion(
    rates={Meter.INPUT: Rate(pico_usd=1, per_units=3), Meter.OUTPUT: Rate(pico_usd=2)}, source="t"
)
NO_OUTPUT_RATE = PriceVersion(rates={Meter.INPUT: Rate(pico_usd=1)}, source="test")
CACHED = PriceVersion(
    rates={
        Meter.INPUT: Rate(pico_usd=5),
        Meter.CACHE_WRITE: Rate(pico_usd=9),
        Meter.OUTPUT: Rate(pico_usd=2),
        Meter.REASONING: Rate(pico_usd=4),
    },
    source="test",
)
unusual_prices = st.sampled_from(
    [
        Unpriced(reason="none"),
        Unpriced(reason="none now", is_momentary=True),
        price("1", "2", valid_to=NOW),
        CACHED,
        GPU_PRICE,
        ROUNDED,
        NO_OUTPUT_RATE,
    ]
)
capabilities = st.builds(
    Capabilities,
    context_window_tokens=st.sampled_from([None, None, None, 1100, 1256, 9000]),
    unsupported=st.sampled_from([{}, {}, {"seed": "no"}]),
    is_open=st.sampled_from([True, True, False]),
    supported=st.sampled_from([frozenset({"seed"}), frozenset({"seed", "stop"})]),
    multimodal=st.booleans(),
)
views = st.builds(
    DeploymentView,
    name=st.sampled_from(NAMES),
    price=st.one_of(*[linear_prices] * 9, unusual_prices),
    capabilities=st.just(Capabilities()) | capabilities,
    is_available=st.sampled_from([True, True, True, False]),
    unavailable_reason=st.sampled_from(["", "gone"]),
    retry_after_s=st.sampled_from([None, 4.0]),
    speed=st.none() | st.just(MeasuredSpeed(prefill_tps=1000, decode_tps=100)),
)
fleets = st.lists(views, min_size=1, max_size=5, unique_by=lambda view: view.name)
questions = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["chat", "chat", "small", "p0/m", "nothing"]),
        "scope": st.sampled_from([KeyScope(), KeyScope(), KeyScope(models=("chat",)), KeyScope(models=("p*",))]),
        "allowed": st.just(frozenset(NAMES)) | st.frozensets(st.sampled_from(NAMES)),
        "privacy_reasons": st.sampled_from([None, {"p0/m": "lacks dpa"}]),
    }
)  # fmt: skip
every_need = st.builds(
    RequestNeeds,
    prompt_tokens_estimate=st.sampled_from([0, 1, 10, 10, 1000]),
    max_prompt_tokens=st.sampled_from([0, 10, 4000]),
    max_output_tokens=st.sampled_from([None, None, 0, 1, 100, 100, 255, 256, 257, 8000]),
    fields=st.frozensets(st.sampled_from(["seed", "stop", "tools"]), max_size=2),
    has_media=st.booleans(),
    n=st.integers(1, 3),
)


ceilings = st.sampled_from([None, None, None, None, 0, 10_000, 100_000, 10**13])


@given(
    fleet_views=fleets,
    question=questions,
    asked=st.lists(st.tuples(every_need, ceilings), min_size=1, max_size=4),
)
def test_a_plan_decides_what_every_stage_in_turn_decides_or_nothing(
    fleet_views, question, asked
) -> None:
    snapshot = fleet(*fleet_views)
    plan = plan_of(snapshot, **question)
    if plan is None:
        event("nothing planned")
        return
    for needs, ceiling in asked:
        found, how = planned(plan, needs, ceiling), "from the plan"
        demands = plan.demands(needs.fields, has_media=needs.has_media)
        if demands != NO_DEMANDS:
            assert found is None
            variant, how = plan_of(snapshot, demands=demands, **question), "from a variant"
            assert variant is not None
            settled = changed(needs, fields=NO_DEMANDS.fields, has_media=NO_DEMANDS.has_media)
            found = planned(variant, settled, ceiling)
        event(f"decided {how}" if found is not None else "left to decide")
        if found is not None:
            assert found == decide(snapshot, needs=needs, now=NOW, max_pico_usd=ceiling, **question)
            assert set(found.reachable) <= question["allowed"]


PLANNED = {
    "the cheapest first, in whatever order they are listed": ((DEAR, CHEAP), {}, {}),
    "prices of which neither is always lower": (
        (replace(CHEAP, name="a/m", price=price("1", "90")), replace(CHEAP, name="b/m", price=price("2", "1"))),
        {},
        {},
    ),
    "equal prices in the operator's order": ((replace(CHEAP, name="z/m"), CHEAP), {}, {}),
    "the unpriced behind all others": ((UNKNOWN, CHEAP), {}, {}),
    "a price per busy time of a machine that was never measured": ((replace(OWN, speed=None), CHEAP), {}, {}),
    "nothing but what is unpriced": ((UNKNOWN,), {}, {}),
    "no limit of the client's": ((CHEAP, DEAR), {}, {"max_output_tokens": None}),
    "no limit of the client's, within a window": (
        (replace(CHEAP, capabilities=Capabilities(context_window_tokens=4096)), DEAR),
        {},
        {"max_output_tokens": None},
    ),
    "a field that everybody honours": ((CHEAP, DEAR), {}, {"fields": frozenset({"seed"})}),
    "an estimate above what was taken for the most": ((CHEAP, DEAR), {}, {"max_prompt_tokens": 10}),
    "several choices": ((CHEAP, DEAR), {}, {"n": 3}),
    "an alias": ((CHEAP, DEAR), {"model": "small"}, {}),
    "a deployment": ((CHEAP, DEAR), {"model": "dear/m"}, {}),
    "one that privacy leaves out": ((CHEAP, DEAR), {"allowed": frozenset({"dear/m"})}, {}),
    "one that is down": ((replace(CHEAP, is_available=False), DEAR), {}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("views_", "question", "asked"), PLANNED.values(), ids=PLANNED.keys())
def test_a_plan_answers_for(views_, question, asked) -> None:
    snapshot = fleet(*views_)
    question = {
        "model": "chat",
        "allowed": frozenset(snapshot.deployments),
        "scope": KeyScope(),
        **question,
    }
    plan, needs = plan_of(snapshot, **question), needs_of(**asked)
    assert plan is not None
    found = planned(plan, needs)
    assert found is not None
    assert found == decide(snapshot, needs=needs, now=NOW, **question)
    assert found.candidates


REFUSED = {
    "a key that may not use the name": ({"scope": KeyScope(models=())}, RefusalCode.MODEL_NOT_ALLOWED),
    "tags that no deployment satisfies": ({"allowed": frozenset()}, RefusalCode.PRIVACY_DENIED),
    "tags that leave only what is down": ({"allowed": frozenset({"down/m"})}, RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE),
}  # fmt: skip


@pytest.mark.parametrize(("question", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_plan_refuses(question, code) -> None:
    snapshot = fleet(CHEAP, replace(DEAR, name="down/m", is_available=False))
    question = {
        "model": "chat",
        "allowed": frozenset(snapshot.deployments),
        "scope": KeyScope(),
        **question,
    }
    plan = plan_of(snapshot, **question)
    assert plan is not None
    found = planned(plan, needs_of())
    assert found is not None
    assert found.refusal is not None
    assert found.refusal.code is code
    assert found == decide(snapshot, needs=needs_of(), now=NOW, **question)


ABLE = Capabilities(context_window_tokens=1256, unsupported={"seed": "no"}, multimodal=False)
CLOSED = Capabilities(is_open=False, supported=frozenset({"stop"}))
SPECIAL = {
    "a field that one cannot honour": ({"fields": frozenset({"seed"})}, ABLE, Demands(frozenset({"seed"}))),
    "a field that one does not name": ({"fields": frozenset({"stop", "tools"})}, CLOSED, Demands(frozenset({"tools"}))),
    "a part that one does not understand": ({"has_media": True}, ABLE, Demands(frozenset(), True)),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "able", "demands"), SPECIAL.values(), ids=SPECIAL.keys())
def test_a_plan_is_made_anew_for(asked, able, demands) -> None:
    snapshot = fleet(
        replace(CHEAP, capabilities=able), DEAR, *(replace(DEAR, name=name) for name in NAMES)
    )
    plan, needs = plan_of(snapshot), needs_of(**asked)
    assert plan is not None
    assert planned(plan, needs) is None
    assert plan.demands(needs.fields, has_media=needs.has_media) == demands != NO_DEMANDS
    variant = plan_of(snapshot, demands=demands)
    assert variant is not None
    found = planned(variant, needs_of())
    assert found is not None
    assert found == ask(snapshot=snapshot, needs=needs)
    assert [one.deployment for one in found.excluded] == ["cheap/m"]


GIVES_WAY = {
    "an output that may not fit one window": ({"max_output_tokens": 257}, ABLE),
    "an output without a limit that may not fit": ({"max_output_tokens": None, "prompt_tokens_estimate": 1001}, ABLE),
    "no output at all": ({"max_output_tokens": 0}, Capabilities()),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "able"), GIVES_WAY.values(), ids=GIVES_WAY.keys())
def test_a_plan_leaves_to_decide(asked, able) -> None:
    others = [replace(DEAR, name=name) for name in NAMES]
    plan = plan_of(fleet(replace(CHEAP, capabilities=able), *others))
    assert plan is not None
    needs = needs_of(**asked)
    assert planned(plan, needs) is None
    assert plan.demands(needs.fields, has_media=False) == NO_DEMANDS
    assert planned(plan, needs_of(fields=frozenset({"stop"}))) is not None


CEILINGS = {
    "above every bound": ((CHEAP, DEAR), 16_500_000_000, True),
    "a picodollar below one of them": ((CHEAP, DEAR), 16_499_999_999, False),
    "without a price to hold against it": ((CHEAP, UNKNOWN), 10**15, False),
    "with one down, who may be above it": ((CHEAP, replace(DEAR, is_available=False)), 10**15, False),
    "with all down": ((replace(CHEAP, is_available=False),), 10**15, False),
}  # fmt: skip


@pytest.mark.parametrize(("views_", "ceiling", "answers"), CEILINGS.values(), ids=CEILINGS.keys())
def test_a_ceiling(views_, ceiling, answers) -> None:
    plan = plan_of(fleet(*views_))
    assert plan is not None
    found = planned(plan, needs_of(), ceiling)
    assert (found is not None) is answers
    if answers:
        assert found == ask(*views_, needs=needs_of(), max_pico_usd=ceiling)


def test_what_is_down_or_not_allowed_restrains_only_as_far_as_decide_looks_at_it() -> None:
    """Privacy comes before abilities, health after them."""
    small = replace(CHEAP, capabilities=Capabilities(context_window_tokens=10))
    private, down = (
        plan_of(fleet(small, DEAR), allowed=frozenset({"dear/m"})),
        plan_of(fleet(replace(small, is_available=False), DEAR)),
    )
    assert private is not None
    assert planned(private, needs_of()) is not None
    assert down is not None
    assert planned(down, needs_of()) is None


NOT_PLANNED = {
    "an unknown name": ({"model": "nothing"}, CHEAP),
    "a rate that has to be rounded": ({}, replace(CHEAP, price=ROUNDED)),
    "a measured price per busy time": ({}, OWN),
    "a rate that only some requests need": ({}, replace(CHEAP, price=NO_OUTPUT_RATE)),
    "a reason that names the instant": ({}, replace(CHEAP, price=Unpriced(reason="on …", is_momentary=True))),
}  # fmt: skip


@pytest.mark.parametrize(("question", "view"), NOT_PLANNED.values(), ids=NOT_PLANNED.keys())
def test_nothing_is_planned_for(question, view) -> None:
    assert plan_of(fleet(view, DEAR), **question) is None


def test_a_price_that_is_never_asked_for_hinders_no_plan() -> None:
    down = replace(CHEAP, price=ROUNDED, is_available=False)
    assert plan_of(fleet(down, DEAR)) is not None
    assert plan_of(fleet(OWN, DEAR), allowed=frozenset({"dear/m"})) is not None


def test_a_gap_between_prices_is_momentary() -> None:
    lapsed = PriceBook({"a/m": [price("1", "2", valid_to=NOW)]}).lookup("a/m", NOW)
    assert isinstance(lapsed, Unpriced)
    assert lapsed.is_momentary
    assert plan_of(fleet(replace(CHEAP, price=lapsed))) is None


# Candidates that are made when somebody looks.
def ranked(count: int = 3):
    views_ = [replace(CHEAP, name=f"p{place}/m") for place in range(count)]
    plan = plan_of(fleet(*views_, UNKNOWN))
    assert plan is not None
    found = planned(plan, needs_of())
    assert found is not None
    return found.candidates


def test_one_candidate_is_one_object_however_it_is_looked_at() -> None:
    found = ranked()
    assert found[1] is found[1]
    assert found[1] is list(found)[1] is found[-3] is found[1:][0]
    assert found[3].deployment == "unknown/m" == found[-1].deployment


def test_candidates_are_a_sequence() -> None:
    found = ranked()
    assert len(found) == 4
    assert found == tuple(found) == ranked()
    assert hash(found) == hash(tuple(found)) == hash(ranked())
    assert found != ranked(2)
    assert found != ()
    assert [one.reason for one in found[1:3]] == ["number 2 cheapest", "number 3 cheapest"]
    for index in (4, -5):
        with pytest.raises(IndexError):
            found[index]


def test_the_most_that_an_attempt_can_cost_is_the_bound_of_its_quote() -> None:
    first, *_, last = ranked()
    assert not isinstance(first.quote, Unpriced)
    assert (
        first.exposure_pico_usd == first.quote.upper_bound_pico_usd == 3000 * 50_000 + 100 * 80_000
    )
    assert last.exposure_pico_usd is None
