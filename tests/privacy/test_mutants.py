"""Each rule, floor and check is taken out of the running gateway in turn, and an attack gets through.

A mutant is a change of our source. Its functions' code is put in the place of what runs, so that
whoever holds the function already runs the mutant, and is put back afterwards. The check of the
policy at start is out in all of them: it would notice most of the evaluator's by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings

from tests.privacy import test_attacks, test_attacks_around, test_layers
from tests.privacy.attack_range import Range, attack_range
from tests.privacy.combinations import Case, cases, try_case
from tests.privacy.worlds import WORLD

pytestmark = [pytest.mark.ci, pytest.mark.timeout(900)]

CASES_MAX = 120
PROOF = ("gateway.policy_proof", "    if not proof.holds:", "    if False:")

MUTANTS = {
    "gateway.privacy.policy": {
        "a denying tag denies nothing": (
            "        if any(tag.denied_by for tag in compiled):\n            return frozenset()\n",
            "        pass\n",
        ),
        "every deployment is allowed": (" if need & ~trust.at(at) == 0]", "]"),
        "one of the attributes is enough": (
            "if need & ~trust.at(at) == 0]", "if not need or need & trust.at(at)]",
        ),
        "the floor of everybody is left out": ("(*self._floor, *tags)", "(*tags,)"),
        "only the last tag counts": ("        joined |= mask\n", "        joined = mask\n"),
        "expired claims count": ("            if at < expires_at:\n", "            if True:\n"),
        "what is remembered outlives a claim": (
            "if known is not None and known.holds_at(at):", "if known is not None:",
        ),
        "nothing is implied": ("            waiting.extend(gives.get(one, ()))", "            pass"),
        "an unknown tag is passed over": ("        if unknown:\n", "        if False:\n"),
        "a tag requires nothing": ("need=_join(bits[attribute] for rule in rules", "need=_join(0 for rule in rules"),
    },
    "gateway.privacy.oracle": {
        "a denying tag denies nothing": ("    if any(source.tags[tag].deny for tag in carried):", "    if False:"),
        "a tag requires nothing": (
            "all(source.tags[tag].require <= facts for tag in carried for facts in known)", "True",
        ),
        "the floor of everybody is left out": (
            "carried = closed(source, set(tags) | source.floor)", "carried = closed(source, set(tags))",
        ),
        "expired claims count": (" if claim.counts_at(at)}", "}"),
        "nothing is implied": ("        carried |= more\n    return carried", "        break\n    return carried"),
    },
    "gateway.privacy.permit": {
        "floors of teams are left out": ("_permitted(source, tags | floor, at, tools)", "_permitted(source, tags, at, tools)"),
        "the project's floor is left out": ("floor.tags | more", "floor.tags"),
        "added tags are left out": ("added.union(closed)", "frozenset()"),
        "everything is permitted": (" if is_allowed(source, tags, one, at, tools)}", "}"),
        "a newer policy is not heard": ("        self._readings.append(source)\n", "        pass\n"),
        "a team gets another's permit": (
            "key = (team, project, added, closed, tools)", 'key = ("", project, added, closed, tools)',
        ),
        "a project gets another's permit": (
            "key = (team, project, added, closed, tools)", 'key = (team, "", added, closed, tools)',
        ),
        "tags get others' permit": (
            "key = (team, project, added, closed, tools)", "key = (team, project, (), (), tools)",
        ),
        "what is remembered outlives a claim": (
            "        if not self._since_us <= wall_us < self._until_us:", "        if not self._until_us > _FIRST_US:",
        ),
    },
    "gateway.admission.admit": {
        "a key's floor is left out": ("        if principal.tags:\n", "        if False:\n"),
        "a route is found whatever the tags": (
            "self.routes.known.get(key)", "self.routes.known.get((*key[:3], frozenset(), *key[4:]))",
        ),
        "a plan is found whatever the tags": (
            "plan_key = (model, tags, is", "plan_key = (model, frozenset(), is",
        ),
        "the allowed set is not asked": ("allowed=reach.allowed", "allowed=frozenset(found.deployments)"),
        "a newer policy decides nothing": ("        if self.permits.is_narrowed:\n", "        if False:\n"),
        "a route outlives a claim": ("or not route.since_us <= wall_us < route.until_us", "or False"),
    },
    "gateway.admission.floors": {
        "a team's floor is left out": ("        return rules.tags | added", "        return added"),
        "a team's floor is left out with a project": ("rules.tags | floor | added", "floor | added"),
        "a project's floor is left out": ("rules.tags | floor | added", "rules.tags | added"),
        "what is added is left out": ("        return rules.tags | added", "        return rules.tags"),
    },
    "gateway.admission.detected": {
        "detectors add nothing": ("tags=controls.tags | detected.tags", "tags=controls.tags"),
    },
    "gateway.detect.detection": {
        "a detector's fault is nothing": ("            for tag in orders.on_error:", "            for tag in ():"),
    },
    "gateway.dialects.controls": {
        "tags of the metadata are not read": (
            "        if not _is_like_control(key):\n            continue\n        label", "        if True:\n            continue\n        label",
        ),
    },
    "providers.transport.client": {
        "the transport asks for no permit": (
            "        if permit.origins.get(deployment) != target.place:", "        if False:",
        ),
    },
}  # fmt: skip
ALL = [(name, what) for name, mutants in MUTANTS.items() for what in mutants]


def _functions(module: ModuleType, name: str) -> Iterator[tuple[str, FunctionType]]:
    """Functions and methods that a module defines, by qualified name."""
    for value in list(vars(module).values()):
        if inspect.isfunction(value) and value.__module__ == name:
            yield value.__qualname__, value
        if not inspect.isclass(value) or value.__module__ != name:
            continue
        for member in list(vars(value).values()):
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            plain = plain.fget if isinstance(plain, property) else plain
            if inspect.isfunction(plain) and plain.__module__ == name:
                yield plain.__qualname__, plain


@contextlib.contextmanager
def mutated(name: str, old: str, new: str) -> Iterator[None]:
    """Run with a part of a module's text replaced."""
    real = importlib.import_module(name)
    text = Path(str(real.__file__)).read_text()
    assert old in text, f"{name} has changed: {old!r} is not in it any more"
    codes = dict(_codes(compile(text.replace(old, new), str(real.__file__), "exec")))
    before = [(function, function.__code__) for _, function in _functions(real, name)]
    changed = 0
    for function, code in before:
        made = codes.get(code.co_qualname)
        if made is not None and made.co_code + repr(made.co_consts).encode() != (
            code.co_code + repr(code.co_consts).encode()
        ):
            function.__code__ = made
            changed += 1
    assert changed, f"{name}: no function is changed by {new!r}"
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one.co_qualname, one
            yield from _codes(one)


NAMED = [
    *((test_attacks.test_a_floor_is_carried_whoever_set_it, (world,)) for world in test_attacks.FLOORS.values()),
    (test_attacks.test_a_project_that_is_named_brings_its_floor, ()),
    (test_attacks_around.test_evidence_that_expires_while_we_run_counts_no_more, ()),
    (test_attacks_around.test_detectors_that_crash_or_run_out_of_time_add_what_on_error_says, ()),
    (test_attacks_around.test_a_card_in_an_untagged_request_makes_it_private, ()),
    (test_attacks_around.test_a_newer_policy_counts_for_the_next_attempt_in_flight, ("p1", 503)),
    (test_attacks_around.test_a_newer_policy_shrinks_what_standing_connections_may_reach, ()),
    (test_attacks_around.test_a_newer_policy_widens_nothing_for_standing_connections, ()),
]  # fmt: skip


async def named(range_: Range) -> None:
    """Named attacks; an assertion fails where one gets through."""
    for attack, arguments in NAMED:
        await range_.load(WORLD)
        await attack(range_, *arguments)
        assert range_.touched() <= {"p0"}
    for attack in vars(test_layers).values():
        if inspect.iscoroutinefunction(attack) and attack.__name__.startswith("test_"):
            for layer in test_layers.LAYERS.values():
                await range_.load(WORLD)
                await attack(range_, layer)


def found_by_attacks(portal, range_: Range) -> bool:
    """Whether an attack gets through, or something does not work any more."""

    def is_held(case: Case) -> None:
        assert portal.call(try_case, range_, case) == []

    tried = settings(
        max_examples=CASES_MAX, phases=[Phase.generate], derandomize=True, database=None,
        suppress_health_check=[*HealthCheck], deadline=None,
    )  # fmt: skip
    try:
        portal.call(named, range_)
        tried(given(cases())(is_held))()
    except (Exception, BaseExceptionGroup):
        return True
    return False


@pytest.fixture(scope="module")
def shared_range(tmp_path_factory):
    """A gateway without the check of its policy at start."""
    with (
        mutated(*PROOF),
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(attack_range(tmp_path_factory.mktemp("range"))) as range_,
    ):
        yield portal, range_


def test_nothing_gets_through_what_is_there(shared_range):
    portal, range_ = shared_range
    assert not found_by_attacks(portal, range_)


@pytest.mark.parametrize(("name", "what"), ALL, ids=[f"{name}: {what}" for name, what in ALL])
def test_a_rule_that_is_taken_out_lets_an_attack_through(shared_range, name, what):
    portal, range_ = shared_range
    with mutated(name, *MUTANTS[name][what]):
        assert found_by_attacks(portal, range_), "nobody misses it"
