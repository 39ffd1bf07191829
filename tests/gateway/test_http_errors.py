"""The table from error class to status, and the headers that go along."""

from __future__ import annotations

import inspect

import pytest

from gateway import errors
from gateway.http.errors import ERROR_TABLE, RETRY_AFTER_S_MAX, error_headers, row_of

CONCRETE = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, errors.GatewayError) and one is not errors.MethodNotAllowed
]
BASES = {errors.GatewayError, errors.CallerFault, errors.AccessFault, errors.CapacityFault}


def headers_of(error: errors.GatewayError) -> dict[bytes, bytes]:
    return dict(error_headers(error))


def test_every_class_has_a_row_of_its_own():
    assert set(CONCRETE) | {errors.MethodNotAllowed} == set(ERROR_TABLE) | BASES


@pytest.mark.parametrize("kind", ERROR_TABLE, ids=[kind.__name__ for kind in ERROR_TABLE])
def test_who_may_come_back_is_told_when_and_who_may_not_is_told_so(kind):
    error = kind("x", allowed=["GET"]) if kind is errors.MethodNotAllowed else kind("x")
    headers, status = headers_of(error), row_of(error).status
    assert (b"retry-after" in headers) is (b"retry-after-ms" in headers) is (status in (429, 503))
    if status in (402, 409, 502, 504):
        assert headers[b"x-should-retry"] == b"false"
    if status in (429, 503):
        assert b"x-should-retry" not in headers
        assert int(headers[b"retry-after"]) >= 1
    # A prompt that a limit never has room for is limited too, but coming back is no use.
    is_limited = status == 429 or kind is errors.PromptOverLimit
    assert (b"x-fareway-limited-by" in headers) is is_limited


WAITS = {
    "a part of a second": (0.25, b"1", b"250"),
    "whole seconds": (30.0, b"30", b"30000"),
    "longer than an hour": (99_999.0, b"3600", b"3600000"),
    "gone by": (-3.0, b"0", b"0"),
    "unknown": (None, b"1", b"1000"),
}


@pytest.mark.parametrize(("wait_s", "seconds", "ms"), WAITS.values(), ids=WAITS.keys())
def test_a_wait_in_both_units(wait_s, seconds, ms):
    headers = headers_of(errors.NoHealthyDeployment("x", retry_after_s=wait_s))
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (seconds, ms)
    assert int(headers[b"retry-after"]) <= RETRY_AFTER_S_MAX
