"""What the client is told once no attempt is left."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.relay.failures import Failure
from gateway.relay.verdict import REASON_CHARS_MAX, final_error, soonest_s, trail_of
from providers.errors import (
    BadRequest,
    BadWire,
    ConnectionLost,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    FirstTokenTimeout,
    NoConnectionFree,
    NotSent,
    Overloaded,
    RateLimited,
    StreamStalled,
    TotalTimeout,
    Unavailable,
)


def fail(deployment, kind, *, ended_s=0.0, paused_s=None, message="said no", **facts) -> Failure:
    return Failure(
        deployment=deployment, error=kind(message, **facts), ended_s=ended_s, paused_s=paused_s
    )


FINAL = {
    "a malformed request is the caller's": ([("a", BadRequest, {})], errors.InvalidRequest),
    "so is a filtered prompt": ([("a", ContentFiltered, {})], errors.InvalidRequest),
    "and it is shown whatever came before": (
        [("a", Overloaded, {}), ("b", BadRequest, {})], errors.InvalidRequest,
    ),
    "a prompt too long for all": (
        [("a", ContextTooLong, {}), ("b", ContextTooLong, {})], errors.ContextLengthExceeded,
    ),
    "a prompt too long for the fallback does not hide the first failure (GW-040, GW-047)": (
        [("a", Unavailable, {}), ("b", ContextTooLong, {})], errors.NoHealthyDeployment,
    ),
    "nor for the first one that of the fallback": (
        [("a", ContextTooLong, {}), ("b", ConnectionLost, {})], errors.UpstreamFailed,
    ),
    "a quota everywhere is a quota": (
        [("a", RateLimited, {}), ("b", RateLimited, {})], errors.UpstreamRateLimited,
    ),
    "a quota and an overload are no capacity": (
        [("a", RateLimited, {}), ("b", Overloaded, {})], errors.NoHealthyDeployment,
    ),
    "a quota that hides another fault is not shown as one": (
        [("a", ConnectionLost, {}), ("b", RateLimited, {})], errors.UpstreamFailed,
    ),
    "a deadline at the end": (
        [("a", BadWire, {}), ("b", StreamStalled, {})], errors.UpstreamTimedOut,
    ),
    "the first token's deadline": ([("a", FirstTokenTimeout, {})], errors.UpstreamTimedOut),
    "the total deadline": ([("a", TotalTimeout, {})], errors.UpstreamTimedOut),
    "an upstream's 401 is not the client's": (
        [("a", CredentialError, {"status": 401})], errors.UpstreamFailed,
    ),
    "an upstream's 403 stays one": (
        [("a", CredentialError, {"status": 403})], errors.UpstreamForbidden,
    ),
    "an upstream's 404 stays one": (
        [("a", CredentialError, {"status": 404})], errors.ModelNotFound,
    ),
    "a 403 after another fault does not": (
        [("a", BadWire, {}), ("b", CredentialError, {"status": 403})], errors.UpstreamFailed,
    ),
    "a host that cannot be reached": ([("a", NotSent, {})], errors.UpstreamFailed),
    "connections that are all in use": (
        [("a", NoConnectionFree, {}), ("b", NoConnectionFree, {})], errors.NoHealthyDeployment,
    ),
    "or in use where the quota is not used up": (
        [("a", RateLimited, {}), ("a", NoConnectionFree, {})], errors.NoHealthyDeployment,
    ),
    "in use at one that is up": (
        [("a", NotSent, {}), ("b", NoConnectionFree, {})], errors.UpstreamFailed,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("failures", "kind"), FINAL.values(), ids=FINAL.keys())
def test_the_error_that_the_client_gets(failures, kind):
    made = [fail(name, error, **facts) for name, error, facts in failures]
    found = final_error(made)
    assert type(found) is kind
    if not isinstance(found, errors.CallerFault) or kind is errors.ModelNotFound:
        assert all(f"{failure.deployment}: said no" in found.message for failure in made)


PRIVATE = {
    "servers that are full": ([Overloaded, Overloaded], errors.PrivateCapacityUnavailable),
    "a server that is down": ([NotSent], errors.PrivateCapacityUnavailable),
    "one full and one down": ([Unavailable, NotSent], errors.PrivateCapacityUnavailable),
    "a quota stays a quota": ([RateLimited], errors.UpstreamRateLimited),
    "another fault stays another fault": ([Overloaded, ConnectionLost], errors.UpstreamFailed),
}


@pytest.mark.parametrize(("kinds", "expected"), PRIVATE.values(), ids=PRIVATE.keys())
def test_where_tags_narrowed_the_choice_a_lack_says_so(kinds, expected):
    made = [fail(f"own/{place}", kind) for place, kind in enumerate(kinds)]
    found = final_error(made, is_narrowed_by_privacy=True)
    assert type(found) is expected


def test_a_request_that_is_out_of_time_says_so_whatever_failed_last():
    made = [fail("a", BadWire), fail("b", NotSent)]
    assert type(final_error(made, elapsed_s=9.0, total_s=10.0)) is errors.UpstreamFailed
    found = final_error(made, elapsed_s=10.0, total_s=10.0)
    assert type(found) is errors.UpstreamTimedOut
    assert "a: said no; b: said no" in found.message


def test_the_soonest_wait_of_all_deployments_is_named():
    waits = [fail("a", RateLimited, retry_after_s=9.0), fail("b", RateLimited, retry_after_s=3.0)]
    assert final_error(waits).retry_after_s == 3.0
    # What has passed of it since then is taken off; of several waits of one deployment the last holds.
    assert final_error(waits, elapsed_s=2.0).retry_after_s == 1.0
    later = [*waits, fail("b", RateLimited, ended_s=4.0, retry_after_s=30.0)]
    assert final_error(later, elapsed_s=4.0).retry_after_s == 5.0


def test_where_the_upstream_named_no_wait_our_own_pause_is_named():
    assert final_error([fail("a", RateLimited, paused_s=16.0)]).retry_after_s == 16.0
    assert soonest_s([fail("a", RateLimited, retry_after_s=2.0, paused_s=16.0)], 0.0) == 2.0


def test_a_wait_is_never_none_or_over():
    assert final_error([fail("a", RateLimited)]).retry_after_s == 1.0
    assert final_error([fail("a", Overloaded, retry_after_s=0.0)]).retry_after_s == 1.0
    assert (
        final_error([fail("a", Overloaded, retry_after_s=2.0)], elapsed_s=5.0).retry_after_s == 1.0
    )


def test_the_trail_names_each_deployment_once_per_reason():
    made = [
        fail("v/m", Overloaded, message="v/m answered 503 (busy)."),
        fail("w/m", ConnectionLost, message="The connection to the upstream broke."),
        fail("v/m", Overloaded, message="v/m answered 503 (busy)."),
        fail("u/m", BadWire, message="x" * 5000),
    ]
    found = trail_of(made)
    assert found.startswith(
        "v/m answered 503 (busy) (2 times); w/m: The connection to the upstream broke; u/m: xxx"
    )
    assert len(found) < 100 + REASON_CHARS_MAX


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
