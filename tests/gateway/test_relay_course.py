"""Which deployment follows a failure, after which pause, and when it is over."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.course import Course, End, Next, Planner
from gateway.relay.failures import (
    BILLED_REPEATS_MAX,
    RULES,
    Failure,
    may_repeat,
    rule_of,
    was_refused,
)
from gateway.relay.retry_budget import BURST, RetryBudget
from gateway.relay.retry_policy import FIRST_PAUSE_S, PAUSE_S_MAX, RetryPolicy
from gateway.relay.verdict import final_error
from providers import errors as provider_errors
from providers.errors import (
    AddressRefused,
    BadRequest,
    BadWire,
    Billing,
    CallerError,
    CapacityError,
    ConnectionLost,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    FirstTokenTimeout,
    NoConnectionFree,
    NotPermitted,
    NotSent,
    Overloaded,
    ProviderError,
    RateLimited,
    StaleConnection,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)
from tests.gateway.failure_kinds import KINDS

GROUPS = {"p": "shared", "q": "shared"}


class Ticker:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def make_course(candidates="abc", *, attempts=9, within_s=30.0, budget=None, seed=1) -> Course:
    refused: list[str] = []
    planner = Planner(
        policy=RetryPolicy(attempts_max=attempts, within_s=within_s, rng=random.Random(seed)),
        budget=budget or RetryBudget(share_ratio=1.0, monotonic_s=Ticker()),
        domain_of=lambda name: GROUPS.get(name.partition("/")[0], name),
        on_refused=refused.append,
    )
    return Course(planner=planner, candidates=list(candidates))


def step(*failures, elapsed_s=0.0, **options) -> tuple[Course, Next | None]:
    course = make_course(**options)
    for deployment, kind, *facts in failures:
        course.note(deployment, kind("x", **(facts[0] if facts else {})), elapsed_s=0.0)
    return course, course.next(elapsed_s)


def follower(course: Course, found: Next | None) -> str | None:
    return None if found is None else course.candidates[found.candidate]


FOLLOWING = {
    "the next one in the decision's order": ([("a", Overloaded)], "b"),
    "every one once before any twice": ([("a", Overloaded), ("b", ConnectionLost)], "c"),
    "then again from the first": (
        [("a", Overloaded), ("b", ConnectionLost), ("c", BadWire)], "a",
    ),
    "a prompt too long for one may fit another": ([("a", ContextTooLong)], "b"),
    "a refused key may work elsewhere": ([("a", CredentialError)], "b"),
    "a refused deployment is passed over in the second round": (
        [("a", CredentialError), ("b", Overloaded), ("c", Overloaded)], "b",
    ),
    "and the second round goes on behind it": (
        [("a", CredentialError), ("b", Overloaded), ("c", Overloaded), ("b", Overloaded)], "c",
    ),
    "nothing where all refused": (
        [("a", CredentialError), ("b", ContextTooLong), ("c", CredentialError)], None,
    ),
    "nothing after a request that is malformed": ([("a", BadRequest)], None),
    "nothing after a prompt that a filter refused": ([("a", ContentFiltered)], None),
    "nothing after a caller's fault in a later attempt": (
        [("a", Overloaded), ("b", BadRequest)], None,
    ),
    "a stale connection is tried again at once where it was": ([("a", StaleConnection)], "a"),
    "but a second one there is followed by the others": (
        [("a", StaleConnection), ("a", StaleConnection)], "b",
    ),
    "who asked for a wait comes after who did not": (
        [("a", RateLimited, {"retry_after_s": 2.0}), ("b", Overloaded), ("c", Overloaded)], "b",
    ),
    "and who asked for the shorter one before the other": (
        [
            ("a", RateLimited, {"retry_after_s": 2.0}),
            ("b", RateLimited, {"retry_after_s": 1.0}),
            ("c", CredentialError),
        ],
        "b",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("failures", "follows"), FOLLOWING.values(), ids=FOLLOWING.keys())
def test_what_follows_a_failure(failures, follows):
    assert follower(*step(*failures)) == follows


ALONE = {
    "a refusal for capacity: as often as attempts allow": ([Overloaded] * 5, True),
    "a host that was not reached: the same": ([NotSent] * 5, True),
    "what may be billed: twice more": ([ConnectionLost, UpstreamFault], True),
    "and not thrice": ([ConnectionLost, UpstreamFault, BadWire], False),
    "refusals beside it do not count": ([Overloaded, BadWire, RateLimited, BadWire], True),
    "a stale connection counts as what may be billed": ([StaleConnection] + [BadWire] * 2, False),
    "a deadline is not tried again where it passed": ([FirstTokenTimeout], False),
    "nor the total one": ([TotalTimeout], False),
    "nor a bad key": ([CredentialError], False),
    "nor a prompt that is too long": ([ContextTooLong], False),
}


def test_an_upstream_that_forbids_another_try_is_not_asked_again():
    forbidding = ("a", Overloaded, {"should_retry": False})
    assert follower(*step(forbidding)) == "b"
    assert follower(*step(forbidding, candidates="a")) is None
    assert follower(*step(("a", Overloaded, {"should_retry": True}), candidates="a")) == "a"


@pytest.mark.parametrize(("kinds", "goes_on"), ALONE.values(), ids=ALONE.keys())
def test_how_often_one_deployment_is_asked(kinds, goes_on):
    course, found = step(*[("a", kind) for kind in kinds], candidates="a")
    assert (found is not None) is goes_on
    assert course.end == (None if goes_on else End.NOBODY_LEFT)


def test_each_class_that_a_provider_raises_has_a_rule_of_its_own():
    bases = {ProviderError, CallerError, CapacityError, provider_errors.DeliveryError}
    classes = {
        one
        for one in vars(provider_errors).values()
        if isinstance(one, type) and issubclass(one, ProviderError)
    }
    assert classes - bases == set(RULES) == set(KINDS)


def test_an_adapters_own_class_has_the_rule_of_its_nearest_base():
    class Mine(RateLimited): ...

    class Other(ProviderError): ...

    assert rule_of(Mine("x")) is RULES[RateLimited]
    assert rule_of(Other("x")).repeats_max == BILLED_REPEATS_MAX


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_only_what_certainly_cost_nothing_is_repeated_without_end(kind):
    assert was_refused(kind("x")) is (kind.billing is Billing.NONE)
    if RULES[kind].repeats_max is None and not RULES[kind].ends_request:
        assert was_refused(kind("x"))


def test_another_deployment_is_tried_without_a_pause():
    _, found = step(("a", RateLimited, {"retry_after_s": 20.0}))
    assert found == Next(candidate=1, pause_s=0.0)


def test_a_deployment_that_is_tried_again_gets_what_is_left_of_the_pause_that_it_asked_for():
    failure = ("a", RateLimited, {"retry_after_s": 20.0})
    assert step(failure, candidates="a")[1] == Next(candidate=0, pause_s=20.0, is_repeat=True)
    assert step(failure, candidates="a", elapsed_s=15.0)[1].pause_s == 5.0


def test_where_the_pause_does_not_fit_another_one_is_tried_again_instead():
    long = ("a", RateLimited, {"retry_after_s": 60.0})
    assert follower(*step(long, ("b", ConnectionLost), candidates="ab")) == "b"
    course, found = step(long, candidates="a")
    assert (found, course.end) == (None, End.TIME)


def test_deployments_of_one_quota_group_wait_together():
    # GW-057.
    limited = ("p/m", RateLimited, {"retry_after_s": 5.0})
    course, found = step(limited, candidates=["p/m", "q/m", "x/m"])
    assert (follower(course, found), found.pause_s) == ("x/m", 0.0)
    course, found = step(limited, candidates=["p/m", "q/m"], elapsed_s=1.0)
    assert (follower(course, found), found.pause_s) == ("q/m", 4.0)
    assert found.is_repeat
    # Without a wait of its own it is asked after the others all the same, and after a pause.
    course, found = step(("p/m", RateLimited), candidates=["p/m", "q/m", "x/m"])
    assert follower(course, found) == "x/m"
    # What is no quota says nothing about the group.
    course, found = step(("p/m", Overloaded, {"retry_after_s": 5.0}), candidates=["p/m", "q/m"])
    assert (follower(course, found), found.pause_s) == ("q/m", 0.0)


REFUSED_ACCOUNTS = {
    "a bad key": ({"status": 401}, "y/m"),
    "no credit": ({"status": 429, "code": "insufficient_quota"}, "y/m"),
    "one model that the account may not use": ({"status": 403}, "x/n"),
}


@pytest.mark.parametrize(
    ("facts", "follows"), REFUSED_ACCOUNTS.values(), ids=REFUSED_ACCOUNTS.keys()
)
def test_a_refused_account_is_not_asked_through_another_of_its_deployments(facts, follows):
    candidates = ["x/m", "x/n", "y/m"]
    assert follower(*step(("x/m", CredentialError, facts), candidates=candidates)) == follows


def test_own_pauses_grow_and_have_an_end():
    pauses = []
    for count in range(1, 12):
        _, found = step(
            *[("a", Overloaded)] * count, candidates="a", attempts=99, within_s=999.0
        )  # fmt: skip
        pauses.append(found.pause_s)
    for number, pause_s in enumerate(pauses):
        own_s = min(FIRST_PAUSE_S * 2**number, PAUSE_S_MAX)
        assert own_s / 2 <= pause_s <= own_s


def test_the_same_seed_gives_the_same_pauses():
    def pause(seed):
        return step(("a", Overloaded), candidates="a", seed=seed)[1].pause_s

    assert pause(7) == pause(7) != pause(8)


def test_attempts_and_time_have_an_end():
    course, found = step(("a", Overloaded), attempts=1)
    assert (found, course.end) == (None, End.ATTEMPTS)
    course, found = step(("a", Overloaded), elapsed_s=30.0)
    assert (found, course.end) == (None, End.TIME)


def test_without_budget_a_deployment_is_not_repeated_and_others_still_are_asked():
    budget = RetryBudget(share_ratio=0.0, monotonic_s=Ticker())
    refused: list[str] = []
    while budget.has_room("p"):
        budget.spend("p")
    course = make_course(["p", "b"], budget=budget)
    course.planner = Planner(
        policy=course.planner.policy, budget=budget, domain_of=lambda name: name,
        on_refused=refused.append,
    )  # fmt: skip
    course.note("p", Overloaded("x"), elapsed_s=0.0)
    assert follower(course, course.next(0.0)) == "b"
    course.note("b", CredentialError("x"), elapsed_s=0.0)
    assert course.next(0.0) is None
    assert (course.end, refused) == (End.BUDGET, ["p"])


def test_a_fallback_costs_no_budget_and_a_repeat_costs_one():
    budget = RetryBudget(share_ratio=0.0, monotonic_s=Ticker())
    for _ in range(3 * round(BURST)):
        course = make_course("ab", budget=budget)
        course.note("a", Overloaded("x"), elapsed_s=0.0)
        assert follower(course, course.next(0.0)) == "b"
    repeats = 0
    for _ in range(3 * round(BURST)):
        course = make_course("a", budget=budget)
        course.note("a", Overloaded("x"), elapsed_s=0.0)
        repeats += course.next(0.0) is not None
    assert repeats == BURST


errors_ = st.builds(
    lambda kind, wait_s, status: kind("why", retry_after_s=wait_s, status=status),
    st.sampled_from(KINDS),
    st.none() | st.floats(0, 40),
    st.sampled_from([None, 401, 403, 404, 429, 503]),
)
NAMES = ("a/m", "b/m", "p/m", "q/m", "q/n")


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True),
    outcomes=st.lists(st.tuples(errors_, st.floats(0, 5)), min_size=30, max_size=30),
    attempts=st.integers(1, 10),
    within_s=st.floats(0.5, 60),
    tokens=st.integers(0, 10),
    is_private=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_run_of_failures_stays_within_its_bounds_and_ends_with_the_right_error(
    names, outcomes, attempts, within_s, tokens, is_private, seed
):
    clock = Ticker()
    budget = RetryBudget(share_ratio=0.0, monotonic_s=clock)
    for name in ["a/m", "b/m", "shared"]:
        for _ in range(round(BURST) - tokens):
            budget.spend(name)
    course = make_course(names, attempts=attempts, within_s=within_s, budget=budget, seed=seed)
    elapsed_s, deployment, repeats = 0.0, names[0], 0
    made: list[Failure] = []
    for error, took_s in outcomes:
        elapsed_s += took_s
        course.note(deployment, error, elapsed_s=elapsed_s)
        made.append(course.failures[-1])
        found = course.next(elapsed_s)
        if found is None:
            break
        own = [one for one in made if one.deployment == course.candidates[found.candidate]]
        waits = [one.asked_left_s(elapsed_s) or 0.0 for one in own]
        deployment = course.candidates[found.candidate]
        assert may_repeat(own)
        assert not rule_of(error).ends_request
        assert found.pause_s >= max(waits, default=0.0)
        untried = [name for name in names if name not in {one.deployment for one in made}]
        if not own and found.pause_s == 0.0:
            free = [name for name in untried if not is_known(made, name)]
            allowed = [name for name in free if not is_barred(made, name)]
            assert is_known(made, deployment) or deployment == allowed[0]  # the decision's order
        repeats += found.is_repeat
        elapsed_s += found.pause_s
        assert elapsed_s < within_s
    else:
        raise AssertionError("a request without an end")
    assert course.end is not None
    assert len(made) <= attempts
    assert {one.deployment for one in made} <= set(names)
    assert repeats <= tokens * 3
    check_verdict(made, final_error(made, elapsed_s=elapsed_s, is_narrowed_by_privacy=is_private))


def is_known(made, name):
    """Whether the quota group of a deployment was asked: its budget and its quota may be used up."""
    group = GROUPS.get(name.partition("/")[0])
    return group is not None and any(
        GROUPS.get(one.deployment.partition("/")[0]) == group for one in made
    )


def is_barred(made, name):
    return any(
        isinstance(one.error, CredentialError)
        and one.error.status == 401
        and one.deployment.partition("/")[0] == name.partition("/")[0]
        for one in made
    )


def check_verdict(made, found):
    """The kind of the final error, said another way than the code says it."""
    kinds = [type(one.error) for one in made]
    assert (kinds[-1] is NotPermitted) is (type(found).__name__ == "PrivacyDenied")
    if kinds[-1] is NotPermitted:
        return
    if kinds[-1] in (BadRequest, ContentFiltered):
        assert type(found).__name__ == "InvalidRequest"
        return
    kinds = [kind for kind in kinds if kind is not ContextTooLong]
    match type(found).__name__:
        case "ContextLengthExceeded":
            assert not kinds
        case "UpstreamRateLimited":
            assert set(kinds) == {RateLimited}
        case "NoHealthyDeployment":
            assert set(kinds) <= {RateLimited, Overloaded, Unavailable, NoConnectionFree}
        case "PrivateCapacityUnavailable":
            # A name that leads where it must not is a server that cannot be asked, like one away.
            passing = {RateLimited, Overloaded, Unavailable, NoConnectionFree}
            assert set(kinds) <= {*passing, NotSent, AddressRefused}
        case "UpstreamForbidden" | "ModelNotFound":
            assert set(kinds) == {CredentialError}
        case "UpstreamTimedOut":
            assert kinds[-1] in (FirstTokenTimeout, StreamStalled, TotalTimeout)
        case other:
            assert other == "UpstreamFailed"
            assert not set(kinds) <= {RateLimited, Overloaded, Unavailable, NoConnectionFree}
    lacks = type(found).__name__ in (
        "UpstreamRateLimited", "NoHealthyDeployment", "PrivateCapacityUnavailable",
    )  # fmt: skip
    assert (found.retry_after_s is not None) is lacks
    assert not lacks or found.retry_after_s > 0
