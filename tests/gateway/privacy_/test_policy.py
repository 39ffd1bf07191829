"""The compiled policy: tags close, requirements add up, expired claims are absent, strangers are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from gateway.privacy import policy as policy_module
from gateway.privacy.errors import PolicyError, UnknownTags
from gateway.privacy.model import (
    Sink,
    TagRule,
    TeamFloor,
    TrustClaim,
    TrustedDeployment,
    shipped_implications,
)
from gateway.privacy.policy import Policy

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

# The tags of the example configuration.
TAGS = {
    "internal": TagRule(require=frozenset({"no_train"})),
    "confidential": TagRule(
        implies=frozenset({"internal"}), require=frozenset({"zero_retention", "dpa"})
    ),
    "private": TagRule(implies=frozenset({"confidential"}), require=frozenset({"self_hosted"})),
    "gdpr": TagRule(require=frozenset({"region:eu", "dpa"})),
    "hipaa": TagRule(implies=frozenset({"confidential"}), require=frozenset({"baa"})),
    "card": TagRule(implies=frozenset({"private"})),
    "secret": TagRule(require=frozenset({"self_hosted"})),
    "never": TagRule(deny=True),
    "buried": TagRule(implies=frozenset({"never"})),
}


def deployment(name: str, *attributes: str | TrustClaim) -> TrustedDeployment:
    claims = tuple(
        one if isinstance(one, TrustClaim) else TrustClaim(attribute=one) for one in attributes
    )
    return TrustedDeployment(name=name, claims=claims)


FLEET = (
    deployment("groq/llama", "no_train"),
    deployment("bedrock/llama", "no_train", "zero_retention", "dpa", "region:eu", "baa"),
    deployment("eu-vllm/llama", "self_hosted", "region:eu"),
    deployment("us-vllm/llama", "self_hosted", "region:us"),
    deployment("local/small", "local"),
    deployment("unknown/llama"),
)


def policy(**changes) -> Policy:
    base = {
        "tags": TAGS,
        "floor": (),
        "deployments": FLEET,
        "implications": shipped_implications("eu"),
    }
    return Policy.compile(**{**base, **changes})


CLOSED = {
    "no tag": ((), set()),
    "a tag that implies nothing": (("gdpr",), {"gdpr"}),
    "a chain": (("card",), {"card", "private", "confidential", "internal"}),
    "two chains that meet": (
        ("hipaa", "private"),
        {"hipaa", "private", "confidential", "internal"},
    ),
}


@pytest.mark.parametrize(("tags", "closed"), CLOSED.values(), ids=CLOSED.keys())
def test_tags_close_over_what_they_imply(tags: tuple[str, ...], closed: set[str]) -> None:
    assert policy().close(tags) == closed


def test_tags_that_imply_each_other_close_together() -> None:
    rules = {"a": TagRule(implies=frozenset({"b"})), "b": TagRule(implies=frozenset({"a"}))}
    assert policy(tags=rules).close(["b"]) == {"a", "b"}


ALLOWED = {
    "untagged goes anywhere": ((), {one.name for one in FLEET}),
    "internal needs no training": (
        ("internal",),
        {"groq/llama", "bedrock/llama", "eu-vllm/llama", "us-vllm/llama", "local/small"},
    ),
    "confidential needs an agreement and no retention": (
        ("confidential",),
        {"bedrock/llama", "eu-vllm/llama", "us-vllm/llama", "local/small"},
    ),
    "private stays on machines of our own": (
        ("private",),
        {"eu-vllm/llama", "us-vllm/llama", "local/small"},
    ),
    "private and gdpr stay in the region": (("private", "gdpr"), {"eu-vllm/llama", "local/small"}),
    "an attribute that no implication gives must be claimed": (("hipaa",), {"bedrock/llama"}),
    "requirements that nobody meets together": (("hipaa", "private"), set()),
    "a denying tag": (("never",), set()),
    "a tag that implies a denying one": (("buried",), set()),
}


@pytest.mark.parametrize(("tags", "names"), ALLOWED.values(), ids=ALLOWED.keys())
def test_tags_reach(tags: tuple[str, ...], names: set[str]) -> None:
    assert policy().allowed(tags, at=NOW) == names


def test_closing_first_changes_nothing() -> None:
    made = policy()
    for tag in TAGS:
        assert made.allowed(made.close([tag]), at=NOW) == made.allowed([tag], at=NOW)


def test_the_floor_counts_although_nobody_gave_it() -> None:
    made = policy(floor=["private"])
    assert made.close([]) == {"private", "confidential", "internal"}
    assert made.allowed([], at=NOW) == policy().allowed(["private"], at=NOW)


def test_a_server_without_region_satisfies_no_region() -> None:
    made = policy(implications=shipped_implications(None))
    assert "local/small" in made.allowed(["private"], at=NOW)
    assert made.missing(["gdpr"], "local/small", at=NOW) == ("region:eu",)


@pytest.mark.parametrize("tag", ["privat", "Private", "private ", "", "x" * 10_000])
def test_an_unknown_tag_is_refused_with_the_nearest_never_ignored(tag: str) -> None:
    made = policy()
    for ask in (made.close, lambda tags: made.allowed(tags, at=NOW), made.denied_by):
        with pytest.raises(UnknownTags) as refused:
            ask(["gdpr", tag])
        assert refused.value.tags == (tag[:64],)
        assert refused.value.near[tag[:64]] in TAGS
        assert len(str(refused.value)) < 200


def test_the_nearest_tag_is_the_similar_one() -> None:
    with pytest.raises(UnknownTags, match="unknown privacy tag 'privat'; the nearest is 'private'"):
        policy().close(["privat"])


def test_all_unknown_tags_are_named_in_the_order_given() -> None:
    with pytest.raises(UnknownTags) as refused:
        policy().close(["privat", "gdpr", "hippa", "privat", "gpdr"])
    assert str(refused.value) == (
        "unknown privacy tags 'privat' (the nearest is 'private'), 'hippa' (the nearest is"
        " 'hipaa'), 'gpdr' (the nearest is 'gdpr')"
    )


def test_of_many_unknown_tags_all_are_named_and_the_first_have_their_nearest() -> None:
    many = [f"gdp{number}" for number in range(60)]
    with pytest.raises(UnknownTags) as refused:
        policy().close(many)
    assert refused.value.tags == tuple(many)
    assert list(refused.value.near) == many[: len(refused.value.near)]
    assert set(refused.value.near.values()) == {"gdpr"}
    assert all(repr(tag) in str(refused.value) for tag in many)


def test_a_policy_without_tags_refuses_every_tag() -> None:
    with pytest.raises(UnknownTags, match="this policy has no tags") as refused:
        policy(tags={}).close(["private"])
    assert refused.value.near == {}


def test_an_expired_claim_is_absent_from_its_instant_on() -> None:
    claim = TrustClaim(attribute="self_hosted", expires_at=NOW, evidence="inventory 812")
    made = policy(deployments=[deployment("eu-vllm/llama", claim, "region:eu")])
    assert made.allowed(["private"], at=NOW - SECOND) == {"eu-vllm/llama"}
    assert made.allowed(["private"], at=NOW) == set()
    assert made.missing(["private"], "eu-vllm/llama", at=NOW) == (
        "dpa",
        "no_train",
        "self_hosted",
        "zero_retention",
    )


def test_what_is_remembered_ends_with_the_claim() -> None:
    expiring = TrustClaim(attribute="self_hosted", expires_at=NOW)
    made = policy(deployments=(deployment("a/m", expiring),))
    tags = frozenset({"secret"})
    before = made.reach(tags, at=NOW - SECOND)
    assert (before.allowed, before.until, before.since) == ({"a/m"}, NOW, None)
    assert made.reach(tags, at=NOW - 2 * SECOND) is before
    after = made.reach(tags, at=NOW)
    assert (after.allowed, after.until, after.since) == (frozenset(), None, NOW)
    assert made.reach(tags, at=NOW - SECOND).allowed == {"a/m"}


def test_no_more_sets_of_tags_are_remembered_than_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(policy_module, "REACHES_MAX", 2)
    made = policy()
    for tag in ("gdpr", "secret", "private"):
        reach = made.reach(frozenset({tag}), at=NOW)
        assert reach.allowed == made.allowed([tag], at=NOW)
        assert made.reach(frozenset({tag}), at=NOW) is reach
    first = frozenset({"gdpr"})
    assert made.reach(first, at=NOW).allowed == made.allowed(first, at=NOW)


def test_the_bound_is_a_smaller_number_of_sets_where_a_fleet_is_large(monkeypatch) -> None:
    """What is remembered of each set is about every deployment."""
    monkeypatch.setattr(policy_module, "REACHED_MAX", 5)
    made = policy(deployments=[deployment("a/m"), deployment("b/m")])
    gdpr, secret, private = (
        made.reach(frozenset({tag}), at=NOW) for tag in ("gdpr", "secret", "private")
    )
    assert made.reach(frozenset({"private"}), at=NOW) is private
    assert made.reach(frozenset({"secret"}), at=NOW) is not secret
    assert made.reach(frozenset({"gdpr"}), at=NOW) is not gdpr


def test_deployments_that_are_trusted_alike_are_looked_at_as_one() -> None:
    """A fleet of 15,000 took 56 ms of the event loop for each new set of tags."""
    names = [f"a/{place}" for place in range(50)]
    made = policy(deployments=[deployment(name) for name in names])
    reasons = made.reasons(["secret"], at=NOW)
    assert reasons.keys() == set(names)
    assert len({id(reason) for reason in reasons.values()}) == 1
    assert made.reach(frozenset(), at=NOW).allowed == set(names)


def test_another_claim_keeps_what_the_expired_one_gave_too() -> None:
    claim = TrustClaim(attribute="self_hosted", expires_at=NOW)
    made = policy(deployments=[deployment("eu-vllm/llama", claim, "no_train")])
    assert made.allowed(["internal"], at=NOW) == {"eu-vllm/llama"}


def test_missing_attributes_explain_the_exclusion() -> None:
    made = policy()
    assert made.missing(["private", "gdpr"], "us-vllm/llama", at=NOW) == ("region:eu",)
    assert made.missing(["private"], "eu-vllm/llama", at=NOW) == ()
    assert made.missing(["gdpr"], "never/heard-of", at=NOW) == ("dpa", "region:eu")


def test_denying_tags_are_named() -> None:
    assert policy().denied_by(["buried", "gdpr"]) == ("never",)
    assert policy().denied_by(["gdpr"]) == ()


def test_every_excluded_deployment_has_a_reason_and_no_other() -> None:
    made = policy()
    assert made.reasons(["internal"], at=NOW) == {"unknown/llama": "lacks no_train"}
    assert set(made.reasons(["never"], at=NOW).values()) == {"tag never denies every deployment"}
    assert made.reasons([], at=NOW) == {}


def test_all_problems_are_reported_at_once() -> None:
    unzoned = TrustClaim(attribute="dpa", expires_at=NOW.replace(tzinfo=None))
    with pytest.raises(PolicyError) as refused:
        policy(
            tags={"a": TagRule(implies=frozenset({"b"}))},
            floor=["c"],
            deployments=[
                deployment("x/y"),
                deployment("x/y", unzoned),
            ],
            tools={"mcp": [unzoned]},
            sinks={"traces": ["d"], "attic": []},
            teams={
                "t": TeamFloor(
                    tags=frozenset({"e"}),
                    projects={"p": frozenset({"f"})},
                    keys={"k": frozenset({"g"})},
                )
            },
        )
    assert refused.value.problems == (
        "tag 'a' implies 'b', which is no tag",
        "the floor holds 'c', which is no tag",
        "sink 'traces' is open to 'd', which is no tag",
        "'attic' is no sink; there are content_log, traces, response_cache, batch_files, exports",
        "the floor of team 't' holds 'e', which is no tag",
        "the floor of project 'p' of team 't' holds 'f', which is no tag",
        "the floor of key 'k' of team 't' holds 'g', which is no tag",
        "deployment 'x/y' is listed twice",
        "x/y: the expiry of 'dpa' has no time zone",
        "tool mcp: the expiry of 'dpa' has no time zone",
    )


def told(**more) -> TrustClaim:
    return TrustClaim(attribute="a", **more)


CHANGES = {
    "a requirement less": {"tags": {**TAGS, "gdpr": TagRule(require=frozenset({"dpa"}))}},
    "an implication less": {"tags": {**TAGS, "card": TagRule()}},
    "a denial less": {"tags": {**TAGS, "never": TagRule()}},
    "a floor": {"floor": ["internal"]},
    "a claim more": {"deployments": (*FLEET[:-1], deployment("unknown/llama", "dpa"))},
    "an expiry": {
        "deployments": (
            *FLEET[:-1],
            deployment("unknown/llama", TrustClaim(attribute="a", expires_at=NOW)),
        )
    },
    "a deployment less": {"deployments": FLEET[1:]},
    "another region": {"implications": shipped_implications("us")},
    "evidence": {
        "deployments": (*FLEET[:-1], deployment("unknown/llama", told(evidence="contract 7")))
    },
    "a verifier": {
        "deployments": (*FLEET[:-1], deployment("unknown/llama", told(verified_by="A")))
    },
    "a day of verification": {
        "deployments": (
            *FLEET[:-1],
            deployment("unknown/llama", told(verified_on=date(2026, 1, 2))),
        )
    },
    "a condition": {
        "deployments": (*FLEET[:-1], deployment("unknown/llama", told(condition="zdr")))
    },
    "what an adapter enforces": {
        "deployments": (*FLEET[:-1], replace(FLEET[-1], enforces=frozenset({"zdr"})))
    },
    "a tool": {"tools": {"mcp": ()}},
    "a tool's claim": {"tools": {"mcp": (told(),)}},
    "a sink": {"sinks": {"traces": ["internal"]}},
    "a team": {"teams": {"t": TeamFloor()}},
    "a team's tag": {"teams": {"t": TeamFloor(tags=frozenset({"internal"}))}},
    "a project's tag": {"teams": {"t": TeamFloor(projects={"p": frozenset({"internal"})})}},
    "a key's tag": {"teams": {"t": TeamFloor(keys={"k": frozenset({"internal"})})}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_the_digest_changes_with(changes) -> None:
    assert policy(**changes).digest != policy().digest


def test_the_digest_of_every_change_is_another() -> None:
    digests = [policy(**changes).digest for changes in CHANGES.values()]
    assert len(set(digests)) == len(digests)


def test_a_condition_counts_only_where_it_is_enforced() -> None:
    claim = TrustClaim(attribute="no_train", condition="zdr")
    asked = replace(deployment("router/asked", claim), enforces=frozenset({"zdr"}))
    made = policy(deployments=[asked, deployment("router/unasked", claim)])
    assert made.allowed(["internal"], at=NOW) == {"router/asked"}
    assert made.reasons(["internal"], at=NOW) == {"router/unasked": "lacks no_train"}


def test_a_tool_must_have_what_the_tags_require() -> None:
    made = policy(tools={"web_search": [TrustClaim(attribute="no_train")], "mcp": []})
    search, both = frozenset({"web_search"}), frozenset({"web_search", "mcp", "what_is_this"})
    everywhere = {one.name for one in FLEET}
    assert made.allowed([], at=NOW, tools=both) == everywhere, "no tag requires anything"
    assert made.allowed(["internal"], at=NOW, tools=search) == made.allowed(["internal"], at=NOW)
    assert made.allowed(["internal"], at=NOW, tools=both) == frozenset()
    assert set(made.reasons(["internal"], at=NOW, tools=both).values()) == {
        "tool mcp lacks no_train; tool what_is_this lacks no_train"
    }
    assert made.reasons(["internal"], at=NOW, tools=both).keys() == everywhere
    assert made.tools_lacking(["private"], search, at=NOW).keys() == {"web_search"}


def test_a_sink_is_open_to_its_tags_and_what_they_imply() -> None:
    made = policy(sinks={Sink.TRACES: ["confidential"]})
    assert made.sink_allows(Sink.TRACES, ["confidential"])
    assert made.sink_allows(Sink.TRACES, ["internal"])
    assert made.sink_allows(Sink.TRACES, [])
    assert not made.sink_allows(Sink.TRACES, ["confidential", "gdpr"])
    assert not made.sink_allows(Sink.TRACES, ["private"])
    assert not made.sink_allows(Sink.EXPORTS, ["internal"])
    assert made.sink_allows(Sink.EXPORTS, [])
    assert not policy(floor=["gdpr"]).sink_allows(Sink.EXPORTS, [])
    with pytest.raises(UnknownTags):
        made.sink_allows(Sink.TRACES, ["nothing"])


def test_the_digest_does_not_depend_on_order_or_time_zone() -> None:
    def dated(zone) -> TrustedDeployment:
        return deployment("a/b", TrustClaim(attribute="dpa", expires_at=NOW.astimezone(zone)))

    one = policy(deployments=(*FLEET, dated(UTC)))
    other = policy(
        deployments=(dated(timezone(timedelta(hours=5))), *reversed(FLEET)),
        tags=dict(reversed(TAGS.items())),
    )
    assert one.digest == other.digest


def test_a_policy_does_not_follow_later_changes_of_what_it_was_made_from() -> None:
    tags, fleet = dict(TAGS), list(FLEET)
    made = policy(tags=tags, deployments=fleet)
    tags["private"] = replace(tags["private"], require=frozenset(), implies=frozenset())
    fleet.clear()
    assert made.allowed(["private"], at=NOW) == policy().allowed(["private"], at=NOW)


# GW-121: a tag filter that a wildcard route or a switch turns off without saying so.
def test_a_tagged_request_reaches_only_the_deployment_that_satisfies_the_tag() -> None:
    made = policy(
        deployments=[deployment("cloud/anything"), deployment("self/anything", "self_hosted")]
    )
    assert made.allowed(["private"], at=NOW) == {"self/anything"}


# GW-124: a denial that is downgraded to a preference so that requests do not fail.
def test_nothing_is_allowed_rather_than_the_closest_match() -> None:
    made = policy(deployments=[deployment("open/m1", "no_train", "dpa")])
    assert made.allowed(["confidential"], at=NOW) == frozenset()
    assert made.reasons(["confidential"], at=NOW) == {"open/m1": "lacks zero_retention"}


def test_every_floor_that_requests_begin_with_is_told() -> None:
    keys = {"bot": frozenset({"card"})}
    team = TeamFloor(
        tags=frozenset({"gdpr"}), projects={"fraud": frozenset({"private"})}, keys=keys
    )
    assert set(policy(teams={"t": team, "open": TeamFloor()}).source.floors()) == {
        frozenset(),
        frozenset({"gdpr"}),
        frozenset({"gdpr", "card"}),
        frozenset({"gdpr", "private"}),
        frozenset({"gdpr", "private", "card"}),
    }
