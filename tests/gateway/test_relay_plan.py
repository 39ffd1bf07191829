"""Which deployment follows a failure, when to stop, and what the client is told in the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.relay.plan import (
    PAUSE_S_MAX,
    Failure,
    Next,
    final_error,
    next_step,
    was_refused,
)
from providers.errors import (
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
    NotSent,
    Overloaded,
    ProviderError,
    RateLimited,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)

KINDS = (
    BadRequest, BadWire, ConnectionLost, ContentFiltered, ContextTooLong, CredentialError,
    FirstTokenTimeout, NotSent, Overloaded, RateLimited, StreamStalled, TotalTimeout, Unavailable,
    UpstreamFault,
)  # fmt: skip


def fail(deployment: str, kind: type[ProviderError], **facts) -> Failure:
    return Failure(deployment=deployment, error=kind(f"{deployment} {kind.__name__}", **facts))


def step(*failures: Failure, candidates="abc", attempts_max=9, elapsed_s=1.0, within_s=30.0):
    return next_step(
        failures, candidates=list(candidates), attempts_max=attempts_max, elapsed_s=elapsed_s,
        within_s=within_s, rng=random.Random(1),
    )  # fmt: skip


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
}  # fmt: skip


@pytest.mark.parametrize(("failures", "follows"), FOLLOWING.values(), ids=FOLLOWING.keys())
def test_what_follows_a_failure(failures, follows):
    found = step(*(fail(*one) for one in failures))
    assert (None if found is None else "abc"[found.candidate]) == follows


def test_another_deployment_is_tried_without_a_pause():
    assert step(fail("a", RateLimited, retry_after_s=20.0)) == Next(candidate=1, pause_s=0.0)


def test_a_deployment_that_is_tried_again_gets_the_pause_that_it_asked_for():
    again = step(fail("a", RateLimited, retry_after_s=20.0), candidates="a")
    assert again == Next(candidate=0, pause_s=20.0)


def test_where_the_pause_does_not_fit_another_one_is_tried_again_instead():
    failures = [fail("a", RateLimited, retry_after_s=60.0), fail("b", ConnectionLost)]
    again = step(*failures, candidates="ab")
    assert again is not None
    assert again.candidate == 1
    assert step(failures[0], candidates="a") is None


def test_own_pauses_grow_and_have_an_end():
    failures: list[Failure] = []
    pauses = []
    for _ in range(12):
        failures.append(fail("a", Overloaded))
        found = step(*failures, candidates="a", attempts_max=99, within_s=999.0)
        assert found is not None
        pauses.append(found.pause_s)
    for number, pause_s in enumerate(pauses):
        own_s = min(0.25 * 2**number, PAUSE_S_MAX)
        assert own_s / 2 <= pause_s <= own_s


failure_lists = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(KINDS),
        st.none() | st.floats(0, 100),
    ),
    min_size=1,
    max_size=12,
)


@given(
    failures=failure_lists,
    names=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    attempts_max=st.integers(1, 10),
    within_s=st.floats(0.1, 60),
    elapsed_s=st.floats(0, 120),
    seed=st.integers(0, 2**32),
)
def test_a_step_stays_within_its_bounds(failures, names, attempts_max, within_s, elapsed_s, seed):
    made = [fail(name, kind, retry_after_s=wait) for name, kind, wait in failures]
    found = next_step(
        made, candidates=names, attempts_max=attempts_max, elapsed_s=elapsed_s, within_s=within_s,
        rng=random.Random(seed),
    )  # fmt: skip
    if found is None:
        return
    assert len(made) < attempts_max
    assert found.pause_s >= 0
    assert elapsed_s + found.pause_s < within_s
    chosen = names[found.candidate]
    refused = {f.deployment for f in made if isinstance(f.error, ContextTooLong | CredentialError)}
    assert chosen not in refused
    last = made[-1].error
    assert not isinstance(last, CallerError) or isinstance(last, ContextTooLong)
    earlier = [f.error.retry_after_s for f in made if f.deployment == chosen]
    assert found.pause_s >= (earlier[-1] or 0.0) if earlier else found.pause_s == 0.0


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=30, max_size=30),
    names=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    attempts_max=st.integers(1, 10),
    seed=st.integers(0, 2**32),
)
def test_a_whole_request_ends_within_its_attempts_and_seconds(kinds, names, attempts_max, seed):
    rng = random.Random(seed)
    made: list[Failure] = []
    elapsed_s, index = 0.0, 0
    for kind in kinds:
        made.append(fail(names[index], kind))
        elapsed_s += 0.5
        found = next_step(
            made, candidates=names, attempts_max=attempts_max, elapsed_s=elapsed_s, within_s=20.0,
            rng=rng,
        )  # fmt: skip
        if found is None:
            break
        elapsed_s += found.pause_s
        assert elapsed_s < 20.0
        index = found.candidate
    assert len(made) <= attempts_max
    counts = [sum(f.deployment == name for f in made) for name in names]
    refused = {f.deployment for f in made if isinstance(f.error, ContextTooLong | CredentialError)}
    usable = [c for c, name in zip(counts, names, strict=True) if name not in refused]
    assert not usable or max(usable) - min(usable) <= 1  # nobody twice before all once
    for name in refused:
        order = [f for f in made if f.deployment == name]
        assert isinstance(order[-1].error, ContextTooLong | CredentialError)


FINAL = {
    "a malformed request is the caller's": ([("a", BadRequest, {})], errors.InvalidRequest),
    "so is a filtered prompt": ([("a", ContentFiltered, {})], errors.InvalidRequest),
    "a prompt too long for all": ([("a", ContextTooLong, {})], errors.ContextLengthExceeded),
    "a quota everywhere is a quota": (
        [("a", RateLimited, {}), ("b", RateLimited, {})], errors.UpstreamRateLimited,
    ),
    "a quota and an overload are no capacity": (
        [("a", RateLimited, {}), ("b", Overloaded, {})], errors.NoHealthyDeployment,
    ),
    "a quota that hides another fault is not shown as one": (
        [("a", ConnectionLost, {}), ("b", RateLimited, {})], errors.UpstreamFailed,
    ),
    "a deadline at the end": ([("a", BadWire, {}), ("b", StreamStalled, {})], errors.UpstreamTimedOut),
    "the first token's deadline": ([("a", FirstTokenTimeout, {})], errors.UpstreamTimedOut),
    "the total deadline": ([("a", TotalTimeout, {})], errors.UpstreamTimedOut),
    "an upstream's 401 is not the client's": (
        [("a", CredentialError, {"status": 401})], errors.UpstreamFailed,
    ),
    "an upstream's 403 stays one": (
        [("a", CredentialError, {"status": 403})], errors.UpstreamForbidden,
    ),
    "an upstream's 404 stays one": ([("a", CredentialError, {"status": 404})], errors.ModelNotFound),
    "a 403 after another fault does not": (
        [("a", BadWire, {}), ("b", CredentialError, {"status": 403})], errors.UpstreamFailed,
    ),
    "a host that cannot be reached": ([("a", NotSent, {})], errors.UpstreamFailed),
}  # fmt: skip


@pytest.mark.parametrize(("failures", "kind"), FINAL.values(), ids=FINAL.keys())
def test_the_error_that_the_client_gets(failures, kind):
    made = [fail(name, error, **facts) for name, error, facts in failures]
    found = final_error(made)
    assert type(found) is kind
    if not isinstance(made[-1].error, CallerError):
        assert all(f"{f.deployment}: {f.error.message}" in found.message for f in made)


def test_the_shortest_wait_of_all_is_named_and_never_none():
    waits = [fail("a", RateLimited, retry_after_s=9.0), fail("b", RateLimited, retry_after_s=3.0)]
    assert final_error(waits).retry_after_s == 3.0
    assert final_error([fail("a", RateLimited)]).retry_after_s == 1.0
    assert final_error([fail("a", Overloaded)]).retry_after_s == 1.0


CALLER_FACTS = {
    "the upstream's own code": (BadRequest, "bad_tool", "tools[0]", ("bad_tool", "tools[0]")),
    "no code": (BadRequest, None, None, (None, None)),
    "a filter without a code": (ContentFiltered, None, None, ("content_filter", None)),
    "a filter with a code": (ContentFiltered, "jailbreak", "messages", ("jailbreak", "messages")),
    "a long prompt names the messages": (ContextTooLong, None, None, (None, "messages")),
    "or what the upstream blames": (ContextTooLong, "x", "max_tokens", (None, "max_tokens")),
}


@pytest.mark.parametrize(
    ("kind", "code", "param", "shown"), CALLER_FACTS.values(), ids=CALLER_FACTS.keys()
)
def test_what_a_callers_fault_says(kind, code, param, shown):
    found = final_error([fail("a", kind, code=code, param=param)])
    assert (found.upstream_code, found.param) == shown


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_an_attempt_is_free_exactly_where_its_error_says_so(kind):
    assert was_refused(kind("x")) is (kind.billing is Billing.NONE)
    assert not issubclass(kind, CapacityError) or was_refused(kind("x"))
