"""A client's `traceparent` is taken when it is valid, and never believed otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.traces import Names, RemoteParent, parse_traceparent

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
PARENT = RemoteParent(trace_id=int(TRACE, 16), span_id=int(SPAN, 16), is_sampled=True)

VALID = {
    "a sampled one": (b"00-%b-%b-01" % (TRACE, SPAN), True),
    "one that is not sampled": (b"00-%b-%b-00" % (TRACE, SPAN), False),
    "one with further flags": (b"00-%b-%b-ff" % (TRACE, SPAN), True),
    "one of a later version with more fields": (b"cc-%b-%b-01-what" % (TRACE, SPAN), True),
}


@pytest.mark.parametrize(("value", "is_sampled"), VALID.values(), ids=VALID.keys())
def test_valid_headers(value, is_sampled):
    expected = RemoteParent(trace_id=PARENT.trace_id, span_id=PARENT.span_id, is_sampled=is_sampled)
    assert parse_traceparent(value) == expected


INVALID = {
    "none": None,
    "nothing": b"",
    "version ff": b"ff-%b-%b-01" % (TRACE, SPAN),
    "a trace of zeros": b"00-%b-%b-01" % (b"0" * 32, SPAN),
    "a span of zeros": b"00-%b-%b-01" % (TRACE, b"0" * 16),
    "capitals": b"00-%b-%b-01" % (TRACE.upper(), SPAN),
    "more fields in version 00": b"00-%b-%b-01-more" % (TRACE, SPAN),
    "a short trace": b"00-%b-%b-01" % (TRACE[1:], SPAN),
    "a line end behind it": b"00-%b-%b-01\n" % (TRACE, SPAN),
    "a space before it": b" 00-%b-%b-01" % (TRACE, SPAN),
    "kilobytes of a later version": b"01-%b-%b-01-%b" % (TRACE, SPAN, b"x" * 4096),
}


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID.keys())
def test_invalid_headers(value):
    assert parse_traceparent(value) is None


@given(st.binary(max_size=300))
def test_no_header_is_a_fault(value):
    found = parse_traceparent(value)
    assert found is None or value[3:35] == f"{found.trace_id:032x}".encode()


EDITIONS = {
    "nothing asked for": ({}, "gen_ai.usage.cache_creation.input_tokens"),
    "other conventions asked for": (
        {"OTEL_SEMCONV_STABILITY_OPT_IN": "http"},
        "gen_ai.usage.cache_creation.input_tokens",
    ),
    "the latest asked for": (
        {"OTEL_SEMCONV_STABILITY_OPT_IN": "http, gen_ai_latest_experimental"},
        "gen_ai.usage.cache_write.input_tokens",
    ),
}


@pytest.mark.parametrize(("environ", "name"), EDITIONS.values(), ids=EDITIONS.keys())
def test_the_edition_of_the_conventions(environ, name):
    assert Names.chosen(environ).cache_write == name
