"""What admission remembers never shows: each answer is that of an admission that remembers nothing."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway import errors
from gateway.app import build_admission
from gateway.auth.directory import Principal
from gateway.clock import Clock, from_microseconds, to_microseconds
from gateway.dialects.controls import Controls
from gateway.dialects.openai_chat import parse
from gateway.fleet import build_fleet, build_policy
from gateway.health import HealthBoard
from gateway.relay.request_head import header_text
from gateway.routing.decision import decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.plan import Ranked
from pricing.price_book import Unpriced
from pricing.quote import Quote
from providers.contract import Capabilities
from tests.gateway.settings_text import load_settings

START = datetime(2026, 11, 30, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
BOUNDARIES = [datetime(2027, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
"""A price gives way to another, a claim expires, a price ends."""

TEXT = """
providers:
  p:
    kind: openai_compatible
    base_url: "http://10.0.0.1/v1"
    trust: [no_train]
  q:
    kind: openai_compatible
    base_url: "http://10.0.0.2/v1"
    trust: [no_train, {attribute: dpa, expires: 2027-01-02, evidence: "a contract"}]
    price: {gpu_usd_per_hour: 2}
  own: {kind: openai_compatible, base_url: "http://10.0.0.3/v1", trust: [self_hosted]}
models:
  chat:
    aliases: [small]
    deployments:
      - deployment: p/a
        price:
          - {input_usd_per_mtok: 1, output_usd_per_mtok: 4}
          - {input_usd_per_mtok: 3, output_usd_per_mtok: 4, valid_from: 2027-01-01}
      - {deployment: own/a, price: {input_usd_per_mtok: 2, output_usd_per_mtok: 3}}
      - {deployment: q/a}
      - {deployment: p/free}
  late:
    deployments:
      - {deployment: p/late, price: [{input_usd_per_mtok: 1, output_usd_per_mtok: 1, valid_from: 2027-01-03}]}
      - {deployment: q/late, price: {input_usd_per_mtok: 2, output_usd_per_mtok: 1}}
teams:
  open: {}
  careful: {tags: [internal], projects: {fraud: {}}}
  narrow: {models: [late]}
privacy:
  tags:
    internal: {require: [no_train]}
    contract: {require: [dpa]}
    private: {implies: [contract], require: [self_hosted]}
    sealed: {deny: true}
"""
DEPLOYMENTS = ("p/a", "own/a", "q/a", "p/free", "p/late", "q/late")
TAGS = ("internal", "contract", "private", "sealed")


class Adjustable:
    """A provider whose models can do what a test says; a new object for each question."""

    def __init__(self):
        self.able = {}
        self.times_asked = 0

    def capabilities(self, model_id):
        self.times_asked += 1
        return Capabilities(**self.able.get(model_id, {}))


class World:
    """An admission with everything that changes beneath it."""

    def __init__(self):
        self.settings = load_settings(TEXT).settings
        self.now_us = to_microseconds(START)
        self.now_s = 100.0
        clock = Clock(wall_us=lambda: self.now_us, monotonic_s=lambda: self.now_s)
        self.health = HealthBoard(monotonic_s=clock.monotonic_s)
        self.providers = {name: Adjustable() for name in ("p", "q", "own")}
        self.admission = build_admission(
            self.settings, providers=self.providers, health=self.health, clock=clock
        )

    @property
    def times_asked(self):
        return sum(one.times_asked for one in self.providers.values())

    def admit(self, who, parsed, controls):
        return self.admission.admit(who, parsed, controls, wall_us=self.now_us)

    def from_nothing(self, who, parsed, controls):
        """Decision, closed tags and reach, worked out anew from the configuration."""
        at, fleet, policy = (
            from_microseconds(self.now_us),
            build_fleet(self.settings),
            build_policy(self.settings),
        )
        tags = self.admission.teams[who.team].tags | controls.tags
        allowed = policy.allowed(tags, at=at)
        decision = decide(
            fleet.snapshot(providers=self.providers, health=self.health, at=at),
            model=parsed.model,
            allowed=allowed,
            scope=self.admission.scope(who),
            needs=RequestNeeds(
                prompt_tokens_estimate=parsed.prompt_tokens_low,
                max_prompt_tokens=parsed.prompt_tokens_max,
                max_output_tokens=parsed.max_output_tokens,
                fields=parsed.fields_used,
                has_media=parsed.has_media,
                n=parsed.choices,
            ),
            now=at,
            max_pico_usd=controls.max_pico_usd,
            privacy_reasons=policy.reasons(tags, at=at),
        )
        return decision, tuple(sorted(policy.close(tags))), allowed

    def check(self, who, parsed, controls):
        found = self.admit(who, parsed, controls)
        decision, tags, allowed = self.from_nothing(who, parsed, controls)
        assert found.decision == decision
        assert (found.tags, found.allowed) == (tags, allowed)
        assert found.tags_text == header_text(",".join(tags))
        paused = [one for one in decision.candidates if self.health.is_paused(one.deployment)]
        free = [one for one in decision.candidates if one not in paused]
        assert list(found.candidates) == free + paused
        assert {one.deployment for one in found.candidates} <= found.allowed
        return found


def principal(team="open", *, project="", models=None):
    return Principal(key_id="k", team=team, project=project, key_name="bot", models=models)


def chat(model="chat", *, text="hi", **members):
    body = {"model": model, "messages": [{"role": "user", "content": text}], **members}
    return parse(json.dumps(body).encode())


principals = st.builds(
    principal,
    st.sampled_from(["open", "careful", "narrow"]),
    models=st.sampled_from([None, None, frozenset({"late"}), frozenset({"p/*", "chat"})]),
)
bodies = st.builds(
    chat,
    st.sampled_from(["chat", "chat", "small", "late", "p/a", "q/late", "nothing"]),
    text=st.sampled_from(["hi", "hi", "x" * 4000]),
    max_tokens=st.sampled_from([None, 0, 1, 300, 300, 9000]),
    n=st.sampled_from([1, 3]),
    seed=st.sampled_from([None, None, 7]),
    stop=st.sampled_from([None, None, "x"]),
)
every_control = st.builds(
    Controls,
    tags=st.frozensets(st.sampled_from(TAGS), max_size=2),
    max_pico_usd=st.sampled_from([None, None, None, 1_000_000_000]),
)
instants = st.sampled_from([START, *BOUNDARIES, *(one - MICROSECOND for one in BOUNDARIES)])
abilities = st.fixed_dictionaries(
    {},
    optional={
        "context_window_tokens": st.sampled_from([300, 1500]),
        "unsupported": st.just({"seed": "no"}),
        "is_open": st.just(False),
        "supported": st.just(frozenset({"messages", "seed"})),
    },
)


changes = st.one_of(
    *[st.just(("nothing",))] * 4,
    st.tuples(st.just("time"), instants),
    st.tuples(st.just("fault"), st.sampled_from(DEPLOYMENTS), st.sampled_from([None, "gone"])),
    st.tuples(st.just("back otherwise"), st.sampled_from(DEPLOYMENTS), abilities),
    st.tuples(
        st.just("speed"),
        st.sampled_from(["p/a", "q/a"]),
        st.sampled_from([None, 90.0]),
        st.sampled_from([None, 5.0]),
    ),
    st.tuples(st.just("pause"), st.sampled_from(DEPLOYMENTS), st.sampled_from([None, 5.0])),
    st.tuples(st.just("success"), st.sampled_from(DEPLOYMENTS)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 5.0, 400.0])),
)


def apply(world, change):
    match change:
        case ("time", at):
            world.now_us = to_microseconds(at)
        case ("fault", name, fault):
            world.health.set_fault(name, fault)
        case ("back otherwise", name, able):
            provider, _, model_id = name.partition("/")
            world.providers[provider].able[model_id] = able
            world.health.set_fault(name, None)
        case ("speed", name, prefill_tps, decode_tps):
            world.health.note_speed(name, prefill_tps=prefill_tps, decode_tps=decode_tps)
        case ("pause", name, asked_s):
            world.health.note_lack(name, asked_s=asked_s, is_quota=False)
        case ("success", name):
            world.health.note_success(name)
        case ("wait", seconds):
            world.now_s += seconds


@given(
    asked=st.lists(st.tuples(principals, bodies, every_control), min_size=1, max_size=3),
    steps=st.lists(st.tuples(changes, st.integers(0, 2)), min_size=2, max_size=12),
)
def test_whatever_happens_a_remembered_decision_is_the_one_made_anew(asked, steps):
    world = World()
    for change, which in steps:
        apply(world, change)
        found = world.check(*asked[which % len(asked)])
        event("from a plan" if isinstance(found.decision.candidates, Ranked) else "otherwise")


@pytest.fixture
def world():
    return World()


def test_the_second_request_of_its_kind_asks_no_provider(world):
    """It is decided without a look at any deployment, until something changes."""
    asked = [
        (principal(), chat(), Controls()),
        (principal(), chat(), Controls(tags=frozenset({"internal"}))),
        (principal(), chat("small"), Controls()),
    ]
    for one in asked:
        world.admit(*one)
    for one in asked:
        before = world.times_asked
        found = world.admit(*one)
        assert world.times_asked == before
        assert isinstance(found.decision.candidates, Ranked)
    world.health.set_fault("p/a", "gone")
    for one in asked:
        before = world.times_asked
        world.admit(*one)
        assert world.times_asked > before


CHANGES = {
    "a price begins": BOUNDARIES[0],
    "a claim expires": BOUNDARIES[1],
    "a price that was to come begins": BOUNDARIES[2],
}


@pytest.mark.parametrize("at", CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_ends_to_the_microsecond(world, at):
    asked = [
        (
            principal(),
            chat(model),
            Controls(tags=frozenset({"contract"} if at == BOUNDARIES[1] else ())),
        )
        for model in ("chat", "late")
    ]
    seen = []
    for instant in (at - MICROSECOND, at, at - MICROSECOND):
        world.now_us = to_microseconds(instant)
        seen.append([world.check(*one).decision for one in asked])
    before, after, before_again = seen
    assert before != after
    assert before == before_again


def test_what_only_some_can_give_is_planned_once(world):
    world.providers["p"].able["a"] = {"unsupported": {"seed": "no"}}
    world.providers["own"].able["a"] = {"is_open": False, "supported": frozenset({"messages"})}
    asked = [
        (principal(), chat(**members), Controls()) for members in ({"seed": 7}, {"stop": "x"}, {})
    ]
    for one in asked:
        world.check(*one)
    for one in asked:
        before = world.times_asked
        found = world.admit(*one)
        assert world.times_asked == before
        assert isinstance(found.decision.candidates, Ranked)
    kept = world.admission.routes.planned_deployments
    for place in range(3):
        world.check(principal(), chat(**{f"made_up_{place}": 1}), Controls())
        assert world.admission.routes.planned_deployments == kept + 5 * (place + 1)
    world.admission.routes.planned_max = kept + 15
    world.check(principal(), chat(one_too_many=1), Controls())
    assert not world.admission.routes.known
    assert world.admission.routes.planned_deployments <= kept


def test_what_may_not_fit_and_asks_for_what_only_some_can_give_is_looked_at_by_itself(world):
    world.providers["own"].able["a"] = {"unsupported": {"seed": "no"}, "context_window_tokens": 300}
    for text in ("hi", "x" * 4000):
        found = world.check(principal(), chat(text=text, seed=7), Controls())
        assert isinstance(found.decision.candidates, Ranked) is (text == "hi")
    assert "exceed its context window" in found.decision.excluded[0].reason


def test_a_gap_between_prices_is_told_with_its_instant(world):
    for seconds in (0, 1):
        world.now_us = to_microseconds(START + timedelta(seconds=seconds))
        last = world.check(principal(), chat("late"), Controls()).candidates[-1]
        assert last.quote == Unpriced(
            reason=f"no price in force on 2026-11-30T00:00:0{seconds}+00:00"
        )


def test_what_is_paused_is_tried_last_and_the_decision_stays_as_it_is(world):
    asked = (principal(), chat(), Controls())
    usual = [one.deployment for one in world.check(*asked).candidates]
    world.health.note_lack(usual[0], asked_s=5.0, is_quota=False)
    world.health.note_lack(usual[2], asked_s=50.0, is_quota=False)
    found = world.check(*asked)
    assert [one.deployment for one in found.decision.candidates] == usual
    assert [one.deployment for one in found.candidates] == [usual[1], usual[3], usual[0], usual[2]]
    world.now_s += 5.0
    found = world.check(*asked)
    assert [one.deployment for one in found.candidates] == [usual[0], usual[1], usual[3], usual[2]]
    world.now_s += 45.0
    assert world.check(*asked).candidates == tuple(found.decision.candidates)


def test_teams_with_the_same_rights_share_a_plan(world):
    first = world.check(principal(), chat(), Controls(tags=frozenset({"internal"})))
    second = world.check(principal("careful"), chat(), Controls())
    assert first.allowed is second.allowed
    assert first.decision.reachable is second.decision.reachable


def test_what_is_remembered_ends_with_its_policy(world):
    asked = (principal(), chat(), Controls(tags=frozenset({"internal"})))
    assert "p/a" in world.check(*asked).allowed
    stricter = TEXT.replace("internal: {require: [no_train]}", "internal: {require: [self_hosted]}")
    assert stricter != TEXT
    world.settings = load_settings(stricter).settings
    world.admission = replace(world.admission, policy=build_policy(world.settings))
    assert world.check(*asked).decision.reachable == {"own/a"}


def test_an_unknown_tag_or_project_is_told_whether_or_not_the_rest_is_remembered(world):
    who = principal("careful")
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest, match="unknown privacy tag 'nothing'"):
            world.admit(who, chat(), Controls(tags=frozenset({"nothing"})))
        with pytest.raises(errors.InvalidRequest, match="no project 'golf'"):
            world.admit(who, chat(), Controls(project="golf"))
        assert world.admit(who, chat(), Controls(project="fraud")).project == "fraud"


def test_names_that_do_not_exist_are_not_remembered(world):
    for place in range(20):
        world.check(principal(), chat(f"made up {place}"), Controls())
    assert not world.admission.routes.known


def test_memory_has_a_bound(world):
    small = world.admission.routes
    small.known_max, small.planned_max = 5, 12
    tag_sets = [
        frozenset(some) for count in range(3) for some in itertools.combinations(TAGS, count)
    ]
    world.now_us = to_microseconds(BOUNDARIES[-1])
    sizes = []
    for tags, model, team in itertools.product(
        tag_sets, ("chat", "late", "p/a"), ("open", "narrow")
    ):
        world.check(principal(team), chat(model), Controls(tags=tags))
        outlines = {id(one.plan): one.plan.outline for one in small.known.values()}
        kept = sum(len(one.candidates) + len(one.excluded) + 1 for one in outlines.values())
        assert len(small.known) <= 5
        assert kept <= small.planned_deployments <= 12
        sizes.append(small.planned_deployments)
    assert max(sizes) > 8  # it is used
    world.health.set_fault("p/a", "gone")
    world.check(principal(team), chat(model), Controls(tags=tags))
    assert len(small.known) == 1  # what has ended is not kept
    assert small.planned_deployments == 2


MADE_UP = {
    "a long name": {"x" * 200: 1},
    "two names that are long together": {"x" * 70: 1, "y" * 70: 1},
    "many names": {f"made_up_{place}": 1 for place in range(9)},
}


@pytest.mark.parametrize("members", MADE_UP.values(), ids=MADE_UP.keys())
def test_members_that_clients_make_up_are_not_remembered_at_any_length(world, members):
    world.providers["own"].able["a"] = {"is_open": False, "supported": frozenset({"messages"})}
    world.check(principal(), chat(), Controls())
    kept = world.admission.routes.planned_deployments
    found = world.check(principal(), chat(**members), Controls())
    assert [one.deployment for one in found.decision.excluded] == ["own/a"]
    assert world.admission.routes.planned_deployments == kept
    (route,) = world.admission.routes.known.values()
    assert not route.variants


def test_where_tags_may_go_is_kept_for_no_more_deployments_than_the_bound(world):
    """It is about the whole fleet each time, however few of it a plan is about."""
    small = world.admission.routes
    small.reached_max = 3 * len(DEPLOYMENTS)
    tag_sets = [
        frozenset(some) for count in range(3) for some in itertools.combinations(TAGS, count)
    ]
    sizes = []
    for tags, model in itertools.product(tag_sets, ("p/a", "late")):
        world.check(principal(), chat(model), Controls(tags=tags))
        reaches = {id(one.reasons): one for one in small.known.values()}
        kept = sum(len(one.allowed) + len(one.reasons) for one in reaches.values())
        assert kept == small.reached_deployments <= small.reached_max
        sizes.append(len(small.known))
    assert max(sizes) == 6  # two plans share what is kept of their tags


def test_keys_that_share_a_plan_have_a_bound_of_their_own(world):
    small = world.admission.routes
    small.known_max = 5
    for place in range(12):
        world.check(principal(models=frozenset({"chat", f"m{place}"})), chat(), Controls())
        assert len(small.known) == place % 5 + 1
    assert small.planned_deployments == 5


def test_a_speed_that_becomes_known_is_quoted_with_the_next_request(world):
    """And each that follows, although a known speed that changes ends no plan."""
    asked = (principal(), chat("q/a", max_tokens=10), Controls())
    assert isinstance(world.check(*asked).candidates[0].quote, Unpriced)
    for prefill_tps in (1000.0, 500.0):
        world.health.note_speed("q/a", prefill_tps=prefill_tps, decode_tps=50.0)
        assert isinstance(world.check(*asked).candidates[0].quote, Quote)
