"""Each planted fault makes the prover red, with the counter-example that it brings about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime

import pytest

from gateway.privacy.inventory import Holder, Road
from gateway.privacy.model import NO_TOOLS, TeamFloor, TrustClaim
from gateway.privacy.proof import Breach, CounterExample
from gateway.privacy.prover import prove
from tests.privacy.planted import (
    BROKER,
    DAY,
    FORGETFUL,
    INVENTORY,
    NOW,
    OWN,
    PARTNER,
    SOURCE,
    STRANGER,
    VENDOR,
    Gateway,
    proof_of,
    with_claims,
    with_tag,
)

STANDING = [
    TrustClaim(attribute="contract"),
    TrustClaim(attribute="no_train"),
    TrustClaim(attribute="zero_retention", condition="zdr"),
]


def lost_requirement() -> Gateway:
    return Gateway(source=with_tag("private", require=frozenset[str]()))


def lost_implication() -> Gateway:
    return Gateway(
        source=with_tag(
            "confidential", require=frozenset({"zero_retention"}), implies=frozenset[str]()
        )
    )


def lost_denial() -> Gateway:
    return Gateway(source=with_tag("secret", deny=False))


def expired_claim_counted() -> Gateway:
    class Late(Gateway):
        def allowed(
            self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
        ) -> frozenset[str]:
            return super().allowed(tags, at=min(at, NOW + 89 * DAY), tools=tools)

    return Late()


def floor_of_the_policy_dropped() -> Gateway:
    return Gateway(source=replace(SOURCE, floor=frozenset()))


def floor_of_a_team_dropped() -> Gateway:
    return Gateway(source=replace(SOURCE, teams={}))


def header_takes_a_tag_away() -> Gateway:
    class Obliging(Gateway):
        def begins_with(self, holder: Holder, added: frozenset[str]) -> frozenset[str]:
            begun = super().begins_with(holder, added)
            return begun - {"private"} if "internal" in added else begun

    return Obliging()


def fallback_leaves_the_set() -> Gateway:
    class Helpful(Gateway):
        def tried(self, name: str, allowed: frozenset[str], road: Road) -> Collection[str]:
            if road is Road.FALLBACK:
                return INVENTORY.models[name]
            return super().tried(name, allowed, road)

    return Helpful()


def alias_widens() -> Gateway:
    return Gateway(
        inventory=replace(INVENTORY, models={**INVENTORY.models, "all": (VENDOR, OWN, BROKER)},
                          aliases={"small": "all"})
    )  # fmt: skip


def aggregator_counted_as_direct() -> Gateway:
    return Gateway(source=with_claims(BROKER, *STANDING, TrustClaim(attribute="direct")))


def condition_counted_without_enforcement() -> Gateway:
    return Gateway(source=with_claims(BROKER, *(replace(one, condition="") for one in STANDING)))


def trust_of_a_tool_ignored() -> Gateway:
    class Trusting(Gateway):
        def allowed(
            self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
        ) -> frozenset[str]:
            return super().allowed(tags, at=at)

    return Trusting()


def sink_too_wide() -> Gateway:
    return Gateway(
        source=replace(
            SOURCE, sinks={"response_cache": frozenset({"known", "internal", "confidential"})}
        )
    )


def tag_that_opens() -> Gateway:
    class Opening(Gateway):
        def allowed(
            self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
        ) -> frozenset[str]:
            given = frozenset(tags)
            reached = super().allowed(given, at=at, tools=tools)
            return reached | {VENDOR} if {"private", "direct_only"} <= given else reached

    return Opening()


def requirement_invented() -> Gateway:
    return Gateway(source=with_tag("internal", require=frozenset({"no_train", "direct"})))


def claim_that_comes_back() -> Gateway:
    class Forgiving(Gateway):
        def allowed(
            self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
        ) -> frozenset[str]:
            reached = super().allowed(tags, at=at, tools=tools)
            return reached | {BROKER} if at > NOW + DAY else reached

    return Forgiving()


def decision_that_leaves_one_out() -> Gateway:
    class Picky(Gateway):
        def tried(self, name: str, allowed: frozenset[str], road: Road) -> Collection[str]:
            return [one for one in super().tried(name, allowed, road) if one != OWN]

    return Picky()


def expect(
    breach: Breach,
    *,
    carries: str = "",
    deployment: str = "",
    missing: str = "",
    model: str = "",
    road: Road | None = None,
    holder: str = "",
) -> Callable[[CounterExample], bool]:
    """Whether a counter-example says at least this."""

    def is_it(found: CounterExample) -> bool:
        return (
            found.breach is breach
            and (not carries or carries in found.tags)
            and found.deployment == deployment
            and (not missing or missing in found.missing)
            and (not model or found.model == model)
            and (road is None or found.road is road)
            and found.holder == holder
        )

    return is_it


PLANTED: dict[Callable[[], Gateway], Callable[[CounterExample], bool]] = {
    lost_requirement: expect(
        Breach.TOO_WIDE, carries="private", deployment=PARTNER, missing="self_hosted", model="other"
    ),
    lost_implication: expect(
        Breach.TOO_WIDE, carries="confidential", deployment=FORGETFUL, missing="no_train"
    ),
    lost_denial: expect(Breach.TOO_WIDE, carries="secret", deployment=OWN, missing="secret"),
    expired_claim_counted: expect(
        Breach.TOO_WIDE, carries="private", deployment=OWN, missing="self_hosted", model="chat"
    ),
    floor_of_the_policy_dropped: expect(
        Breach.TOO_WIDE, carries="known", deployment=STRANGER, missing="contract"
    ),
    floor_of_a_team_dropped: expect(Breach.FLOOR_LOST, missing="private", holder="team payments"),
    header_takes_a_tag_away: expect(
        Breach.FLOOR_LOST, carries="internal", missing="private", holder="team payments"
    ),
    fallback_leaves_the_set: expect(
        Breach.OUTSIDE,
        carries="confidential",
        deployment=VENDOR,
        missing="zero_retention",
        model="chat",
        road=Road.FALLBACK,
    ),
    alias_widens: expect(Breach.OUTSIDE, deployment=BROKER, model="small", road=Road.ALIAS),
    aggregator_counted_as_direct: expect(
        Breach.TOO_WIDE, carries="direct_only", deployment=BROKER, missing="direct"
    ),
    condition_counted_without_enforcement: expect(
        Breach.TOO_WIDE, carries="confidential", deployment=BROKER, missing="zero_retention"
    ),
    trust_of_a_tool_ignored: expect(
        Breach.TOO_WIDE, carries="confidential", deployment=OWN, missing="tool web_search"
    ),
    sink_too_wide: expect(
        Breach.SINK_TOO_WIDE, carries="confidential", deployment="sink response_cache"
    ),
    requirement_invented: expect(
        Breach.TOO_NARROW, carries="internal", deployment=PARTNER, model="other"
    ),
    claim_that_comes_back: expect(
        Breach.NOT_MONOTONIC, carries="private", deployment=BROKER, missing="opened by time alone"
    ),
    decision_that_leaves_one_out: expect(
        Breach.TOO_NARROW, deployment=OWN, missing="left out", model="small", road=Road.ALIAS
    ),
    tag_that_opens: expect(
        Breach.NOT_MONOTONIC, deployment=VENDOR, missing="opened by tag direct_only"
    ),
}


def test_a_gateway_without_a_fault_is_proved() -> None:
    proof = proof_of(Gateway())
    assert proof.holds
    assert proof.is_complete
    assert proof.instants == (NOW, NOW + 90 * DAY)
    # 64 sets of tags at two instants; four deployments of two models by seven roads, two of an
    # alias, six by their own names.
    assert proof.cells == 2 * 64 * (4 * 7 + 2 + 6)


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_fault_is_found(plant: Callable[[], Gateway]) -> None:
    proof = proof_of(plant())
    assert not proof.holds
    assert not proof.warnings
    assert any(PLANTED[plant](one) for one in proof.counter_examples), "\n".join(
        map(str, proof.counter_examples)
    )


def test_a_floor_that_denies_is_told() -> None:
    floor = frozenset({"secret"})
    holder = replace(INVENTORY.holders[0], name="team nobody", team="nobody", floor=floor)
    gateway = Gateway(source=replace(SOURCE, teams={"nobody": TeamFloor(tags=floor)}))
    inventory = replace(INVENTORY, holders=(holder,))
    proof = prove(gateway, SOURCE, inventory, policy_digest="", at=NOW)
    assert proof.holds
    assert "nobody can serve chat to team nobody: tag secret denies every deployment" in [
        str(one) for one in proof.warnings
    ]


def test_a_counter_example_is_one_sentence() -> None:
    [first, *_] = proof_of(fallback_leaves_the_set()).counter_examples
    assert str(replace(first, line="fareway.yaml:7")) == (
        "fareway.yaml:7: outside: a request with confidential, internal, known for chat, fallback, "
        "and vendor/llama: zero_retention (at 2026-11-30T00:00:00+00:00)"
    )
