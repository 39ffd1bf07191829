"""A permit is what the oracle says, for as long as it says so, and nothing that anybody else says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import to_microseconds
from gateway.privacy import permit as permits_module
from gateway.privacy.model import (
    PolicySource,
    TagRule,
    TeamFloor,
    TrustClaim,
    TrustedDeployment,
)
from gateway.privacy.oracle import is_allowed
from gateway.privacy.permit import NOWHERE, Permits, both, operator_permit
from providers.errors import NotPermitted
from tests.gateway.privacy_.test_oracle import DAY, NOW, TAG_NAMES, some_tags, sources

NOW_US = to_microseconds(NOW)
VENDOR, OURS = "https://api.example.com:443", "http://10.0.0.5:8000"
PLACES = {"vendor/m": VENDOR, "ours/m": OURS}


def source(**changes) -> PolicySource:
    ours = TrustClaim(attribute="self_hosted", expires_at=changes.pop("expires_at", None))
    parts = {
        "tags": {
            "private": TagRule(require=frozenset({"self_hosted"})),
            "card": TagRule(implies=frozenset({"private"})),
            "secret": TagRule(deny=True),
        },
        "deployments": (
            TrustedDeployment(name="vendor/m"),
            TrustedDeployment(name="ours/m", claims=(ours,)),
        ),
    }
    return PolicySource(**{**parts, **changes})


def permits(given_source=None, *, origins=PLACES, **floors) -> Permits:
    teams = {team: TeamFloor(tags=frozenset(tags)) for team, tags in floors.items()}
    return Permits(replace(given_source or source(), teams=teams), origins=origins)


def issue(made: Permits, *tags: str, team: str = "", closed=(), at: datetime = NOW):
    return dict(made.issue(team, frozenset(tags), tuple(closed), to_microseconds(at)).origins)


def test_a_request_without_tags_may_be_sent_everywhere():
    assert issue(permits()) == PLACES


def test_implied_tags_count_whether_the_evaluator_said_so_or_not():
    assert issue(permits(), "card") == {"ours/m": OURS}


def test_what_the_evaluator_added_counts_too():
    assert issue(permits(), closed=("private",)) == {"ours/m": OURS}


def test_a_team_s_floor_counts_though_the_evaluator_forgot_it():
    assert issue(permits(team=["private"]), team="team") == {"ours/m": OURS}


def floored(**projects: str) -> PolicySource:
    floors = {name: frozenset({tag}) for name, tag in projects.items()}
    return source(teams={"team": TeamFloor(projects={"plain": frozenset(), **floors})})


def sent(made: Permits, project: str, *, tools=frozenset()):
    return dict(made.issue("team", frozenset(), (), NOW_US, project, tools).origins)


def test_a_project_s_floor_counts_though_the_evaluator_forgot_it():
    made = Permits(floored(fraud="private"), origins=PLACES)
    assert sent(made, "plain") == PLACES
    assert sent(made, "fraud") == {"ours/m": OURS}
    assert sent(made, "gone") == {}


def test_a_project_s_newer_floor_counts_and_a_project_that_is_gone_reaches_nothing():
    made = Permits(floored(fraud="private"), origins=PLACES)
    made.narrow(floored(plain="private"), origins=PLACES)
    assert sent(made, "plain") == {"ours/m": OURS}
    assert sent(made, "fraud") == {}


def test_a_tool_without_trust_keeps_tagged_requests_and_no_others():
    tools = frozenset({"web_search"})
    made = permits(team=[])
    assert dict(made.issue("", frozenset(), (), NOW_US, "", tools).origins) == PLACES
    assert made.issue("", frozenset({"private"}), (), NOW_US, "", tools) is NOWHERE


def test_a_tool_s_trust_counts_until_it_expires():
    tools = frozenset({"web_search"})
    trusted = TrustClaim(attribute="self_hosted", expires_at=NOW + DAY)
    made = permits(source(tools={"web_search": (trusted,)}))
    tagged = frozenset({"private"})
    assert dict(made.issue("", tagged, (), NOW_US, "", tools).origins) == {"ours/m": OURS}
    assert made.issue("", tagged, (), to_microseconds(NOW + DAY), "", tools) is NOWHERE


def test_the_policy_s_floor_counts_though_the_evaluator_forgot_it():
    assert issue(permits(source(floor=frozenset({"private"})))) == {"ours/m": OURS}


@pytest.mark.parametrize(
    ("tags", "team"), [(["secret"], ""), (["unknown"], ""), ([], "gone")],
    ids=["a tag that denies", "a tag that nobody knows", "a team that nobody knows"],
)  # fmt: skip
def test_nothing_may_be_sent_with(tags, team):
    assert permits().issue(team, frozenset(tags), (), NOW_US) is NOWHERE


def test_a_deployment_whose_place_nobody_knows_is_not_permitted():
    assert issue(permits(origins={"ours/m": OURS})) == {"ours/m": OURS}


def test_a_claim_that_expires_ends_the_permits_that_rest_on_it():
    made = permits(source(expires_at=NOW + DAY))
    just_before = NOW + DAY - timedelta(microseconds=1)
    assert issue(made, "private") == {"ours/m": OURS}
    assert issue(made, "private", at=just_before) == {"ours/m": OURS}
    assert issue(made, "private", at=NOW + DAY) == {}
    # A clock that is put back: what was remembered for later does not count for before.
    assert issue(made, "private", at=just_before) == {"ours/m": OURS}


def test_a_permit_is_remembered():
    made = permits()
    one = made.issue("", frozenset({"private"}), (), NOW_US)
    assert made.issue("", frozenset({"private"}), (), NOW_US + 1) is one


def test_what_is_remembered_has_a_bound(monkeypatch):
    monkeypatch.setattr(permits_module, "PERMITS_MAX", 2)
    made = permits()
    one = made.issue("", frozenset(), (), NOW_US)
    made.issue("", frozenset({"private"}), (), NOW_US)
    made.issue("", frozenset({"card"}), (), NOW_US)
    assert len(made._known) == 1
    assert made.issue("", frozenset(), (), NOW_US) == one


def test_a_newer_policy_narrows_what_is_permitted_and_never_widens_it():
    made = permits()
    one = made.issue("", frozenset(), (), NOW_US)
    assert not made.is_narrowed
    stricter = {**source().tags, "public": TagRule(), "private": TagRule(deny=True)}
    made.narrow(source(tags=stricter), origins={**PLACES, "other/m": VENDOR})
    assert made.is_narrowed
    assert issue(made) == dict(one.origins) == PLACES
    assert issue(made, "private") == {}
    assert issue(made, "public") == {}, "the older policy does not know the tag"
    made.narrow(source(tags={}), origins={"vendor/m": VENDOR, "ours/m": VENDOR})
    assert issue(made) == {"vendor/m": VENDOR}, "the other one is elsewhere by now"
    assert issue(made, "card") == {}, "the newest policy does not know the tag"


def test_a_newer_floor_counts_and_a_team_that_is_gone_reaches_nothing():
    made = permits(team=[], gone=[])
    floors = {"team": TeamFloor(tags=frozenset({"private"}))}
    made.narrow(source(teams=floors), origins=PLACES)
    assert issue(made, team="team") == {"ours/m": OURS}
    assert issue(made, team="gone") == {}
    assert issue(made) == PLACES


@given(sources, some_tags, some_tags, st.sampled_from([NOW - DAY, NOW, NOW + DAY]))
def test_every_permit_is_what_the_oracle_says(made_source, added, closed, at):
    names = [one.name for one in made_source.deployments]
    made = Permits(made_source, origins=dict.fromkeys(names, OURS))
    rightly = {
        one.name
        for one in made_source.deployments
        if is_allowed(made_source, added | closed, one, at)
    }
    assert set(issue(made, *added, closed=sorted(closed), at=at)) == rightly


@given(sources, some_tags, st.sampled_from(TAG_NAMES))
def test_one_more_tag_never_widens_a_permit(made_source, tags, more):
    names = [one.name for one in made_source.deployments]
    made = Permits(made_source, origins=dict.fromkeys(names, OURS))
    assert set(issue(made, *tags, more)) <= set(issue(made, *tags))


def test_a_dispatch_goes_where_both_the_first_and_the_present_permit_say():
    frozen = operator_permit("request", PLACES)
    assert both(frozen, frozen) is frozen
    current = operator_permit("request", {"ours/m": OURS, "vendor/m": OURS, "other/m": VENDOR})
    assert dict(both(frozen, current).origins) == {"ours/m": OURS}
    assert dict(both(current, frozen).origins) == {"ours/m": OURS}
    assert both(frozen, NOWHERE).origins == {}


def test_a_permit_is_for_one_place_and_says_what_it_is_for():
    permit = operator_permit("probe", {"ours/m": OURS})
    permit.require("ours/m", OURS)
    for deployment, place in [("ours/m", VENDOR), ("vendor/m", OURS), ("vendor/m", VENDOR)]:
        with pytest.raises(NotPermitted, match=f"{deployment} is not where this probe"):
            permit.require(deployment, place)
    with pytest.raises(TypeError):
        permit.origins["vendor/m"] = VENDOR
