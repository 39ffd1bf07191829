"""The HTTP surface of a worker: what it refuses, how, and that no input makes it fall."""

from __future__ import annotations

import asyncio
import gzip
import json
from email.utils import formatdate
from time import time

import anyio
import httpx
import pytest

from gateway.http.asgi import Application
from tests.gateway.gateway_harness import (
    KEY,
    NOWHERE,
    OTHER_KEY,
    OTHER_MODEL,
    UPSTREAM_KEY,
    body,
    config_text,
    error_of,
    request_bytes,
    running_gateway,
    serving,
)
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


KEYS = {
    "as a bearer": ({"authorization": f"Bearer {KEY}"}, 200),
    "as x-api-key": ({"x-api-key": KEY}, 200),
    "as api-key": ({"api-key": KEY}, 200),
    "the same key twice": ({"authorization": f"Bearer {KEY}", "x-api-key": KEY}, 200),
    "none": ({}, 401),
    "an empty one": ({"authorization": "Bearer"}, 401),
    "an unknown one": ({"authorization": "Bearer app-fixed-key-ffffffffffffff"}, 401),
    "another scheme": ({"authorization": "Basic YTpi"}, 401),
    "two different ones": ({"authorization": f"Bearer {KEY}", "api-key": OTHER_KEY}, 401),
}


@pytest.mark.parametrize(("headers", "status"), KEYS.values(), ids=KEYS.keys())
async def test_a_key(tmp_path, headers, status):
    async with serving(tmp_path) as gateway, gateway.client(None) as client:
        got = await client.post(CHAT, json=body(), headers=headers)
        assert got.status_code == status
        if status == 401:
            assert error_of(got)["code"] == "invalid_api_key"
            assert error_of(got)["type"] == "authentication_error"
            for secret in (KEY, OTHER_KEY, "ffffffff"):
                assert secret not in got.text
        models = await client.get("/v1/models", headers=headers)
        assert models.status_code == status


async def test_a_key_outside_latin_1_is_refused_not_a_fault(tmp_path):
    async with serving(tmp_path) as gateway:
        data = request_bytes(b"{}").replace(KEY.encode(), b"\xff\xfe\xe4\xb8\xad" * 5)
        got = await gateway.raw(data)
        assert got.startswith(b"HTTP/1.1 401 ")


BAD_BODIES = {
    "nothing": (b"", "empty"),
    "white space": (b" \n ", "empty"),
    "no JSON": (b"{", "not valid JSON"),
    "a list": (b"[]", "object"),
    "a string": (b'"x"', "object"),
    "NaN": (b'{"model":"chat","messages":[{"role":"user","content":"x"}],"x":NaN}', "JSON"),
    "a lone continuation byte": (b'{"model":"\x80"}', "UTF-8"),
    "latin-1": ('{"model":"é"}'.encode("latin-1"), "UTF-8"),
    "an overlong form": (b'{"model":"\xc0\xaf"}', "UTF-8"),
    "an encoded surrogate": (b'{"model":"\xed\xa0\x80"}', "UTF-8"),
    "deep nesting of lists": (
        b'{"model":"chat","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "",
    ),
    "deep nesting of objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ""),
    "deep nesting where nobody looks": (
        b'{"model":"chat","messages":[{"role":"user","content":"x"}],"x":' + b"[" * 100_000, "",
    ),
    "no model": (b'{"messages":[{"role":"user","content":"x"}]}', "model is required"),
    "a model of another type": (b'{"model":7,"messages":[]}', "model"),
    "no messages": (b'{"model":"chat","messages":[]}', "at least one message"),
    "stream of another type": (
        b'{"model":"chat","messages":[{"role":"user","content":"x"}],"stream":"yes"}', "stream",
    ),
    "an unknown control": (
        b'{"model":"chat","messages":[{"role":"user","content":"x"}],"metadata":{"fareway_tag":"x"}}',
        "fareway_tags",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "says"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_body_that_is_no_request_is_a_400(tmp_path, content, says):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        got = await client.post(CHAT, content=content)
        assert got.status_code == 400
        assert says in error_of(got)["message"]
        assert len(got.content) < 2_000
        assert (await client.post(CHAT, json=body())).status_code == 200
        assert len(await gateway.settled()) == 1


def small(server="{max_body_mib: 1}"):
    return config_text({"a": NOWHERE}, server=server)


async def test_a_body_that_declares_to_be_too_large_is_refused_unread(tmp_path):
    async with serving(tmp_path, text=small()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        length = f"content-length: {1024 * 1024 + 1}"
        writer.write(request_bytes(b"", headers=[length]))
        with anyio.fail_after(5):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()
        await writer.wait_closed()


CHUNKED = {
    "within the bound": (1024 * 1024 - 100, 200),
    "beyond it": (1024 * 1024 + 1, 413),
}


@pytest.mark.parametrize(("size", "status"), CHUNKED.values(), ids=CHUNKED.keys())
async def test_a_body_without_a_length_is_bounded_by_what_comes(tmp_path, size, status):
    async def pieces():
        start = json.dumps(body())[:-1].encode() + b',"user":"'
        yield start
        rest = size - len(start) - 2
        while rest > 0:
            yield b"x" * min(rest, 50_000)
            rest -= 50_000
        yield b'"}'

    async with serving(tmp_path, text=small()) as gateway, gateway.client() as client:
        got = await client.post(CHAT, content=pieces())
        assert got.status_code == status
        if status == 413:
            assert error_of(got)["code"] == "request_too_large"
            assert "1 MiB" in error_of(got)["message"]


MEDIA_TYPES = {
    "none": ({}, 200),
    "JSON": ({"content-type": "application/json"}, 200),
    "JSON with a charset": ({"content-type": "Application/JSON; charset=utf-8"}, 200),
    "a dialect of JSON": ({"content-type": "application/vnd.x+json"}, 200),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, 415),
    "text": ({"content-type": "text/plain"}, 415),
    "parts": ({"content-type": "multipart/form-data; boundary=x"}, 415),
    "compressed JSON": ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    "JSON as it is": ({"content-type": "application/json", "content-encoding": "identity"}, 200),
    "not even latin-1": ({"content-type": b"\xe4\xb8\xad"}, 415),
}


@pytest.mark.parametrize(("headers", "status"), MEDIA_TYPES.values(), ids=MEDIA_TYPES.keys())
async def test_a_media_type(tmp_path, headers, status):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        got = await client.post(CHAT, content=json.dumps(body()).encode(), headers=headers)
        assert got.status_code == status
        if status == 415:
            assert error_of(got)["code"] == "unsupported_media_type"


ROUTES = {
    "a wrong method": ("GET", CHAT, 405, "POST"),
    "HEAD of a route that only takes a POST": ("HEAD", CHAT, 405, "POST"),
    "a wrong method on the models": ("POST", "/v1/models", 405, "GET"),
    "DELETE of a model": ("DELETE", "/v1/models/chat", 405, "GET"),
    "OPTIONS": ("OPTIONS", CHAT, 405, "POST"),
    "no route": ("POST", "/v1/chat/completion", 404, None),
    "the root": ("GET", "/", 404, None),
    "a path that climbs": ("GET", "/v1/../admin/v1/keys", 404, None),
    "a long path": ("GET", "/" + "x" * 9_000, 404, None),
    "a path of other letters": ("GET", "/%E4%B8%AD%0d%0aset-cookie:x", 404, None),
    "a path that is no UTF-8": ("GET", "/%ff%fe", 404, None),
}


@pytest.mark.parametrize(("method", "path", "status", "allow"), ROUTES.values(), ids=ROUTES.keys())
async def test_a_route(tmp_path, method, path, status, allow):
    async with serving(tmp_path) as gateway:
        data = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        got = await gateway.raw(data)
        head, _, content = got.partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        headers = httpx.Headers(
            [tuple(line.split(": ", 1)) for line in head.decode("ascii").split("\r\n")[1:]]
        )
        assert headers.get("allow") == allow
        assert "set-cookie" not in headers
        assert len(headers["x-fareway-request-id"]) == 32
        if method != "HEAD":
            error = json.loads(content)["error"]
            assert error["code"] == ("method_not_allowed" if status == 405 else "not_found")
            assert len(error["message"]) < 1_500


async def test_a_base_url_without_its_end_is_told_so(tmp_path):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        for path in ("/models", "/chat/completions"):
            message = (await client.get(path)).json()["error"]["message"]
            assert message == f"no route '{path}'; the base URL ends in /v1"


PREFIXES = ("/v1", "/openai/v1", "/inference/v1")


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_vendors_prefixes_reach_the_same_routes(tmp_path, prefix):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        assert (await client.post(prefix + "/chat/completions", json=body())).status_code == 200
        assert (await client.post(prefix + "/chat/completions/", json=body())).status_code == 200
        listed = (await client.get(prefix + "/models")).json()
        assert [entry["id"] for entry in listed["data"]] != []
        assert (await client.get(prefix + "/models/chat")).json()["id"] == "chat"


async def test_models_are_those_that_the_key_may_ask_for(tmp_path):
    async with serving(tmp_path) as gateway:
        async with gateway.client() as client:
            names = {entry["id"] for entry in (await client.get("/v1/models")).json()["data"]}
            assert {"chat", "small", "a/m", OTHER_MODEL} <= names
            by_deployment = (await client.get("/v1/models/a/m")).json()
            assert (by_deployment["object"], by_deployment["owned_by"]) == ("model", "a")
            assert (await client.get(f"/v1/models/{OTHER_MODEL}")).json()["id"] == OTHER_MODEL
            missing = await client.get("/v1/models/chta")
            assert missing.status_code == 404
            assert error_of(missing)["code"] == "model_not_found"
            assert "chat" in error_of(missing)["message"]
        async with gateway.client(OTHER_KEY) as client:
            names = {entry["id"] for entry in (await client.get("/v1/models")).json()["data"]}
            assert "chat" not in names
            denied = await client.get("/v1/models/chat")
            assert denied.status_code == 403
            assert error_of(denied)["code"] == "model_not_allowed"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models"])
async def test_head_is_get_without_a_body(tmp_path, path):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        got = await client.get(path)
        head = await client.head(path)
        assert (got.status_code, head.status_code) == (200, 200)
        assert head.content == b""
        assert head.headers["content-type"] == got.headers["content-type"]


async def test_readiness_tells_why_not_and_health_stays(tmp_path):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        gateway.service.is_draining = True
        draining = await client.get("/readyz")
        assert draining.status_code == 503
        assert draining.json()["reasons"] == ["draining"]
        assert (await client.get("/healthz")).status_code == 200
        refused = await client.post(CHAT, json=body())
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "draining"
        assert refused.headers["retry-after"] == "1"
        gateway.service.is_draining = False
        gateway.service.spool_fault = lambda: "no room for the spool"
        assert (await client.get("/readyz")).json()["reasons"] == ["no room for the spool"]


NAMES = {
    "line ends": "chat\r\nset-cookie: x=1\r\n\r\n<html>",
    "other letters": "模型é",
    "a quote and a zero byte": 'chat"\x00',
    "a very long name": "m" * 500,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
async def test_a_model_name_cannot_get_into_headers(tmp_path, name):
    # GW-149.
    async with serving(tmp_path) as gateway:
        got = await gateway.post(body(model=name))
        assert got.status_code == 404
        assert "set-cookie" not in got.headers
        assert error_of(got)["code"] == "model_not_found"
        assert len(got.content) < 2_000


async def test_models_and_teams_of_other_letters_are_served(tmp_path):
    # GW-149.
    async with serving(tmp_path) as gateway, gateway.client(OTHER_KEY) as client:
        got = await client.post(
            CHAT, json=body(model=OTHER_MODEL), headers={"x-odd": "é\xff".encode("latin-1")}
        )
        assert got.status_code == 200
        ((intent, _),) = await gateway.settled()
        assert (intent.team, intent.model) == ("Équipe-β", OTHER_MODEL)
        scraped = await client.get("/metrics")
        assert 'team="Équipe-β"' in scraped.text


async def test_tags_are_told_in_ascii_and_a_tag_that_does_not_exist_is_refused(tmp_path):
    more = "privacy: {floor: [vertraulich-ü], tags: {vertraulich-ü: {require: []}}}"
    text = config_text({"a": NOWHERE}, more=more)
    async with serving(tmp_path, text=text) as gateway:
        got = await gateway.post(body())
        assert got.status_code == 200
        assert got.headers["x-fareway-tags"] == "vertraulich-%C3%BC"
        refused = await gateway.post(body(metadata={"fareway_tags": "nope\r\nx: y"}))
        assert refused.status_code == 400
        assert "x" not in refused.headers


async def test_every_answer_names_its_request_and_attempts(tmp_path):
    async with serving(tmp_path) as gateway:
        answers = [
            await gateway.post(body()),
            await gateway.post(body(stream=True)),
            await gateway.post(body(model="nothing")),
            await gateway.post({"model": 1}),
            await gateway.post(body(), key="wrong"),
        ]
        for got in answers:
            assert got.headers["x-fareway-request-id"] == got.headers["x-request-id"]
            assert got.headers["x-fareway-attempts"] == ("1" if got.status_code == 200 else "0")
            assert "x-fareway-overhead-ms" in got.headers
        assert len({got.headers["x-request-id"] for got in answers}) == len(answers)
        ids = {intent.request_id.hex() for intent, _ in await gateway.settled()}
        assert ids == {got.headers["x-request-id"] for got in answers[:2]}


def in_date(seconds: float) -> str:
    return formatdate(time() + seconds, usegmt=True)


RETRY_AFTER = {
    "seconds": ({"retry-after": "30"}, 30, 30),
    "milliseconds": ({"retry-after-ms": "1500"}, 2, 2),
    "a date": ({"retry-after": "DATE"}, 85, 91),
    "none": ({}, 1, 1),
    "a wait of days is cut": ({"retry-after": "9999999"}, 3600, 3600),
    "nonsense": ({"retry-after": "soon"}, 1, 1),
    "a negative one": ({"retry-after": "-5"}, 1, 1),
}


@pytest.mark.parametrize(("headers", "least", "most"), RETRY_AFTER.values(), ids=RETRY_AFTER.keys())
async def test_an_upstreams_quota_is_told_with_its_wait(tmp_path, headers, least, most):
    # GW-053.
    headers = {name: in_date(90) if value == "DATE" else value for name, value in headers.items()}
    limited = Answer(status=429, headers=headers, body={"error": {"message": "slow down"}})
    async with (
        ScriptedUpstream({"m": [limited]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(attempts_max=1)
        got = await gateway.post(body())
        assert got.status_code == 429
        assert error_of(got)["code"] == "upstream_rate_limited"
        assert got.headers["x-fareway-limited-by"] == "provider"
        assert "x-should-retry" not in got.headers
        assert least <= int(got.headers["retry-after"]) <= most
        wait_ms = int(got.headers["retry-after-ms"])
        assert wait_ms <= int(got.headers["retry-after"]) * 1000 < wait_ms + 1000


FAILURES = {
    "every attempt failed": (Answer(status=500, body={"error": {"message": "boom"}}), 502),
    "a deadline": (Chat(think_s=30), 504),
    "no such host": (None, 502),
}


@pytest.mark.parametrize(("script", "status"), FAILURES.values(), ids=FAILURES.keys())
async def test_an_exhausted_request_is_not_to_be_repeated(tmp_path, script, status):
    async with (
        ScriptedUpstream({"m": [script]} if script else {}) as up,
        running_gateway(tmp_path, {"a": up.base_url if script else NOWHERE}) as gateway,
    ):
        gateway.set_limits(attempts_max=2, within_s=1.0, first_token_s=0.1)
        gateway.hurry()
        got = await gateway.post(body())
        assert got.status_code == status
        assert got.headers["x-should-retry"] == "false"
        assert "a/m" in error_of(got)["message"]
        assert got.headers["x-fareway-deployment"] == "a/m"
        assert UPSTREAM_KEY not in got.text
        assert "Traceback" not in got.text


async def test_an_upstream_that_echoes_our_key_does_not_give_it_to_the_client(tmp_path, caplog):
    echo = Answer(status=400, body={"error": {"message": f"bad key {UPSTREAM_KEY} sent"}})
    async with (
        ScriptedUpstream({"m": [echo]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        got = await gateway.post(body())
        assert got.status_code == 400
        assert UPSTREAM_KEY not in got.text + caplog.text
        assert up.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"


async def test_nothing_of_the_clients_headers_reaches_the_upstream(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        await gateway.post(body(), cookie="a=1", x_forwarded_for="10.0.0.1", x_fareway_tags="")
        sent = up.requests[0].headers
        assert not {"cookie", "x-forwarded-for", "x-api-key"} & set(sent)
        assert KEY not in str(sent)


async def test_a_compressed_answer_comes_with_a_right_length(tmp_path):
    # GW-147.
    whole = json.dumps(
        {
            "id": "c1",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "ok" * 1000},
                 "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
    ).encode()  # fmt: skip
    packed = gzip.compress(whole)
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
        f"content-length: {len(packed)}\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n\r\n"
    )
    async with (
        ScriptedUpstream({"m": [Wire(steps=(Step(text=head), Step(data=packed)))]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        got = await gateway.post(body())
        assert got.status_code == 200
        assert "content-encoding" not in got.headers
        assert "x-hop" not in got.headers
        assert int(got.headers["content-length"]) == len(got.content)
        assert got.json()["usage"]["cost_usd"] == "0.000005"


async def test_a_fault_in_a_hot_route_is_an_error_of_ours_without_its_traceback(tmp_path, caplog):
    async with serving(tmp_path) as gateway, gateway.client() as client:
        gateway.service.directory = None
        for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
            got = await client.request(method, path, json=body())
            assert got.status_code == 500
            assert error_of(got)["code"] == "internal_error"
            assert got.headers["x-should-retry"] == "false"
            assert "Attribute" not in got.text
        assert caplog.text.count("Traceback") >= 2


async def test_idempotency_keys_are_said_to_be_ignored(tmp_path):
    async with serving(tmp_path) as gateway:
        got = await gateway.post(body(), idempotency_key="abc")
        assert got.headers["x-fareway-adapted"] == "idempotency-key ignored"


async def test_pages_are_made_once_when_one_is_first_asked_for(tmp_path):
    async with serving(tmp_path) as gateway:
        made: list[int] = []
        paths: list[str] = []

        async def pages(scope, _receive, _send):
            paths.append(scope["path"])

        def make_pages(_service):
            made.append(1)
            return pages

        app = Application(gateway.service, make_pages)
        asked = ("/ui", "/ui/login", "/admin/v1/keys", "/openapi.json")
        async with anyio.create_task_group() as tasks:
            for path in asked:
                tasks.start_soon(app, {"type": "http", "path": path, "method": "GET"}, None, None)
        assert (len(made), sorted(paths)) == (1, sorted(asked))
