"""No byte of a request reaches a server that its tags forbid, whatever comes together.

About 100 combinations in `make test`, 2,000 in `.ci/run` and 10,000 in `make soak`, each of a
configuration, several requests and what ails the upstreams; each also with one of the two layers
(the evaluator, the permits) made to allow everything, so that the other one holds alone. The seed
of a run is printed and drawn anew each time.
"""

from __future__ import annotations

import socket

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings

from tests.privacy.attack_range import Range, attack_range
from tests.privacy.combinations import Ask, Case, cases, try_case
from tests.privacy.recorders import Names
from tests.privacy.worlds import Claim, Tag, World

CHAT = "/v1/chat/completions"


@pytest.fixture
def names(monkeypatch):
    """A resolver that knows no name, and notes what it was asked for."""
    made = Names({})
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


def hold(folder, names: Names, count: int) -> None:
    """Try so many combinations on one gateway."""

    def is_held(case: Case) -> None:
        names.asked.clear()
        assert portal.call(try_case, range_, case) == []
        assert set(names.asked) <= {"nowhere.internal"}
        if not any("nowhere" in url for url in case.world.urls.values()):
            assert names.asked == [], "nobody looks up what a client names"

    # A failure is told as it was found: making it smaller takes longer than reading it.
    tried = settings(
        max_examples=count,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[*HealthCheck],
        deadline=None,
        print_blob=True,
    )
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(attack_range(folder)) as range_,
    ):
        tried(given(cases())(is_held))()


@pytest.mark.anyio
@pytest.mark.parametrize("layer", ["evaluator", "permits", "neither"])
async def test_what_is_open_is_found(tmp_path, layer):
    world = World(
        tags={"private": Tag(require=("self_hosted",))},
        teams={"apps": ("private",)},
        trust={"p0": (Claim(attribute="self_hosted"),)},
        model=("p1", "p0"),
    )
    ask = Ask(team="apps", model="chat", path=CHAT, by_header=None, by_field=None, unit=False,
              more={}, headers=())  # fmt: skip
    case = Case(world=world, courses={}, layers="both", asks=(ask,), newer=None,
                faults=frozenset(), cooling=frozenset())  # fmt: skip

    def open_up(range_: Range) -> None:
        if layer != "evaluator":
            range_.mislead()
        if layer != "permits":
            range_.disarm()

    async with attack_range(tmp_path) as range_:
        faults = await try_case(range_, case, open_up)
    found = " ".join(faults)
    assert ("p1 was reached" in found) is (layer == "neither")
    assert ("a permit refused what the evaluator allowed" in found) is (layer == "permits")


@pytest.mark.slow
def test_no_combination_lets_a_byte_out(tmp_path, names):
    hold(tmp_path, names, 100)


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_no_combination_of_two_thousand_lets_a_byte_out(tmp_path, names):
    hold(tmp_path, names, 2_000)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_combination_of_ten_thousand_lets_a_byte_out(tmp_path, names):
    hold(tmp_path, names, 10_000)
