"""`/admin/v1`: who gets in, keys, teams, spend, requests, status; what is refused and how."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.auth.keys import parse_key_id
from gateway.channel import RemoteError
from gateway.ledger.views import RecentQuery, RecentRequest
from gateway.limits.amounts import LimitAmounts
from pricing.money import format_usd
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway for tests of refusals."""
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        await pages.book()
        yield pages


def code_of(answer) -> str:
    """The code of an error that has the shape of the contract."""
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert len(answer.headers["x-fareway-request-id"]) == 32
    assert answer.headers["x-request-id"] == answer.headers["x-fareway-request-id"]
    return error["code"]


DOORS = {
    "no key": ({}, 401, "invalid_api_key"),
    "an unknown key": ({"authorization": "Bearer nobodys-key-0123456789"}, 401, "invalid_api_key"),
    "a team's key": ({"x-api-key": PAYMENTS_KEY}, 403, "admin_required"),
    "two different keys": (
        {"x-api-key": PAYMENTS_KEY, "authorization": f"Bearer {ADMIN_KEY}"},
        401,
        "invalid_api_key",
    ),
}


@pytest.mark.parametrize(("headers", "status", "code"), DOORS.values(), ids=DOORS.keys())
async def test_only_the_administrator_gets_in(shared, headers, status, code) -> None:
    async with shared.browser(headers=headers) as client:
        for method, path in (
            ("GET", "/admin/v1/keys"),
            ("POST", "/admin/v1/keys"),
            ("DELETE", "/admin/v1/keys/x"),
            ("GET", "/admin/v1/spend?by=nonsense"),
            ("GET", "/admin/v1/no-such-thing"),
        ):
            answer = await client.request(method, path, content=b"{not json")
            assert (answer.status_code, code_of(answer)) == (status, code), (method, path)


async def test_a_key_is_shown_once_works_at_once_and_is_dead_once_revoked(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        wanted = {
            "team": "payments",
            "project": "fraud",
            "name": "ci",
            "models": ["small", "up/m"],
            "expires_at": "2027-01-01",
            "limits": {
                "rpm": 60, "tpm": None, "concurrency": 2, "rpm_burst": 5, "tpm_burst": None,
            },
        }  # fmt: skip
        made = await client.post("/admin/v1/keys", json=wanted)
        assert made.status_code == 201
        body = made.json()
        assert {name: body[name] for name in wanted} == wanted | {
            "expires_at": "2027-01-01T00:00:00Z"
        }
        token = body["key"].encode()
        assert parse_key_id(token) == body["key_id"]
        now_us = pages.time.wall
        found = pages.service.directory.identify(token, now_us=now_us)
        assert (found.team, found.project, found.models) == (
            "payments",
            "fraud",
            frozenset({"small", "up/m"}),
        )
        listed = await client.get("/admin/v1/keys")
        assert body["key"] not in listed.text
        by_name = {(key["team"], key["name"]): key for key in listed.json()["keys"]}
        assert set(by_name) == {("payments", "ci"), ("payments", "fixed"), ("search", "fixed")}
        assert by_name["payments", "ci"]["state"] == "active"
        assert by_name["payments", "ci"]["limits"] == wanted["limits"]
        assert found.limits == LimitAmounts(rpm=60, concurrency=2, rpm_burst=5)
        assert by_name["payments", "fixed"]["source"] == "file"
        gone = await client.delete(f"/admin/v1/keys/{body['key_id']}")
        assert gone.json() == {"key_id": body["key_id"], "state": "revoked"}
        assert not hasattr(pages.service.directory.identify(token, now_us=now_us), "team")
        (key,) = [
            key
            for key in (await client.get("/admin/v1/keys")).json()["keys"]
            if key["name"] == "ci"
        ]
        assert key["state"] == "revoked"
        assert key["revoked_at"] == "2026-11-28T12:00:00Z"


BAD_ORDERS = {
    "an unknown field is refused, not ignored": (
        {"team": "payments", "name": "k", "budgett": {"max_usd": "0.0005"}},
        422,
        "invalid_field",
        "budgett",
    ),
    # GW-095
    "an unknown limit is refused, not ignored": (
        {"team": "payments", "name": "k", "limits": {"rpn": 5}},
        422,
        "invalid_field",
        "limits.rpn",
    ),
    "a limit of nothing": (
        {"team": "payments", "name": "k", "limits": {"rpm": 0}},
        422,
        "invalid_field",
        "limits.rpm",
    ),
    "a burst of nothing": (
        {"team": "payments", "name": "k", "limits": {"rpm_burst": 5}},
        422,
        "invalid_field",
        "limits",
    ),
    "a missing field": ({"team": "payments"}, 422, "invalid_field", "name"),
    "a wrong type": ({"team": "payments", "name": 7}, 422, "invalid_field", "name"),
    "a team that is not configured": (
        {"team": "paymants", "name": "k"},
        422,
        "invalid_field",
        "team",
    ),
    "a project of another team": (
        {"team": "search", "name": "k", "project": "fraud"},
        422,
        "invalid_field",
        "project",
    ),
    "a model that does not exist": (
        {"team": "payments", "name": "k", "models": ["chat-smal"]},
        422,
        "invalid_field",
        "models",
    ),
    "a model that the team may not use": (
        {"team": "search", "name": "k", "models": ["up/m"]},
        422,
        "invalid_field",
        "models",
    ),
    "no models at all": (
        {"team": "payments", "name": "k", "models": []},
        422,
        "invalid_field",
        "models",
    ),
    "an expiry in the past": (
        {"team": "payments", "name": "k", "expires_at": "2026-01-01"},
        422,
        "invalid_field",
        "expires_at",
    ),
    "an expiry without a time zone": (
        {"team": "payments", "name": "k", "expires_at": "2027-01-01T00:00:00"},
        422,
        "invalid_field",
        "expires_at",
    ),
    "the name of a key in the file": (
        {"team": "payments", "name": "fixed"},
        409,
        "key_conflict",
        "name",
    ),
}


@pytest.mark.parametrize(("body", "status", "code", "param"), BAD_ORDERS.values(), ids=BAD_ORDERS)
async def test_a_key_that_cannot_be_as_ordered_is_refused(
    shared, body, status, code, param
) -> None:
    async with shared.admin() as client:
        answer = await client.post("/admin/v1/keys", json=body)
        assert (answer.status_code, code_of(answer)) == (status, code)
        assert answer.json()["error"]["param"] == param
        keys = (await client.get("/admin/v1/keys")).json()["keys"]
        assert {key["source"] for key in keys} == {"file"}


BAD_BODIES = {
    "no JSON": (b"{", {"content-type": "application/json"}, 400, "invalid_request_error"),
    "not an object": (b"[1]", {"content-type": "application/json"}, 422, "invalid_field"),
    "a form": (b"team=payments", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    "not UTF-8": (b'{"team": "\xff"}', {"content-type": "application/json"}, 400, None),
    "a mebibyte and more": (
        b" " * (1024 * 1024 + 1),
        {"content-type": "application/json"},
        413,
        "request_too_large",
    ),
    "deep nesting": (
        b'{"team":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        {"content-type": "application/json"},
        None,
        None,
    ),
}


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"), BAD_BODIES.values(), ids=BAD_BODIES.keys()
)
async def test_a_malformed_body_is_refused_in_shape(shared, body, headers, status, code) -> None:
    async with shared.admin() as client:
        answer = await client.post("/admin/v1/keys", content=body, headers=headers)
        assert answer.status_code == (status or answer.status_code)
        assert 400 <= answer.status_code < 500
        assert code_of(answer) == (code or code_of(answer))


async def test_two_keys_in_use_cannot_have_one_name(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        order = {"team": "search", "name": "ci"}
        assert (await client.post("/admin/v1/keys", json=order)).status_code == 201
        again = await client.post("/admin/v1/keys", json=order)
        assert (again.status_code, code_of(again)) == (409, "key_conflict")
        assert again.headers["x-should-retry"] == "false"


async def test_revoking_says_when_there_is_nothing_to_revoke(shared) -> None:
    async with shared.admin() as client:
        unknown = await client.delete("/admin/v1/keys/aaaaaaaaaaaa")
        assert (unknown.status_code, code_of(unknown)) == (404, "key_not_found")
        keys = (await client.get("/admin/v1/keys")).json()["keys"]
        declared = await client.delete(f"/admin/v1/keys/{keys[0]['key_id']}")
        assert (declared.status_code, code_of(declared)) == (409, "key_conflict")


async def test_teams_are_told_as_they_are_in_force(shared) -> None:
    async with shared.admin() as client:
        answer = await client.get("/admin/v1/teams")
        assert answer.json() == {
            "teams": [
                {
                    "name": "payments",
                    "tags": [],
                    "projects": ["fraud"],
                    "models": ["chat-small", "small", "up/m"],
                },
                {"name": "search", "tags": [], "projects": [], "models": ["small"]},
            ]
        }


async def test_spend_is_exact_and_echoes_the_effective_query(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book(tokens=3)
        await pages.book(tokens=4, team="search", project="")
        await pages.book(tokens=5, team="search", project="", ago_us=86_400_000_000)
        answer = await client.get("/admin/v1/spend", params={"by": "team", "from": "2026-11-28"})
        body = answer.json()
        assert body["query"] == {
            "by": ["team"],
            "from": "2026-11-28T00:00:00Z",
            "to": None,
            "zone": "UTC",
            "currency": "USD",
            "filters": {},
        }
        assert body["is_complete"] is True
        costs = {row["team"]: (row["cost_pico_usd"], row["cost_usd"]) for row in body["rows"]}
        assert costs == {
            "payments": (3 * PRICE_PICO, format_usd(3 * PRICE_PICO)),
            "search": (4 * PRICE_PICO, format_usd(4 * PRICE_PICO)),
        }
        assert body["total"]["cost_pico_usd"] == 7 * PRICE_PICO
        assert body["total"]["estimated_cost_usd"] == "0"
        several = await client.get(
            "/admin/v1/spend", params={"by": ["team", "model"], "team": "search"}
        )
        (row,) = several.json()["rows"]
        assert (row["team"], row["model"], row["requests"]) == ("search", "chat-small", 2)


HOSTILE_QUERIES = {
    "a grouping that is SQL": ("by=day;DROP TABLE spend_event", "by.0"),
    "a parameter that does not exist": ("group_by=day&order=1", "group_by"),
    "an order by column number": ("by=team&order=1", "order"),
    "a bound that is no instant": ("from=yesterday", "from"),
    "a zone that does not exist": ("zone=Mars/Olympus", "zone"),
    "a month that does not exist": ("month=2026-13", "month"),
    "a month beside a bound": ("month=2026-11&to=2026-12-01", None),
    "a currency in small letters": ("currency=eur", "currency"),
    "a currency without exchange rates": ("currency=EUR", "currency"),
    "a cost tag without a value": ("cost_tag=feature", "cost_tag"),
    "a cost tag without sums": ("by=cost_tag:feature", None),
    "a status that does not exist": ("status=fine", None),
    "a filter by time": ("day=2026-11-28", "day"),
    "a bound inside a quarter of an hour": ("from=2026-11-28T00:01:00Z", None),
    "the same grouping twice": ("by=team&by=team", None),
}


@pytest.mark.parametrize(("query", "param"), HOSTILE_QUERIES.values(), ids=HOSTILE_QUERIES.keys())
async def test_a_query_without_meaning_is_refused(shared, query, param) -> None:
    async with shared.admin() as client:
        answer = await client.get(f"/admin/v1/spend?{query}")
        assert (answer.status_code, code_of(answer)) == (422, "invalid_field")
        assert answer.json()["error"]["param"] == param
        assert (await client.get("/admin/v1/spend")).json()["total"]["requests"] == 1


async def test_a_filter_is_data_and_never_sql(shared) -> None:
    async with shared.admin() as client:
        for value in (
            "x' UNION SELECT hash FROM api_key--",
            "payments' OR '1'='1",
            "%",
            "pay_ents",
        ):
            answer = await client.get("/admin/v1/spend", params={"team": value})
            assert answer.status_code == 200
            assert answer.json()["rows"] == []
            assert answer.json()["query"]["filters"] == {"team": [value]}
        assert (await client.get("/admin/v1/spend")).json()["total"]["requests"] == 1


async def test_the_newest_requests_come_first_and_are_bounded(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        for _ in range(3):
            await pages.book(tokens=10)
        await pages.book(team="search", project="", changes={"cost_pico_usd": None, "lines": ()})
        everything = (await client.get("/admin/v1/requests")).json()
        assert everything["limit"] == 50
        assert len(everything["requests"]) == 4
        two = (await client.get("/admin/v1/requests?limit=2")).json()["requests"]
        assert two == everything["requests"][:2]
        (of_search,) = (await client.get("/admin/v1/requests?team=search")).json()["requests"]
        assert of_search["team"] == "search"
        assert (of_search["cost_usd"], of_search["cost_pico_usd"]) == (None, None)
        assert of_search["ttft_ms"] == 120.0
        for limit in ("0", "501", "many"):
            answer = await client.get(f"/admin/v1/requests?limit={limit}")
            assert (answer.status_code, code_of(answer)) == (422, "invalid_field")


async def test_the_ledger_process_takes_a_query_or_only_a_count(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await pages.book(team="search", project="")
        await pages.book()
        await pages.ledger.call("flush", None, result_type=type(None), timeout_s=10)
        teams = []
        for params in (1, RecentQuery(count=9), RecentQuery(count=9, team="search")):
            found = await pages.ledger.call(
                "recent_requests", params, result_type=list[RecentRequest], timeout_s=10
            )
            teams.append([request.team for request in found])
        assert teams == [["payments"], ["payments", "search"], ["search"]]
        with pytest.raises(RemoteError) as refused:
            await pages.ledger.call(
                "recent_requests", {"limit": 1}, result_type=list[RecentRequest], timeout_s=10
            )
        assert refused.value.code == "invalid_params"


async def test_status_names_processes_and_what_waits(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        body = (await client.get("/admin/v1/status")).json()
        assert body["pids"] == {"supervisor": 1}
        assert body["speeds"] == {"local/m": {"prefill_tps": 200, "decode_tps": 20}}
        assert body["ledger"]["backlog_bytes"] == 0
        assert body["ledger_fault"] == ""
        pages.ledger_is_away = True
        body = (await client.get("/admin/v1/status")).json()
        assert body["ledger"] is None
        assert "started again" in body["ledger_fault"]


async def test_without_the_ledger_reads_and_writes_say_so(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        pages.ledger_is_away = True
        order = {"team": "search", "name": "ci"}
        for answer in (
            await client.get("/admin/v1/spend"),
            await client.get("/admin/v1/requests"),
            await client.get("/admin/v1/keys"),
            await client.post("/admin/v1/keys", json=order),
        ):
            assert (answer.status_code, code_of(answer)) == (503, "ledger_unavailable")
            assert answer.headers["retry-after"] == "2"


async def test_a_dead_channel_is_a_clear_answer(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        pages.service.supervisor.close()
        answer = await client.get("/admin/v1/spend")
        assert (answer.status_code, code_of(answer)) == (503, "ledger_unavailable")


async def test_unknown_paths_and_methods_are_shaped(shared) -> None:
    async with shared.admin() as client:
        missing = await client.get("/admin/v1/nothing")
        assert (missing.status_code, code_of(missing)) == (404, "not_found")
        wrong = await client.put("/admin/v1/keys", json={})
        assert (wrong.status_code, code_of(wrong)) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "GET, POST"
        assert (await client.head("/admin/v1/teams")).status_code == 200


async def test_a_fault_of_ours_is_logged_and_tells_the_client_nothing(tmp_path, caplog) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        pages.service.admission = None  # every use of it is now a bug
        with caplog.at_level(logging.ERROR, logger="gateway.http.pages"):
            answer = await client.get("/admin/v1/teams")
        assert (answer.status_code, code_of(answer)) == (500, "internal_error")
        assert "NoneType" not in answer.text
        request_id = answer.headers["x-fareway-request-id"]
        assert request_id in answer.json()["error"]["message"]
        (record,) = caplog.records
        assert request_id in record.getMessage()
        assert record.exc_info is not None


async def test_a_draining_worker_takes_no_pages(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        pages.service.is_draining = True
        answer = await client.get("/admin/v1/teams")
        assert (answer.status_code, code_of(answer)) == (503, "draining")
        assert pages.service.in_flight == 0


async def test_no_answer_holds_a_digest_or_an_old_key(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        made = (await client.post("/admin/v1/keys", json={"team": "search", "name": "ci"})).json()
        digest = pages.service.directory.digest(made["key_id"])
        for path in ("keys", "teams", "status", "requests", "spend"):
            text = (await client.get(f"/admin/v1/{path}")).text
            for secret in (made["key"], digest.hex(), PAYMENTS_KEY, ADMIN_KEY):
                assert secret not in text
                assert json.dumps(secret) not in text
