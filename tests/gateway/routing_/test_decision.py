"""Decisions: scope and privacy are hard, a ceiling holds for the bound, health never widens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.privacy.model import TagRule, TrustClaim, TrustedDeployment, shipped_implications
from gateway.privacy.policy import Policy
from gateway.routing.decision import Decision, Stage
from gateway.routing.needs import RequestNeeds
from gateway.routing.refusal import RefusalCode
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import FleetSnapshot
from tests.gateway.routing_.fleets import (
    CHEAP,
    DEAR,
    NOW,
    OWN,
    UNKNOWN,
    ask,
    fleet,
    order,
)


# Names and scope.
def test_an_unknown_model_lists_near_names() -> None:
    decision = ask(CHEAP, model="chatt")
    assert decision.refusal is not None
    assert decision.refusal.code is RefusalCode.MODEL_NOT_FOUND
    assert decision.refusal.near == ("chat",)
    assert decision.refusal.message == "no model 'chatt'; near names: chat"
    assert (decision.candidates, decision.excluded, decision.reachable) == ((), (), frozenset())


def test_an_unknown_model_with_nothing_near_says_only_that() -> None:
    refusal = ask(CHEAP, model="z" * 5000 + "\n").refusal
    assert refusal is not None
    assert refusal.message == f"no model '{'z' * 100}'"


def test_a_deployment_can_be_asked_for_directly() -> None:
    decision = ask(CHEAP, DEAR, model="dear/m")
    assert order(decision) == ["dear/m"]
    assert decision.model is None


def gateway_103() -> FleetSnapshot:
    views = (replace(CHEAP, name="prov/cheap"), replace(DEAR, name="prov/frontier"))
    return FleetSnapshot(
        deployments={view.name: view for view in views},
        models={"cheap": ("prov/cheap",), "frontier": ("prov/frontier",)},
        aliases={"fast": "frontier"},
    )


@pytest.mark.parametrize("name", ["fast", "frontier", "prov/frontier"])
def test_an_alias_or_deployment_outside_the_scope_is_refused_by_the_name_asked_for(
    name: str,
) -> None:
    decision = ask(snapshot=gateway_103(), model=name, scope=KeyScope(models=("cheap",)))
    assert decision.refusal is not None
    assert decision.refusal.code is RefusalCode.MODEL_NOT_ALLOWED
    assert decision.refusal.message == f"this key may not use model '{name}'"
    assert [one.stage for one in decision.excluded] == [Stage.SCOPE]
    assert not decision.reachable


@pytest.mark.parametrize(
    "name", ["Fast", "FRONTIER", "fr\u043entier", "prov/Frontier", "frontier "]
)
def test_variants_of_a_name_outside_the_scope_reach_nothing_and_learn_nothing(name: str) -> None:
    refusal = ask(snapshot=gateway_103(), model=name, scope=KeyScope(models=("cheap",))).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.MODEL_NOT_FOUND
    assert "frontier" not in refusal.near


# GW-104: a fallback that was never authorised.
def test_no_candidate_of_a_granted_model_lies_outside_it() -> None:
    decision = ask(snapshot=gateway_103(), model="cheap", scope=KeyScope(models=("cheap",)))
    assert order(decision) == ["prov/cheap"]
    assert decision.reachable == {"prov/cheap"}


# GW-107: the opposite, an alias that was granted and is denied by what it stands for.
def test_a_decision_knows_whether_privacy_took_something_away():
    assert not ask(CHEAP, DEAR).is_narrowed_by_privacy
    assert not ask(CHEAP, replace(DEAR, is_available=False)).is_narrowed_by_privacy
    assert ask(CHEAP, DEAR, allowed=frozenset({CHEAP.name})).is_narrowed_by_privacy


def test_a_granted_alias_is_enough() -> None:
    snapshot = FleetSnapshot(
        deployments={"vendor/coder-bf16": replace(CHEAP, name="vendor/coder-bf16")},
        models={},
        aliases={"coder": "vendor/coder-bf16"},
    )
    assert order(ask(snapshot=snapshot, model="coder", scope=KeyScope(models=("coder",)))) == [
        "vendor/coder-bf16"
    ]


# Privacy.
def test_privacy_is_refused_by_configuration_whatever_is_healthy() -> None:
    decision = ask(
        CHEAP,
        DEAR,
        allowed=frozenset({"elsewhere/m"}),
        privacy_reasons={"cheap/m": "lacks self_hosted"},
    )
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVACY_DENIED
    assert "cheap/m: lacks self_hosted" in refusal.message
    assert "dear/m: does not satisfy the request's privacy tags" in refusal.message


def test_an_allowed_deployment_that_is_down_never_opens_a_disallowed_one() -> None:
    down = replace(OWN, is_available=False, unavailable_reason="breaker open", retry_after_s=7.5)
    decision = ask(CHEAP, down, allowed=frozenset({"own/m"}))
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE
    assert refusal.retry_after_s == 7.5
    assert "own/m: breaker open" in refusal.message
    assert {one.deployment: one.stage for one in decision.excluded} == {
        "cheap/m": Stage.PRIVACY,
        "own/m": Stage.HEALTH,
    }
    assert decision.reachable == {"own/m"}


def policy_of(*deployments: TrustedDeployment, **tags: TagRule) -> Policy:
    return Policy.compile(
        tags=tags, floor=(), deployments=deployments, implications=shipped_implications(None)
    )


def ask_tagged(policy: Policy, snapshot: FleetSnapshot, tags: list[str], **changes) -> Decision:
    allowed, reasons = policy.allowed(tags, at=NOW), policy.reasons(tags, at=NOW)
    return ask(snapshot=snapshot, allowed=allowed, privacy_reasons=reasons, **changes)


# GW-121: a tag filter that is off for wildcard routes.
def test_a_private_request_goes_to_the_machine_of_our_own_only() -> None:
    cloud, own = replace(CHEAP, name="cloud/anything"), replace(DEAR, name="self/anything")
    policy = policy_of(
        TrustedDeployment(name="cloud/anything"),
        TrustedDeployment(name="self/anything", claims=(TrustClaim(attribute="self_hosted"),)),
        private=TagRule(require=frozenset({"self_hosted"})),
    )
    for name in ("chat", "small", "self/anything"):
        assert order(ask_tagged(policy, fleet(cloud, own), ["private"], model=name)) == [
            "self/anything"
        ]
    denied = ask_tagged(policy, fleet(cloud, own), ["private"], model="cloud/anything").refusal
    assert denied is not None
    assert denied.code is RefusalCode.PRIVACY_DENIED
    assert order(ask_tagged(policy, fleet(cloud, own), [])) == ["cloud/anything", "self/anything"]


# GW-124: a denial downgraded to a preference.
def test_a_request_that_nobody_may_serve_is_refused_with_the_rule() -> None:
    policy = policy_of(
        TrustedDeployment(name="open/m1"), internal=TagRule(require=frozenset({"no_train"}))
    )
    refusal = ask_tagged(policy, fleet(replace(CHEAP, name="open/m1")), ["internal"]).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVACY_DENIED
    assert "open/m1: lacks no_train" in refusal.message


# GW-127: an untagged request captured by a deployment that the model does not list.
def test_an_untagged_request_goes_where_its_model_says_and_nowhere_else() -> None:
    plain, semantic = replace(DEAR, name="plain/m"), replace(CHEAP, name="semantic/m")
    snapshot = FleetSnapshot(
        deployments={"plain/m": plain, "semantic/m": semantic},
        models={"shared": ("plain/m",), "smart": ("semantic/m",)},
    )
    assert order(ask(snapshot=snapshot, model="shared")) == ["plain/m"]


# The request's own ceiling.
def test_a_ceiling_excludes_what_may_cost_more() -> None:
    decision = ask(CHEAP, DEAR, max_pico_usd=58_000_000)
    assert order(decision) == ["cheap/m"]
    assert decision.reachable == {"cheap/m"}
    assert decision.excluded[0].stage is Stage.PRICE
    assert decision.excluded[0].reason == "may cost up to 0.0065 USD"


def test_what_is_not_known_is_not_within_a_ceiling() -> None:
    decision = ask(
        UNKNOWN, CHEAP, max_pico_usd=10**12, needs=RequestNeeds(prompt_tokens_estimate=1)
    )
    assert {one.deployment: one.reason for one in decision.excluded} == {
        "unknown/m": "unpriced (no price configured), so not within the request's ceiling",
        "cheap/m": "no upper bound of its cost without max_tokens",
    }
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.MAX_USD_EXCEEDED
    assert refusal.message.endswith("within 1 USD: none has a known upper bound; set max_tokens")


def test_a_ceiling_below_everything_names_the_lowest_bound() -> None:
    refusal = ask(CHEAP, DEAR, max_pico_usd=0).refusal
    assert refusal is not None
    assert refusal.message == (
        "no deployment of 'chat' is sure to stay within 0 USD: "
        "the cheapest may cost up to 0.000058 USD; lower max_tokens"
    )


# Health.
def test_what_is_down_is_left_out_with_its_reason_and_stays_reachable() -> None:
    decision = ask(replace(CHEAP, is_available=False, unavailable_reason="cooling down"), DEAR)
    assert order(decision) == ["dear/m"]
    assert decision.excluded[0].stage is Stage.HEALTH
    assert decision.excluded[0].reason == "cooling down"
    assert decision.reachable == {"cheap/m", "dear/m"}


def test_when_all_are_down_the_shortest_wait_is_told() -> None:
    decision = ask(
        replace(CHEAP, is_available=False, retry_after_s=30.0),
        replace(DEAR, is_available=False, retry_after_s=4.0),
        replace(OWN, is_available=False),
    )
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.NO_HEALTHY_DEPLOYMENT
    assert refusal.retry_after_s == 4.0
    assert "own/m: not available now" in refusal.message


def test_a_refusal_spells_out_a_few_deployments_and_counts_the_rest() -> None:
    views = [replace(CHEAP, name=f"p{place}/m", is_available=False) for place in range(8)]
    refusal = ask(*views).refusal
    assert refusal is not None
    assert refusal.retry_after_s is None
    assert refusal.message.count("not available now") == 5
    assert refusal.message.endswith("; and 3 more")
