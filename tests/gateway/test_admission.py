"""Admission: floors close over tags, scopes intersect, projects are checked, tags never widen."""

import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.admission.admit import refusal_error
from gateway.app import build_admission
from gateway.auth.directory import Principal
from gateway.clock import Clock
from gateway.dialects.controls import Controls
from gateway.dialects.openai_chat import parse
from gateway.health import HealthBoard
from gateway.http.errors import row_of
from gateway.routing.refusal import Refusal, RefusalCode
from providers.contract import Capabilities
from tests.gateway.settings_text import load_settings

WALL_US = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp() * 1_000_000)

TEXT = """
providers:
  cheap: {kind: openai_compatible, base_url: "http://10.0.0.1/v1"}
  kind: {kind: openai_compatible, base_url: "http://10.0.0.2/v1", trust: [no_train]}
  own: {kind: openai_compatible, base_url: "http://10.0.0.3/v1", trust: [self_hosted]}
models:
  chat:
    aliases: [small]
    deployments:
      - {deployment: cheap/a, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}
      - {deployment: kind/a, price: {input_usd_per_mtok: 2, output_usd_per_mtok: 2}}
      - {deployment: own/a, price: {input_usd_per_mtok: 3, output_usd_per_mtok: 3}}
  frontier:
    aliases: [chat-and-new]
    deployments: [{deployment: cheap/big, price: {output_usd_per_mtok: 10}}]
teams:
  open: {}
  payments: {tags: [private], projects: {fraud: {}, loans: {}}}
  floored: {projects: {plain: {}, fraud: {tags: [private]}, loans: {tags: [internal]}}}
  scoped: {models: [chat, "chat*"]}
  direct: {models: [cheap/a]}
privacy:
  tags:
    internal: {require: [no_train]}
    private: {implies: [internal], require: [self_hosted]}
    sealed: {deny: true}
    every: {}
  floor: [every]
"""
PROVIDERS = ("cheap", "kind", "own")
PRICED_ALL = ["cheap/a", "kind/a", "own/a"]


class Able:
    """A provider that can do everything."""

    def capabilities(self, model_id):
        return Capabilities(context_window_tokens=8192, unsupported={"logprobs": "it has none"})


def admission(board=None):
    loaded = load_settings(TEXT.replace('[chat, "chat*"]', "[chat]"))
    teams = dict(loaded.settings.teams)
    # Patterns reach teams through the database of a later version; names are all that the file has.
    teams["scoped"] = teams["scoped"].model_copy(update={"models": ("chat*",)})
    settings = loaded.settings.model_copy(update={"teams": teams})
    clock = Clock(wall_us=lambda: WALL_US, monotonic_s=lambda: 0.0)
    return build_admission(
        settings,
        providers=dict.fromkeys(PROVIDERS, Able()),
        health=board or HealthBoard(monotonic_s=clock.monotonic_s),
        clock=clock,
    )


ADMISSION = admission()


def principal(team="open", *, project="", models=None, tags=()):
    return Principal(
        key_id="k",
        tags=frozenset(tags),
        team=team,
        project=project,
        key_name="bot",
        models=None if models is None else frozenset(models),
    )


def chat(model="chat", **members):
    messages = [{"role": "user", "content": "hi"}]
    return parse(json.dumps({"model": model, "messages": messages, **members}).encode())


def admit(who, parsed=None, *, at=ADMISSION, **controls):
    if "tags" in controls:
        controls |= {"tags": frozenset(controls["tags"]), "tags_given": tuple(controls["tags"])}
    return at.admit(who, parsed or chat(), Controls(**controls), wall_us=WALL_US)


def order(admitted):
    return [one.deployment for one in admitted.decision.candidates]


def code(admitted):
    refusal = admitted.decision.refusal
    return None if refusal is None else refusal.code


TAGS = {
    "only the floor": ("open", [], {"every"}, PRICED_ALL),
    "a tag of the request": ("open", ["internal"], {"every", "internal"}, ["kind/a", "own/a"]),
    "the team's floor with what it implies": (
        "payments",
        [],
        {"every", "internal", "private"},
        ["own/a"],
    ),
    "a tag that the floor holds already": (
        "payments",
        ["internal"],
        {"every", "internal", "private"},
        ["own/a"],
    ),
    "the administrator, who has no team": ("", [], {"every"}, PRICED_ALL),
}


@pytest.mark.parametrize(("team", "tags", "closed", "names"), TAGS.values(), ids=TAGS.keys())
def test_tags_add_up_and_decide_what_is_reached(team, tags, closed, names):
    found = admit(principal(team), tags=tags)
    assert set(found.tags) == closed
    assert list(found.tags) == sorted(found.tags)
    assert order(found) == names
    assert found.decision.reachable == set(names)
    assert found.allowed >= set(names)


def test_what_is_excluded_by_privacy_says_what_it_lacks():
    found = admit(principal("payments"))
    reasons = {one.deployment: (one.stage.value, one.reason) for one in found.decision.excluded}
    assert reasons["cheap/a"] == ("privacy", "lacks no_train, self_hosted")
    assert reasons["kind/a"] == ("privacy", "lacks self_hosted")


def test_a_tag_that_denies_leaves_nothing():
    found = admit(principal(), tags=["sealed"])
    assert found.allowed == frozenset()
    assert code(found) is RefusalCode.PRIVACY_DENIED


def test_an_unknown_tag_is_refused_with_the_nearest():
    with pytest.raises(errors.InvalidRequest, match="'private'") as caught:
        admit(principal(), tags=["privat"])
    assert caught.value.param == "x-fareway-tags"


def test_unknown_tags_are_told_in_the_order_of_the_request():
    given = ["zzz", "privat", "internal", "aaa", "mmm"]
    with pytest.raises(errors.InvalidRequest) as caught:
        admit(principal(), tags=given)
    told = re.sub(r" \(.*?\)", "", str(caught.value))
    assert told == "unknown privacy tags 'zzz', 'privat', 'aaa', 'mmm'"
    assert "'privat' (the nearest is 'private')" in str(caught.value)


def test_a_key_whose_team_was_taken_out_gets_nothing():
    """The database may still hold its keys; no team means no floor."""
    gone = principal("disbanded")
    for call in (lambda: admit(gone), lambda: ADMISSION.scope(gone)):
        with pytest.raises(errors.ModelNotAllowed, match="disbanded"):
            call()


FLOORS = {
    "a project without tags": ("plain", None, (), [], PRICED_ALL),
    "the key's project": ("fraud", None, (), [], ["own/a"]),
    "the project that the request names": ("", "fraud", (), [], ["own/a"]),
    "another project that it names": ("", "loans", (), [], ["kind/a", "own/a"]),
    "no project": ("", None, (), [], PRICED_ALL),
    "the key": ("", None, ["internal"], [], ["kind/a", "own/a"]),
    "the key, and the request adds": ("", None, ["internal"], ["private"], ["own/a"]),
    "the key, its project and the request": ("loans", None, ["private"], ["internal"], ["own/a"]),
}


@pytest.mark.parametrize(
    ("own", "wanted", "key_tags", "tags", "names"), FLOORS.values(), ids=FLOORS.keys()
)
def test_floors_add_up(own, wanted, key_tags, tags, names):
    for _ in range(2):  # decided, and remembered beside the others
        who = principal("floored", project=own, tags=key_tags)
        found = admit(who, tags=tags, project=wanted)
        assert order(found) == names
        assert set(found.egress.origins) >= set(names)
        assert set(found.egress.origins) <= found.allowed


def test_a_key_whose_project_was_taken_out_gets_nothing():
    """It must not fall back to a floor without the project's tags."""
    with pytest.raises(errors.ModelNotAllowed, match=r"project 'gone' of team 'floored'"):
        admit(principal("floored", project="gone"))


def test_a_key_whose_tag_was_taken_out_gets_nothing():
    with pytest.raises(errors.ModelNotAllowed, match="put it back, or make another key"):
        admit(principal(tags=["lost"]), tags=["internal"])


PROJECTS = {
    "none": ("payments", "", None, ""),
    "the key's own": ("payments", "fraud", None, "fraud"),
    "the key's own, said again": ("payments", "fraud", "fraud", "fraud"),
    "one of the team's": ("payments", "", "loans", "loans"),
}


@pytest.mark.parametrize(
    ("team", "own", "wanted", "booked"), PROJECTS.values(), ids=PROJECTS.keys()
)
def test_the_project_that_is_booked(team, own, wanted, booked):
    assert admit(principal(team, project=own), project=wanted).project == booked


NO_PROJECTS = {
    "another than the key's": ("payments", "fraud", "loans", "belongs to project 'fraud'"),
    "one that the team has not": ("payments", "", "golf", "no project 'golf'"),
    "one of another team": ("open", "", "fraud", "no project 'fraud'"),
    "any, without a team": ("", "", "fraud", "no project 'fraud'"),
}


@pytest.mark.parametrize(
    ("team", "own", "wanted", "said"), NO_PROJECTS.values(), ids=NO_PROJECTS.keys()
)
def test_a_project_that_is_not_the_keys_is_refused(team, own, wanted, said):
    with pytest.raises(errors.InvalidRequest, match=said) as caught:
        admit(principal(team, project=own), project=wanted)
    assert caught.value.param == "x-fareway-project"


SCOPES = {
    "a key without a list has its team's": ("scoped", None, "chat", True),
    "a team without a list leaves the key's": ("open", ["chat"], "chat", True),
    "and nothing beyond it": ("open", ["chat"], "frontier", False),
    "neither has a list": ("open", None, "frontier", True),
    "the administrator": ("", None, "frontier", True),
    "a key's model within its team's": ("scoped", ["chat"], "chat", True),
    "through the model's alias": ("scoped", ["chat"], "small", True),
    "a key's model outside its team's": ("scoped", ["frontier"], "frontier", False),
    "a key with an empty list": ("open", [], "chat", False),
    "a key's pattern within its team's": ("scoped", ["chat*"], "chat", True),
    "a key's pattern beyond its team's": ("scoped", ["*"], "chat", False),
    "an alias of the team's model": ("scoped", ["small"], "small", True),
    "an alias does not grant its model's name": ("scoped", ["small"], "chat", False),
    "a team's pattern that covers an alias's name only": (
        "scoped",
        ["chat-and-new"],
        "chat-and-new",
        False,
    ),
    "without a list of the key's either": ("scoped", None, "chat-and-new", False),
    "a deployment of the team's model": ("scoped", ["cheap/a"], "cheap/a", True),
    "no other deployment": ("scoped", ["cheap/a"], "own/a", False),
    "a deployment of another model": ("scoped", ["cheap/big"], "cheap/big", False),
    "a team's deployment": ("direct", None, "cheap/a", True),
    "does not grant its model": ("direct", ["chat"], "chat", False),
}


@pytest.mark.parametrize(("team", "models", "asked", "may"), SCOPES.values(), ids=SCOPES.keys())
def test_a_key_reaches_what_it_and_its_team_may_use(team, models, asked, may):
    found = admit(principal(team, models=models), chat(asked))
    assert code(found) is (None if may else RefusalCode.MODEL_NOT_ALLOWED)
    assert bool(found.decision.candidates) is may


def test_an_unknown_model_tells_only_names_that_the_key_may_use():
    refusal = admit(principal("scoped"), chat("frontie")).decision.refusal
    assert refusal.code is RefusalCode.MODEL_NOT_FOUND
    assert "frontier" not in refusal.message
    assert "frontier" in admit(principal(), chat("frontie")).decision.refusal.message


def test_what_the_body_asks_for_reaches_the_decision():
    assert code(admit(principal(), chat(logprobs=True))) is RefusalCode.UNSUPPORTED_PARAMETER
    assert code(admit(principal(), chat(max_tokens=8192))) is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    ceiling = admit(principal(), chat(max_tokens=100), max_pico_usd=1)
    assert code(ceiling) is RefusalCode.MAX_USD_EXCEEDED
    one, three = (
        admit(principal(), chat(max_tokens=100, n=n)).decision.candidates[0].quote for n in (1, 3)
    )
    difference = three.upper_bound_pico_usd - one.upper_bound_pico_usd
    assert difference == 2 * 100 * 1_000_000


def test_health_takes_candidates_away_and_never_adds_any():
    board = HealthBoard(monotonic_s=lambda: 0.0)
    board.set_fault("own/a", "gone")
    at = admission(board)
    assert order(admit(principal(), at=at)) == ["cheap/a", "kind/a"]
    private = admit(principal("payments"), at=at)
    assert code(private) is RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE
    assert private.decision.reachable == {"own/a"}


def test_every_refusal_becomes_an_error_of_its_own_code():
    for each in RefusalCode:
        error = refusal_error(Refusal(code=each, message="why", param="p", retry_after_s=2.0))
        assert (error.message, error.param, error.retry_after_s) == ("why", "p", 2.0)
        assert row_of(error).code in {each.value, "invalid_request_error"}


tags = st.sets(st.sampled_from(["internal", "private", "sealed", "every"]))
teams = st.sampled_from(["open", "payments", "scoped", "direct", ""])
models = st.sampled_from(["chat", "small", "frontier", "chat-and-new", "cheap/a", "own/a", "what"])
patterns = st.none() | st.sets(st.sampled_from(["chat", "small", "chat*", "*", "own/*", "cheap/a"]))


@given(team=teams, first=tags, more=tags, model=models, own=patterns)
def test_more_tags_never_widen_what_is_reached(team, first, more, model, own):
    who = principal(team, models=own)
    one = admit(who, chat(model), tags=first)
    both = admit(who, chat(model), tags=first | more)
    assert set(both.tags) >= set(one.tags)
    assert both.allowed <= one.allowed
    assert both.decision.reachable <= one.decision.reachable
    assert set(order(both)) <= set(order(one))
    assert set(order(both)) <= both.allowed


@given(team=teams, model=models, own=patterns)
def test_no_key_reaches_what_its_team_does_not(team, model, own):
    narrow = admit(principal(team, models=own), chat(model))
    assert narrow.decision.reachable <= admit(principal(team), chat(model)).decision.reachable
