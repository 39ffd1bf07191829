"""An upstream's complaint becomes the class that says what to do, without secrets or prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from providers.codecs.upstream_errors import ErrorContext, error_from_body, error_from_reply
from providers.errors import (
    BadRequest,
    Billing,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    Overloaded,
    ProviderError,
    RateLimited,
    Unavailable,
    UpstreamFault,
)

KEY = "AIzaCANARY123456"
CONTEXT = ErrorContext(
    deployment="vendor/model",
    secrets=[KEY],
    now=datetime(2026, 11, 30, tzinfo=UTC),
    headers={"retry-after": "30"},
    request_id="req_1",
)


def openai(message: str = "x", **members: object) -> bytes:
    return json.dumps({"error": {"message": message, **members}}).encode()


REPLIES: dict[str, tuple[int, bytes, type[ProviderError], str | None]] = {
    "400": (400, openai("bad temperature", type="invalid_request_error", param="temperature"), BadRequest, "invalid_request_error"),
    "400 by length code": (400, openai("x", code="context_length_exceeded"), ContextTooLong, "context_length_exceeded"),
    "400 by vLLM's length text": (400, openai("This model's maximum context length is 8192 tokens.", code=400), ContextTooLong, None),
    "400 by Anthropic's length text": (400, b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 300000 tokens > 200000 maximum"}}', ContextTooLong, "invalid_request_error"),
    "403 that is about length (Together)": (403, openai("Input is too long, reduce the length"), ContextTooLong, None),
    "413 that is about tokens per minute (Groq)": (413, openai("Request too large for model `m` in organization `org_01abcdefgh`: Limit 6000, Requested 9000", code="rate_limit_exceeded", type="tokens"), ContextTooLong, "rate_limit_exceeded"),
    "400 by OpenAI's output limit (GW-047)": (400, openai("max_tokens is too large: 64000. This model supports at most 16384 completion tokens, whereas you provided 64000."), ContextTooLong, None),
    "400 by Anthropic's output limit": (400, openai("max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for m"), ContextTooLong, None),
    "400 by Groq's output limit": (400, openai("`max_tokens` must be less than or equal to `8192`, the maximum value"), ContextTooLong, None),
    "400 by Bedrock's output limit": (400, b'{"message":"The maximum tokens you requested exceeds the model limit of 8192."}', ContextTooLong, None),
    "402 that comes back by itself (OpenRouter)": (402, openai("Credits are reserved. Please wait 5 seconds"), RateLimited, None),
    "403 of a moderation (OpenRouter)": (403, openai("Your input was flagged", code=403, metadata={"reasons": ["violence"], "flagged_input": "x", "provider_name": "p"}), ContentFiltered, "content_filter"),
    "429 by Together's words": (429, openai("x", type="dynamic_token_limited"), RateLimited, "dynamic_token_limited"),
    "413": (413, b"<html>too large</html>", BadRequest, None),
    "422 of TGI in words": (422, b'{"error":"Input validation error: temperature","error_type":"validation"}', BadRequest, "validation"),
    "422 with RFC 7807 (Replicate)": (422, b'{"title":"Input validation failed","detail":"- input: prompt is required","status":422}', BadRequest, None),
    "401": (401, openai("Incorrect API key", code="invalid_api_key"), CredentialError, "invalid_api_key"),
    "401 of vLLM in a word": (401, b'{"error":"Unauthorized"}', CredentialError, None),
    "403": (403, openai("no"), CredentialError, None),
    "404 of a model": (404, openai("The model does not exist", code="model_not_found"), CredentialError, "model_not_found"),
    "407 of a forward proxy": (407, b"<html>Proxy Authentication Required</html>", CredentialError, None),
    "421 of a host that is not there": (421, b"", CredentialError, None),
    "426 of another protocol": (426, b"", CredentialError, None),
    "431 about headers, which are ours": (431, b"", CredentialError, None),
    "451 in one country": (451, b"", CredentialError, None),
    "a redirect is never followed": (307, b"", CredentialError, None),
    "400 without credit": (400, openai("credit balance", type="billing_error"), CredentialError, "billing_error"),
    "429": (429, openai("slow", type="requests", code="rate_limit_exceeded"), RateLimited, "rate_limit_exceeded"),
    "429 without a body": (429, b"{}", RateLimited, None),
    "429 out of money is no rate limit": (429, openai("quota", code="insufficient_quota"), CredentialError, "insufficient_quota"),
    "429 out of capacity": (429, openai("flex", code="resource_unavailable"), Overloaded, "resource_unavailable"),
    "400 of AWS throttling": (400, openai("slow", type="ThrottlingException"), RateLimited, "ThrottlingException"),
    "408": (408, b"", UpstreamFault, None),
    "409": (409, b"", Unavailable, None),
    "425": (425, b"", Unavailable, None),
    "424 of TGI": (424, b'{"error":"Request failed during generation","error_type":"generation"}', UpstreamFault, "generation"),
    "498 of Groq": (498, openai("capacity"), Overloaded, None),
    "500": (500, openai("boom", type="server_error"), UpstreamFault, "server_error"),
    "502 from a proxy": (502, b"<html><body>Bad Gateway</body></html>", UpstreamFault, None),
    "503": (503, openai("Loading model", code=503, type="unavailable_error"), Unavailable, "unavailable_error"),
    "503 that says overloaded": (503, openai("Overloaded", type="server_error"), Overloaded, "server_error"),
    "504": (504, b"", UpstreamFault, None),
    "529": (529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', Overloaded, "overloaded_error"),
    "content filter (Azure)": (400, openai("filtered", code="content_filter"), ContentFiltered, "content_filter"),
    "flat (SGLang)": (400, b'{"object":"error","message":"bad top_p","type":"BadRequestError","param":"top_p","code":400}', BadRequest, "BadRequestError"),
    "OpenRouter's word is below metadata": (502, openai("Provider disconnected", code=502, metadata={"error_type": "provider_unavailable"}), Unavailable, "provider_unavailable"),
    "AWS in the message": (500, b'{"message":"boom"}', UpstreamFault, None),
    "a body of JSON that is no object": (400, b"[1]", BadRequest, None),
    "a body that is not UTF-8": (400, b"\xff\xfe", BadRequest, None),
    "an unknown 4xx": (418, b"", BadRequest, None),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "code"), REPLIES.values(), ids=REPLIES.keys())
def test_answers_with_a_failing_status(
    status: int, body: bytes, kind: type[ProviderError], code: str | None
) -> None:
    error = error_from_reply(status, body, context=CONTEXT)
    assert type(error) is kind
    assert (error.status, error.code, error.upstream_request_id) == (status, code, "req_1")


BODIES: dict[str, tuple[bytes, type[ProviderError], int | None]] = {
    "a numeric code stands in for the status (GW-029)": (b'{"error":{"message":"invalid request","type":"invalid_request","code":400}}', BadRequest, 400),
    "overloaded (GW-037)": (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', Overloaded, None),
    "out of quota (GW-038)": (b'{"type":"error","code":"insufficient_quota","message":"quota"}', CredentialError, None),
    "invalid by word alone": (b'{"error":{"message":"no","type":"invalid_request_error"}}', BadRequest, None),
    "a quoted code": (b'{"error":{"message":"slow","code":"429"}}', RateLimited, 429),
    "Cerebras' status code beside it": (b'{"error":{"message":"x"},"status_code":503}', Unavailable, 503),
    "TGI's text": (b'{"error":"Model is overloaded","error_type":"overloaded"}', Overloaded, None),
    "server error": (b'{"error":{"message":"The server had an error","type":"server_error"}}', UpstreamFault, None),
    "too long (llama.cpp in a 200)": (b'{"error":{"code":400,"type":"exceed_context_size_error","message":"x"}}', ContextTooLong, 400),
    "nothing known": (b'{"error":{}}', UpstreamFault, None),
    "a code that is no status": (b'{"error":{"message":"x","code":7}}', UpstreamFault, None),
}  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "status"), BODIES.values(), ids=BODIES.keys())
def test_errors_inside_a_200(body: bytes, kind: type[ProviderError], status: int | None) -> None:
    error = error_from_body(body, context=CONTEXT)
    assert type(error) is kind
    assert error.status == status


def test_the_callers_own_fault_keeps_the_upstreams_words_and_parameter() -> None:
    error = error_from_reply(400, openai("bad\ntemperature", param="temperature"), context=CONTEXT)
    assert (error.message, error.param, error.billing) == (
        "bad temperature",
        "temperature",
        Billing.NONE,
    )


def test_other_faults_speak_in_our_words() -> None:
    error = error_from_reply(
        500, openai("prompt was: my secret diary", type="server_error"), context=CONTEXT
    )
    assert error.message == "vendor/model answered 500 (server_error)."
    assert error.billing is Billing.UNKNOWN


LEAKS = {
    "our key in the text (GW-115)": f"bad key {KEY} for https://h/v1?key={KEY}",
    "our key as a code": None,
    "a bearer token": "sent Authorization: Bearer abcdefgh1234",
    "a key of another vendor": "sk-proj-abcdefghijklmnop is no key",
    "a key in an address": "https://h/v1?api_key=abcdefgh1234",
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS.keys())
def test_secrets_are_masked(text: str | None) -> None:
    error = error_from_reply(400, openai(text or "x", code=KEY, param=KEY), context=CONTEXT)
    shown = f"{error} {error.message} {error.code} {error.param}"
    for secret in (KEY, "abcdefgh1234", "abcdefghijklmnop"):
        assert secret not in shown


def test_messages_are_short() -> None:
    assert len(error_from_reply(400, openai("word " * 5000), context=CONTEXT).message) <= 500
    assert len(error_from_reply(400, b"x" * 60_000, context=CONTEXT).message) <= 500


AWS = {
    "throttled": ("ThrottlingException:http://internal.amazon.com/coral/", 400, RateLimited),
    "over a quota, which is no mistake of the client": ("ServiceQuotaExceededException", 400, RateLimited),
    "still loading": ("ModelNotReadyException", 429, Unavailable),
    "no access to the model": ("AccessDeniedException", 403, CredentialError),
    "too slow": ("ModelTimeoutException", 408, UpstreamFault),
    "malformed": ("ValidationException", 400, BadRequest),
}  # fmt: skip


@pytest.mark.parametrize(("word", "status", "kind"), AWS.values(), ids=AWS.keys())
def test_a_class_that_is_named_in_a_header(
    word: str, status: int, kind: type[ProviderError]
) -> None:
    context = replace(CONTEXT, headers={"x-amzn-errortype": word})
    error = error_from_reply(status, b'{"message":"x"}', context=context)
    assert type(error) is kind
    assert error.code == word.partition(":")[0]


def test_bad_credit_without_a_wait_is_the_accounts_fault() -> None:
    context = replace(CONTEXT, headers={})
    assert type(error_from_reply(402, openai("credits"), context=context)) is CredentialError


SHOULD_RETRY = {"true": True, "false": False, "maybe": None, "": None}


@pytest.mark.parametrize(("said", "found"), SHOULD_RETRY.items())
def test_what_the_upstream_says_about_trying_again_is_kept(said: str, found: bool | None) -> None:
    context = replace(CONTEXT, headers={"x-should-retry": said})
    assert error_from_reply(500, b"", context=context).should_retry is found
    assert error_from_reply(500, b"", context=CONTEXT).should_retry is None


def test_an_output_limit_blames_the_parameter_and_names_no_account_and_no_host() -> None:
    context = replace(CONTEXT, hosts=("vllm-3.corp.internal",))
    text = "max_tokens is too large (http://vllm-3.corp.internal:8000/v1, org_0123456789)"
    error = error_from_reply(400, openai(text), context=context)
    assert error.param == "max_tokens"
    assert error.message == "max_tokens is too large (http://[upstream]:8000/v1, [masked])"


def test_a_wait_is_kept_where_waiting_helps() -> None:
    assert error_from_reply(429, b"", context=CONTEXT).retry_after_s == 30
    assert error_from_reply(503, b"", context=CONTEXT).retry_after_s == 30
    assert error_from_reply(400, b"", context=CONTEXT).retry_after_s is None
